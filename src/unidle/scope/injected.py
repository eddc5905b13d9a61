"""Kernels of processes that run now: the files that unidle's injected library writes in them, found by what they have open."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from unidle.engine.local.injection import DIRECTORY, LIBRARY
from unidle.errors import BadInput
from unidle.scope.model import Profile
from unidle.scope.tiers import imported
from unidle.scope.tiers.foreign import kernels

_FILE: Final = re.compile(r"(.*/\d+-\d+-)(\d+)\.kernels( \(deleted\))?", re.DOTALL)
_WAIT_S: Final = 1.5  # for the last records of a look; the library flushes four times a second
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Recorded:
    """A process that records: the file that it has open, and by which path it has."""

    pid: int
    path: str
    open_path: str


def recorded(pids: Iterable[int]) -> tuple[Recorded, ...]:
    """The processes among these that record their kernels, as far as this user may see it."""
    return tuple(one for pid in pids for one in _open_files(pid))


def _open_files(pid: int) -> list[Recorded]:
    found = []
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    for entry in entries:
        try:
            path = str(entry.readlink())
        except OSError:
            continue
        if _FILE.fullmatch(path):
            found.append(Recorded(pid, path.removesuffix(" (deleted)"), str(entry)))
    return found


def merged(profile: Profile, pids: Sequence[int], before: Sequence[Recorded]) -> Profile:
    """The profile with the kernels of its time; ``before``: the processes that recorded when the look began.

    A process that should have been recorded and was not adds one line to the profile's misses. Errors: none.
    """
    found = {one.path: one for one in (*before, *recorded(pids))}
    window = (profile.wall_start_ns, profile.wall_start_ns + profile.end_ns - profile.start_ns)
    if found and profile.wall_start_ns:
        _await(found.values(), window[1])
        found |= {one.path: one for one in recorded(pids)}
    logs, misses = _logs(found.values())
    have = {one.pid for one in found.values()}
    misses += [
        f"kernels of process {pid}: {why}" for pid in pids if pid not in have and (why := _why_not(pid))
    ]
    if any(log.rows for log in logs):
        told = kernels.builder_of(logs, window if profile.wall_start_ns else None).profile()
        profile = imported.merge_profile(profile, told, "kernels")
    return replace(profile, misses=(*profile.misses, *misses))


def _logs(found: Iterable[Recorded]) -> tuple[list[kernels.CuptiLog], list[str]]:
    """Each process's newest file and the one before it, and what they lack."""
    logs: dict[str, kernels.CuptiLog] = {}
    misses = []
    for one in found:
        match = _FILE.fullmatch(one.path)
        before = f"{match[1]}{int(match[2]) - 1}.kernels" if match and int(match[2]) else ""
        for path, by in ((before, before), (one.path, one.open_path)):
            if not path or path in logs:
                continue
            try:
                log = kernels.parse(_content(by, path, _owner(one.pid)), Path(path).name)
            except FileNotFoundError:
                continue  # it was the oldest
            except (OSError, BadInput) as error:
                misses.append(f"kernels of process {one.pid}: {error}")
                continue
            log.pid = one.pid  # which it has another number for in a namespace of its own
            log.torn = 0  # it is being written
            logs[path] = log
            misses += kernels.misses_of(log)
    return list(logs.values()), list(dict.fromkeys(misses))


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _content(by: str, path: str, owner: int | None) -> bytes:
    """The bytes by what the process has open, else by the path, where the process has ended meanwhile."""
    try:
        fd = os.open(by, os.O_RDONLY | os.O_CLOEXEC | (os.O_NOFOLLOW if by == path else 0))
    except FileNotFoundError:
        if by == path:
            raise
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or (owner is not None and seen.st_uid != owner):
            raise PermissionError(1, "is no file of the process's user", path)
        return file.read(kernels.LIMIT)


def _await(found: Iterable[Recorded], end_ns: int) -> None:
    """Until each process has flushed what ran before the end of the look, or ended, or some time passed."""
    until = time.monotonic() + _WAIT_S
    waiting = list(found)
    while waiting and time.monotonic() < until:
        waiting = [one for one in waiting if _flushed_ns(one) < end_ns]
        if waiting:
            time.sleep(_PAUSE_S)


def _flushed_ns(one: Recorded) -> int:
    """What cannot be read, or never started, is not waited for."""
    try:
        with open(one.open_path, "rb") as file:
            head = file.read(kernels.HEADER.size)
            empty = not file.read(1)
    except OSError:
        return 2**63
    if len(head) < kernels.HEADER.size or empty:
        return 2**63
    (flushed_ns,) = kernels.FLUSHED.unpack_from(head, kernels.FLUSHED_AT)
    return int(flushed_ns) or 2**63


def _why_not(pid: int) -> str:
    """Why a process that has unidle's variables records nothing; empty for one that has none of them."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    told = dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)
    directory, library = told.get(DIRECTORY, ""), told.get(LIBRARY, "")
    if not directory:
        return ""
    if not library:
        return f"{LIBRARY} is not set: unidle_scope is missing where it was started"
    if "unidle" not in Path(library).name:
        return f"{LIBRARY} names another tool's library, {library}"
    try:
        if "libcuda.so" not in Path(f"/proc/{pid}/maps").read_text(errors="replace"):
            return ""  # no CUDA in it, such as in a launcher
    except OSError:
        return ""
    return f"no file in {directory}: CUDA did not start in it, or the directory is not its user's alone"
