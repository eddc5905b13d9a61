"""Which tests one worker runs one after the other, and what the workers begin with.

Tests of one file stay together, so that they share what the file builds. Some needs join files: two tests at once would
attach to the same kernel, shape links on the same cores, or hold a file system that the other shuts down. The group of a
file follows from the marks of ``needs`` that its text names, so that the process that shares tests out, which imports
none of them, knows it too.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
LONGEST = Path(__file__).with_name("longest.txt")
JOINED = {
    "ebpf": ("needs.ebpf", "needs.can_load_bpf"),
    "mounts": ("needs.kernel_log", "needs.own_mounts"),
    "times": ("needs.steady_times",),
    "links": ("needs.shaping",),
}
"""The first of these that a file names is its group; links are joined for each directory only, as they have namespaces.

A process with mounts of its own holds a file system that another test has shut down, and has to mount afresh.
"""


class ByGroup(LoadScopeScheduling):
    """One group after the other to each worker that is free."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


@cache
def group_of(file: str) -> str:
    """The group of a file: a need that joins it with others, or its own path."""
    text = (ROOT / file).read_text()
    name = next((name for name, any_of in JOINED.items() if any(need in text for need in any_of)), file)
    return f"links of {Path(file).parent}" if name == "links" else name


@cache
def _place_of_longest() -> dict[str, int]:
    lines = LONGEST.read_text().splitlines() if LONGEST.exists() else []
    return {line: place for place, line in enumerate(lines)}


def longest_first(items: list[pytest.Item]) -> None:
    """Put groups with a file that takes long to the front, the longest first."""
    places = _place_of_longest()
    place_of_group: dict[str, int] = {}
    for file in dict.fromkeys(item.nodeid.partition("::")[0] for item in items):
        group = group_of(file)
        place = min(places.get(file, len(places)), places.get(group, len(places)))
        place_of_group[group] = min(place, place_of_group.get(group, place))
    items.sort(key=lambda item: place_of_group[group_of(item.nodeid.partition("::")[0])])
