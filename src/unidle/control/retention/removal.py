"""Removes the files of jobs that have ended: run directories with logs and journals, reports, archives, profiles.

The removal is logged before the files are deleted. So after ``kill -9`` at any point, leftover files of a removed job
are found again, and a job that is still listed has all of its files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from unidle.engine.local.ranks import rundir
from unidle.store.archives import ArchiveShelf
from unidle.store.profiles import ProfileShelf
from unidle.store.sql import SqlStore


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


def with_files(state: Path) -> list[str]:
    """Jobs that have a run directory or a report."""
    found: set[str] = set()
    for place, ending in ((state / "runs", ""), (state / "reports", ".html")):
        if place.is_dir():
            found.update(path.name.removesuffix(ending) for path in place.iterdir())
    return sorted(found)


def delete_jobs(
    state: Path, names: Iterable[str], *, dry_run: bool = False
) -> tuple[dict[str, int], list[str]]:
    """Delete the files of these jobs. Returns the bytes freed by job, and what could not be deleted."""
    freed: dict[str, int] = {}
    problems = []
    for name in dict.fromkeys(names):
        files = files_of(state, name)
        before = size_of(files)
        try:
            if not dry_run:
                delete(files)
        except OSError as error:
            problems.append(cannot_be_deleted(error, name))
        freed[name] = before if dry_run else before - size_of(files)
    return freed, problems


def cannot_be_deleted(error: OSError, job: str) -> str:
    """The problem with a file of a job, as a sentence."""
    return f"{error.filename or job} cannot be deleted: {error.strerror or error}"


def drop_rows(store: SqlStore, token: int, names: Iterable[str], *, dry_run: bool = False) -> tuple[int, int]:
    """Drop profiles and archives of these jobs from the store. Returns the bytes of both, free for new data then."""
    wanted = set(names)
    profiles, archives = ProfileShelf(store, token), ArchiveShelf(store, token)
    looks = {name: one.n_bytes for name, one in profiles.held().items() if name in wanted}
    sizes = {name: size for name, size in archives.sizes().items() if name in wanted}
    if looks and not dry_run:
        profiles.drop_jobs(looks)
    if not dry_run and (parts := archives.jobs() & wanted):
        archives.drop_jobs(sorted(parts))
    return sum(looks.values()), sum(sizes.values())


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
        except OSError as error:
            name = Path(error.filename or path)
            if not name.is_absolute():  # before Python 3.12 it is only the last part
                error.filename = str(next(path.rglob(name.name), path))
            raise


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
