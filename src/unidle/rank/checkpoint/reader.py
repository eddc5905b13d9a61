"""Reading shards back: from storage, from this node's memory, or from another node's; each byte is checked.

What a rank needs of which piece is planned in :mod:`unidle.rank.checkpoint.planned_load`.
"""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from unidle.checkpoint.holder import wire
from unidle.checkpoint.holder.hold_paths import held, open_copy
from unidle.checkpoint.holder.memory_copies import PAGE, Label
from unidle.checkpoint.holder.wire import Address, Gone
from unidle.checkpoint.layout import (
    CHUNK_BYTES,
    Damaged,
    Manifest,
    Piece,
    Shard,
    check_cover,
    decode_header,
    read_manifest,
)
from unidle.checkpoint.safe_open import open_inside
from unidle.rank.checkpoint.stage import DTYPES

_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class ShardSource(Protocol):
    """The bytes of one shard, 4 MiB at a time. Raises :class:`Damaged`, OSError."""

    size_bytes: int

    def chunk(self, number: int) -> bytes | bytearray: ...


class StoredShard:
    """A shard on storage, against the checksums of its manifest."""

    def __init__(self, path: str, shard: Shard) -> None:
        self.size_bytes = shard.size_bytes
        self._shard = shard
        self._fd = open_inside(path, shard.name)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def chunk(self, number: int) -> bytes:
        at = number * CHUNK_BYTES
        data = os.pread(self._fd, min(CHUNK_BYTES, self.size_bytes - at), at)
        if len(data) < min(CHUNK_BYTES, self.size_bytes - at):
            raise Damaged(f"{self._shard.name} is shorter than {self.size_bytes} bytes")
        if zlib.crc32(data) != self._shard.crcs[number]:
            raise Damaged(f"{self._shard.name} does not match its checksum in the 4 MiB from byte {at}")
        return data


class HeldShard:
    """A copy in this node's memory."""

    def __init__(self, path: str, label: Label) -> None:
        self.size_bytes = label.size_bytes
        hold, name = os.path.split(path)
        with held(hold) as at:
            self._fd = open_copy(name, at)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def chunk(self, number: int) -> bytes:
        at = number * CHUNK_BYTES
        data = os.pread(self._fd, min(CHUNK_BYTES, self.size_bytes - at), PAGE + at)
        if len(data) < min(CHUNK_BYTES, self.size_bytes - at):
            raise Damaged("the copy in memory is gone")
        return data


class RemoteShard:
    """A copy in another node's memory; the holder there sends it."""

    def __init__(self, address: Address, name: str, label: Label) -> None:
        self.size_bytes = label.size_bytes
        self._name = name
        try:
            self._link: socket.socket | None = wire.connect(address)
        except Gone as error:
            raise Damaged(str(error)) from None
        self._link.settimeout(60)

    def __del__(self) -> None:
        link = getattr(self, "_link", None)
        if link is not None:
            link.close()

    def chunk(self, number: int) -> bytearray:
        assert self._link is not None
        try:
            told, size = wire.ask(self._link, {"do": "read", "name": self._name, "chunk": number})
            data = bytearray(min(size, CHUNK_BYTES))
            wire.receive_into(self._link, memoryview(data))
        except Gone as error:
            raise Damaged(f"the holder of {self._name} is gone: {error}") from None
        if (
            size != min(CHUNK_BYTES, self.size_bytes - number * CHUNK_BYTES)
            or zlib.crc32(data) != told["crc"]
        ):
            raise Damaged(f"the copy {self._name} in memory is gone or was changed on its way")
        return data


class ShardSet:
    """All shards of one step, from all ranks."""

    def __init__(self, sources: Sequence[ShardSource]) -> None:
        self._sources = sources
        self._cached: tuple[int, int, bytes | bytearray] | None = None
        self._headers = [
            decode_header(partial(self.read, k), source.size_bytes) for k, source in enumerate(sources)
        ]
        check_cover(self._headers)
        self.pieces: dict[str, dict[tuple[int, ...], tuple[int, Piece]]] = {}
        for k, header in enumerate(self._headers):
            for piece in header.pieces:
                self.pieces.setdefault(piece.name, {}).setdefault(piece.offset, (k, piece))

    @property
    def world(self) -> int:
        return len(self._sources)

    def read(self, shard: int, at: int, length: int) -> bytearray:
        """Bytes of a shard; whole chunks are read and checked for them."""
        into = bytearray(length)
        done = 0
        while done < length:
            number, inner = divmod(at + done, CHUNK_BYTES)
            if self._cached is None or self._cached[:2] != (shard, number):
                self._cached = (shard, number, self._sources[shard].chunk(number))
            part = memoryview(self._cached[2])[inner : inner + length - done]
            if not part:
                raise Damaged("is cut off")
            into[done : done + len(part)] = part
            done += len(part)
        return into

    def tensor(self, name: str, offset: tuple[int, ...]) -> Tensor:
        """One piece."""
        shard, piece = self.pieces[name][offset]
        dtype = _DTYPES[piece.dtype]
        if piece.end == piece.start:
            return torch.empty(piece.shape, dtype=dtype)
        data = self.read(shard, piece.start, piece.end - piece.start)
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(piece.shape)

    def own(self, rank: int) -> bytes:
        """The own state of a rank."""
        place = self._headers[rank].own
        if place is None:
            raise Damaged(f"has no state of rank {rank}")
        return bytes(self.read(rank, place[0], place[1] - place[0]))

    def wholes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Whole shape and dtype of each tensor."""
        found = {}
        for name, places in self.pieces.items():
            piece = next(iter(places.values()))[1]
            found[name] = (piece.whole, _DTYPES[piece.dtype])
        return found

    def load_into(self, targets: Mapping[str, Tensor]) -> None:
        """Fill tensors (or this rank's shards of DTensors) by name. No communication between ranks."""
        # imports half a second of PyTorch, which who reads whole pieces does not need
        from unidle.rank.checkpoint.planned_load import planned_load

        planned_load(self, targets)

    def load_all(self) -> int:
        """Read every tensor whole, one after the other, and every rank's state; returns how many there were."""
        for name, (whole, dtype) in self.wholes().items():
            self.load_into({name: torch.empty(whole, dtype=dtype)})
        return len(self.pieces)


def stored(path: str) -> tuple[Manifest, ShardSet]:
    """The checkpoint directory ``path``. Raises :class:`Damaged`, OSError."""
    manifest = read_manifest(path)
    return manifest, ShardSet([StoredShard(path, shard) for shard in manifest.shards])
