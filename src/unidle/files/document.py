"""A document as it was read, and errors that point into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unidle.errors import BadInput

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on the content of a file. ``values`` counts the members of an alias each time it is used."""

    size_bytes: int = 1 << 20
    depth: int = 32
    values: int = 50_000


class BadFile(BadInput):
    """Bad input with a place: ``source:line: field: problem (got value); remedy``."""

    def __init__(
        self,
        place: str,
        problem: str,
        *,
        field: str | None = None,
        value: object = None,
        remedy: str | None = None,
    ) -> None:
        self.place = place
        super().__init__(problem, field=field, value=value, remedy=remedy)

    def line(self) -> str:
        return printable(f"{self.place}: {super().line()}")


@dataclass(frozen=True, slots=True)
class Breach:
    """The value at ``path`` violates a rule."""

    path: Path
    problem: str
    value: object = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a value: its line (from 1) and, unless it is text, how it was written."""

    line: int
    written: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and the position of each part of it.

    ``marks`` maps the ``id`` of a container in ``data`` to the marks of its members; it is empty
    for data that did not come from a file.
    """

    data: object
    source: str
    marks: Mapping[int, Mapping[str | int, Position]] = field(default_factory=dict)

    def mark(self, path: Path) -> Position | None:
        """The mark of the value at ``path``, or of the nearest container around it."""
        here: object = self.data
        found: Position | None = None
        for key in path:
            found = self.marks.get(id(here), {}).get(key, found)
            if isinstance(here, dict):
                here = here.get(key)
            elif isinstance(here, list | tuple) and isinstance(key, int) and key < len(here):
                here = here[key]
            else:
                break
        return found

    def error(self, path: Path, problem: str, *, value: object = None, remedy: str | None = None) -> BadFile:
        """An error about the value at ``path``."""
        mark = self.mark(path)
        place = f"{self.source}:{mark.line}" if mark else self.source
        return BadFile(place, problem, field=dotted(path) or None, value=value, remedy=remedy)


def dotted(path: Path) -> str:
    """``("command", 3)`` as ``command[3]``, ``("restart", "max")`` as ``restart.max``."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{_short(key)}" if text else _short(key)
    return text


def printable(text: str) -> str:
    """``text`` as one line that is safe to print: other characters are escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def _short(key: str, limit: int = 80) -> str:
    return printable(key if len(key) <= limit else key[: limit - 1] + "…")
