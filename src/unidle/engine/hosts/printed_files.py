"""Files with what a rank printed, kept next to the store: as its supervisor's, but of fewer bytes.

``log`` and ``log.1`` with ``log.times``, whose first line shows that they are a copy: bytes may be left out before them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.engine.local.logs import read_times
from unidle.engine.local.ranks import rundir
from unidle.engine.local.ranks.supervisor.rotated_log import interval_ns

FILE_BYTES: Final = 512 * 1024
"""Of one of the two files."""


@dataclass(slots=True)
class PrintedFile:
    """The newest file: bytes and lines before it, its own, and how many times of it are written, the last one ``at_ns``."""

    begin: int = 0
    lines_before: int = 0
    size: int = 0
    lines: int = 0
    times: int = 0
    at_ns: int = 0

    @property
    def end(self) -> int:
        return self.begin + self.size


def opened(directory: Path) -> PrintedFile:
    """What is there of a rank, also by an earlier controller."""
    log = directory / rundir.LOG
    known = read_times(str(log))
    for path in (log, directory / f"{rundir.LOG}.1"):
        try:
            data, of = path.read_bytes(), known.get(path.stat().st_ino)
        except OSError:
            continue
        if of is None:
            continue
        lines = data.count(b"\n")
        if path != log:  # the newest file was about to be made
            return PrintedFile(of.bytes_before + len(data), of.lines_before + lines)
        last_ns = of.times_ns[-1] if of.times_ns else 0
        return PrintedFile(of.bytes_before, of.lines_before, len(data), lines, len(of.times_ns), last_ns)
    return PrintedFile()


def end_of(directory: Path) -> int:
    """How many bytes the rank had printed up to what is there."""
    log = directory / rundir.LOG
    known = read_times(str(log))
    for path in (log, directory / f"{rundir.LOG}.1"):
        try:
            state = path.stat()
        except OSError:
            continue
        if (of := known.get(state.st_ino)) is not None:
            return of.bytes_before + state.st_size
    return 0


def append(
    directory: Path, newest: PrintedFile, at: int, parts: Sequence[tuple[int, bytes]], lines: int | None
) -> None:
    """Add what was printed from byte ``at`` on, without what is there already. ``lines`` were printed before ``at``; None:
    not known. A file begins with a line, as far as there are any. Errors: OSError."""
    for time_ns, part in parts:
        begin, at = max(at, newest.end), at + len(part)
        if begin >= at:
            continue
        data = part[begin - at :]
        if begin > newest.end:  # some is left out
            if newest.size:
                _drop_torn_line(directory / rundir.LOG)
            before = newest.lines_before + newest.lines if lines is None else lines
            _begin(directory, newest, begin, before, time_ns)
        elif not newest.size:
            _begin(directory, newest, begin, newest.lines_before, time_ns)
        elif newest.size + len(data) > FILE_BYTES:
            line = data.find(b"\n") + 1
            _write(directory, newest, time_ns, data[:line])
            data = data[line:]
            _begin(directory, newest, newest.end, newest.lines_before + newest.lines, time_ns)
        _write(directory, newest, time_ns, data)


def _write(directory: Path, newest: PrintedFile, time_ns: int, data: bytes) -> None:
    if not data:
        return
    if not newest.times or time_ns >= newest.at_ns + interval_ns(newest.times):
        _add(directory / rundir.TIMES, b"T %d %d\n" % (newest.size, time_ns))
        newest.times, newest.at_ns = newest.times + 1, time_ns
    _add(directory / rundir.LOG, data)
    newest.size += len(data)
    newest.lines += data.count(b"\n")


def _drop_torn_line(log: Path) -> None:
    """The rest of the last line is left out: it would run into the next one."""
    with log.open("r+b") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)


def _begin(directory: Path, newest: PrintedFile, begin: int, lines: int, time_ns: int) -> None:
    """Begin another file: the one that was the newest becomes the older one."""
    newest.begin, newest.lines_before = begin, lines
    newest.size = newest.lines = newest.times = newest.at_ns = 0
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    log, times = directory / rundir.LOG, directory / rundir.TIMES
    draft, times_draft = log.with_name(f"{rundir.LOG}.new"), times.with_name(f"{rundir.TIMES}.new")
    kept = b""
    if log.exists():
        inode = b"%d " % log.stat().st_ino
        entries = times.read_bytes().split(b"F ")[1:] if times.exists() else []
        kept = b"".join(b"F " + one for one in entries if one.startswith(inode))
    draft.unlink(missing_ok=True)
    draft.touch(0o600)
    line = b"F %d %d %d %d\n" % (draft.stat().st_ino, lines, begin, time_ns)
    times_draft.write_bytes(rundir.COPY + kept + line)
    times_draft.replace(times)
    if log.exists():
        log.rename(log.with_name(f"{rundir.LOG}.1"))
    draft.rename(log)


def _add(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
