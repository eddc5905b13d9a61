"""The run directory of a job that has ended as one compressed stream, and back.

A tar file in zlib's form, so that any tool reads it. ``log.times`` names log files by inode, which no copy keeps: the
archive has each file's inode, and the copy's ``log.times`` gets the new ones.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

from unidle.control.store_files import run_root
from unidle.engine.local.ranks import rundir
from unidle.errors import StoreDamaged
from unidle.store.archives import ArchiveShelf
from unidle.store.protocol import Store
from unidle.store.sql import SqlStore

PART_BYTES: Final = 4 << 20
_READ_BYTES: Final = 1 << 20
_LEFT_OUT: Final = frozenset((rundir.LOCK, rundir.CLAIMED, rundir.RESERVE))  # nothing to read in these
_INODE: Final = "UNIDLE.inode"
_TIMES: Final = f"{rundir.LOG}.times"
_OPEN_MOST: Final = 4

_unpacked: OrderedDict[tuple[str, str], tempfile.TemporaryDirectory[str]] = OrderedDict()


def pack(directory: Path) -> Iterator[bytes]:
    """The regular files below a directory, compressed, in parts of about :data:`PART_BYTES`. Errors: OSError."""
    squeeze = zlib.compressobj(6)
    held = bytearray()
    for piece in _tar(directory):
        held += squeeze.compress(piece)
        if len(held) >= PART_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held + squeeze.flush())


def unpack(parts: Iterator[bytes], into: Path) -> None:
    """Write the files of an archive below a directory. Errors: OSError, :class:`StoreDamaged`."""
    inodes: dict[int, int] = {}
    times: list[Path] = []
    try:
        with tarfile.open(fileobj=_Inflated(parts), mode="r|") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                source = tar.extractfile(member)
                if source is None or name.is_absolute() or ".." in name.parts:
                    continue
                path = into / name
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                inodes[int(member.pax_headers.get(_INODE, 0))] = _write(path, source)
                os.utime(path, (member.mtime, member.mtime))
                if name.name == _TIMES:
                    times.append(path)
    except (tarfile.TarError, zlib.error, ValueError) as error:
        raise StoreDamaged(
            f"an archive cannot be read: {error}", remedy="run `unidle store check`"
        ) from error
    for path in times:
        _rename_inodes(path, inodes)


def runs_of(store: Store, data_dir: Path, job: str) -> Path:
    """The directory that has the job's run directory: that of the store, or one with what its archive has.

    The copy is deleted when the process ends, or when others were read since. Errors: OSError, :class:`StoreError`.
    """
    if not isinstance(store, SqlStore):
        return run_root(store, data_dir)
    shelf = ArchiveShelf(store)
    if not shelf.has(job):
        return run_root(store, data_dir)
    key = (store.url, job)
    if key not in _unpacked:
        place = tempfile.TemporaryDirectory(prefix="unidle-")
        try:
            unpack(shelf.read(job), Path(place.name) / rundir.path_part(job))
        except BaseException:
            place.cleanup()
            raise
        _unpacked[key] = place
        if len(_unpacked) > _OPEN_MOST:
            _unpacked.popitem(last=False)[1].cleanup()
    return Path(_unpacked[key].name)


def _tar(directory: Path) -> Iterator[bytes]:
    for place, directories, files in os.walk(directory):
        directories.sort()
        for name in sorted(files):
            path = Path(place, name)
            if name not in _LEFT_OUT and path.is_file() and not path.is_symlink():
                yield from _member(path, path.relative_to(directory).as_posix())
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(path: Path, name: str) -> Iterator[bytes]:
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = stat.st_size, stat.st_mtime, stat.st_mode & 0o700
        info.pax_headers = {_INODE: str(stat.st_ino)}
        yield info.tobuf(tarfile.PAX_FORMAT)
        left = stat.st_size
        while left:
            data = file.read(min(left, _READ_BYTES))
            if not data:
                raise OSError(0, "became shorter while it was read", str(path))
            left -= len(data)
            yield data
        yield bytes(-stat.st_size % tarfile.BLOCKSIZE)


def _write(path: Path, source: IO[bytes]) -> int:
    """Copy a file; the inode of the copy."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        while data := source.read(_READ_BYTES):
            file.write(data)
        return os.fstat(fd).st_ino


def _rename_inodes(path: Path, inodes: dict[int, int]) -> None:
    lines = []
    for line in path.read_bytes().splitlines():
        words = line.split(b" ")
        if words[0] == b"F" and len(words) > 1 and words[1].isdigit():
            words[1] = b"%d" % inodes.get(int(words[1]), 0)
        lines.append(b" ".join(words))
    path.write_bytes(b"\n".join([*lines, b""]))


class _Inflated(io.RawIOBase):
    """The stream that the parts of an archive are, for tarfile."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._inflate = zlib.decompressobj()
        self._held = b""

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes; empty at the end."""
        while not self._held:
            rest = self._inflate.unconsumed_tail or next(self._parts, b"")
            if not rest:
                return b""
            self._held = self._inflate.decompress(rest, _READ_BYTES)
        data, self._held = self._held[:size], self._held[size:]
        return data
