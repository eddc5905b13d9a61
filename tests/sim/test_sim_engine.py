"""What simulated gangs cost and report: checkpoints, preemption, faults, shared uplinks."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.worlds import S, fleet_of, ledger_rows
from unidle.clock import VirtualClock
from unidle.control.loop import Controller
from unidle.control.replay.simulate import Arrival, SimulationOptions, simulate
from unidle.engine.sim.contention import WHOLE, UplinkContention
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import SimJob, seeded_faults
from unidle.errors import StoreError
from unidle.fleet import Device, Fleet, Link, Node, Tier
from unidle.jobs import JobSpec, Reason, Restart
from unidle.ledger.current import check_batches
from unidle.place.policy import FirstFit
from unidle.place.protocol import Plan, Stop
from unidle.store.memory import MemoryStore
from unidle.view.source import ledger_source
from unidle.view.state import View

AGAIN = Restart(100, 1.0)


def spec(**more: object) -> JobSpec:
    return JobSpec(("train",), **{"restart": AGAIN, **more})  # type: ignore[arg-type]


def run(fleet, jobs, policy=None, **more) -> tuple[MemoryStore, View]:
    """``jobs``: name -> (arrival in s, spec, behaviour)."""
    store = MemoryStore()
    arrivals = [Arrival(1 + at * S, name, job) for name, (at, job, _) in jobs.items()]
    behaviour = {name: sim for name, (_, _, sim) in jobs.items()}
    faults = more.pop("faults", ())
    options = SimulationOptions(**more)
    view = simulate(store, fleet, arrivals, lambda c: behaviour[c.job], policy or FirstFit(), faults, options)
    source = ledger_source(store, view)
    assert check_batches(source.batches(source.extent())) == []
    return store, view


def seconds(store: MemoryStore, view: View, job: str) -> dict[str, float]:
    """Device-seconds by leaf under one job."""
    total: Counter[str] = Counter()
    for row in ledger_rows(store, view):
        if row.job == job:
            total[row.leaf] += row.end_ns - row.start_ns
    return {leaf: ns / S for leaf, ns in total.items()}


def ended_s(view: View, job: str) -> float:
    return (view.jobs[job].ended_ns - 1) / S


@dataclass(frozen=True, slots=True)
class StopsOnce:
    """First fit that asks job ``victim`` to leave, once, at ``at_ns``."""

    victim: str
    at_ns: int
    done: list[str] = field(default_factory=list)

    def decide(self, view: View, now_ns: int) -> Plan:
        plan = FirstFit().decide(view, now_ns)
        if now_ns < self.at_ns:
            return Plan(plan.places, plan.waits, again_ns=self.at_ns)
        if self.done:
            return plan
        self.done.append(self.victim)
        return Plan((), plan.waits, stops=(Stop(self.victim, Reason("test", "make room"), "other"),))


STEPS = SimJob(100 * S, startup_ns=2 * S, step_ns=S, checkpoint_every=10, restore_ns=3 * S)


def test_a_checkpoint_stops_every_rank_for_its_write_time() -> None:
    sim = SimJob(20 * S, step_ns=S, checkpoint_every=5, checkpoint_ns=S // 2, report_every=0)
    store, view = run(fleet_of(4), {"j": (0, spec(ranks=4), sim)})
    assert ended_s(view, "j") == 22
    assert seconds(store, view, "j") == {"useful": 80, "checkpoint": 8}


@pytest.mark.parametrize("report_every", [0, 1, 7])
def test_what_is_lost_does_not_depend_on_how_often_steps_are_told(report_every: int) -> None:
    sim = SimJob(30 * S, step_ns=S, checkpoint_every=10, fails={1: (0, 17 * S + 1, -9)}, report_every=report_every)  # fmt: skip
    store, view = run(fleet_of(1), {"j": (0, spec(), sim)})
    found = seconds(store, view, "j")
    assert found["useful"] == pytest.approx(30)
    assert found["replayed"] == pytest.approx(7)


def test_a_failure_before_the_first_checkpoint_loses_all_steps() -> None:
    sim = SimJob(30 * S, startup_ns=2 * S, step_ns=S, checkpoint_every=20, fails={1: (0, 9 * S + 1, 1)}, report_every=0)  # fmt: skip
    store, view = run(fleet_of(1), {"j": (0, spec(), sim)})
    found = seconds(store, view, "j")
    assert found["replayed"] == pytest.approx(7)
    assert found["start"] == 4


def test_preemption_costs_the_grace_the_work_since_the_checkpoint_a_start_and_a_restore() -> None:
    jobs = {
        "victim": (0, spec(), SimJob(**{**_fields(STEPS), "stop_ns": 5 * S})),
        "other": (1, spec(), SimJob(10 * S)),
    }
    store, view = run(fleet_of(1), jobs, StopsOnce("victim", 1 + 37 * S))
    victim = view.jobs["victim"]
    assert [a.outcome for a in victim.attempts] == ["preempted", "succeeded"]
    assert seconds(store, view, "victim") == {
        "useful": 100, "preempted": 5, "preempting": 5, "start": 4, "restore": 3,
    }  # fmt: skip
    # asked after 37 s, gone after 5, first in the queue again: start, restore, and 70 s that are left
    assert ended_s(view, "victim") == 37 + 5 + 5 + 70


def test_a_gang_that_saves_when_asked_to_stop_loses_no_step() -> None:
    sim = SimJob(**{**_fields(STEPS), "stop_ns": 5 * S, "saves_on_stop": True})
    jobs = {"victim": (0, spec(), sim), "other": (1, spec(), SimJob(10 * S))}
    store, view = run(fleet_of(1), jobs, StopsOnce("victim", 1 + 37 * S))
    found = seconds(store, view, "victim")
    assert "preempted" not in found
    assert found["useful"] == 100


def test_a_gang_that_needs_longer_than_its_grace_is_killed_and_saves_nothing() -> None:
    sim = SimJob(**{**_fields(STEPS), "stop_ns": 5 * S, "saves_on_stop": True})
    jobs = {"victim": (0, spec(grace_s=2.0), sim), "other": (1, spec(), SimJob(10 * S))}
    store, view = run(fleet_of(1), jobs, StopsOnce("victim", 1 + 37 * S))
    assert view.jobs["victim"].attempts[0].ranks[0].code == -9
    found = seconds(store, view, "victim")
    assert (found["preempting"], found["preempted"]) == (2, 5)


def _fields(job: SimJob) -> dict[str, object]:
    return {name: getattr(job, name) for name in SimJob.__dataclass_fields__}


def test_a_node_fault_takes_its_ranks_and_the_gang_resumes_elsewhere_from_its_checkpoint() -> None:
    sim = SimJob(40 * S, step_ns=S, checkpoint_every=10, report_every=0)
    store, view = run(
        fleet_of(2, 2), {"j": (0, spec(ranks=2), sim)}, faults=[(1 + 25 * S + 5, "n0", 1 + 500 * S)]
    )
    first, second = view.jobs["j"].attempts
    assert {p.node for p in first.places} == {"n0"}
    assert {p.node for p in second.places} == {"n1"}
    assert seconds(store, view, "j")["useful"] == 80
    assert ended_s(view, "j") == pytest.approx(25 + 1 + 20)


def test_a_gang_waits_for_the_repair_of_the_only_node_that_holds_it() -> None:
    sim = SimJob(100 * S, startup_ns=2 * S, step_ns=S, checkpoint_every=10, restore_ns=3 * S, report_every=0)
    store, view = run(fleet_of(4), {"j": (0, spec(ranks=4), sim)}, faults=[(1 + 37 * S, "n0", 1 + 97 * S)])
    # 2 s of start and 35 of work, 30 of them saved; 60 of repair; start, restore and the 70 that are left
    assert ended_s(view, "j") == 97 + 2 + 3 + 70
    assert seconds(store, view, "j") == {"useful": 400, "replayed": 20, "start": 16, "restore": 12}
    rows = ledger_rows(store, view)
    down = sum(row.end_ns - row.start_ns for row in rows if row.leaf == "fault")
    assert down == 4 * 60 * S
    assert sum(row.end_ns - row.start_ns for row in rows) == 4 * 172 * S


def test_a_second_fault_before_the_first_checkpoint_loses_all_that_was_done_since() -> None:
    sim = SimJob(50 * S, step_ns=S, checkpoint_every=20, report_every=0)
    faults = [(1 + 30 * S, "n0", 1 + 40 * S), (1 + 45 * S, "n0", 1 + 50 * S)]
    store, view = run(fleet_of(1), {"j": (0, spec(), sim)}, faults=faults)
    # 20 saved of 30; 5 more from 40 on; from 50 on the 30 that are left
    assert ended_s(view, "j") == 50 + 30
    assert seconds(store, view, "j") == {"useful": 50, "replayed": 15}


def test_thousands_of_nodes_do_all_the_work_that_they_were_given() -> None:
    chance = random.Random(1)
    jobs = {
        f"j{k}": (k // 20, spec(ranks=chance.choice((1, 8, 64, 256))), SimJob(chance.randrange(10, 90) * S))
        for k in range(400)
    }
    store, view = run(fleet_of(*[8] * 2000), jobs)
    assert {job.state for job in view.jobs.values()} == {"succeeded"}
    held = sum(row.end_ns - row.start_ns for row in ledger_rows(store, view) if row.job)
    assert held == sum(job.ranks * sim.work_ns for _, job, sim in jobs.values())


def test_a_withdrawn_job_leaves_whether_it_runs_or_waits() -> None:
    arrivals = [
        Arrival(1, "runs", spec(), leaves_ns=1 + 10 * S),
        Arrival(1, "waits", spec(), leaves_ns=1 + 5 * S),
        Arrival(1, "done", spec(ranks=2), leaves_ns=1 + 900 * S),
    ]
    long, short = SimJob(100 * S), SimJob(3 * S)
    view = simulate(
        MemoryStore(), fleet_of(1), arrivals[:2], lambda _: long, FirstFit()
    )  # fmt: skip
    assert {j.id: (j.state, (j.ended_ns - 1) // S) for j in view.jobs.values()} == {
        "runs": ("cancelled", 10),
        "waits": ("cancelled", 5),
    }
    view = simulate(MemoryStore(), fleet_of(2), arrivals[2:], lambda _: short, FirstFit())
    assert view.jobs["done"].state == "succeeded"


def test_a_simulation_under_endless_faults_ends() -> None:
    faults = seeded_faults(["n0", "n1"], 7, mtbf_s=50, mttr_s=20)
    sim = SimJob(200 * S, step_ns=S, checkpoint_every=5)
    jobs = {f"j{k}": (k, spec(ranks=2), sim) for k in range(4)} | {"never": (0, spec(ranks=9), sim)}
    _, view = run(fleet_of(2, 2), jobs, faults=faults)
    states = {job.id: job.state for job in view.jobs.values()}
    assert states == {**{f"j{k}": "succeeded" for k in range(4)}, "never": "queued"}
    assert sum(len(job.attempts) for job in view.jobs.values()) > 4


def test_a_simulation_stops_at_its_end_of_time() -> None:
    _, view = run(fleet_of(1), {"j": (0, spec(), SimJob(1000 * S))}, until_ns=1 + 60 * S)
    assert view.jobs["j"].state == "running"
    assert view.time_ns == 1 + 60 * S


@dataclass(frozen=True, slots=True)
class OnlyFrom:
    """First fit that places nothing before ``at_ns``."""

    at_ns: int

    def decide(self, view: View, now_ns: int) -> Plan:
        if now_ns < self.at_ns:
            return Plan(again_ns=self.at_ns)
        return FirstFit().decide(view, now_ns)


def test_a_simulation_waits_for_the_time_at_which_its_policy_looks_again() -> None:
    _, view = run(fleet_of(1), {"j": (0, spec(), SimJob(10 * S))}, OnlyFrom(1 + 500 * S))
    assert ended_s(view, "j") == 510


def test_a_policy_that_looks_again_for_ever_does_not_keep_a_simulation_alive() -> None:
    class Hopes:
        def decide(self, view: View, now_ns: int) -> Plan:
            plan = FirstFit().decide(view, now_ns)
            return Plan(plan.places, plan.waits, again_ns=now_ns + S)

    _, view = run(fleet_of(1), {"never": (0, spec(ranks=2), SimJob(S))}, Hopes())
    assert view.jobs["never"].state == "queued"


def test_seeded_faults_of_a_node_do_not_depend_on_the_other_nodes() -> None:
    def of(names: list[str]) -> list[tuple[int, str, int, str]]:
        faults = seeded_faults(names, 3, mtbf_s=1000, mttr_s=100)
        return [tuple(f) for f in islice(faults, 200 * len(names))]

    alone = of(["b"])[:100]
    among = [f for f in of(["a", "b", "c"]) if f[1] == "b"][:100]
    assert alone == among
    times = [f[0] for f in of(["a", "b", "c"])]
    assert times == sorted(times)
    assert all(at < end for at, _, end, *_ in alone)
    assert of(["a"]) == of(["a"])


# -- shared uplinks ------------------------------------------------------------------------------------


def leaves(*sizes: int, links: tuple[Link, ...] = ()) -> Fleet:
    """Leaves ``l0``, ... below one spine, with so many nodes of one GPU each."""
    tiers = [Tier("s", "spine"), *(Tier(f"l{k}", "leaf", "s") for k in range(len(sizes)))]
    names = [(f"n{k}-{i}", f"l{k}") for k, size in enumerate(sizes) for i in range(size)]
    nodes = [Node(n, leaf, (Device(f"{n}/0", n, 0, "gpu"),)) for n, leaf in names]
    return Fleet(tuple(tiers), tuple(nodes), links)


def test_two_gangs_on_one_uplink_slow_each_other_by_what_they_communicate() -> None:
    network = UplinkContention(leaves(2, 2))
    assert network.join(("a", 1), ["n0-0", "n1-0"], 400_000) == [("a", 1)]
    assert network.stretch_ppm(("a", 1)) == WHOLE
    assert sorted(network.join(("b", 1), ["n0-1", "n1-1"], 500_000)) == [("a", 1), ("b", 1)]
    assert network.stretch_ppm(("a", 1)) == 1_000_000 + 400_000 * 500_000 // WHOLE
    assert network.stretch_ppm(("b", 1)) == 1_000_000 + 500_000 * 400_000 // WHOLE
    assert network.leave(("b", 1)) == [("a", 1)]
    assert network.stretch_ppm(("a", 1)) == WHOLE


def test_gangs_within_a_leaf_or_a_node_do_not_meet_on_its_uplink() -> None:
    network = UplinkContention(leaves(4, 2))
    network.join(("a", 1), ["n0-0", "n0-1"], WHOLE)
    network.join(("b", 1), ["n0-2", "n0-3"], WHOLE)
    network.join(("c", 1), ["n1-0"], WHOLE)
    assert {network.stretch_ppm((g, 1)) for g in "abc"} == {WHOLE}


def test_a_fast_uplink_is_shared_with_less_harm() -> None:
    fast = (Link("l0", "s", 400_000_000_000), Link("l1", "s", 400_000_000_000))
    network = UplinkContention(leaves(2, 2, links=fast))
    network.join(("a", 1), ["n0-0", "n1-0"], WHOLE)
    network.join(("b", 1), ["n0-1", "n1-1"], WHOLE)
    # a quarter busy with each, and the nodes' own uplinks stay the bottleneck
    assert network.stretch_ppm(("a", 1)) == WHOLE


@pytest.mark.parametrize(("step_s", "checkpoint_every"), [(0, 0), (1, 0), (1, 7)])
def test_a_gang_gets_its_pace_back_when_the_other_ends(step_s: int, checkpoint_every: int) -> None:
    fleet = leaves(2, 2)
    across = {"ranks": 2}
    steps = {
        "step_ns": step_s * S,
        "report_every": 0,
        "checkpoint_every": checkpoint_every,
        "comm_ppm": WHOLE,
    }
    long, short = SimJob(100 * S, **steps), SimJob(20 * S, **steps)
    interleaved = Fleet(fleet.tiers, tuple(fleet.nodes[k] for k in (0, 2, 1, 3)))
    store, view = run(interleaved, {"a": (0, spec(**across), long), "b": (10, spec(**across), short)})
    # both at half the pace for 40 s: b is done, a has done 10 + 20 and goes on alone
    assert ended_s(view, "b") == 50
    assert ended_s(view, "a") == 50 + 70
    assert seconds(store, view, "a") == {"useful": 200, "exposed_local": 40}
    assert seconds(store, view, "b") == {"useful": 40, "exposed_local": 40}


GANGS = st.lists(
    st.tuples(st.sets(st.sampled_from([f"n{k}-{i}" for k in range(3) for i in range(2)]), min_size=1), st.integers(0, WHOLE)),
    max_size=8,
)  # fmt: skip


@given(GANGS, st.randoms(use_true_random=False))
def test_no_gang_is_faster_than_alone_and_all_are_as_before_when_the_others_left(gangs, chance) -> None:
    network = UplinkContention(leaves(2, 2, 2))
    keys = [(f"g{k}", 1) for k in range(len(gangs))]
    for key, (nodes, comm) in zip(keys, gangs, strict=True):
        network.join(key, sorted(nodes), comm)
    for key, (nodes, comm) in zip(keys, gangs, strict=True):
        others = sum(c for other, (_, c) in zip(keys, gangs, strict=True) if other != key)
        worst = WHOLE + comm * others // WHOLE
        assert WHOLE <= network.stretch_ppm(key) <= worst
        if len(nodes) == 1:
            assert network.stretch_ppm(key) == WHOLE
    if keys:
        last = chance.choice(keys)
        for key in keys:
            if key != last:
                network.leave(key)
        assert network.stretch_ppm(last) == WHOLE


# -- modelled ------------------------------------------------------------------------------------------


def test_every_row_of_a_simulation_is_modelled() -> None:
    sim = SimJob(40 * S, step_ns=S, checkpoint_every=10, fails={1: (0, 15 * S, -9)})
    store, view = run(fleet_of(2, 2), {"j": (3, spec(ranks=3), sim)}, faults=[(1 + 2 * S, "n1", 1 + 9 * S)])
    rows = ledger_rows(store, view)
    assert {row.how for row in rows} == {"modelled"}
    assert {"useful", "replayed", "fault", "no_demand"} <= {row.leaf for row in rows}


def test_a_simulation_and_a_real_log_do_not_mix() -> None:
    class RealEngine(SimEngine):
        modelled = False  # type: ignore[misc]

    store = MemoryStore()
    clock = VirtualClock(1)
    lease = store.acquire("test")
    Controller(store, lease, RealEngine(fleet_of(1), clock, lambda _: SimJob(S)), FirstFit(), clock).start(
        "x"
    )
    store.release(lease)
    with pytest.raises(StoreError, match="log of a real fleet"):
        simulate(store, fleet_of(1), [], lambda _: SimJob(S), FirstFit())
