"""Moving running jobs for a gang, by chance, in the real loop on the simulated engine: who pays, and who comes back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from place.test_place_quotas import Twice
from place.test_place_repairing import leaves
from sim.worlds import ledger_rows
from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.sim.workload import S, SimJob
from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.fleet.queues import Migration
from unidle.jobs import JobSpec, Reason, Topology
from unidle.place.snapshot import begin_ns, restart_ns, settled_ns
from unidle.store.memory import MemoryStore
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
from unidle.view.state import View

STARTUP_S = 7


def fleet(rule: Migration | None) -> Fleet:
    there = leaves(2, 2)
    return Fleet(there.tiers, there.nodes, migration=rule)


def small(
    k: int, ranks: int, at_s: int, work_s: int, level: str, saves: int, known: bool
) -> tuple[Arrival, SimJob]:
    spec = JobSpec(
        ("x",), name=f"s{k}", ranks=ranks, device="gpu", topology=Topology(require="node"), preemption=level,  # type: ignore[arg-type]
        checkpoint_path="c" if saves else None, estimate_s=float(work_s) if known else None,
    )  # fmt: skip
    sim = SimJob(work_s * S, startup_ns=STARTUP_S * S, step_ns=S, checkpoint_every=saves)
    return Arrival(1 + at_s * S, spec.name, spec), sim


def wide(k: int, ranks: int, at_s: int, work_s: int, known: bool) -> tuple[Arrival, SimJob]:
    within = "node" if ranks <= 4 else "leaf"
    spec = JobSpec(
        ("x",), name=f"w{k}", ranks=ranks, device="gpu", topology=Topology(require=within),
        estimate_s=float(work_s) if known else None,
    )  # fmt: skip
    return Arrival(1 + at_s * S, spec.name, spec), SimJob(work_s * S)


@st.composite
def mixes(draw: st.DrawFn) -> list[tuple[Arrival, SimJob]]:
    """Long jobs beside short ones that leave holes, then gangs that need more than a hole."""
    known = draw(st.booleans())
    level = st.sampled_from(["low", "medium", "medium", "high"])
    found = []
    for k in range(0, 2 * draw(st.integers(2, 4)), 2):
        ranks, saves = draw(st.integers(1, 3)), draw(st.sampled_from([0, 5, 5, 40]))
        found.append(small(k, ranks, 0, draw(st.sampled_from([600, 2000, 4000])), draw(level), saves, known))
        found.append(small(k + 1, 4 - ranks, 0, draw(st.sampled_from([30, 50])), "medium", 0, known))
    size, at_s = st.sampled_from([4, 4, 6, 8]), st.integers(60, 900)
    return found + [wide(k, draw(size), draw(at_s), 300, known) for k in range(draw(st.integers(1, 4)))]


def run(
    jobs: list[tuple[Arrival, SimJob]], rule: Migration | None
) -> tuple[View, list[ev.Event], MemoryStore]:
    behaviour = {arrival.job: sim for arrival, sim in jobs}
    store = MemoryStore()
    view = simulate(
        store, fleet(rule), [arrival for arrival, _ in jobs], lambda command: behaviour[command.job], Twice()
    )
    return view, [ev.decode(e.kind, e.body, e.seq) for e in store.read()], store


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(mixes(), st.sampled_from([Migration(), Migration(moves_most=1), Migration(gain_least_ppm=2_000_000)]))
def test_what_is_moved_comes_back_whole_loses_no_more_than_was_said_and_is_not_moved_within_its_cost(
    jobs: list[tuple[Arrival, SimJob]], rule: Migration
) -> None:
    view, events, _ = run(jobs, rule)
    moved = [e for e in events if isinstance(e, ev.StopAsked) and e.why == "moved"]
    event(f"{min(len(moved), 3)} moves")
    for e in events:
        if isinstance(e, ev.Promised) and e.because.code == "consolidate":
            figures = e.because.figures
            assert int(figures["moves"]) <= rule.moves_most
            assert int(figures["price_us"]) * rule.gain_least_ppm <= int(figures["gain_us"]) * 1_000_000
    for job in view.jobs.values():
        assert job.state == "succeeded", (job.id, job.verdict)
        for attempt in job.attempts:
            assert len(attempt.places) == job.spec.ranks
            assert len({p.node if job.spec.ranks <= 4 else p.node[0] for p in attempt.places}) == 1
        stops = [e for e in moved if e.job == job.id]
        assert len(stops) == sum(
            a.outcome == "preempted" and a.stop is not None and a.stop.why == "moved" for a in job.attempts
        )
        assert not stops or (job.spec.preemption in rule.levels and job.spec.checkpoint_path)
        costs = [cost_ns(before, after) for before, after in pairwise(job.attempts)]
        for stop, (before, after), cost in zip(stops, pairwise(job.attempts), costs, strict=True):
            assert cost * job.spec.ranks <= int(stop.because.figures["lost_us"]) * 1000
            assert after.placed_ns == before.ended_ns, "its place was free and kept"
        for attempt, cost in zip(job.attempts[1:], costs, strict=True):
            if attempt.stop_ns is not None:  # moved again
                assert attempt.stop_ns >= attempt.placed_ns + (begin_ns(attempt) or 0) + cost


def cost_ns(before: AttemptView, after: AttemptView) -> int:
    """What a move cost each device: work done again, and the way back to work."""
    began_ns = begin_ns(after)
    assert before.stop_ns is not None and began_ns is not None
    # posted jobs keep only their last durable save; a save at or before the stop is what counts
    saved = min(before.saved_ns or before.placed_ns, before.stop_ns)
    return before.stop_ns - max(saved, before.placed_ns) + after.placed_ns + began_ns - before.stop_ns


def test_the_ledger_of_a_move_says_what_was_lost_to_it_and_nothing_else_is_lost() -> None:
    jobs = [
        small(0, 2, 0, 4000, "medium", 0, True),
        small(1, 2, 0, 30, "medium", 0, True),
        small(2, 2, 0, 4000, "medium", 40, True),
        small(3, 2, 0, 30, "medium", 0, True),
        *(small(k, 3, 0, 4000, "medium", 0, True) for k in (4, 5)),
        wide(0, 4, 100, 300, True),
    ]
    view, events, store = run(jobs, Migration())
    (stop,) = [e for e in events if isinstance(e, ev.StopAsked)]
    assert (stop.job, stop.why, stop.for_job) == ("s2", "moved", "w0")
    assert "its place on" in stop.because.text
    spent: dict[str, int] = {}
    for row in ledger_rows(store, view):
        if row.job == stop.job:
            spent[row.leaf] = spent.get(row.leaf, 0) + row.end_ns - row.start_ns
    assert set(spent) == {"start", "useful", "preempted"}
    assert spent["useful"] == 4000 * S * 2
    assert spent["preempted"] + spent["start"] // 2 == int(stop.because.figures["lost_us"]) * 1000


def attempt(
    placed_s: int,
    ready_s: int | None,
    saved: Sequence[int] = (),
    stop_s: int | None = None,
    ended_s: int | None = None,
    why: str = "moved",
) -> AttemptView:
    rank = RankView(ready_ns=None if ready_s is None else ready_s * S, saves=[(at * S, None) for at in saved])
    stop = None if stop_s is None else ev.StopAsked("j", 1, why, 0, Reason("x", ""))  # type: ignore[arg-type]
    return AttemptView(
        1, placed_s * S, (), Reason("x", ""), [rank], stop, None if stop_s is None else stop_s * S,
        None if ended_s is None else ended_s * S,
    )  # fmt: skip


def test_a_stop_is_priced_by_what_was_measured_of_the_job_and_else_by_half_a_minute() -> None:
    job = JobView("j", JobSpec(("x",)), 0, 0)
    assert restart_ns(job) == 30 * S
    job.attempts.append(attempt(10, 22))
    assert restart_ns(job) == 12 * S
    job.attempts[0] = attempt(10, 22, stop_s=100, ended_s=103, why="preempted")
    assert restart_ns(job) == 15 * S
    job.attempts.append(attempt(110, 130))
    assert restart_ns(job) == 23 * S


def test_a_job_that_was_moved_is_left_alone_until_it_worked_for_what_the_move_cost() -> None:
    job = JobView("j", JobSpec(("x",)), 0, 0)
    job.attempts = [attempt(0, 10, [50, 90], 100, 102)]
    assert settled_ns(job) == 0  # nothing came after it yet
    job.attempts.append(attempt(102, 120))
    assert settled_ns(job) == (120 + 30) * S  # 90 to 120 was work done again, and the way back
    job.attempts.append(attempt(125, None))  # it failed, and is back again
    assert settled_ns(job) == 150 * S
