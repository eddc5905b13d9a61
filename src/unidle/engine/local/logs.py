"""What a rank printed, read in order across rotations, once or as it comes."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from unidle.engine.local.event_marks import EventMarks
from unidle.engine.local.ranks import rundir
from unidle.engine.local.ranks.journal_tail import JournalTail
from unidle.engine.local.ranks.supervisor.rotated_log import interval_ns

CHUNK_BYTES = 256 * 1024
POLL_S = 0.2
_TRIES = 50
_PAUSE_S = 0.002


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
    journal = JournalTail(f"{directory}/{rundir.JOURNAL}", EventMarks())
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
    """Reads one rank's log files from the oldest on, or from where :meth:`begin` sets it; :meth:`read` never waits.

    A file is known by its inode, not by its name, which each rotation changes. ``time_ns`` is when what was read last
    was printed, to :func:`~unidle.engine.local.ranks.supervisor.rotated_log.interval_ns`; None where that is not known (logs of versions
    without times). ``lost_lines`` counts lines that rotation dropped before they were read.
    """

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{rundir.LOG}"
        self._fd: int | None = None
        self._times = FileTimes(known=False)
        self._offset = 0
        self._lines: int | None = 0  # that were printed up to here; None where that is not known
        self.time_ns: int | None = None
        self.lost_lines = 0

    def read(self) -> bytes:
        """The next bytes, of one time; empty when there are none now."""
        while True:
            if self._fd is None:
                if not self._open(self._files()):
                    return b""
                self._count_lost()
            if data := self._read():
                return data
            if self._is_newest():
                return b""
            # it was the newest when last read: what came before the rotation is still to be read
            if data := self._read():
                return data
            if not self._advance():
                return b""

    def begin(self, since_ns: int | None = None, tail: int | None = None) -> None:
        """Start at what was printed since a time, or with the last ``tail`` lines; before the first :meth:`read`."""
        times = read_times(self._path)
        if since_ns is not None:
            self._begin_at(since_ns, times)
        elif tail is not None:
            self._begin_with(tail)

    def skip_to_last(self, keep_bytes: int) -> int | None:
        """Pass over all but the last whole lines of ``keep_bytes``; how many lines, None where that is not known."""
        files, before = self._files(), self._lines
        first = len(files) - 1
        while first > 0 and (size := _size(files[first])) < keep_bytes:
            keep_bytes -= size
            first -= 1
        self.close()
        if not self._open_passing_over(files[max(first, 0) :]):
            return 0
        assert self._fd is not None
        self._go(max(os.fstat(self._fd).st_size - keep_bytes, 0), whole_lines=True)
        return self._lines - before if self._lines is not None and before is not None else None

    def unread_bytes(self) -> int:
        """About how much there is that was not read."""
        if self._fd is None:
            return sum(map(_size, self._files()))
        return os.fstat(self._fd).st_size - self._offset + sum(map(_size, self._newer(self._fd)))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read(self) -> bytes:
        """What the open file has next, up to where another time begins."""
        assert self._fd is not None
        self.time_ns, upto = self._times.at(self._offset)
        most = CHUNK_BYTES if upto is None else min(CHUNK_BYTES, upto - self._offset)
        data = os.pread(self._fd, most, self._offset)
        self._offset += len(data)
        if self._lines is not None:
            self._lines += data.count(b"\n")
        return data

    def _begin_at(self, since_ns: int, times: dict[int, FileTimes]) -> None:
        files = self._files()
        for place, path in enumerate(files):
            known = times.get(_inode(path))
            offset = 0
            if known is None:
                if _changed_ns(path) < since_ns:
                    continue
            else:
                found = known.first_since(since_ns)
                if found is None:
                    continue
                offset = found
            if place == 0 and offset == 0:
                return  # from the beginning, with what was dropped before it
            if self._open_passing_over(files[place:]):
                self._go(offset, whole_lines=True)
            return
        if files and self._open_passing_over(files[-1:]):
            assert self._fd is not None
            self._go(os.fstat(self._fd).st_size)

    def _begin_with(self, lines: int) -> None:
        """Go back from the end by blocks until there are so many lines."""
        files = self._files()
        wanted: int | None = None  # ends of lines to go back by
        for place in range(len(files) - 1, -1, -1):
            try:
                fd = os.open(files[place], os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                size = os.fstat(fd).st_size
                if wanted is None and size:
                    wanted = lines + (os.pread(fd, 1, size - 1) == b"\n")
                offset, wanted = _back_by(fd, wanted or 0)
            finally:
                os.close(fd)
            if offset is not None:
                if (place > 0 or offset > 0) and self._open_passing_over(files[place:]):
                    self._go(offset)
                return

    def _go(self, offset: int, *, whole_lines: bool = False) -> None:
        """Continue at an offset of the open file; with ``whole_lines``, after the end of a line that the offset is inside of."""
        assert self._fd is not None
        passed, last = 0, b"\n"
        while passed < offset and (data := os.pread(self._fd, min(CHUNK_BYTES, offset - passed), passed)):
            if self._lines is not None:
                self._lines += data.count(b"\n")
            passed += len(data)
            last = data[-1:]
        self._offset = passed
        if whole_lines and last != b"\n":
            rest = os.pread(self._fd, CHUNK_BYTES, passed)
            ends = rest.find(b"\n") + 1
            self._offset += ends
            if ends and self._lines is not None:
                self._lines += 1

    def _is_newest(self) -> bool:
        assert self._fd is not None
        return _inode(self._path) == os.fstat(self._fd).st_ino

    def _advance(self) -> bool:
        """Open the file after the open one, which was read to its end; the oldest where that one was dropped.

        Rotation may rename files while they are looked for. One that still has a name has its successor, too: what
        begins elsewhere than where this one ends was taken for it by mistake, and is looked for again.
        """
        before = self._fd
        assert before is not None
        end = self._times.bytes_before + self._offset if self._times.known else None
        for again in range(_TRIES, -1, -1):
            newer = self._newer(before)
            if newer and self._open(newer):
                times = self._times
                follows = end in (None, times.bytes_before) if times.known else not self._has_times()
                if follows or not again or os.fstat(before).st_nlink == 0:
                    os.close(before)
                    self._count_lost()
                    return True
                self.close()
            time.sleep(_PAUSE_S)
        self._fd = before
        return False

    def _has_times(self) -> bool:
        return os.path.exists(f"{self._path}.times")

    def _newer(self, fd: int) -> list[str]:
        """Files written after an open one, the oldest first; all of them when it was dropped."""
        files, mine = self._files(), os.fstat(fd)
        for place, path in enumerate(files):
            if _inode(path) == mine.st_ino:
                return files[place + 1 :]
        return files if mine.st_nlink == 0 else []

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
        """Open the first of ``files`` that is there, in place of another."""
        for path in files:
            try:
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # rotated since it was listed
            known = read_times(self._path).get(os.fstat(self._fd).st_ino)
            self._times, self._offset = known or FileTimes(known=False), 0
            return True
        return False

    def _open_passing_over(self, files: list[str]) -> bool:
        """As :meth:`_open`, for a reader that skips what comes before the file: skipped lines do not count as lost."""
        opened = self._open(files)
        if opened:
            self._lines = self._times.lines_before if self._times.known else None
        return opened

    def _count_lost(self) -> None:
        """The open file is read after the one before it, or is the first."""
        if self._times.known:
            if self._lines is not None:
                self.lost_lines += max(0, self._times.lines_before - self._lines)
            self._lines = self._times.lines_before


@dataclass(slots=True)
class FileTimes:
    """When the parts of one log file were printed: from each offset on at its time or later. Empty: not known."""

    lines_before: int = 0
    bytes_before: int = 0
    known: bool = True
    offsets: list[int] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)

    def at(self, offset: int) -> tuple[int | None, int | None]:
        """The time of what is at ``offset``, and where another time begins."""
        place = bisect_right(self.offsets, offset)
        upto = self.offsets[place] if place < len(self.offsets) else None
        return (self.times_ns[place - 1] if place else None), upto

    def first_since(self, since_ns: int) -> int | None:
        """Where that begins which may have been printed since; None where nothing was."""
        for place, time_ns in enumerate(self.times_ns):
            if time_ns + interval_ns(place) > since_ns:
                return self.offsets[place]
        return None


def read_times(path: str) -> dict[int, FileTimes]:
    """The times of a rank's log files, by inode; empty where they were not kept."""
    found: dict[int, FileTimes] = {}
    try:
        lines = Path(f"{path}.times").read_bytes().splitlines()
    except OSError:
        return found
    latest = FileTimes()
    for line in lines:
        try:
            kind, *numbers = line.split(b" ")
            if kind == b"F":
                inode, lines_before, bytes_before, _ = map(int, numbers)
                latest = found[inode] = FileTimes(lines_before, bytes_before)
            elif kind == b"T":
                offset, time_ns = map(int, numbers)
                latest.offsets.append(offset)
                latest.times_ns.append(time_ns)
        except ValueError:
            continue  # the last line, not yet whole
    return found


def _back_by(fd: int, wanted: int) -> tuple[int | None, int]:
    """Where a file stands after ``wanted`` ends of lines from its end; None, and how many are missing, where it has fewer."""
    start = os.fstat(fd).st_size
    while start > 0 and wanted > 0:
        end, start = start, max(0, start - CHUNK_BYTES)
        block = os.pread(fd, end - start, start)
        if (count := block.count(b"\n")) < wanted:
            wanted -= count
            continue
        at = len(block)
        for _ in range(wanted):
            at = block.rfind(b"\n", 0, at)
        return start + at + 1, 0
    return (start, 0) if wanted == 0 else (None, wanted)


def _is_rotated(name: str, log: str) -> bool:
    return name.startswith(f"{log}.") and name[len(log) + 1 :].isdigit()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
