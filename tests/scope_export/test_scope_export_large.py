"""Large profiles: what a writer costs grows with the profile, not with its square."""

from __future__ import annotations

import tracemalloc

import pytest

from scope_export import profiles
from scope_export.protobuf import fields
from unidle.scope.difference import difference
from unidle.scope.export import FORMATS, folded, html, pprof
from unidle.scope.export.columns import tree
from unidle.scope.merge import merge
from unidle.scope.model import Profile


def allocated(make: object, profile: Profile) -> int:
    """The highest amount of memory that a writer held, in bytes."""
    tracemalloc.start()
    make(profile)  # type: ignore[operator]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", FORMATS)
def test_memory_grows_with_the_profile(name: str) -> None:
    little, much = profiles.large(500, 1000, 4000), profiles.large(2000, 4000, 16000)
    frames = [sum(map(len, p.stacks)) + len(p.samples) for p in (little, much)]
    peaks = [allocated(FORMATS[name].write, p) for p in (little, much)]
    assert peaks[1] / peaks[0] < 2 * frames[1] / frames[0]


@pytest.mark.slow
def test_a_million_samples_of_two_hundred_thousand_stacks_come_through() -> None:
    profile = profiles.large(100_000, 200_000, 1_000_000)
    total = sum(s.ns for s in profile.samples)
    assert sum(folded.read(folded.write(profile)).values()) * 1000 == total
    assert len(pprof.plain(profile)) < 150_000_000
    assert len(html.write(profile)) < 60_000_000
    merged = merge([profile, profile])
    assert sum(s.ns for s in merged.samples) == 2 * total


def test_a_hundred_thousand_rows_are_all_in_the_file() -> None:
    profile = profiles.large(10_000, 20_000, 100_000)
    rows = {(s.tid, s.stack, s.state) for s in profile.samples}
    assert len(fields(pprof.plain(profile))[2]) == len(rows)
    assert difference(profile, profile).after.ns == sum(s.ns for s in profile.samples)


def test_the_tree_of_stacks_has_a_node_for_each_beginning_of_a_stack() -> None:
    profile = profiles.large(50, 300, 300)
    above, frames, ends, _ = tree(list(profile.stacks), list(range(300)))
    parents = [node - up for node, up in enumerate(above.tolist())]
    assert len(parents) == len({stack[:k] for stack in profile.stacks for k in range(len(stack) + 1)})
    for number, stack in enumerate(profile.stacks):
        node, path = int(ends[number]), []
        while node:
            assert parents[node] < node
            path.append(frames[node])
            node = parents[node]
        assert tuple(reversed(path)) == stack
