"""Merging: nothing is lost, nothing counted twice, and the order of merging does not matter."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_export import profiles
from unidle.errors import BadInput
from unidle.scope.merge import merge, renumbered
from unidle.scope.model import Call, Frame, Process, Profile, Quality, Sample, Span, StackMemory, Thread

small = st.integers(0, 3)
amount = st.integers(0, 10**12)


@st.composite
def some_profile(draw: st.DrawFn) -> Profile:
    frames = tuple(
        draw(
            st.lists(
                st.builds(Frame, st.sampled_from(["python", "native"]), st.sampled_from("abcd")),
                min_size=1,
                max_size=5,
            )
        )
    )
    number = st.integers(0, len(frames) - 1)
    stacks = tuple(map(tuple, draw(st.lists(st.lists(number, max_size=4), min_size=1, max_size=5))))
    stack = st.integers(0, len(stacks) - 1)

    def rows(kind: type, *parts: st.SearchStrategy) -> tuple:  # type: ignore[type-arg]
        return tuple(draw(st.lists(st.builds(kind, *parts), max_size=6)))

    start = draw(amount)
    return Profile(
        tier=draw(st.sampled_from(["T0", "T1", "T2", "T3"])),
        start_ns=start,
        end_ns=start + draw(amount),
        frames=frames,
        stacks=stacks,
        samples=rows(Sample, small, small, stack, st.sampled_from(["on", "off", "runq"]), amount, amount),
        threads=rows(Thread, small, small, st.sampled_from(["", "main"]), amount, amount, amount, amount, amount),
        processes=rows(Process, small, st.sampled_from(["", "python"]), small, st.just("3.11"), st.none() | small),
        calls=rows(Call, small, small, st.sampled_from("xy"), st.just("alloc"), amount, st.none() | amount, amount, st.none() | stack),
        spans=rows(Span, small, small, st.just("s"), st.just("gc"), amount, amount),
        memory=rows(StackMemory, small, stack, st.sampled_from(["host", "cuda:0"]), amount, amount, amount, amount),
        quality=Quality(draw(small), draw(small), draw(st.floats(0, 100)), bpf_cpu_pct=draw(st.none() | st.floats(0, 9)), notes=("n",)),
        misses=tuple(draw(st.lists(st.sampled_from(["a", "b", "c"]), max_size=2, unique=True))),
        wall_start_ns=draw(amount),
    )  # fmt: skip


def plain(profile: Profile) -> Profile:
    """Without the floats, which are compared with a tolerance."""
    return replace(
        profile, quality=replace(profile.quality, rooted_pct=0, symbolised_pct=0, merge_mismatch_pct=0)
    )


@settings(max_examples=60)
@given(some_profile(), some_profile(), some_profile())
def test_merging_is_associative(a: Profile, b: Profile, c: Profile) -> None:
    at_once, left, right = merge([a, b, c]), merge([merge([a, b]), c]), merge([a, merge([b, c])])
    assert plain(at_once) == plain(left) == plain(right)
    assert left.quality.rooted_pct == pytest.approx(at_once.quality.rooted_pct)


def by_frames(*parts: Profile) -> Counter[object]:
    found: Counter[object] = Counter()
    for part in parts:
        for s in part.samples:
            found[s.pid, s.tid, part.stack(s.stack), s.state, "n"] += s.count
            found[s.pid, s.tid, part.stack(s.stack), s.state, "ns"] += s.ns
        for h in part.memory:
            found[h.pid, part.stack(h.stack), h.device] += h.allocated_bytes
        for call in part.calls:
            stack = None if call.stack is None else part.stack(call.stack)
            found[call.pid, call.tid, call.name, stack] += call.count
    return +found


@settings(max_examples=60)
@given(st.lists(some_profile(), min_size=1, max_size=4))
def test_nothing_is_lost_or_counted_twice(parts: list[Profile]) -> None:
    merged = merge(parts)
    assert by_frames(merged) == by_frames(*parts)
    assert len(set(merged.frames)) == len(merged.frames)
    assert len(set(merged.stacks)) == len(merged.stacks)
    assert sum(t.on_ns for t in merged.threads) == sum(t.on_ns for p in parts for t in p.threads)
    assert len({(t.pid, t.tid) for t in merged.threads}) == len(merged.threads)
    assert len(merged.spans) == sum(len(p.spans) for p in parts)
    assert merged.quality.samples == sum(p.quality.samples for p in parts)
    assert merged == Profile.from_json(merged.to_json())


def test_the_poorest_tier_and_all_that_is_missed_are_kept() -> None:
    a = profiles.small()
    b = replace(profiles.single(), misses=("off-CPU time", "device kernels"))
    merged = merge([a, b])
    assert merged.tier == "T1"
    assert merged.misses == ("device kernels", "file contents", "off-CPU time")


def test_a_thread_seen_in_two_windows_is_one_thread_with_both_times() -> None:
    merged = merge([profiles.small(), profiles.small()])
    assert [t.on_ns for t in merged.threads] == [2 * t.on_ns for t in profiles.small().threads]
    assert merged.samples == tuple(
        replace(s, count=2 * s.count, ns=2 * s.ns) for s in profiles.small().samples
    )


def test_machines_whose_process_numbers_collide_are_renumbered_first() -> None:
    moved = renumbered(profiles.small(), {100: 1100, 200: 1200})
    merged = merge([profiles.small(), moved])
    assert [p.pid for p in merged.processes] == [100, 200, 1100, 1200]
    assert sum(s.ns for s in merged.samples if s.pid == 1100) == sum(
        s.ns for s in profiles.small().samples if s.pid == 100
    )


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(BadInput, match="profiles"):
        merge([])


@pytest.mark.parametrize(("column", "value"), [(0, 2**70), (1, "x"), (3, "asleep"), (5, None)])
def test_a_file_whose_samples_are_no_numbers_is_refused(column: int, value: object) -> None:
    told = profiles.small().to_json()
    told["samples"][0][column] = value
    with pytest.raises(BadInput, match="is no profile of unidle"):
        Profile.from_json(told)
