"""The code lines that time belongs to: of each stack the deepest line of the user's own code."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from unidle.scope.budget import Cell
from unidle.scope.code_place import CodePlace, place_of
from unidle.scope.model import Profile


@dataclass(frozen=True, slots=True)
class LineTime:
    """A place with its time: in all, on a CPU, and by what it does there."""

    place: CodePlace
    ns: int
    on_ns: int
    by_category: tuple[tuple[str, int], ...]  # most first


def lines_of(profile: Profile, cells: Iterable[Cell], *, whole_functions: bool = False) -> list[LineTime]:
    """The lines of these cells, most time first. With ``whole_functions`` a function's lines are one, at its busiest."""
    places: dict[int, CodePlace | None] = {}
    by_place: dict[CodePlace, list[Cell]] = defaultdict(list)
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


def _joined(by_place: dict[CodePlace, list[Cell]]) -> dict[CodePlace, list[Cell]]:
    functions: dict[tuple[str, str], dict[CodePlace, list[Cell]]] = defaultdict(dict)
    for place, cells in by_place.items():
        functions[place.function, place.file][place] = cells
    joined: dict[CodePlace, list[Cell]] = {}
    for places in functions.values():
        most = max(places, key=lambda one: (sum(cell.ns for cell in places[one]), -one.line))
        joined[most] = [cell for cells in places.values() for cell in cells]
    return defaultdict(list, joined)


def _line(place: CodePlace, cells: list[Cell]) -> LineTime:
    by: Counter[str] = Counter()
    for cell in cells:
        by[cell.rule.category] += cell.ns
    return LineTime(
        place, sum(by.values()), sum(cell.ns for cell in cells if cell.state == "on"),
        tuple(sorted(by.items(), key=lambda item: (-item[1], item[0]))),
    )  # fmt: skip
