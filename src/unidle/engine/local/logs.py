"""What a rank printed, read in order across rotations, once or as it comes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from unidle.engine.local import rundir
from unidle.engine.local.tail import JournalTail

CHUNK_BYTES = 256 * 1024
POLL_S = 0.2


def read(run_root: Path, job: str, attempt: int, rank: int) -> Iterator[bytes]:
    """What is kept of a rank's output, the oldest first, in raw chunks; nothing when it never printed."""
    reader = LogReader(rundir.rank_dir(run_root, job, attempt, rank))
    try:
        while chunk := reader.read():
            yield chunk
    finally:
        reader.close()


def follow(run_root: Path, job: str, attempt: int, rank: int) -> Iterator[bytes]:
    """Like :func:`read`, and on until the rank has ended.

    An empty chunk means that nothing is new for now; the next one comes after ``POLL_S`` seconds,
    so that the caller can look after other things between the two.
    """
    directory = rundir.rank_dir(run_root, job, attempt, rank)
    reader = LogReader(directory)
    journal = JournalTail(f"{directory}/{rundir.JOURNAL}")
    try:
        while True:
            # the end first: all that the rank printed was stored before it was written
            journal.read()
            ended = journal.ended
            while chunk := reader.read():
                yield chunk
            if ended:
                return
            yield b""
            time.sleep(POLL_S)
    finally:
        reader.close()
        journal.close()


class LogReader:
    """Reads one rank's log files from the oldest on; :meth:`read` never waits.

    A file is known by its inode, not by its name, which each rotation changes.
    """

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{rundir.LOG}"
        self._fd: int | None = None

    def read(self) -> bytes:
        """The next bytes; empty when there are none now."""
        while True:
            if self._fd is None and not self._open(self._files()):
                return b""
            assert self._fd is not None
            if data := os.read(self._fd, CHUNK_BYTES):
                return data
            newer = self._newer()
            if not newer:
                return b""
            # it was the newest when last read: what came before the rotation is still to be read
            if data := os.read(self._fd, CHUNK_BYTES):
                return data
            self.close()
            if not self._open(newer):
                return b""

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _newer(self) -> list[str]:
        """Files written after the open one, the oldest first; all of them when it was dropped."""
        assert self._fd is not None
        files = self._files()
        inode = os.fstat(self._fd).st_ino
        for place, path in enumerate(files):
            if _inode(path) == inode:
                return files[place + 1 :]
        return files

    def _files(self) -> list[str]:
        """The log's files by age, the oldest first."""
        parent, name = os.path.split(self._path)
        try:
            numbers = [int(n[len(name) + 1 :]) for n in os.listdir(parent) if _is_rotated(n, name)]
        except OSError:
            return []
        rotated = [f"{self._path}.{number}" for number in sorted(numbers, reverse=True)]
        return [*rotated, self._path] if _inode(self._path) else rotated

    def _open(self, files: list[str]) -> bool:
        for path in files:
            try:
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return True
            except FileNotFoundError:
                continue  # rotated since it was listed
        return False


def _is_rotated(name: str, log: str) -> bool:
    return name.startswith(f"{log}.") and name[len(log) + 1 :].isdigit()


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
