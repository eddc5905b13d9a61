"""What `unidle.rank.checkpoint` writes: a directory of safetensors files and a manifest that was written last.

    step_0000000120/
        shard-00000-of-00004.safetensors    what rank 0 wrote: pieces of tensors, and its own state
        ...
        manifest.json                       sizes and checksums of all bytes of all shards

A shard is an ordinary safetensors file (8 bytes of header length, JSON header, raw tensors). The header's
``__metadata__["unidle"]`` gives the tensor of each piece and its place in that tensor, so that any number of ranks can
read what any other number wrote.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unidle.atomic import replaced
from unidle.checkpoint.safe_open import Damaged as Damaged
from unidle.checkpoint.safe_open import read_inside, shown

CHUNK_BYTES: Final = 4 << 20
MANIFEST: Final = "manifest.json"
GOOD: Final = "good.json"
INNER: Final = ".unidle"
_FORMAT: Final = "unidle-checkpoint"
_HEADER_MOST_BYTES: Final = 100_000_000  # what the format allows
_MANIFEST_MOST_BYTES: Final = 1 << 28
_DIMENSIONS_MOST: Final = 64
_SIZE_MOST: Final = 1 << 62
_DTYPE_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


def step_name(step: int) -> str:
    return f"step_{step:010d}"


def partial_name(step: int, session: str) -> str:
    """Where a checkpoint is written before it gets its final name; the first dot marks it as unfinished."""
    return f".{step_name(step)}.{session}"


def shard_name(rank: int, world: int) -> str:
    return f"shard-{rank:05d}-of-{world:05d}.safetensors"


def is_partial(name: str) -> bool:
    """Whether a name marks a checkpoint whose writing or removal was not finished."""
    return re.fullmatch(r"\.step_\d{10}\.\w+|\..+\.pruned", name) is not None


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a checkpoint: its name, the rank that wrote it, its size, the CRC-32 of each 4 MiB."""

    name: str
    rank: int
    size_bytes: int
    crcs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a whole checkpoint consists of; ``time_ns`` is wall-clock time, only for people."""

    step: int
    world: int
    time_ns: int
    session: str
    shards: tuple[Shard, ...]

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    def to_bytes(self) -> bytes:
        body = {
            "step": self.step, "world": self.world, "time_ns": self.time_ns, "session": self.session,
            "shards": [[s.name, s.rank, s.size_bytes, list(s.crcs)] for s in self.shards],
        }  # fmt: skip
        text = json.dumps(body, separators=(",", ":"))
        head = {"format": _FORMAT, "version": 1, "crc32": zlib.crc32(text.encode())}
        return (json.dumps(head)[:-1] + ', "body": ' + text + "}\n").encode()


def manifest_from(data: bytes) -> Manifest:
    """The manifest in ``data``. Raises :class:`Damaged`."""
    try:
        outer = json.loads(data)
        if outer["format"] != _FORMAT or outer["version"] != 1:
            raise Damaged(f"{MANIFEST} is of another format or version")
        body = outer["body"]
        if zlib.crc32(json.dumps(body, separators=(",", ":")).encode()) != outer["crc32"]:
            raise Damaged(f"{MANIFEST} does not match its checksum")
        shards = tuple(_shard(*each) for each in body["shards"])
        return Manifest(
            _size(body["step"]), _size(body["world"]), _size(body["time_ns"]), str(body["session"]), shards
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{MANIFEST} cannot be read: {shown(str(error))}") from None


def _shard(name: object, rank: object, size_bytes: object, crcs: list[object]) -> Shard:
    found = Shard(str(name), _size(rank), _size(size_bytes), tuple(map(_size, crcs)))
    if len(found.crcs) != -(-found.size_bytes // CHUNK_BYTES):
        raise ValueError(f"the number of checksums does not fit the size of {shown(name)}")
    return found


def _size(value: object) -> int:
    """A whole number from 0 on that a file can have. Raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _SIZE_MOST:
        raise ValueError(f"{shown(value)} is no size")
    return value


def _sizes(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > _DIMENSIONS_MOST:
        raise ValueError("a shape that is no list of a few sizes")
    return tuple(map(_size, values))


def read_manifest(path: str) -> Manifest:
    """The manifest of the checkpoint directory ``path``. Raises :class:`Damaged`, OSError."""
    return manifest_from(read_inside(path, MANIFEST, _MANIFEST_MOST_BYTES))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor in a shard.

    ``offset`` and ``whole`` are where it lies in the tensor ``name`` and that tensor's shape;
    ``start`` and ``end`` are bytes in the file.
    """

    key: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    whole: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """The content of a shard's header: pieces of tensors, and where the rank's own state lies (bytes)."""

    pieces: tuple[Piece, ...]
    own: tuple[int, int] | None
    end: int


def encode_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...], str, tuple[int, ...], tuple[int, ...]]], own_bytes: int
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The header for pieces (key: dtype, shape, name, offset, whole) and the rank's own state.

    Returns it with the place of each piece in the file (start, end); the own state's key is ``@own``.
    """
    entries: dict[str, Any] = {}
    pieces, places, at = {}, {}, 0
    for key, (dtype, shape, name, offset, whole) in tensors.items():
        end = at + math.prod(shape) * _DTYPE_BYTES[dtype]
        entries[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        pieces[key] = [name, list(offset), list(whole)]
        places[key] = (at, end)
        at = end
    entries["@own"] = {"dtype": "U8", "shape": [own_bytes], "data_offsets": [at, at + own_bytes]}
    places["@own"] = (at, at + own_bytes)
    meta = {"__metadata__": {"format": "pt", "unidle": json.dumps(pieces, separators=(",", ":"))}}
    text = json.dumps(meta | entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    start = len(text) + 8
    head = len(text).to_bytes(8, "little") + text
    return head, {key: (start + a, start + b) for key, (a, b) in places.items()}


def decode_header(read: Callable[[int, int], bytes | bytearray | memoryview], size_bytes: int) -> ShardHeader:
    """The header of a safetensors file of ``size_bytes``; ``read(start, length)`` gives its bytes.

    Works for any safetensors file; in one that unidle did not write each tensor is one whole piece. Raises :class:`Damaged`.
    """
    if size_bytes < 8:
        raise Damaged(f"is truncated: {size_bytes} bytes")
    length = int.from_bytes(read(0, 8), "little")
    if length > min(size_bytes - 8, _HEADER_MOST_BYTES):
        raise Damaged("is truncated in its header, or is no safetensors file")
    try:
        entries = json.loads(bytes(read(8, length)))
        meta = entries.pop("__metadata__", {})
        known = json.loads(meta["unidle"]) if "unidle" in meta else {}
        found = [_piece(key, entry, known.get(key), 8 + length) for key, entry in entries.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"has a header that cannot be read: {shown(str(error))}") from None
    end = 8 + length
    for piece in sorted(found, key=lambda p: (p.start, p.end)):
        if (
            piece.start != end
            or piece.end - piece.start != math.prod(piece.shape) * _DTYPE_BYTES[piece.dtype]
        ):
            raise Damaged(f"has a header with a wrong offset or length of {shown(piece.key)}")
        end = piece.end
    if end != size_bytes:
        raise Damaged(f"has {size_bytes} bytes; its header needs {end}")
    own = next(((p.start, p.end) for p in found if p.key == "@own"), None)
    return ShardHeader(tuple(p for p in found if p.key != "@own"), own, end)


def _piece(key: str, entry: dict[str, Any], known: list[Any] | None, start: int) -> Piece:
    shape = _sizes(entry["shape"])
    a, b = _sizes(entry["data_offsets"])
    dtype = str(entry["dtype"])
    if dtype not in _DTYPE_BYTES:
        raise ValueError(f"unknown dtype {shown(dtype)}")
    if known is None:
        return Piece(key, key, dtype, shape, (0,) * len(shape), shape, start + a, start + b)
    name, offset, whole = known
    return Piece(key, str(name), dtype, shape, _sizes(offset), _sizes(whole), start + a, start + b)


def check_cover(headers: list[ShardHeader]) -> None:
    """Raises :class:`Damaged` unless the pieces of all shards give each tensor exactly once."""
    volumes: dict[str, int] = {}
    wholes: dict[str, tuple[int, ...]] = {}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for piece in (piece for header in headers for piece in header.pieces):
        place = (piece.name, piece.offset)
        if wholes.setdefault(piece.name, piece.whole) != piece.whole:
            raise Damaged(f"{shown(piece.name)} has two shapes")
        if place in seen:
            continue  # a copy that another rank wrote as well
        seen.add(place)
        volumes[piece.name] = volumes.get(piece.name, 0) + math.prod(piece.shape)
    for name, whole in wholes.items():
        if volumes[name] != math.prod(whole):
            raise Damaged(f"{shown(name)} is not complete: {volumes[name]} of {math.prod(whole)} values")


def sync_directory(path: str) -> None:
    """Make names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: str, data: bytes) -> None:
    """A file is there whole and durable, or not at all (written under a temporary name, synced, renamed)."""
    with replaced(path, 0o644, umask=True, durable=True) as file:
        file.write(data)
    sync_directory(os.path.dirname(path) or ".")


def file_chunks(fd: int, size_bytes: int) -> Iterator[bytes]:
    """The content of an open file, 4 MiB at a time; fewer bytes where it is shorter."""
    at = 0
    while at < size_bytes:
        data = os.pread(fd, min(CHUNK_BYTES, size_bytes - at), at)
        if not data:
            return
        yield data
        at += len(data)
