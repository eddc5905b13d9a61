"""The directories that jobs use: may they be written, is there room, is what was written read back, how fast."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.probe.check.model import Absent, Check, Context, Outcome, ProbeResult, least, most, unknown
from unidle.words import counted

Look = Callable[[Context, Path, str], Iterator[Check]]
_BLOCK: Final = 4 << 20
_SMALL: Final = 64 << 10  # of the quick tier
_SYNCS: Final = 5


@dataclass(frozen=True, slots=True)
class Written:
    """What came of one write and read of ``size`` bytes."""

    size: int
    write_s: float
    read_s: float
    same: bool
    direct: bool


def quick(context: Context) -> Outcome:
    """Room, a small file written, synchronised and read back, in each directory."""
    return _each(context, _quick)


def full(context: Context) -> Outcome:
    """Rates and correctness over a larger file, past the page cache where the file system allows it."""
    return _each(context, _full)


def _each(context: Context, look: Look) -> Outcome:
    if not context.directories:
        return Absent("no directory was named")
    checks: list[Check] = []
    for directory in context.directories:
        tag = f"[{directory}]"
        try:
            checks += look(context, directory, tag)
        except OSError as error:
            checks.append(_failed(f"storage{tag}", error))
    return ProbeResult(tuple(checks))


def _failed(name: str, error: OSError) -> Check:
    says = {
        errno.ENOENT: "there is no such directory", errno.EROFS: "it is read-only", errno.EACCES: "it may not be written",
        errno.ENOSPC: "it is full", errno.EDQUOT: "the quota is used up", errno.EIO: "the device reports an I/O error",
        errno.ESTALE: "the server no longer has it (stale handle)", errno.ENOTDIR: "it is no directory",
    }.get(error.errno or 0, error.strerror or str(error))  # fmt: skip
    return Check(name, False, None, "", None, says)


def _quick(context: Context, directory: Path, tag: str) -> Iterator[Check]:
    limits = context.limits()
    status = os.statvfs(directory)
    yield least(
        f"storage.free{tag}", status.f_bavail * status.f_frsize, "bytes", limits.free_bytes, _of(status)
    )
    if status.f_files:
        left = f"of {status.f_files:,}"
        yield least(f"storage.inodes{tag}", status.f_favail, "inodes", limits.free_inodes, left)
    with _scratch(directory) as fd:
        data = random.Random(0).randbytes(_SMALL)
        times = []
        for k in range(_SYNCS):
            begin = time.perf_counter()
            _write_all(fd, data, k * _SMALL)
            os.fsync(fd)
            times.append((time.perf_counter() - begin) * 1e3)
            if sum(times) > 1000:
                break
        same = all(os.pread(fd, _SMALL, k * _SMALL) == data for k in range(len(times)))
    middle = sorted(times)[len(times) // 2]
    yield Check(f"storage.same{tag}", same, len(times), "blocks", None, "read back as written" if same else "the data read differ from the data written")  # fmt: skip
    yield most(
        f"storage.fsync{tag}",
        middle,
        "ms",
        limits.fsync_ms,
        f"median of {counted(len(times), 'write')} of 64 KiB",
    )


def _of(status: os.statvfs_result) -> str:
    return f"of {status.f_blocks * status.f_frsize / 1e9:,.1f} GB"


def _full(context: Context, directory: Path, tag: str) -> Iterator[Check]:
    limits = context.limits()
    status = os.statvfs(directory)
    size = int(limits.storage_test_bytes or 0) // _BLOCK * _BLOCK or _BLOCK
    room = status.f_bavail * status.f_frsize // 2 // _BLOCK * _BLOCK
    if room < _BLOCK:
        yield unknown(f"storage.write{tag}", "too little free space to measure it")
        return
    with _scratch(directory) as fd:
        done = write_and_read(fd, min(size, room))
    how = f"{done.size >> 20} MiB, {'past the page cache' if done.direct else 'synchronised; read may come from memory'}"
    says = "read back as written" if done.same else "the data read differ from the data written"
    yield Check(f"storage.correct{tag}", done.same, done.size, "bytes", None, says)
    yield least(f"storage.write{tag}", done.size / done.write_s / 1e6, "MB/s", limits.write_mb_per_s, how)
    yield least(f"storage.read{tag}", done.size / done.read_s / 1e6, "MB/s", limits.read_mb_per_s, how)


@contextmanager
def _scratch(directory: Path) -> Iterator[int]:
    """A file without a name, which is gone when this process is, however it ends."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        name = directory / f".unidle-check-{os.getpid()}"  # NFS and FUSE have no nameless files
        fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        name.unlink()
    try:
        yield fd
    finally:
        os.close(fd)


def write_and_read(fd: int, size: int) -> Written:
    """Write ``size`` bytes (whole blocks of 4 MiB), synchronise, read them back; blocks differ from each other."""
    direct = _set_direct(fd)
    block = mmap.mmap(-1, _BLOCK)  # aligned to a page, as O_DIRECT wants it
    block[:] = random.Random(1).randbytes(_BLOCK)
    wrote = hashlib.blake2b(digest_size=16)
    write_s = 0.0
    try:
        for k in range(size // _BLOCK):
            block[:8] = k.to_bytes(8, "little")
            wrote.update(block)
            begin = time.perf_counter()
            _write_all(fd, block, k * _BLOCK)
            write_s += time.perf_counter() - begin
        begin = time.perf_counter()
        os.fsync(fd)
        write_s += time.perf_counter() - begin
        if not direct:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        read_s, same = _read_back(fd, block, size, wrote.digest())
    finally:
        block.close()
    return Written(size, max(write_s, 1e-9), max(read_s, 1e-9), same, direct)


def _read_back(fd: int, block: mmap.mmap, size: int, digest: bytes) -> tuple[float, bool]:
    read = hashlib.blake2b(digest_size=16)
    seconds = 0.0
    for k in range(size // _BLOCK):
        begin = time.perf_counter()
        got = os.preadv(fd, [block], k * _BLOCK)
        seconds += time.perf_counter() - begin
        read.update(memoryview(block)[:got])
    return seconds, read.digest() == digest


def _set_direct(fd: int) -> bool:
    import fcntl

    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
        return True
    except OSError:  # tmpfs and some network file systems cannot
        return False


def _write_all(fd: int, data: bytes | mmap.mmap, at: int) -> None:
    view = memoryview(data)
    try:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)
    finally:
        view.release()
