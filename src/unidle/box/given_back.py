"""Gives memory back that only the start of a box needed: pages of programs and libraries, and free memory of the C library.

The pages are unchanged ones of files, so the kernel has them at hand and maps them again when they are used. Standard library only.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DONTNEED = 4  # the same number on all architectures that have PyTorch
_SURE = ("Anonymous:", "Locked:")  # 0 kB: no page was changed since it was read, and none has to stay


def give_back() -> None:
    """Once a box is at rest. Nothing here fails: what the kernel refuses is kept."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # of the GNU C library
        libc.malloc_trim(0)
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
            unchanged = list(unchanged_mappings(file))
    except OSError:
        return
    for begin, end in unchanged:
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _DONTNEED)


def unchanged_mappings(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Begin and end of the mappings in lines of *smaps* that are private and of files, cannot be written, and have no page of their own."""
    found: tuple[int, int] | None = None
    sure = 0
    for line in lines:
        words = line.split(None, 5)
        if words[0].endswith(":"):
            sure += words[0] in _SURE and words[1] == "0"
            if found is not None and sure == len(_SURE):
                yield found
                found = None
            continue
        begin, _, end = words[0].partition("-")
        is_file = len(words) > 5 and words[5].startswith("/")
        found = (int(begin, 16), int(end, 16)) if is_file and words[1] in ("r-xp", "r--p") else None
        sure = 0
