"""Replays: of a trace under several policies, and of what a store recorded."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.worlds import S, fleet_of
from unidle.control.policies import policy_names, register
from unidle.control.replay.outcome import jain, outcome_of, side_by_side
from unidle.control.replay.recorded import scenario_of_store
from unidle.control.replay.simulate import Arrival, SimulationOptions, simulate
from unidle.control.replay.workload import Assumptions, Scenario, replay, scenario_of
from unidle.engine.sim.workload import SimJob
from unidle.errors import BadInput, StoreError
from unidle.files.trace import COLUMNS, load_trace
from unidle.fleet import Fleet
from unidle.jobs import JobSpec, Reason, Restart
from unidle.ledger.current import check_batches
from unidle.ledger.select import TimeRange
from unidle.place.policy import FirstFit
from unidle.place.protocol import Plan, Stop
from unidle.store.memory import ForgetfulStore, MemoryStore
from unidle.view.source import ledger_source
from unidle.view.state import View

POLICIES = policy_names()


def trace_of(tmp_path: Path, fleet: Fleet, lines: list[dict[str, object]]) -> Scenario:
    path = tmp_path / "t.csv"
    blank = dict.fromkeys(COLUMNS, "")
    rows = [
        ",".join(str({**blank, "job": f"j{k}", **line}[c]) for c in COLUMNS) for k, line in enumerate(lines)
    ]
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return scenario_of(load_trace(path), fleet)


def run(scenario: Scenario, policy: str = "firstfit", assumed: Assumptions | None = None):
    store = MemoryStore()
    view = replay(scenario, policy, store, assumed)
    source = ledger_source(store, view)
    assert check_batches(source.batches(source.extent())) == []
    return store, view, outcome_of(view, source)


def test_faults_that_no_job_outlives_are_refused_unless_the_replay_is_cut(tmp_path: Path) -> None:
    scenario = trace_of(
        tmp_path, fleet_of(8, 8), [{"submit_s": 0, "duration_s": 7200, "gpus": 16, "ranks": 2}]
    )
    often = Assumptions(mtbf_s=400.0)  # 1,890 s without a fault on two nodes
    with pytest.raises(
        BadInput, match=r"--mtbf: job j0 would never reach .* \(2 or more\) must stay up for 1890 s"
    ):
        replay(scenario, "unidle", ForgetfulStore(), often)
    view = replay(scenario, "unidle", ForgetfulStore(), often, until_ns=scenario.start_ns + 3600 * 10**9)
    assert view.jobs["j0"].state not in ("succeeded", "failed")
    cheaper = replace(often, checkpoint_every_s=60.0, restart_s=5.0, restore_s=5.0)
    assert run(scenario, "unidle", cheaper)[1].jobs["j0"].state == "succeeded"


def some_jobs(seed: int, count: int = 60) -> list[dict[str, object]]:
    chance = random.Random(seed)
    at, made = 0.0, []
    for _ in range(count):
        at += chance.expovariate(1 / 30)
        gpus = chance.choice([1, 1, 2, 4, 8])
        made.append(
            {"submit_s": round(at, 3), "duration_s": round(chance.expovariate(1 / 300), 3), "gpus": gpus,
             "ranks": gpus, "queue": chance.choice(["a", "b"])}
        )  # fmt: skip
    return made


def test_figures_of_a_small_replay_are_those_that_a_person_counts(tmp_path: Path) -> None:
    lines = [
        {"submit_s": 0, "duration_s": 100, "gpus": 2, "queue": "a"},
        {"submit_s": 10, "duration_s": 50, "gpus": 1, "queue": "b"},
        {"submit_s": 20, "duration_s": 50, "gpus": 1, "queue": "b"},
    ]
    _, _, found = run(trace_of(tmp_path, fleet_of(2), lines))
    assert found.makespan_ns == 150 * S
    assert found.capacity_ns == found.allocated_ns == 300 * S
    assert (found.queueing.mean_s, found.queueing.quantiles_s[0]) == pytest.approx((170 / 3, 80))
    assert found.completion.mean_s == pytest.approx((100 + 140 + 130) / 3)
    assert [(q.queue, q.jobs, q.held_ns // S) for q in found.queues] == [("a", 1, 200), ("b", 2, 100)]
    parts = [1.0, 100 / 270]
    assert [q.ran_part for q in found.queues] == pytest.approx(parts)
    assert found.fairness == pytest.approx(sum(parts) ** 2 / (2 * (1 + parts[1] ** 2)))
    assert (found.preemptions, found.restarts, found.lost_ns, found.never_started) == (0, 0, 0, 0)


def test_time_begins_with_the_first_submission(tmp_path: Path) -> None:
    lines = [{"submit_s": 1_700_000_000 + 10 * k, "duration_s": 5, "gpus": 1} for k in range(3)]
    _, view, found = run(trace_of(tmp_path, fleet_of(1), lines))
    assert view.first_ns == 1_700_000_000 * S
    assert found.makespan_ns == 25 * S


@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_of_a_trace_ends_with_all_its_work_whatever_breaks(policy: str, tmp_path: Path) -> None:
    fleet = fleet_of(8, 8, 8)
    scenario = trace_of(tmp_path, fleet, some_jobs(3))
    assumed = Assumptions(
        checkpoint_every_s=60, checkpoint_s=2, restart_s=10, restore_s=5, comm_ppm=200_000, mtbf_s=2000, mttr_s=300
    )  # fmt: skip
    _, view, found = run(scenario, policy, assumed)
    assert found.succeeded == found.jobs == 60
    assert found.restarts > 0
    assert found.lost_ns > 0
    leaves = {t.leaf: t.ns for t in found.ledger.leaves}
    work = sum(scenario.work_ns[j.id] * j.spec.devices for j in view.jobs.values())
    assert leaves["useful"] >= work - 10**6
    assert {t.how for t in found.ledger.leaves} == {"modelled"}


def test_the_same_replay_gives_the_same_log(tmp_path: Path) -> None:
    scenario = trace_of(tmp_path, fleet_of(8, 8), some_jobs(5))
    assumed = Assumptions(mtbf_s=3000, mttr_s=100, comm_ppm=100_000)
    logs = [[e[1:] for e in run(scenario, "bestfit", assumed)[0].read()] for _ in range(2)]
    assert logs[0] == logs[1]


def test_a_store_that_forgets_its_log_gives_the_same_figures(tmp_path: Path) -> None:
    scenario = trace_of(tmp_path, fleet_of(8, 8), some_jobs(6))
    _, _, kept = run(scenario)
    store = ForgetfulStore()
    view = replay(scenario, "firstfit", store)
    assert outcome_of(view, ledger_source(store, view)) == kept
    with pytest.raises(StoreError, match="not stored"):
        list(store.read())


def test_figures_stand_side_by_side(tmp_path: Path) -> None:
    scenario = trace_of(tmp_path, fleet_of(8, 8), some_jobs(7))
    header, rows = side_by_side({p: run(scenario, p)[2] for p in ("firstfit", "spread")})
    assert header == ["", "firstfit", "spread"]
    assert all(len(row) == 3 for row in rows)
    shares = [row for row in rows if ": " in row[0]]
    for column in (1, 2):
        assert sum(float(row[column]) for row in shares) == pytest.approx(100, abs=0.1)


def test_the_answer_for_scripts_has_every_figure(tmp_path: Path) -> None:
    answer = run(trace_of(tmp_path, fleet_of(8), some_jobs(8, 10)))[2].as_json()
    assert list(answer) == [
        "jobs", "never_started", "succeeded", "makespan_s", "allocation_percent", "fragmentation_percent",
        "queueing_s", "completion_s", "preemptions", "restarts", "lost_gpu_h", "fairness_jain", "money", "queues", "ledger",
    ]  # fmt: skip
    assert list(answer["queueing_s"]) == ["jobs", "mean", "p50", "p95", "p99"]
    assert sum(leaf["ns"] for leaf in answer["ledger"]["leaves"]) == answer["ledger"]["capacity_ns"]


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_jains_index_is_between_one_of_all_and_all_alike(values: list[float]) -> None:
    found = jain(values)
    assert found <= 1 + 1e-9
    if any(v > 1e-100 for v in values):
        assert found >= 1 / len(values) - 1e-9
    assert jain([3.0] * 5) == pytest.approx(1)
    assert jain([1.0, 0, 0, 0]) == 0.25


# -- from a store ----------------------------------------------------------------------------------------


def test_a_store_replayed_under_its_own_policy_is_what_it_recorded(tmp_path: Path) -> None:
    fleet = fleet_of(8, 8)
    store, view, recorded = run(trace_of(tmp_path, fleet, some_jobs(9)))
    again = scenario_of_store(store, view, ledger_source(store, view))
    assert len(again.arrivals) == 60
    assert not again.left_out
    _, _, found = run(again)
    assert found == recorded


def test_faults_in_the_log_happen_again(tmp_path: Path) -> None:
    fleet = fleet_of(8, 8)
    assumed = Assumptions(mtbf_s=2000, mttr_s=200)
    store, view, recorded = run(trace_of(tmp_path, fleet, some_jobs(10)), assumed=assumed)
    again = scenario_of_store(store, view, ledger_source(store, view))
    logged = [e for e in store.read() if e.kind == "health_set"]
    assert len(again.faults) >= len(logged) // 2 > 0
    _, _, found = run(again)
    assert found.restarts > 0
    assert found.succeeded == recorded.succeeded


def recorded() -> tuple[MemoryStore, View]:
    """One job that was interrupted, one that failed, one withdrawn from the queue, one that still runs."""
    store = MemoryStore()
    behaviour = {
        "broken": SimJob(
            30 * S, step_ns=S, checkpoint_every=10, fails={1: (0, 15 * S, -9)}, startup_ns=2 * S
        ),
        "failed": SimJob(30 * S, step_ns=S, fails={1: (0, 8 * S, 1)}),
        "waits": SimJob(S),
        "runs": SimJob(10**6 * S),
    }
    arrivals = [
        Arrival(1, "broken", JobSpec(("x",), restart=Restart(3, 1.0), queue="q")),
        Arrival(1 + 2 * S, "failed", JobSpec(("x",))),
        Arrival(1 + 3 * S, "waits", JobSpec(("x",), ranks=9), leaves_ns=1 + 5 * S),
        Arrival(1 + 4 * S, "runs", JobSpec(("x",))),
    ]
    view = simulate(
        store,
        fleet_of(4),
        arrivals,
        lambda c: behaviour[c.job],
        FirstFit(),
        options=SimulationOptions(until_ns=1 + 90 * S),
    )
    return store, view


def test_the_work_of_a_job_is_what_counted_without_what_the_fleet_cost_it() -> None:
    store, view = recorded()
    found = scenario_of_store(store, view, ledger_source(store, view))
    assert found.work_ns == {"broken": 30 * S, "failed": 8 * S}
    assert dict(found.left_out) == {
        "run time unknown: never started": 1,
        "run time unknown: not ended yet": 1,
    }
    assert {a.job: a.spec.queue for a in found.arrivals} == {"broken": "q", "failed": "default"}


def test_a_window_keeps_the_jobs_that_were_submitted_in_it() -> None:
    store, view = recorded()
    source = ledger_source(store, view)
    found = scenario_of_store(store, view, source, window=TimeRange(1 + S, 1 + 60 * S), fleet=fleet_of(1))
    assert list(found.work_ns) == ["failed"]
    assert len(found.fleet.nodes) == 1
    with pytest.raises(BadInput, match="no job of the store can be replayed"):
        scenario_of_store(store, view, source, window=TimeRange(1 + 50 * S, 1 + 60 * S))


@dataclass(frozen=True, slots=True)
class HighStopsLow:
    """First fit that stops every running low job when one of higher priority waits."""

    def decide(self, view: View, now_ns: int) -> Plan:
        plan = FirstFit().decide(view, now_ns)
        waiting = {wait.job for wait in plan.waits if view.jobs[wait.job].spec.priority > 0}
        stops = tuple(
            Stop(job, Reason("test", "a job of higher priority waits"), min(waiting))
            for job in sorted(view.live)
            if waiting and view.jobs[job].spec.preemption == "low"
        )
        return Plan(plan.places, plan.waits, stops=stops)

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        return FirstFit().why_not(view, spec)

    def ever(self, view: View, spec: JobSpec) -> bool:
        return FirstFit().ever(view, spec)


register("high_stops_low", HighStopsLow)


def test_what_preemption_cost_is_in_the_figures(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"submit_s": 0, "duration_s": 1000, "gpus": 2, "preemptible": "true"},
        {"submit_s": 400, "duration_s": 100, "gpus": 2, "priority": 5},
    ]
    scenario = trace_of(tmp_path, fleet_of(2), lines)
    assumed = Assumptions(checkpoint_every_s=300, restart_s=20, restore_s=10, stop_s=5)
    store = MemoryStore()
    view = replay(scenario, "high_stops_low", store, assumed)
    found = outcome_of(view, ledger_source(store, view))
    leaves = {total.leaf: total.ns / S for total in found.ledger.leaves}
    assert (found.preemptions, found.restarts, found.succeeded) == (1, 1, 2)
    assert found.lost_ns / S == pytest.approx(2 * 100)
    assert (leaves["preempted"], leaves["preempting"]) == pytest.approx((200, 10))
    assert (leaves["start"], leaves["restore"], leaves["useful"]) == pytest.approx((40, 20, 2200))
    # 400 s, 5 to leave, 100 of the other, start and restore, the 700 that are left
    assert view.jobs["j0"].ended_ns == pytest.approx((400 + 5 + 100 + 30 + 700) * S, abs=2)
