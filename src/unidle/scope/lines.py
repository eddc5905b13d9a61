"""The code lines that time belongs to: of each stack the deepest line of the user's own code."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from unidle.scope.budget import Cell
from unidle.scope.model import Frame, Profile
from unidle.scope.rules import is_user_file, leaf_of


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code, or the name of a native function where there is no Python."""

    function: str
    file: str = ""
    line: int = 0

    @property
    def text(self) -> str:
        """``work (train.py:41)``: file names without their directory."""
        name = _short(self.function)
        return f"{name} ({self.file.rpartition('/')[2]}:{self.line})" if self.file else name

    @property
    def where(self) -> str:
        """``train.py:41``, or the function."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else self.function


@dataclass(frozen=True, slots=True)
class Line:
    """A place with its time: in all, on a CPU, and by what it does there."""

    place: Place
    ns: int
    on_ns: int
    by_category: tuple[tuple[str, int], ...]  # most first


def place_of(stack: Iterable[Frame]) -> Place | None:
    """The deepest line of the user's own code; else the deepest Python line; else the deepest native function."""
    frames = tuple(stack)
    python = [frame for frame in frames if frame.kind == "python"]
    own = next((frame for frame in reversed(python) if is_user_file(frame.file)), None)
    if own is None and python:
        own = next((f for f in reversed(python) if not f.file.startswith("<")), python[-1])
    if own is not None:
        return Place(own.function, own.file, own.line)
    at = leaf_of(frames)
    return None if at is None else Place(frames[at].function)


def lines_of(profile: Profile, cells: Iterable[Cell], *, whole_functions: bool = False) -> list[Line]:
    """The lines of these cells, most time first. With ``whole_functions`` a function's lines are one, at its busiest."""
    places: dict[int, Place | None] = {}
    by_place: dict[Place, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.stack is None:
            continue
        if cell.stack not in places:
            places[cell.stack] = place_of(profile.stack(cell.stack))
        if (place := places[cell.stack]) is not None:
            by_place[place].append(cell)
    if whole_functions:
        by_place = _joined(by_place)
    lines = [_line(place, own) for place, own in by_place.items()]
    return sorted(lines, key=lambda one: (-one.ns, one.place.file, one.place.line, one.place.function))


def _joined(by_place: dict[Place, list[Cell]]) -> dict[Place, list[Cell]]:
    functions: dict[tuple[str, str], dict[Place, list[Cell]]] = defaultdict(dict)
    for place, cells in by_place.items():
        functions[place.function, place.file][place] = cells
    joined: dict[Place, list[Cell]] = {}
    for places in functions.values():
        most = max(places, key=lambda one: (sum(cell.ns for cell in places[one]), -one.line))
        joined[most] = [cell for cells in places.values() for cell in cells]
    return defaultdict(list, joined)


def _line(place: Place, cells: list[Cell]) -> Line:
    by: Counter[str] = Counter()
    for cell in cells:
        by[cell.rule.category] += cell.ns
    return Line(
        place, sum(by.values()), sum(cell.ns for cell in cells if cell.state == "on"),
        tuple(sorted(by.items(), key=lambda item: (-item[1], item[0]))),
    )  # fmt: skip


def _short(function: str, limit: int = 60) -> str:
    return function if len(function) <= limit else function[: limit - 1] + "…"
