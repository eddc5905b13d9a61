"""What looks found is carved out of useful time: nothing is lost, nothing counts twice."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.ledger.attempt import AttemptTrace, RankTrace, attempt_entries
from unidle.ledger.profiled_causes import (
    BETWEEN_MOST_NS,
    CARVED,
    Look,
    carve,
    coarser,
    fitted,
    windows,
)
from unidle.ledger.rows import Entry

S = 1_000_000_000


class Bit(NamedTuple):
    start_ns: int
    end_ns: int
    leaf: str
    how: str = "inferred"
    observer: str = "output"


def sums(bits: list[Bit]) -> dict[str, int]:
    found: dict[str, int] = {}
    for bit in bits:
        found[bit.leaf] = found.get(bit.leaf, 0) + bit.end_ns - bit.start_ns
    return found


def look(start_ns: int, end_ns: int, **parts: int) -> Look:
    return Look(start_ns, end_ns, fitted(parts, end_ns - start_ns))


def test_the_window_of_a_look_holds_what_it_found_and_the_rest_stays_useful():
    found = list(carve([Bit(0, 10 * S, "useful")], [look(2 * S, 4 * S, data_stall=S, exposed_local=S // 2)]))
    assert sums(found) == {"useful": 8 * S + S // 2, "data_stall": S, "exposed_local": S // 2}
    assert {(bit.how, bit.observer) for bit in found if bit.leaf != "useful"} == {("measured", "scope")}
    assert all(bit.start_ns >= 2 * S and bit.end_ns <= 4 * S for bit in found if bit.leaf != "useful")


def test_between_two_near_looks_each_half_goes_by_the_nearer_one_and_is_inferred():
    pieces = [Bit(0, 100 * S, "useful")]
    found = list(carve(pieces, [look(10 * S, 12 * S, data_stall=S), look(72 * S, 74 * S)]))
    assert sums(found) == {"data_stall": S + 15 * S, "useful": 84 * S}
    inferred = [bit for bit in found if bit.leaf == "data_stall" and bit.how == "inferred"]
    assert sums(inferred) == {"data_stall": 15 * S} and max(bit.end_ns for bit in inferred) <= 42 * S


def test_before_the_first_look_after_the_last_and_across_a_long_break_nothing_is_said():
    far = 12 * S + BETWEEN_MOST_NS + 1
    looks = [look(10 * S, 12 * S, data_stall=2 * S), look(far, far + 2 * S, data_stall=2 * S)]
    assert sums(list(carve([Bit(0, far + 100 * S, "useful")], looks)))["data_stall"] == 4 * S


def test_what_the_job_itself_said_is_not_counted_again():
    pieces = [
        Bit(0, S, "useful"),
        Bit(S, 2 * S, "data_stall", "measured", "helper"),
        Bit(2 * S, 4 * S, "useful"),
    ]
    found = list(carve(pieces, [look(0, 4 * S, data_stall=S + 5)]))
    assert sums(found) == {"useful": 3 * S - 5, "data_stall": S + 5}


def test_communication_that_the_job_said_holds_the_wait_for_a_late_rank():
    pieces = [Bit(0, S, "exposed_local", "measured", "helper"), Bit(S, 4 * S, "useful")]
    found = sums(list(carve(pieces, [look(0, 4 * S, exposed_local=S // 2, straggler_wait=S)])))
    assert found == {"exposed_local": S, "straggler_wait": S // 2, "useful": 2 * S + S // 2}


def test_only_useful_time_is_carved():
    pieces = [Bit(0, 3 * S, "evaluation"), Bit(3 * S, 4 * S, "useful")]
    found = sums(list(carve(pieces, [look(0, 4 * S, data_stall=2 * S)])))
    assert found == {"evaluation": 3 * S, "data_stall": S}


def test_every_part_of_a_window_has_its_share():
    steps = [Bit(k * S, (k + 1) * S, "useful") for k in range(160)]
    found = list(carve(steps, [look(0, 160 * S, data_stall=40 * S)]))
    for part in range(8):
        inside = [b for b in found if part * 20 * S <= b.start_ns < (part + 1) * 20 * S]
        assert sums(inside)["data_stall"] == 5 * S


times = st.integers(0, 400)
amounts = st.dictionaries(st.sampled_from([*CARVED, "useful", "nonsense"]), st.integers(-5, 300), max_size=5)


@st.composite
def looked(draw: st.DrawFn) -> list[Look]:
    edges = sorted(set(draw(st.lists(times, max_size=12))))
    pairs = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False) if a < b]
    return [Look(a, b, fitted(draw(amounts), b - a), draw(st.booleans())) for a, b in pairs]


@st.composite
def tiled(draw: st.DrawFn) -> list[Bit]:
    edges = sorted({0, 400, *draw(st.lists(times, max_size=25))})
    leaves = st.sampled_from(["useful", "useful", "useful", "start", "data_stall", "exposed_local"])
    return [Bit(a, b, draw(leaves)) for a, b in pairwise(edges)]


@given(tiled(), looked())
def test_carving_covers_the_same_time_and_takes_only_from_useful(pieces, looks):
    found = list(carve(pieces, looks))
    assert [b.start_ns for b in found[1:]] == [b.end_ns for b in found[:-1]]
    assert (found[0].start_ns, found[-1].end_ns) == (0, 400) and all(b.start_ns < b.end_ns for b in found)
    before, after = sums(pieces), sums(found)
    for leaf in before.keys() | after.keys():
        change = after.get(leaf, 0) - before.get(leaf, 0)
        assert change <= 0 if leaf == "useful" else change >= 0 if leaf in CARVED else change == 0


@given(tiled(), looked())
def test_a_measured_window_is_exact_where_there_is_useful_time_enough(pieces, looks):
    useful = [Bit(0, 400, "useful")]
    found = list(carve(useful, looks))
    for one in (one for one in looks if one.seen):
        inside = [
            b for b in found if one.start_ns <= b.start_ns and b.end_ns <= one.end_ns and b.how == "measured"
        ]
        assert {leaf: ns for leaf, ns in sums(inside).items() if leaf != "useful"} == dict(one.parts)


@given(looked())
def test_windows_never_overlap_and_coarser_looks_keep_order(looks):
    for some in (looks, coarser(looks)):
        edges = [edge for w in windows(some) for edge in (w.start_ns, w.end_ns)]
        assert edges == sorted(edges)
        assert all(sum(ns for _, ns in one.parts) <= one.end_ns - one.start_ns for one in some)


def test_a_job_that_shows_no_step_is_at_work_from_the_first_step_seen_from_outside():
    rank = RankTrace((0,), 10, None, looks=(look(60, 80, data_stall=5),))
    trace = AttemptTrace("j", 1, 0, None, (rank,), job_steps=False, watched_ns=50)
    entries = attempt_entries(trace, 100)
    assert total(entries) == {"gang_wait": 10, "start": 40, "useful": 45, "data_stall": 5}
    ended = trace._replace(ended_ns=100, fate="kept", ranks=(rank._replace(end_ns=100),))
    assert total(attempt_entries(ended, 100)) == {"gang_wait": 10, "useful": 85, "data_stall": 5}


@pytest.mark.parametrize("fate", ["replayed", "preempted", "no_artefact"])
def test_what_was_lost_is_lost_with_all_that_was_found_in_it(fate):
    rank = RankTrace(
        (0,), 0, 100, 0, (20, 40, 60, 80, 100), (1, 2, 3, 4, 5), looks=(look(0, 100, data_stall=50),)
    )
    trace = AttemptTrace("j", 1, 0, 100, (rank,), fate, durable_step=2, durable_ns=40, halted_ns=100)
    found = total(attempt_entries(trace, 100))
    assert found == {"useful": 20, "data_stall": 20, fate: 60}


def total(entries: list[Entry]) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in entries:
        found[entry.leaf] = found.get(entry.leaf, 0) + entry.sign * (entry.end_ns - entry.start_ns)
    return {leaf: ns for leaf, ns in found.items() if ns}
