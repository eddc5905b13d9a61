"""Who slows a gang down: made-up gangs that work in step, one of them slower."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from unidle.guard.slowness import Slow, SlowJudge
from unidle.jobs.vitals import GangVitals, LinkVitals, RankVitals

S = 1_000_000_000
TICK = S // 2

Work = Callable[[int, int], float]  # seconds of work of a rank in a step
Links = Callable[[int, float], tuple[LinkVitals, ...]]  # of a rank at a time in seconds


def judged(
    ranks: int, work: Work, seconds: float, *, noise: float = 0.03, seed: int = 0, links: Links = lambda _rank, _at: (),
    groups: Sequence[Sequence[int]] | None = None, nodes: Sequence[str] = (),
    read_every: int | Callable[[float], int] = 1,
) -> list[Slow | None]:  # fmt: skip
    """What a judge says at each look. A step takes as long as its slowest rank; the others wait for it."""
    steps, waits = worked(ranks, work, seconds, noise, seed)
    judge = SlowJudge(groups or [list(range(ranks))], nodes)
    said = []
    for at in range(TICK, int(seconds * S), TICK):
        every = read_every if isinstance(read_every, int) else read_every(at / S)
        seen, read = [], at // TICK % every == 0
        for rank in range(ranks):
            waited = sum(max(0.0, min(b, at / S) - max(a, (at - TICK) / S)) for a, b in waits[rank])
            seen.append(
                RankVitals(
                    rank, "running", 0, waiting_ns=int(waited * S), links=links(rank, at / S) if read else ()
                )
            )
        done = [int(t * S) for t in steps if t * S <= at]
        said.append(
            judge.judge(GangVitals("job", 1, at - TICK, at, tuple(seen), links_read=read), done[-64:])
        )
    return said


def worked(
    ranks: int, work: Work, seconds: float, noise: float, seed: int
) -> tuple[list[float], list[list[tuple[float, float]]]]:
    """When each step ended, and when each rank waited."""
    chance = random.Random(seed)
    steps: list[float] = []
    waits: list[list[tuple[float, float]]] = [[] for _ in range(ranks)]
    now, step = 0.0, 0
    while now < seconds:
        took = [work(rank, step) * (1 + chance.uniform(0, noise)) for rank in range(ranks)]
        end = now + max(took) + 0.02
        for rank, spent in enumerate(took):
            waits[rank].append((now + spent, end))
        steps.append(end)
        now, step = end, step + 1
    return steps, waits


@pytest.mark.parametrize("seed", range(20))
def test_the_onset_of_a_slow_down_is_within_one_step_of_its_first_long_step(seed: int) -> None:
    """Collectors' pauses and evaluations before and after it move the onset by nothing."""
    chance = random.Random(seed)
    step_s, slower = chance.choice([0.1, 0.25, 0.6]), chance.uniform(1.2, 2.0)
    first, slow = int(chance.uniform(25, 45) / step_s), chance.randrange(4)
    pauses = {
        first - chance.randrange(2, 12),
        first - chance.randrange(20, 40),
        first + chance.randrange(2, 40),
    }

    def work(rank: int, step: int) -> float:
        mine = step_s * (slower if rank == slow and step >= first else 1)
        return mine + (0.6 * step_s if rank == step % 4 and step in pauses else 0)

    seconds = first * (step_s + 0.02) + 30
    steps, _ = worked(4, work, seconds, 0.05, seed)
    found = [one for one in judged(4, work, seconds, noise=0.05, seed=seed) if one is not None]
    assert found and {one.rank for one in found} == {slow}
    began_s, end_s = steps[first - 1], steps[first]
    for one in found:
        assert abs(one.since_ns / S - began_s) <= end_s - began_s + 1e-6


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("step_s", [0.1, 0.4, 1.0])
def test_a_rank_that_becomes_25_percent_slower_is_named_within_seconds_of_steps(
    ranks: int, step_s: float
) -> None:
    slow, from_s = ranks // 2, 20
    said = judged(
        ranks, lambda rank, step: step_s * (1.25 if rank == slow and step * step_s > from_s else 1), 60
    )
    begins_s = from_s * (1.02 + 0.02 / step_s)  # with noise and communication
    before, after = said[: from_s * 2 - 4], said[int(begins_s * 2) :]
    assert not any(before)
    first = next(k for k, one in enumerate(after) if one is not None)
    assert first / 2 <= max(6, 5 * 1.25 * step_s + 1)
    assert {one.rank for one in after if one is not None} == {slow}


@pytest.mark.parametrize("seed", range(10))
def test_a_clean_run_with_pauses_raises_no_alarm(seed: int) -> None:
    """Evaluation on one rank, slow checkpoints, collector's pauses, a compilation at the start."""
    chance = random.Random(seed)
    collects = [chance.randrange(20, 60) for _ in range(4)]

    def work(rank: int, step: int) -> float:
        extra = 3.0 if step == 0 else 0.0  # compilation
        extra += 1.5 if rank == 0 and step % 40 == 39 else 0.0  # evaluation
        extra += 0.6 if rank == 0 and step % 25 == 24 else 0.0  # checkpoint
        extra += 0.25 if step % collects[rank] == 0 else 0.0
        return 0.2 + extra

    assert not any(judged(4, work, 120, noise=0.08, seed=seed))


@pytest.mark.parametrize("seed", range(12))
def test_steps_of_very_uneven_length_and_a_rank_that_writes_the_log_raise_no_alarm(seed: int) -> None:
    chance = random.Random(seed)
    step_s, noise, ranks = (
        chance.choice([0.1, 0.3, 0.8]),
        chance.choice([0.05, 0.15, 0.3]),
        chance.choice([2, 4, 8]),
    )
    assert not any(
        judged(ranks, lambda rank, _step: step_s * (1.06 if rank == 0 else 1), 120, noise=noise, seed=seed)
    )


def test_ranks_of_one_stage_are_compared_with_each_other_only() -> None:
    """The stages of a pipeline have unequal work by design; a slow rank within a stage is found."""
    stages = [[0, 1, 2, 3], [4, 5, 6, 7]]

    def work(rank: int, step: int) -> float:
        return (0.2 if rank < 4 else 0.35) * (1.3 if rank == 5 and step > 60 else 1)

    before = judged(8, lambda rank, _step: 0.2 if rank < 4 else 0.35, 40, groups=stages)
    assert not any(before)
    assert {one.rank for one in judged(8, work, 80, groups=stages) if one is not None} == {5}


def test_a_quota_that_holds_the_slow_rank_is_told() -> None:
    judge, said = SlowJudge([[0, 1, 2]]), []
    for at in range(TICK, 30 * S, TICK):
        ranks = [
            RankVitals(
                rank,
                "running",
                0,
                waiting_ns=TICK // 20 if rank == 1 else TICK // 2,
                throttled_ns=TICK // 4 * (rank == 1),
            )
            for rank in range(3)
        ]
        said.append(
            judge.judge(GangVitals("job", 1, at - TICK, at, tuple(ranks)), range(S, at + 1, S // 5)[-64:])
        )
    assert said[-1] is not None and said[-1].rank == 1
    assert "quota of its control group holds it 25% of the time" in said[-1].text


def test_it_is_over_when_the_rank_is_as_fast_as_the_others_again() -> None:
    said = judged(4, lambda rank, step: 0.2 * (1.4 if rank == 1 and 50 < step < 150 else 1), 90)
    assert any(said)
    assert said[-1] is None


def ring(
    bad: Sequence[tuple[int, int]], from_s: float | Sequence[tuple[float, float]], rtt_ms: float, busy: float
) -> Links:
    """Four ranks that each send to the next; some connections become worse, for good or in these stretches."""
    chance = random.Random(7)
    stretches = [(from_s, float("inf"))] if isinstance(from_s, float) else from_s

    def links(rank: int, at_s: float) -> tuple[LinkVitals, ...]:
        peer = (rank + 1) % 4
        now = any(a <= at_s < b for a, b in stretches)
        worse = now and ((rank, peer) in bad or (peer, rank) in bad)
        rtt = rtt_ms if worse else chance.uniform(0.1, 0.5)
        part = busy if worse else chance.uniform(0.01, 0.1)
        return (LinkVitals(peer, int(part * TICK), int(rtt * 1e6)),)

    return links


@pytest.mark.parametrize("read_every", [1, 4])
@pytest.mark.parametrize(
    ("rtt_ms", "busy"), [(20.0, 0.3), (0.4, 0.9), (300.0, 0.95)], ids=["late", "full", "both"]
)
def test_a_slow_link_is_named_by_its_ends(rtt_ms: float, busy: float, read_every: int) -> None:
    said = judged(
        4, lambda _rank, step: 0.1 if step < 150 else 0.14, 60, links=ring([(1, 2)], 18.0, rtt_ms, busy),
        read_every=read_every,
    )  # fmt: skip
    found = [one for one in said if one is not None]
    assert found
    assert {one.pairs for one in found} == {((1, 2),)}
    assert found[-1].rank is None
    assert "1-2" in found[-1].text


def test_a_link_that_becomes_slow_again_and_again_is_named_each_time() -> None:
    """14 s slow, 10 s as ever, and so on: what was seen while it was slow is not taken for what is usual."""
    slow, calm = 28, 84  # steps of 0.5 and of 0.12 s
    begun = [150 + k * (slow + calm) for k in range(4)]
    stretches = [(18 + k * 24.0, 32 + k * 24.0) for k in range(4)]

    def read_every(at_s: float) -> int:
        return (
            1 if any(a <= at_s < b for a, b in stretches) else 5
        )  # looks, as the engine does while all is well

    said = judged(
        4, lambda _rank, step: 0.48 if any(a <= step < a + slow for a in begun) else 0.1, 115, noise=0.0,
        links=ring([(1, 2)], stretches, 45.0, 0.55), read_every=read_every,
    )  # fmt: skip
    found = [any(one is not None for one in said[int(2 * a) : int(2 * b)]) for a, b in stretches]
    assert found == [True] * 4
    assert {one.pairs for one in said if one is not None} == {((1, 2),)}


def test_a_link_that_becomes_slow_seconds_after_the_first_step_is_named() -> None:
    said = judged(
        4, lambda _rank, step: 0.48 if step >= 28 else 0.1, 12, links=ring([(1, 2)], 3.4, 45.0, 0.55), read_every=2
    )  # fmt: skip
    assert {one.pairs for one in said if one is not None} == {((1, 2),)}


def test_a_link_is_slow_since_it_is_and_not_since_steps_took_longer_for_another_reason() -> None:
    """Steps of 0.12 s, of 0.15 s from 24 s on, and a slow link from 39 s on."""
    said = judged(
        4, lambda _rank, step: 0.1 if step < 200 else 0.13 if step < 300 else 0.48, 55, noise=0.0,
        links=ring([(1, 2)], 39.0, 45.0, 0.55),
    )  # fmt: skip
    found = [one for one in said if one is not None]
    assert {one.pairs for one in found} == {((1, 2),)}
    assert 38 * S <= found[0].since_ns <= 40 * S


def test_a_node_whose_links_are_all_slow_is_named() -> None:
    said = judged(
        4, lambda _rank, step: 0.1 if step < 150 else 0.3, 90, links=ring([(1, 2), (2, 3)], 18.0, 30, 0.3)
    )
    assert {one.rank for one in said if one is not None} == {2}


def test_a_link_that_is_worse_while_steps_take_as_long_as_ever_is_no_alarm() -> None:
    assert not any(judged(4, lambda _rank, _step: 0.1, 60, links=ring([(1, 2)], 18.0, 30, 0.9)))


def test_a_network_that_is_always_full_everywhere_is_no_alarm() -> None:
    always = ring([(0, 1), (1, 2), (2, 3), (3, 0)], 0.0, 30, 0.95)
    assert not any(judged(4, lambda _rank, step: 0.1 if step < 150 else 0.2, 60, links=always))
