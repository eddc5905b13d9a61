"""Which tests one worker runs one after the other, and what the workers begin with.

Tests of one file stay together, so that they share what the file builds. Some needs join files: two tests at once would
attach to the same kernel, shape the same links, watch the same kernel log, or disturb each other's measured times.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import needs

ONE_AT_A_TIME = (
    ("ebpf", needs.ebpf.mark),
    ("links", needs.shaping.mark),
    ("kernel-log", needs.kernel_log.mark),
    ("times", needs.steady_times.mark),
)
"""The group of a file is the first of these that one of its tests needs."""

LONGEST = Path(__file__).with_name("longest.txt")


def of_items(items: Iterable[pytest.Item]) -> dict[str, str]:
    """The group of each file: a need that joins it with others, or its own path."""
    found: dict[str, str] = {}
    rank = {name: place for place, (name, _) in enumerate(ONE_AT_A_TIME)}
    for item in items:
        file = file_of(item)
        marks = list(item.iter_markers())
        needed = (name for name, mark in ONE_AT_A_TIME if mark in marks)
        name = next(needed, file)
        if rank.get(name, len(rank)) <= rank.get(found.get(file, file), len(rank)):
            found[file] = name
    return found


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def longest_first() -> dict[str, int]:
    """The place of each file that takes long, from the longest on."""
    lines = LONGEST.read_text().split("\n") if LONGEST.exists() else []
    return {line: place for place, line in enumerate(filter(None, lines))}


def arrange(items: list[pytest.Item], *, parallel: bool) -> None:
    """Mark each test with its group; with several workers, put groups that take long to the front."""
    group_of_file = of_items(items)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of_file[file_of(item)]))
    if not parallel:
        return
    place_of_file = longest_first()
    place_of_group: dict[str, int] = {}
    for file, group in group_of_file.items():
        place = place_of_file.get(group, place_of_file.get(file, len(place_of_file)))
        place_of_group[group] = min(place, place_of_group.get(group, place))
    items.sort(key=lambda item: place_of_group[group_of_file[file_of(item)]])


def without_group(nodeid: str) -> str:
    """The identifier of a test as it is without workers: pytest-xdist puts the group behind it."""
    test, at, _ = nodeid.rpartition("@")
    return test if at else nodeid
