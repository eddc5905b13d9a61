"""What is kept of a rank's marks, and what of a long life."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sim.worlds import S
from unidle.events.marks import Mark
from unidle.view.ranks import RankView, coarser, take_up


def test_a_mark_that_came_early_and_again_in_its_turn_leaves_nothing_behind() -> None:
    early, calm = RankView(), RankView()
    marks = [Mark("step", k, n=k) for k in range(1, 8)]
    take_up(early, 4, marks[4:5])
    assert early.count == 0
    take_up(early, 0, marks)
    take_up(calm, 0, marks)
    assert early == calm
    assert not early.pending


def test_steps_without_numbers_are_counted_and_repeated_ones_ignored() -> None:
    rank = RankView()
    take_up(rank, 0, [Mark("step", 10), Mark("step", 20), Mark("step", 30, n=2), Mark("step", 25, n=3)])
    assert (rank.step_n, rank.step_ns) == ([1, 2, 3], [10, 20, 25])


def test_steps_of_a_long_life_keep_first_and_last_and_stay_in_order() -> None:
    rank = RankView()
    take_up(rank, 0, [Mark("step", k * S, n=k) for k in range(1, 50_001)])
    assert rank.count == 50_000
    assert len(rank.step_n) <= 8192
    assert (rank.step_n[0], rank.step_n[-1]) == (1, 50_000)
    assert rank.step_n == sorted(set(rank.step_n))
    assert rank.step_ns == [n * S for n in rank.step_n]


def test_data_waits_of_a_long_life_keep_their_sum() -> None:
    rank = RankView()
    marks = [
        Mark("span", 10 * k, e=10 * k + 1 + k % 3, w=("data", "eval")[k % 5 == 0]) for k in range(30_000)
    ]
    take_up(rank, 0, marks)
    assert len(rank.spans) <= 8192
    for name, leaf in (("data", "data_stall"), ("eval", "evaluation")):
        told = sum(m.e - m.t for m in marks if m.w == name)
        assert sum(end - start for start, end, of in rank.spans if of == leaf) == told


leaves = st.sampled_from(["data_stall", "evaluation", "checkpoint"])
spans = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30), leaves), min_size=1, max_size=60).map(
    lambda made: [(start, start + length, leaf) for start, length, leaf in made]
)


@given(spans)
def test_coarser_spans_never_overlap_and_cover_as_much_time(made: list[tuple[int, int, str]]) -> None:
    told = coarser(made)
    covered = {t for start, end, _ in made for t in range(start, end)}
    assert sum(end - start for start, end, _ in told) == len(covered)
    assert all(a[1] <= b[0] for a, b in pairwise(told))
    assert min(s for s, _, _ in made) <= told[0][0]
    assert max(e for _, e, _ in made) == told[-1][1]
    assert len(told) <= 3 * (len(made) // 16 + 1)
