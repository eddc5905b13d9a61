"""What engines report of hosts, through the whole loop: the simulated engine, the controller, the log, the checker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from loop.drive import Loop
from loop.test_loop_invariants import Twice
from loop.worlds import EVER_S, START_NS, S, World, worlds
from sim.worlds import canonical, ledger_rows, node
from unidle.engine.protocol import Disrupted, JobArrived, Landed, NodesChanged, Silent, Taken
from unidle.engine.sim.host_reports import Befalls
from unidle.engine.sim.workload import SimJob
from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.jobs import JobSpec, Reason, Requests, Restart, Where
from unidle.ledger.columns import LEAVES
from unidle.ledger.current import check_batches
from unidle.view.fold import fold
from unidle.view.source import ledger_source, save_snapshot
from unidle.view.state import View

WHY = Reason("evicted", "its pod was evicted")
OF_ZONE_A = JobSpec(("train",), device="gpu", where=Where(labels={"zone": "a"}))
STEPS = SimJob(100 * S, step_ns=S, checkpoint_every=10)


def loop_of(*devices: int, **jobs: SimJob) -> Loop:
    nodes = tuple(node(f"n{k}", count) for k, count in enumerate(devices))
    return Loop(Fleet(nodes=nodes), jobs, START_NS)


def at(at_s: float) -> int:
    return START_NS + round(at_s * S)


def spec(**more: object) -> JobSpec:
    return JobSpec(("train",), user="ann", **more)  # type: ignore[arg-type]


def told(loop: Loop, kind: type[ev.Event]) -> list[ev.Event]:
    return [event for _, event in loop.events if isinstance(event, kind)]


def leaves(loop: Loop) -> dict[str, int]:
    """Time by leaf, in ns; all of it adds up."""
    source = ledger_source(loop.store, loop.view)
    assert check_batches(source.batches(source.extent())) == []
    found: dict[str, int] = {}
    for batch in source.batches(source.extent()):
        for leaf, start, end in zip(batch["leaf"], batch["start_ns"], batch["end_ns"], strict=True):
            found[LEAVES[leaf]] = found.get(LEAVES[leaf], 0) + int(end - start)
    return found


def test_a_label_is_a_small_event_and_a_job_that_waits_for_it_starts() -> None:
    loop = loop_of(1, 1, j=STEPS)
    loop.controller.submit("j", spec(device="gpu", where=Where(labels={"zone": "b"})))
    loop.to(at(1))
    assert loop.view.jobs["j"].state == "queued"
    there = replace(loop.fleet.nodes[1], labels={"zone": "b"})
    for at_s in (2, 3):  # the second time it is no news
        loop.engine.befalls(at(at_s), NodesChanged((there,)))
    loop.to(at(4))
    assert told(loop, ev.FleetChanged) == [ev.FleetChanged(edits=(ev.NodeEdit("n1", {"zone": "b"}),))]
    assert loop.view.jobs["j"].attempts[0].places[0].node == "n1"


def test_a_controller_that_takes_over_reads_only_what_changed_of_the_fleet() -> None:
    loop = loop_of(1, 1, 1, 1)
    loop.engine.befalls(at(1), NodesChanged((node("n9", 2),), ("n1",)))
    loop.to(at(2))
    there = replace(loop.engine.fleet().nodes[0], labels={"zone": "b"})
    loop.engine._fleet = replace(loop.engine.fleet(), nodes=(there, *loop.engine.fleet().nodes[1:]))
    loop.take_up()
    loop.settle()
    assert len(told(loop, ev.FleetSeen)) == 1
    assert told(loop, ev.FleetChanged)[1:] == [ev.FleetChanged(edits=(ev.NodeEdit("n0", {"zone": "b"}),))]
    loop.take_up()
    loop.settle()
    assert len(told(loop, ev.FleetChanged)) == 2


def test_a_silent_gang_is_left_alone_and_nothing_happened_when_it_is_heard_again() -> None:
    loop = loop_of(1, 1, j=STEPS)
    loop.controller.submit("j", spec(ranks=2, device="gpu", restart=Restart(3)))
    loop.engine.befalls(at(20), Silent("j", 1, (0, 1), at(12)))
    loop.engine.befalls(at(60), Silent("j", 1, (0, 1), 0))
    loop.to(at(40))
    assert loop.view.jobs["j"].attempts[0].silent == [0, 1]
    assert leaves(loop)["silent"] > 0
    loop.take_up()
    loop.to(at(50))
    loop.to_the_end(at(1000))
    job = loop.view.jobs["j"]
    assert (job.state, len(job.attempts)) == ("succeeded", 1)
    assert "silent" not in leaves(loop), "its marks came later, and prove its steps"


def test_a_gang_that_others_end_waits_again_without_a_restart_of_its_budget() -> None:
    loop = loop_of(1, j=STEPS)
    loop.controller.submit("j", spec(device="gpu", restart=Restart(0)))
    loop.engine.befalls(at(15), Disrupted("j", 1, WHY))
    loop.to_the_end(at(1000))
    job = loop.view.jobs["j"]
    assert [a.outcome for a in job.attempts] == ["preempted", "succeeded"]
    assert (job.state, job.retries, loop.view.failures) == ("succeeded", 0, 0)
    assert len(told(loop, ev.AttemptDisrupted)) == 1
    assert leaves(loop)["disrupted"] == 5 * S, "the steps since the checkpoint"


def test_what_the_host_gave_is_what_the_books_have() -> None:
    loop = loop_of(2, a=STEPS, b=STEPS, c=STEPS)
    for job in "abc":
        loop.controller.submit(job, spec(device="gpu", requests=Requests(cpus=1.0)))
    loop.engine.befalls(at(1), Landed("a", 1, 0, "n0", ("n0/1",)))
    loop.engine.befalls(at(2), Landed("b", 1, 0, "n0", ("n0/0",)))
    loop.engine.befalls(at(3), Landed("b", 1, 0, "n0", ("elsewhere",)))  # not in the fleet: passed over
    loop.to(at(5))
    assert [loop.view.jobs[job].attempts[0].places[0].slices for job in "ab"] == [("n0/1",), ("n0/0",)]
    assert len(told(loop, ev.RankLanded)) == 1
    loop.to_the_end(at(1000))
    assert {job.state for job in loop.view.jobs.values()} == {"succeeded"}
    leaves(loop)


def test_what_others_use_is_offered_to_no_new_job() -> None:
    loop = loop_of(1, 1, a=STEPS, b=STEPS)
    for at_s in (0, 1):  # the second time it is no news
        loop.engine.befalls(at(at_s), Taken("n0", 4.0, 1 << 30, ("n0/0",), Reason("pods", "pods of others")))
    loop.engine.befalls(at(50), Taken("n0", 0.0, 0, (), Reason("pods", "they have ended")))
    loop.to(at(0))
    for job in "ab":
        loop.controller.submit(job, spec(device="gpu"))
    loop.to(at(10))
    assert loop.view.jobs["a"].attempts[0].places[0].node == "n1"
    assert loop.view.jobs["b"].state == "queued"
    loop.to_the_end(at(1000))
    assert loop.view.jobs["b"].attempts[0].placed_ns == at(50)
    assert leaves(loop)["taken"] == 50 * S
    assert len(told(loop, ev.NodeTaken)) == 2


def test_a_job_from_outside_is_one_job_however_often_it_arrives() -> None:
    loop = loop_of(1)
    arrived = JobArrived("kube", "uid-1", "train", spec(device="gpu"), "ann")
    loop.behaviour = {}
    loop.engine._workload = lambda command: STEPS
    for at_s in (1, 2):
        loop.engine.befalls(at(at_s), arrived)
    loop.engine.befalls(at(3), replace(arrived, identity="uid-2"))
    loop.to(at(4))
    first, second = loop.view.jobs.values()
    assert (first.source, first.identity, first.submitted_by) == ("kube", "uid-1", "ann")
    assert first.id.startswith("train-")
    assert second.identity == "uid-2"
    loop.take_up()
    loop.to_the_end(at(1000))
    loop.controller.remove([first.id], "ann")
    loop.engine.befalls(loop.now_ns, arrived)
    loop.settle()
    assert len(told(loop, ev.JobSubmitted)) == 2


# -- by chance ---------------------------------------------------------------------------------------


@st.composite
def befallen(draw: st.DrawFn) -> tuple[World, list[tuple[int, Befalls]]]:
    """A world, and what befalls its hosts. All ranks that are silent are heard again."""
    world = draw(worlds(faults=draw(st.booleans()), most=6))
    nodes, jobs = world.fleet.nodes, [ask.job for ask in world.asks]
    found: list[tuple[int, Befalls]] = []
    for at_s in draw(st.lists(st.integers(0, 400), max_size=12)):
        kind, host = draw(st.sampled_from("slientd")), draw(st.sampled_from(nodes))
        job, attempt, rank = draw(st.sampled_from(jobs)), draw(st.integers(1, 2)), draw(st.integers(0, 3))
        if kind == "s":
            ranks = tuple(range(rank + 1))
            found.append((at_s, Silent(job, attempt, ranks, START_NS + max(at_s - 8, 0) * S + 1)))
            found.append((at_s + draw(st.integers(1, 60)), Silent(job, attempt, ranks, 0)))
        elif kind == "l":
            piece = draw(st.sampled_from(host.devices)).id
            found.append((at_s, Landed(job, attempt, rank, host.id, (piece,))))
        elif kind == "t":
            devices = tuple(
                d.id for d in draw(st.lists(st.sampled_from(host.devices), unique=True, max_size=2))
            )
            found.append((at_s, Taken(host.id, draw(st.sampled_from([0.0, 2.0])), 0, devices, WHY)))
            found.append((at_s + draw(st.integers(1, 60)), Taken(host.id, 0.0, 0, (), WHY)))
        elif kind == "d":
            found.append((at_s, Disrupted(job, attempt, WHY)))
        elif kind == "n":
            there = replace(host, labels={"zone": draw(st.sampled_from("ab"))})
            found.append((at_s, NodesChanged((there,))))
        elif kind == "i":
            fresh = replace(
                host,
                id="new",
                devices=tuple(replace(d, id=f"new/{d.index}", node="new") for d in host.devices),
            )
            found.append((at_s, NodesChanged((fresh,))))
        else:
            found.append((at_s, JobArrived("kube", f"uid-{rank}", "pod", OF_ZONE_A)))
    return world, found


def lived(
    world: World, found: Sequence[tuple[int, Befalls]], *, twice: bool = False, seals: bool = False
) -> Loop:
    """The world with what befalls its hosts, each report ``twice``, or the ledger sealed on the way, if that is asked for."""
    jobs = {ask.job: ask.behaviour for ask in world.asks}
    faults = [(START_NS + a * S, name, START_NS + b * S) for a, name, b in world.faults]
    loop = Loop(world.fleet, jobs, START_NS, faults, policy=Twice)
    loop.engine._workload = lambda command: jobs.get(command.job, STEPS)
    for at_s, what in found:
        for _ in range(1 + twice):
            loop.engine.befalls(START_NS + at_s * S, what)
    for ask in sorted(world.asks, key=lambda ask: ask.at_s):
        loop.to(max(START_NS + ask.at_s * S, loop.now_ns))
        loop.controller.submit(ask.job, ask.spec)
        if seals:
            loop.settle()
            assert loop._lease is not None
            save_snapshot(loop.store, loop._lease, loop.view, seal_at=1)
    for at_s in world.kills:
        loop.to(max(START_NS + at_s * S, loop.now_ns))
        loop.take_up()
    loop.to_the_end(START_NS + EVER_S * S)
    return loop


@settings(max_examples=25, deadline=None)
@given(befallen())
def test_whatever_befalls_hosts_the_log_is_legal_time_adds_up_and_a_replay_is_the_same(
    story: tuple[World, list[tuple[int, Befalls]]],
) -> None:
    loop = lived(*story)
    leaves(loop)
    again = fold(View(), loop.store.read())
    assert canonical(again) == canonical(loop.view)


@settings(max_examples=15, deadline=None)
@given(befallen())
def test_sealing_on_the_way_changes_no_row_of_what_befell_hosts(
    story: tuple[World, list[tuple[int, Befalls]]],
) -> None:
    loop = lived(*story, seals=True)
    leaves(loop)
    again = fold(View(), loop.store.read())
    assert ledger_rows(loop.store, again) == ledger_rows(loop.store, loop.view)


@settings(max_examples=10, deadline=None)
@given(befallen())
def test_a_report_that_comes_twice_changes_nothing(story: tuple[World, list[tuple[int, Befalls]]]) -> None:
    world, found = story
    world = replace(world, kills=())
    assert lived(world, found, twice=True).log() == lived(world, found).log()
