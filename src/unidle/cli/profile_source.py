"""Lines of the code that a profile names, each read with the rights of a process that names it.

A program chooses the names of its own code: root, which may read everything, would else show the files of others.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Thread
from typing import Final, NamedTuple

from unidle.scope.model import Profile

_LONGEST_FILE: Final = 1 << 20  # bytes
_MOST_PROCESSES: Final = 8  # that are asked for one file
# A FIFO without a writer would block the open itself.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_SETGROUPS: Final = {"x86_64": 116, "aarch64": 159}
_GET_SECUREBITS: Final = 27
_KEEPS_CAPABILITIES: Final = 1 << 2  # SECBIT_NO_SETUID_FIXUP
_NOT_A_USER: Final = 0xFFFFFFFF  # changes nothing: the answer is the present one


class Owner(NamedTuple):
    """What the kernel checks when a process opens a file."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


_ANYONE: Final = Owner(65534, 65534)


def add_owners(owners: dict[int, Owner], pids: Iterable[int]) -> None:
    """Add those that live. Of a process of root that became another user's, the other user is kept."""
    for pid in pids:
        proc = _directory(pid) if pid not in owners or owners[pid].uid == 0 else None
        if proc is not None:
            try:
                owners[pid] = _owner(proc)
            except OSError:
                pass
            finally:
                os.close(proc)


def owners_of(pids: Iterable[int]) -> dict[int, Owner]:
    """Of those that live."""
    found: dict[int, Owner] = {}
    add_owners(found, pids)
    return found


def line_of_source(profile: Profile, owners: Mapping[int, Owner]) -> Callable[[str, int], str | None]:
    """Reads lines of the code that runs, as the processes see their files (they may be in a container).

    ``owners`` holds those of the processes that were profiled. For others root shows what all users may read: it does not know who
    they were, and in a profile that was kept their numbers may be others' now.
    """
    files: dict[str, list[str]] = {}
    named: dict[str, dict[int, None]] = {}

    def line(file: str, number: int) -> str | None:
        if not named:
            named.update(_namers(profile))
        if file not in files:
            files[file] = _lines(file, [*named.get(file, ())][:_MOST_PROCESSES], owners)
        lines = files[file]
        return lines[number - 1] if 0 < number <= len(lines) else None

    return line


def _namers(profile: Profile) -> dict[str, dict[int, None]]:
    """The processes in whose stacks a file is, in the order of the profile."""
    pairs = dict.fromkeys((one.pid, one.stack) for one in profile.samples)
    pairs |= dict.fromkeys((one.pid, one.stack) for one in profile.memory)
    found: dict[str, dict[int, None]] = {}
    for pid, stack in pairs:
        for number in profile.stacks[stack]:
            if file := profile.frames[number].file:
                found.setdefault(file, {})[pid] = None
    return found


def _lines(file: str, pids: list[int], owners: Mapping[int, Owner]) -> list[str]:
    if "\0" in file:
        return []
    for opened in _opened(file, pids, owners):
        with os.fdopen(opened, "rb") as stream:
            state = os.fstat(opened)
            if not stat.S_ISREG(state.st_mode) or state.st_size > _LONGEST_FILE:
                continue
            try:
                data = stream.read(_LONGEST_FILE + 1)
            except OSError:
                continue
        if len(data) <= _LONGEST_FILE:
            return data.decode("utf-8", "replace").splitlines()
    return []


def _opened(file: str, pids: list[int], owners: Mapping[int, Owner]) -> Iterator[int]:
    """The file where the processes see it, then where this process does. Each descriptor is the caller's.

    A relative name is relative to where the process is, which it may have been when it started.
    """
    absolute = file.startswith("/")
    is_root = os.geteuid() == 0
    rights: dict[Owner, None] = {}
    for pid in pids:
        known = owners.get(pid)
        if known is None and is_root:
            rights[_ANYONE] = None
            continue
        proc = _directory(pid)
        try:
            # A number may be that of a process of root by now, and a process of root may have become another user's.
            owner = _owner(proc) if proc is not None and (known is None or known.uid == 0) else known
            rights[owner or _ANYONE] = None
            if proc is not None and owner is not None:
                yield _open(f"root{file}" if absolute else f"cwd/{file}", owner, proc)
        except OSError:
            continue
        finally:
            if proc is not None:
                os.close(proc)
    for owner in (rights or {_ANYONE: None}) if absolute else ():
        try:
            yield _open(file, owner)
        except OSError:
            continue


def _directory(pid: int) -> int | None:
    """Stays that of this process: its number may soon be another's."""
    try:
        return os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def _owner(proc: int) -> Owner:
    """A process with several users has the rights of the one that is not this process's own.

    The owner of the directory in ``/proc`` is not enough: it is root for each process that forbids dumps.
    """
    with os.fdopen(os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc), "rb") as file:
        fields = dict(line.split(b":", 1) for line in file if b":" in line)
    try:
        uids, gids, groups = ([*map(int, fields[name].split())] for name in (b"Uid", b"Gid", b"Groups"))
    except (KeyError, ValueError):
        raise OSError(errno.EINVAL, "the kernel's status of a process has another form") from None
    own = os.geteuid()
    return Owner(next((uid for uid in uids if uid != own), own), gids[0], tuple(groups))


def _open(path: str, owner: Owner, directory: int | None = None) -> int:
    """With this process's rights, unless it is root and the owner is not. Errors: OSError."""
    if os.geteuid() != 0 or owner.uid == 0:
        return os.open(path, _FLAGS, dir_fd=directory)
    found: list[int | OSError] = []

    def opening() -> None:
        try:
            _become(owner)
            found.append(os.open(path, _FLAGS, dir_fd=directory))
        except OSError as error:
            found.append(error)

    # These rights are those of a thread, and end with it: the others keep theirs, and nothing has to be given back.
    thread = Thread(target=opening, name="unidle-source")
    thread.start()
    thread.join()
    fd = found[0]
    if isinstance(fd, OSError):
        raise fd
    return fd


def _become(owner: Owner) -> None:
    """Opens of this thread are then those of the owner. Errors: OSError, after which it must open nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SETGROUPS.get(platform.machine())
    if number is None or libc.prctl(_GET_SECUREBITS, 0, 0, 0, 0) & _KEEPS_CAPABILITIES:
        raise OSError(errno.ENOSYS, "the rights of another user cannot be taken here")
    groups = (ctypes.c_uint32 * len(owner.groups))(*owner.groups)
    # The library's own setgroups() would change all threads.
    if libc.syscall(ctypes.c_long(number), ctypes.c_size_t(len(groups)), groups):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for change, wanted in ((libc.setfsgid, owner.gid), (libc.setfsuid, owner.uid)):
        change.argtypes, change.restype = [ctypes.c_uint32], ctypes.c_uint32
        change(wanted)
        if change(_NOT_A_USER) != wanted:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
