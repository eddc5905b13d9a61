"""What is a hang and what is none, told to the judge look by look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.guard.progress import BUSY_NS, GangFinding, GangJudge, GangProgress, _does
from unidle.jobs.vitals import Doing, GangVitals, LinkVitals, Pair, RankVitals

S = 1_000_000_000
TICK = S // 2
COMPUTES = RankVitals(0, "running", 0, cpu_ns=TICK // 2)
WAITS = RankVitals(0, "lock", 0, timed=True)


def told(
    ranks_at: Callable[[int], Sequence[RankVitals]],
    seconds: float,
    *,
    steps: Sequence[float] = (),
    span: str = "",
    span_s: float = 0,
) -> list[GangFinding | None]:
    """What a judge says at each look; ``ranks_at`` gives the ranks at a time in ns."""
    judge, found = GangJudge(), []
    for at in range(TICK, int(seconds * S) + 1, TICK):
        ranks = tuple(replace(rank, rank=k) for k, rank in enumerate(ranks_at(at)))
        seen = GangVitals("job", 1, at - TICK, at, ranks)
        done = [int(t * S) for t in steps if t * S <= at]
        found.append(
            judge.judge(seen, GangProgress(0, done[-64:], span if at >= span_s * S else "", int(span_s * S)))
        )
    return found


def first_certain(found: Sequence[GangFinding | None]) -> tuple[float, GangFinding] | None:
    return (
        next(((k + 1) / 2, one) for k, one in enumerate(found) if one is not None and one.certain)
        if any(one is not None and one.certain for one in found)
        else None
    )


def test_a_stopped_rank_is_named_within_three_seconds() -> None:
    def ranks(at: int) -> list[RankVitals]:
        stopped = replace(WAITS, doing="stopped", since_ns=4 * S + 1)
        return [COMPUTES, COMPUTES, COMPUTES] if at <= 4 * S else [WAITS, stopped, WAITS]

    at_s, finding = first_certain(told(ranks, 12, steps=[0.5 * k for k in range(1, 9)])) or (0, None)
    assert finding is not None and (finding.kind, finding.rank) == ("hang", 1)
    assert finding.onset_ns == 4 * S + 1
    assert finding.signal_ns <= 5 * S
    assert at_s <= 7


def test_a_rank_that_a_debugger_holds_for_a_moment_is_no_hang() -> None:
    def ranks(at: int) -> list[RankVitals]:
        held = 4 * S < at <= 5 * S
        return [WAITS, replace(WAITS, doing="stopped", since_ns=4 * S)] if held else [COMPUTES, COMPUTES]

    assert first_certain(told(ranks, 20)) is None


def test_of_a_single_rank_is_said_what_it_waits_for() -> None:
    found = first_certain(told(lambda at: [COMPUTES if at <= 5 * S else WAITS], 20, steps=[1, 2, 3, 4, 5]))
    assert found is not None and found[1].text.endswith(": its rank waits for a lock or thread")


def test_the_rank_that_waits_for_something_else_than_the_others_is_blamed() -> None:
    dead = replace(WAITS, timed=False)  # a lock that nobody will release; the others wait in a collective
    found = first_certain(
        told(
            lambda at: [COMPUTES] * 4 if at <= 5 * S else [WAITS, WAITS, dead, WAITS],
            20,
            steps=[1, 2, 3, 4, 5],
        )
    )
    assert found is not None
    assert (found[1].kind, found[1].rank) == ("hang", 2)
    assert found[0] <= 10


@pytest.mark.parametrize(("doing", "one", "many"), [
    ("network", "waits for the network", "wait for the network"), ("running", "computes", "compute"),
    ("gone", "is gone", "are gone"), ("sleep", "sleeps", "sleep"),
])  # fmt: skip
def test_one_rank_waits_and_several_wait(doing: Doing, one: str, many: str) -> None:
    assert (_does(1, doing), _does(3, doing)) == (one, many)


def test_a_gang_that_waits_alike_hangs_and_nobody_is_blamed() -> None:
    found = first_certain(
        told(lambda at: [COMPUTES] * 3 if at <= 5 * S else [WAITS] * 3, 20, steps=[1, 2, 3, 4, 5])
    )
    assert found is not None and found[1].rank is None


def test_evaluation_on_one_rank_is_no_hang() -> None:
    assert (
        told(
            lambda at: [COMPUTES] * 3 if at <= 5 * S else [COMPUTES, WAITS, WAITS], 200, steps=[1, 2, 3, 4, 5]
        )[-1]
        is None
    )


def test_a_checkpoint_on_a_slow_disk_is_no_hang() -> None:
    saves = replace(WAITS, doing="disk", disk=True)
    found = told(
        lambda at: [COMPUTES] * 3 if at <= 5 * S else [saves, WAITS, WAITS], 60, steps=[1, 2, 3, 4, 5]
    )
    assert first_certain(found) is None
    slow = replace(WAITS, io_bytes=TICK // 1000)  # 1 MB/s
    assert (
        told(lambda at: [COMPUTES] * 3 if at <= 5 * S else [slow, WAITS, WAITS], 100, steps=[1, 2, 3, 4, 5])[
            -1
        ]
        is None
    )


def test_a_rank_that_sleeps_for_a_minute_is_no_hang_and_one_that_sleeps_for_an_hour_is() -> None:
    def sleeping(length_s: int) -> Callable[[int], Sequence[RankVitals]]:
        asleep = replace(WAITS, doing="sleep", timed=True, wakes_ns=(5 + length_s) * S)
        return lambda at: [COMPUTES] * 3 if at <= 5 * S else [asleep, WAITS, WAITS]

    assert first_certain(told(sleeping(60), 64, steps=[1, 2, 3, 4, 5])) is None
    found = first_certain(told(sleeping(3600), 64, steps=[1, 2, 3, 4, 5]))
    assert found is not None and found[1].rank == 0 and found[0] <= 10


@pytest.mark.parametrize("every_s", [0.1, 1, 30, 50])
def test_a_rank_that_polls_for_ever_is_found_after_two_minutes(every_s: float) -> None:
    every = int(every_s * S)

    def ranks(at: int) -> list[RankVitals]:
        asleep = replace(WAITS, doing="sleep", timed=True, wakes_ns=(at // every + 1) * every)
        return [COMPUTES] * 3 if at <= 5 * S else [asleep, WAITS, WAITS]

    found = first_certain(told(ranks, 400, steps=[1, 2, 3, 4, 5]))
    assert found is not None and 120 <= found[0] <= 190
    assert found[1].rank == 0


def test_a_long_sleep_and_polls_that_end_are_no_hang() -> None:
    def ranks(at: int) -> list[RankVitals]:
        polls = replace(WAITS, doing="sleep", timed=True, wakes_ns=at + S // 10)
        return [COMPUTES] * 2 if at <= 5 * S or at // S % 110 == 0 else [polls, WAITS]

    assert first_certain(told(ranks, 300, steps=[1, 2, 3, 4, 5])) is None
    long = replace(WAITS, doing="sleep", timed=True, wakes_ns=285 * S)
    assert (
        first_certain(
            told(lambda at: [COMPUTES] * 2 if at <= 5 * S else [long, WAITS], 285, steps=[1, 2, 3, 4, 5])
        )
        is None
    )


def test_what_the_job_says_of_itself_is_believed_for_ten_minutes() -> None:
    found = told(
        lambda at: [COMPUTES] * 2 if at <= 5 * S else [WAITS] * 2,
        700,
        steps=[1, 2, 3, 4, 5],
        span="evaluation",
        span_s=5,
    )
    certain = first_certain(found)
    assert certain is not None and 600 <= certain[0] <= 610


def test_waiting_for_data_gets_more_time_than_a_deadlock() -> None:
    loads = replace(WAITS, doing="network")
    found = first_certain(
        told(lambda at: [COMPUTES] * 3 if at <= 5 * S else [loads, WAITS, WAITS], 60, steps=[1, 2, 3, 4, 5])
    )
    assert found is not None and found[1].rank == 0 and 34 <= found[0] <= 37


def test_an_endless_loop_is_found_after_twenty_usual_steps_and_not_before_five_minutes() -> None:
    found = first_certain(told(lambda _: [COMPUTES] * 2, 400, steps=[1, 2, 3, 4, 5]))
    assert found is not None and found[0] >= 5 + BUSY_NS / S
    slow = first_certain(told(lambda _: [COMPUTES] * 2, 1500, steps=[0, 60, 120]))
    assert slow is not None and slow[0] >= 120 + 20 * 60


def test_a_cut_link_names_its_ends_and_the_rank_on_most_of_them() -> None:
    def ranks(at: int) -> list[RankVitals]:
        if at <= 4 * S:
            return [COMPUTES] * 4
        stuck = replace(WAITS, links=(LinkVitals(3, stuck=True),), stuck_ns=4 * S + 1)
        return [stuck, WAITS, stuck, replace(WAITS, links=(LinkVitals(0, stuck=True),), stuck_ns=4 * S + 1)]

    found = first_certain(told(ranks, 12, steps=[1, 2, 3, 4]))
    assert found is not None and (found[1].kind, found[1].rank) == ("cut", 3)
    assert "0-3, 2-3" in found[1].text and found[0] <= 8
    two = first_certain(
        told(lambda at: [replace(WAITS, links=(LinkVitals(1, stuck=True),), stuck_ns=1), WAITS], 8)
    )
    assert two is not None and two[1].rank is None and two[1].pairs == ((0, 1),)


def test_a_cut_node_is_told_from_a_cut_link_by_whom_the_nodes_reach() -> None:
    stuck = [replace(WAITS, links=(LinkVitals(1, stuck=True),), stuck_ns=1), WAITS, WAITS]

    def found(reached: tuple[Pair, ...], unreached: tuple[Pair, ...]) -> GangFinding | None:
        judge, said = GangJudge(["n1", "n2", "n3"]), None
        for at in range(S // 2, 8 * S, S // 2):
            seen = GangVitals("job", 1, at - S // 2, at, tuple(stuck), reached, unreached)
            said = judge.judge(seen, GangProgress(0)) or said
        return said

    node, link = found(((0, 2),), ((0, 1), (1, 2))), found(((0, 2), (1, 2)), ((0, 1),))
    assert node is not None and node.rank == 1 and "n2 and n3" in node.text
    assert link is not None and link.rank is None and link.pairs == ((0, 1),)


def test_a_lossy_link_on_which_steps_still_come_is_not_cut() -> None:
    ranks = [replace(WAITS, links=(LinkVitals(1, stuck=True),), stuck_ns=1), replace(COMPUTES)]
    assert first_certain(told(lambda _: ranks, 12, steps=[0.5 * k for k in range(1, 24)])) is None


@given(
    st.lists(
        st.lists(st.sampled_from(["running", "lock", "disk", "network"]), min_size=3, max_size=3),
        min_size=1,
        max_size=40,
    )
)
def test_while_any_rank_computes_there_is_no_alarm(looks: list[list[str]]) -> None:
    def ranks(at: int) -> list[RankVitals]:
        row = looks[(at // TICK - 1) % len(looks)]
        others = [replace(WAITS, doing=doing) for doing in row]  # type: ignore[arg-type]
        return [COMPUTES, *others]

    assert all(found is None for found in told(ranks, len(looks) / 2, steps=[0.1]))


def test_silence_that_is_shorter_than_twice_the_longest_step_is_no_hang() -> None:
    steps = [1, 2, 42, 43, 44]
    found = told(lambda at: [COMPUTES if at <= 44 * S else WAITS], 200, steps=steps)
    heard = [(k + 1) / 2 for k, one in enumerate(found) if one is not None]
    assert heard and heard[0] >= 44 + 2 * 40
