"""Forms of values that the files share: names, amounts of memory, printable text."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import Meta

from unidle.files.document import Document, Path

# In JSON Schema, as in Python, "$" alone would let a final line feed pass.
END: Final = r"$(?!\n)"

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9._]*[a-z0-9])?" + END
NAME_LENGTH: Final = 63
NAME_SAYS: Final = (
    f"1 to {NAME_LENGTH} characters of a-z, 0-9, '-', '.' and '_', with a letter or digit at both ends"
)

PRINTABLE_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*" + END
PRINTABLE_SAYS: Final = "one line of printable text"

_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# 200M is decimal as 200MB is, 200Mi binary as 200MiB. Lower case is taken too, but not Gb, which is gigabits.
_MEMORY: Final = r"^([0-9]{1,18}(?:\.[0-9]{1,18})?) ?(?:(?![KMGT]i?b)([kKmMgGtT])(i?)[bB]?|B)?" + END
MEMORY_LIMIT_BYTES: Final = 2**50
MEMORY_SAYS: Final = "bytes, or an amount such as 200M, 512MiB or 2GB"

MemoryText = Annotated[
    str,
    Meta(
        pattern=_MEMORY,
        description="Amount with a unit. K, M, G and T (also kB, MB, GB, TB) are powers of 1000; Ki, Mi, Gi and Ti "
        "(also KiB, MiB, GiB, TiB) are powers of 1024.",
    ),
]


def memory_bytes(amount: int | str) -> int:
    """``512MiB`` as bytes. ``amount`` fits :data:`MemoryText` or is bytes already."""
    if isinstance(amount, int):
        return amount
    found = re.search(_MEMORY, amount)
    if found is None:
        raise ValueError(f"not an amount of memory: {amount!r}")
    # Whole numbers stay exact at any size.
    whole, _, part = found[1].partition(".")
    unit: int = (1024 if found[3] else 1000) ** _POWERS[(found[2] or "").lower()]
    return int(whole) * unit + int(part or "0") * unit // int("1" + "0" * len(part))


_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_AMOUNT: Final = r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?"
_DURATION: Final = (
    rf"^(?={_AMOUNT}[dhms])(?:{_AMOUNT}d ?)?(?:{_AMOUNT}h ?)?(?:{_AMOUNT}m ?)?(?:{_AMOUNT}s)?{END}"
)
DURATION_SAYS: Final = "a time with its unit, such as 90s, 30m, 1.5h, 1h30m or 2d"

DurationText = Annotated[
    str,
    Meta(
        pattern=_DURATION,
        description="Time with a unit: s, m, h or d. Units can be combined from large to small, such as 1h30m.",
        extra={"says": DURATION_SAYS},
    ),
]


def duration_ns(text: str) -> int:
    """``30m`` or ``1h30m`` in nanoseconds. ``text`` fits :data:`DurationText`."""
    found = re.search(_DURATION, text)
    if found is None:
        raise ValueError(f"not a time: {text!r}")
    return sum(
        _ns(amount, seconds)
        for amount, seconds in zip(found.groups()[1:], _SECONDS.values(), strict=True)
        if amount is not None
    )


def seconds_or_duration_ns(text: str) -> int:
    """As :func:`duration_ns`, and a number without a unit is seconds, as users type it on the command line."""
    return duration_ns(f"{text}s" if re.fullmatch(_AMOUNT, text) else text)


def _ns(amount: str, seconds: int) -> int:
    whole, _, part = amount.partition(".")
    unit_ns = seconds * 1_000_000_000
    return int(whole) * unit_ns + int(part or "0") * unit_ns // int("1" + "0" * len(part))


def duration_text(ns: int) -> str:
    """Nanoseconds as :func:`duration_ns` reads them, in the largest unit that has no fraction."""
    for unit, seconds in _SECONDS.items():
        if ns % (seconds * 1_000_000_000) == 0:
            return f"{ns // (seconds * 1_000_000_000)}{unit}"
    whole, part = divmod(ns, 1_000_000_000)
    return f"{whole}.{part:09d}".rstrip("0") + "s"


def duration_field(text: str, usual_ns: int | None = None, *, example: str = "") -> Meta:
    """What a time in a file is. ``usual_ns``: its default, which is then named, and is the example, too."""
    if usual_ns is not None:
        example = duration_text(usual_ns)
        text = f"{text} Default: {example}."
    return Meta(
        description=text,
        examples=[example],
        extra={"says": DURATION_SAYS, "remedy": f"for instance {example}"},
    )


@dataclass(frozen=True, slots=True)
class DurationBounds:
    """Limits on a time, and an error's words for them."""

    least_ns: int
    most_ns: int
    says: str
    example: str

    def ns(self, document: Document, path: Path, text: str) -> int:
        """The time in ns. Errors: :class:`unidle.errors.BadInput`."""
        found = duration_ns(text)
        if self.least_ns <= found <= self.most_ns:
            return found
        raise document.error(
            path, f"must be from {self.says}", value=text, remedy=f"for instance {self.example}"
        )


def as_name(text: str, otherwise: str) -> str:
    """``text`` made into a valid name, ``otherwise`` where nothing of it is left."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.casefold())[:NAME_LENGTH].strip("-._")
    return name or otherwise


def number(low: int, high: int, text: str, **more: Any) -> Meta:
    """The bounds of a number, and what it is."""
    return Meta(ge=low, le=high, description=text, **more)


Name = Annotated[
    str,
    Meta(pattern=NAME_PATTERN, min_length=1, max_length=NAME_LENGTH, extra={"says": NAME_SAYS}),
]


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
