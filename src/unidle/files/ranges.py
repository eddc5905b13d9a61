"""Names with ranges: ``n[1-3]`` is n1, n2, n3; ``gpu[08-10]`` keeps its zeros; ``r[1-2]n[1,4-5]`` multiplies."""

from __future__ import annotations

import itertools
import re
from typing import Final

_PART: Final = re.compile(r"\[([^\[\]]*)\]")
_ITEM: Final = re.compile(
    r"([0-9]{1,4000})(?:-([0-9]{1,4000}))?"
)  # longer ones Python does not read as numbers


def expand(text: str, limit: int) -> list[str]:
    """The names that ``text`` denotes, in order; the last range varies fastest.

    Errors: ``ValueError`` with the problem in words, also for more than ``limit`` names.
    """
    pieces = _PART.split(text)
    if any(c in piece for piece in pieces[::2] for c in "[]"):
        raise ValueError("the brackets do not pair up")
    columns: list[list[str]] = []
    count = 1
    for index, piece in enumerate(pieces):
        column = _numbers(piece, limit) if index % 2 else [piece]
        count *= len(column)
        if count > limit:
            raise ValueError(f"it expands to more than {limit:,} names")
        columns.append(column)
    return ["".join(parts) for parts in itertools.product(*columns)]


def _numbers(text: str, limit: int) -> list[str]:
    numbers: list[str] = []
    for item in text.split(","):
        found = _ITEM.fullmatch(item.strip())
        if found is None:
            raise ValueError(f"[{text}] is not a range such as [1-4] or [1,3-5]")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise ValueError(f"[{text}] runs backwards")
        if int(last) - int(first) >= limit:
            raise ValueError(f"it expands to more than {limit:,} names")
        width = len(first) if first.startswith("0") else 0
        numbers += [str(n).zfill(width) for n in range(int(first), int(last) + 1)]
    return numbers
