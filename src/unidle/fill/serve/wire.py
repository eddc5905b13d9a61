"""Frames between the front door and its workers, over a Unix socket: 4 bytes of length, then MessagePack of one struct.

A worker greets with ``WorkerGreeting``. The front door sends ``Submit`` and ``Cancel``; the worker answers with ``Report``, one for each step, and
a filler in bubbles with ``Prefilled``. Both ends are processes of one user on one host.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

_HEADER: Final = struct.Struct("<I")
_MOST: Final = 256 << 20


class Sampling(msgspec.Struct, array_like=True):
    """How tokens are chosen. ``temperature`` 0: the most probable one; ``top``: log probabilities of so many, None for none."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    top: int | None = None


class Submit(msgspec.Struct, tag="submit", array_like=True):
    """A request. ``stop_tokens``: those that end an answer. ``handoff``: a file with the keys and values of its prompt, if prefilled."""

    id: int
    tokens: list[int]
    most: int
    samples: int
    sampling: Sampling
    stop_tokens: list[int]
    handoff: str | None = None


class Cancel(msgspec.Struct, tag="cancel", array_like=True):
    """The answer to this request, or one sample of it, is no longer needed."""

    id: int
    sample: int | None = None


class WorkerGreeting(msgspec.Struct, tag="greeting", array_like=True):
    """What a worker is. ``kind``: ``dedicated`` or ``bubbles``; ``model``: a digest of the configuration, equal for all of a door."""

    kind: str
    model: str
    pid: int
    blocks: int
    block_tokens: int
    batch: int


class Token(msgspec.Struct, array_like=True):
    """A token of a sample. ``end``: why it is the last one (``stop``, ``length``), or empty."""

    id: int
    sample: int
    token: int
    end: str = ""
    logprob: float = 0.0
    top: list[tuple[int, float]] = []


class Report(msgspec.Struct, tag="report", array_like=True):
    """What a step did. ``begun``: requests that left the queue; ``failed``: requests with the reason; ``model_ns``: CPU time of the worker."""

    tokens: list[Token] = []
    begun: list[int] = []
    failed: list[tuple[int, str]] = []
    waiting: int = 0
    running: int = 0
    used_blocks: int = 0
    cpu_ns: int = 0


class Prefilled(msgspec.Struct, tag="prefilled", array_like=True):
    """A prompt was prefilled in bubbles: ``file`` has its keys and values."""

    id: int
    file: str


ToWorker = Submit | Cancel
FromWorker = WorkerGreeting | Report | Prefilled

_encoder: Final = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """A message with its length."""
    body = _encoder.encode(message)
    return _HEADER.pack(len(body)) + body


class Frames:
    """Whole messages out of bytes as they arrive."""

    def __init__(self, kind: object) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._left = bytearray()

    def feed(self, received: bytes) -> list[object]:
        """The messages that are complete. Errors: ValueError for what is no message."""
        self._left += received
        found = list[object]()
        at = 0
        while len(self._left) - at >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._left, at)
            if length > _MOST:
                raise ValueError(f"a frame of {length} bytes")
            end = at + _HEADER.size + length
            if end > len(self._left):
                break
            found.append(self._decoder.decode(memoryview(self._left)[at + _HEADER.size : end]))
            at = end
        if at:
            self._left = self._left[at:]
        return found
