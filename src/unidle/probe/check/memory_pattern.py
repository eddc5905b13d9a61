"""A bounded test of main memory: patterns written to every byte of a piece of it, and read back."""

from __future__ import annotations

import mmap
import random
import time
from collections.abc import Callable
from typing import Final

from unidle.probe.check.host import memory_free_bytes
from unidle.probe.check.model import Check, Context, Outcome, ProbeResult, unknown
from unidle.words import counted

_CHUNK: Final = 1 << 20
_INVERSE: Final = bytes(255 - k for k in range(256))


def pattern(context: Context) -> Outcome:
    """Two passes over ``memory_test_bytes``, at most half of what is free: each chunk its own pattern, then inverted."""
    size = (
        min(int(context.limits().memory_test_bytes or 0), memory_free_bytes(context) // 2) // _CHUNK * _CHUNK
    )
    if size < _CHUNK:
        return ProbeResult((unknown("memory.pattern", "too little memory is free to test any"),))
    begin = time.perf_counter()
    with mmap.mmap(-1, size) as piece:
        wrong = try_piece(piece)
    rate = 4 * size / (time.perf_counter() - begin) / 1e9
    says = (
        f"{counted(len(wrong), 'bad chunk')}, the first at byte {wrong[0]}"
        if wrong
        else f"{size >> 20} MiB, {rate:.1f} GB/s"
    )
    return ProbeResult((Check("memory.pattern", not wrong, len(wrong), "bad chunks of 1 MiB", 0, says),))


def try_piece(piece: mmap.mmap, between: Callable[[mmap.mmap], None] = lambda _: None) -> list[int]:
    """Offsets of the chunks that did not keep what was written; ``between`` runs between writing and reading."""
    base = random.Random(2).randbytes(_CHUNK)
    wrong: dict[int, None] = {}
    for source in (base, base.translate(_INVERSE)):
        for at in range(0, len(piece), _CHUNK):
            piece[at : at + _CHUNK] = _of(source, at // _CHUNK)
        between(piece)
        for at in range(0, len(piece), _CHUNK):
            if piece[at : at + _CHUNK] != _of(source, at // _CHUNK):
                wrong[at] = None
    return list(wrong)


def _of(source: bytes, number: int) -> bytes:
    """Turned by the chunk's number, so that a chunk read from another address differs."""
    turn = number * 8 % _CHUNK
    return source[turn:] + source[:turn]
