"""Hangs of jobs that print nothing, by steps that somebody watches from outside now and then."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from unidle.control.gangs.progress_watch import ProgressWatch, progress_of
from unidle.events import types as ev
from unidle.guard.progress import (
    BLIND_LOOKS,
    BUSY_NS,
    SILENT_BEFORE_STEPS_NS,
    SILENT_WATCHED_NS,
    GangFinding,
    GangJudge,
    GangProgress,
    StepWindow,
)
from unidle.jobs.vitals import GangVitals, RankVitals
from view.telling import Telling

S = 1_000_000_000
TICK = S // 2
COMPUTES = RankVitals(0, "running", 0, cpu_ns=TICK // 2)
WAITS = RankVitals(0, "lock", 0)


def told(
    ranks_at: Callable[[float], Sequence[RankVitals]], seconds: float, step_at: Callable[[float], bool], *,
    every_s: int = 60, late_s: float = 0.5,
) -> list[tuple[float, GangFinding]]:  # fmt: skip
    """What is certain, and when. Windows of 2 s; a step each 0.1 s of them where ``step_at`` says so."""
    judge, found = GangJudge(), []
    for k in range(1, int(2 * seconds) + 1):
        at_s = k / 2
        ranks = tuple(replace(rank, rank=n) for n, rank in enumerate(ranks_at(at_s)))
        windows = []
        for begin in range(10, int(at_s), every_s):
            if begin + 2 + late_s <= at_s:
                steps = [begin * S + n * S // 10 for n in range(1, 20) if step_at(begin + n / 10)]
                windows.append(StepWindow(begin * S, (begin + 2) * S, steps))
        progress = GangProgress(0, watched=windows[-16:] if any(w.steps_ns for w in windows) else [])
        one = judge.judge(GangVitals("job", 1, (k - 1) * TICK, k * TICK, ranks), progress)
        if one is not None and one.certain:
            found.append((at_s, one))
    return found


def test_a_job_whose_steps_were_seen_is_found_hanging_long_before_one_of_which_nothing_is_known() -> None:
    def ranks(at_s: float) -> list[RankVitals]:
        return [COMPUTES] * 2 if at_s <= 30 else [WAITS] * 2

    found = told(ranks, 200, lambda at_s: at_s <= 30)
    blind = told(ranks, 200, lambda _: False)
    assert 30 + SILENT_WATCHED_NS / S <= found[0][0] <= 32 + SILENT_WATCHED_NS / S
    assert blind[0][0] >= 30 + SILENT_BEFORE_STEPS_NS / S


def test_pauses_that_were_over_by_themselves_are_no_hang_the_next_time() -> None:
    def ranks(at_s: float) -> list[RankVitals]:
        return [WAITS] * 2 if at_s > 20 and at_s % 40 <= 15 else [COMPUTES] * 2

    assert told(ranks, 400, lambda _: True) == []


def test_a_job_that_steps_without_being_seen_to_move_is_no_hang_while_looks_see_steps() -> None:
    assert told(lambda _: [WAITS] * 2, 900, lambda _: True) == []
    found = told(lambda _: [WAITS] * 2, 900, lambda at_s: at_s < 300)
    assert found and found[0][0] >= 310 + 60 * (BLIND_LOOKS - 1)


def test_an_endless_loop_is_found_once_looks_have_seen_no_step_for_long() -> None:
    found = told(lambda _: [COMPUTES] * 2, 1000, lambda at_s: at_s < 100)
    assert found and 72 + BUSY_NS / S <= found[0][0] <= 72 + BUSY_NS / S + 130


@pytest.mark.parametrize("every_s", [60, 600])
def test_a_job_that_works_is_never_in_alarm_however_seldom_it_is_looked_at(every_s: int) -> None:
    assert told(lambda _: [COMPUTES] * 2, 2000, lambda _: True, every_s=every_s) == []


def test_a_profiler_that_went_away_is_no_hang() -> None:
    judge = GangJudge()
    window = StepWindow(10 * S, 12 * S, [10 * S + n for n in range(1, 20)])
    for k in range(30, 4000):
        seen = GangVitals("job", 1, (k - 1) * TICK, k * TICK, (COMPUTES, replace(COMPUTES, rank=1)))
        assert judge.judge(seen, GangProgress(0, watched=[window])) is None


def test_what_the_job_says_itself_goes_before_what_is_seen_from_outside() -> None:
    view = Telling(2).submit("j").place("j", "n0/0", "n0/1").at(10)
    view.tell(ev.StepsWatched("j", 1, 2 * S, 4 * S, {1: (3 * S,)}))
    progress = progress_of(view.job("j").attempts[0])
    assert progress.known_ns == [3 * S] and progress.watched[0].end_ns == 4 * S
    view.steps("j", 1, 3)
    progress = progress_of(view.job("j").attempts[0])
    assert len(progress.steps_ns) == 3 and not progress.watched


def test_a_verdict_follows_from_steps_seen_from_outside() -> None:
    view = Telling(2).submit("j", ranks=2).place("j", "n0/0", "n0/1").at(5)
    view.tell(ev.StepsWatched("j", 1, 2 * S, 4 * S, {0: tuple(2 * S + n * S // 10 for n in range(1, 20))}))
    watch, said = ProgressWatch(), []
    for k in range(10, 80):
        ranks = (replace(WAITS, since_ns=5 * S), replace(WAITS, rank=1, since_ns=5 * S))
        said += list(watch.look(view.view, GangVitals("j", 1, (k - 1) * TICK, k * TICK, ranks)))
    assert [event.kind for event in said if isinstance(event, ev.VerdictReached)][:1] == ["hang"]


def test_a_gang_that_does_not_answer_is_not_said_to_hang_before_it_answers_again() -> None:
    view = Telling(2).submit("j", ranks=2).place("j", "n0/0", "n0/1").at(5)
    view.tell(ev.StepsWatched("j", 1, 2 * S, 4 * S, {0: tuple(2 * S + n * S // 10 for n in range(1, 20))}))
    view.tell(ev.RanksSilent("j", 1, (1,), 5 * S))
    watch, said = ProgressWatch(), []

    def look(first: int, last: int) -> None:
        for k in range(first, last):
            ranks = (replace(WAITS, since_ns=5 * S), replace(WAITS, rank=1, since_ns=5 * S))
            said.extend(watch.look(view.view, GangVitals("j", 1, (k - 1) * TICK, k * TICK, ranks)))

    look(10, 80)
    assert said == [] and not watch.suspects
    view.tell(ev.RanksSilent("j", 1, (1,), 0))
    look(80, 160)
    assert [event.kind for event in said if isinstance(event, ev.VerdictReached)][:1] == ["hang"]


def test_gangs_that_have_ended_are_forgotten_however_many_there_were() -> None:
    """Of most, the last look was before their end: nothing more is heard of them."""
    view, watch = Telling(2), ProgressWatch()
    for number in range(60):
        name = f"j{number}"
        view.submit(name).place(name, "n0/0").at(number + 0.1)
        list(watch.look(view.view, GangVitals(name, 1, (number - 1) * S, number * S + TICK, (COMPUTES,))))
        view.at(number + 0.6).end(name, 0, "succeeded").done(name, "succeeded")
    held = [one for one in gc.get_referrers(GangJudge) if type(one) is GangJudge]
    assert 1 <= len(held) <= 12
