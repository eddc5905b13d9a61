"""Which ranks of a gang that hangs stand where the others do not."""

from __future__ import annotations

from unidle.events.guard import RankStack
from unidle.guard.stacks import in_words, numbers, odd_in_words, odd_ranks

ALL_REDUCE = RankStack((0, 1, 3), "collective", "in all_reduce at train.py:40 (main)")


def test_the_rank_outside_of_the_collective_is_odd() -> None:
    stacks = [RankStack((2,), "data", "at data.py:12 (load), waits in read pipe"), ALL_REDUCE]
    assert odd_ranks(stacks) == (2,)
    assert in_words(stacks, (2,)) == (
        "ranks 0, 1 and 3 in all_reduce at train.py:40 (main); rank 2 at data.py:12 (load), waits in read pipe"
    )
    assert odd_in_words(stacks, (2,)) == "rank 2 at data.py:12 (load), waits in read pipe"


def test_where_most_are_outside_they_are_the_odd_ones() -> None:
    assert odd_ranks(
        [RankStack((5,), "collective", "in barrier"), RankStack((0, 1, 2), "data", "in read")]
    ) == (0, 1, 2)


def test_another_collective_than_most_are_in_is_odd() -> None:
    assert odd_ranks([ALL_REDUCE, RankStack((2,), "collective", "in barrier at train.py:44 (main)")]) == (2,)


def test_two_halves_in_two_collectives_blame_nobody() -> None:
    assert odd_ranks([RankStack((0, 1), "collective", "in a"), RankStack((2, 3), "collective", "in b")]) == ()


def test_a_stopped_and_an_ended_rank_are_odd_wherever_they_stand() -> None:
    stopped = RankStack((2,), "stopped", "in all_reduce at train.py:40 (main)")
    stacks = [ALL_REDUCE, stopped, RankStack((4,), "ended")]
    assert odd_ranks(stacks) == (2, 4)
    assert in_words(stacks, (2, 4)).endswith(
        "; rank 2 stopped by a signal or debugger (in all_reduce at train.py:40 (main)); rank 4 ended"
    )


def test_without_a_collective_the_minority_is_odd() -> None:
    waits = [
        RankStack((0, 1, 2), "device_sync", "in item at train.py:9 (main)"),
        RankStack((3,), "lock", "in get"),
    ]
    assert odd_ranks(waits) == (3,)
    assert odd_ranks([RankStack((0,), "lock", "in a"), RankStack((1,), "lock", "in b")]) == ()


def test_nobody_is_odd_where_all_are_alike_or_gone() -> None:
    assert odd_ranks([ALL_REDUCE]) == ()
    assert odd_ranks([RankStack((0, 1), "stopped")]) == ()
    assert odd_ranks([]) == ()


def test_a_rank_that_could_not_be_looked_at_is_not_blamed() -> None:
    unknown = RankStack((2,), "unknown", why_not="it may not be read")
    assert odd_ranks([ALL_REDUCE, unknown]) == ()
    assert "rank 2 without a stack (it may not be read)" in in_words([ALL_REDUCE, unknown], ())


def test_many_ranks_and_places_stay_one_line() -> None:
    assert numbers(range(1000)) == "0-999"
    assert numbers([1, 2, 4, 5, 6]) == "1, 2 and 4-6"
    assert numbers(range(0, 100, 2)).endswith("20 and others")
    stacks = [RankStack((k,), "data", f"at x.py:{k} (f)") for k in range(50)]
    assert in_words(stacks, ()).endswith("; 44 ranks elsewhere")
