"""Removes the files of jobs that have ended: run directories with logs and journals, and reports.

The removal is logged before the files are deleted. So after ``kill -9`` at any point, leftover files of a removed job
are found again, and a job that is still listed has all of its files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from unidle.engine.local import rundir


def files_of(state: Path, job: str) -> list[Path]:
    """What a job has below a store's directory ``state``; only what is there."""
    if (
        not job or Path(job).name != job or job.startswith(".")
    ):  # no id of ours: it could lead out of the directory
        return []
    found = (state / "runs" / job, state / "reports" / f"{job}.html")
    return [path for path in found if path.is_symlink() or path.exists()]


def size_of(paths: list[Path]) -> int:
    """The bytes that they take on disk."""
    return sum(_size(one) for path in paths for one in (path, *_below(path)))


def is_held(state: Path, job: str) -> bool:
    """Whether a process of the job is left: the supervisor of a rank that was given up as lost."""
    for directory in (state / "runs" / job).glob("*/rank*"):
        if not (directory / rundir.LOCK).exists():
            continue
        try:
            lock = rundir.try_lock(str(directory))
        except OSError:  # not ours to lock; what may not be deleted is reported then
            continue
        if lock is None:
            return True
        os.close(lock)
    return False


def delete(paths: list[Path]) -> None:
    """Delete files and directories. What is gone already is no error. Errors: OSError."""
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            continue


def _below(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        return
    for place, directories, files in os.walk(path):
        yield from (Path(place, name) for name in (*directories, *files))


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0
