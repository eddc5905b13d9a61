"""Keeps the memory of a controller that runs for months flat: freed memory goes back to the system.

glibc raises its threshold for separate mappings to the largest block that was freed. From then on the megabytes of
a snapshot lie between small blocks that live long, and the holes they leave are seldom filled (mallopt(3)).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final, Protocol, cast

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h
_MAPPED_FROM_BYTES: Final = 128 << 10
_ARENAS: Final = 2


class _Glibc(Protocol):
    def mallopt(self, option: int, value: int) -> int: ...

    def malloc_trim(self, pad_bytes: int) -> int: ...


@cache
def _glibc() -> _Glibc | None:
    """None on other C libraries, whose allocators have no such options."""
    library = ctypes.CDLL(None)
    return (
        cast("_Glibc", library) if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    )


def map_large_blocks() -> None:
    """Blocks of at least 128 KiB are separate mappings from now on; threads share two heaps."""
    if (glibc := _glibc()) is not None:
        glibc.mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        glibc.mallopt(_TRIM_THRESHOLD, _MAPPED_FROM_BYTES)
        glibc.mallopt(_ARENA_MAX, _ARENAS)


def return_freed() -> None:
    """Give free pages within the heaps back. It takes milliseconds: for rare, large changes."""
    if (glibc := _glibc()) is not None:
        glibc.malloc_trim(0)
