"""The world moves between a decision and its commands: jobs end, nodes fail, users cancel. No plan is carried out blindly.

A turn observes, decides and writes on one view; commands follow. What happens meanwhile is seen in the next turn, so a
plan can only be late, never mixed with another; these tests make it late at each command of each world.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loop.drive import Loop
from loop.worlds import START_NS, Ask, S, World, crowded
from unidle.engine.protocol import StartGang, StopGang
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import NodeFault, SimJob
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, Restart

AWAY_NS = 50 * S


class Moving(SimEngine):
    """At chosen commands something happens first: the node of a start fails, the gang of a stop ends well."""

    moves: frozenset[int] = frozenset()
    moved = 0

    def _moves(self) -> bool:
        self.moved += 1
        return self.moved in self.moves

    def start(self, command: StartGang) -> None:
        new = (command.job, command.attempt) not in self._journal
        super().start(command)
        if new and self._moves():
            now_ns = self._clock.now_ns()
            self.poll_before()
            self._break(NodeFault(now_ns, command.places[0].node, now_ns + AWAY_NS))

    def poll_before(self) -> None:
        """What happened up to now comes first; it is reported with the next poll."""
        self._out = list(self.poll())

    def stop(self, command: StopGang) -> None:
        gang = self._gangs.get((command.job, command.attempt))
        if gang is not None and all(gang.alive) and self._moves():
            now_ns = self._clock.now_ns()
            ends = [(rank, Mark("exit", now_ns, code=0)) for rank in range(len(gang.alive))]
            self._hear(gang, gang.halt(now_ns))
            self._hear(gang, iter(ends))
            self._settle(gang)
        super().stop(command)


def live(world: World, moves: frozenset[int], until_s: int = 10**6) -> Loop:
    behaviour = {ask.job: ask.behaviour for ask in world.asks}
    loop_ = Loop(world.fleet, behaviour, START_NS, kind=Moving)
    assert isinstance(loop_.engine, Moving)
    loop_.engine.moves = moves
    for ask in sorted(world.asks, key=lambda ask: ask.at_s):
        if loop_.now_ns < START_NS + ask.at_s * S:
            loop_.to(START_NS + ask.at_s * S)
        loop_.controller.submit(ask.job, ask.spec)
    loop_.to_the_end(START_NS + until_s * S)
    return loop_


@settings(max_examples=15, deadline=None)
@given(crowded(), st.frozensets(st.integers(1, 30), min_size=1, max_size=6))
def test_nothing_is_booked_twice_and_all_jobs_end_when_the_world_moves_before_commands(
    world: World, moves: frozenset[int]
) -> None:
    loop_ = live(world, moves)  # every event went through the checker
    for job in loop_.view.jobs.values():
        if any(ask.job == job.id and ask.spec.restart.max > len(moves) for ask in world.asks):
            assert job.state != "failed", job.because


ONE_NODE = Fleet(nodes=(Node("n0", "", tuple(Device(f"n0/{k}", "n0", k, "gpu") for k in range(2))),))
TWO_NODES = Fleet(
    nodes=(*ONE_NODE.nodes, Node("n1", "", tuple(Device(f"n1/{k}", "n1", k, "gpu") for k in range(2))))
)


def ask(at_s: int, name: str, work_s: int, **more: object) -> Ask:
    spec = JobSpec(("x",), name=name, ranks=2, device="gpu", restart=Restart(3, 1.0), **more)  # type: ignore[arg-type]
    return Ask(at_s, name, spec, SimJob(work_s * S, stop_ns=5 * S))


def test_a_gang_whose_node_fails_before_it_starts_goes_elsewhere() -> None:
    loop_ = live(World(TWO_NODES, (ask(0, "a", 10),)), frozenset({1}))
    first, second = loop_.view.jobs["a"].attempts
    assert {p.node for p in first.places} == {"n0"}
    assert {p.node for p in second.places} == {"n1"}
    assert loop_.view.jobs["a"].state == "succeeded"


def test_a_victim_that_ends_well_before_its_stop_has_succeeded_and_its_devices_go_to_the_waiter() -> None:
    world = World(ONE_NODE, (ask(0, "low", 100, preemption="low"), ask(10, "high", 10, preemption="high")))
    loop_ = live(world, frozenset({2}))
    low, high = loop_.view.jobs["low"], loop_.view.jobs["high"]
    assert (low.state, len(low.attempts)) == ("succeeded", 1)
    assert high.attempts[0].placed_ns == START_NS + 10 * S


def test_victims_start_again_when_the_job_they_were_stopped_for_is_cancelled_meanwhile() -> None:
    world = World(ONE_NODE, (ask(0, "low", 100, preemption="low"), ask(10, "high", 10, preemption="high")))
    loop_ = Loop(world.fleet, {a.job: a.behaviour for a in world.asks}, START_NS)
    loop_.controller.submit("low", world.asks[0].spec)
    loop_.to(START_NS + 10 * S)
    loop_.controller.submit("high", world.asks[1].spec)
    loop_.to(START_NS + 12 * S)
    assert loop_.view.promised
    loop_.controller.cancel("high", "ann")
    loop_.to_the_end(START_NS + 10**4 * S)
    low = loop_.view.jobs["low"]
    assert loop_.view.jobs["high"].state == "cancelled"
    assert [a.placed_ns for a in low.attempts] == [START_NS, START_NS + 15 * S]
    assert not loop_.view.promised


def test_a_job_that_is_cancelled_while_it_is_placed_leaves_no_device_held() -> None:
    loop_ = Loop(ONE_NODE, {"a": SimJob(100 * S)}, START_NS)
    loop_.controller.submit("a", ask(0, "a", 100).spec)
    loop_.controller.turn()  # placed, and the start is sent
    loop_.controller.cancel("a", "ann")
    loop_.settle()
    loop_.to(START_NS + 20 * S)
    assert loop_.view.jobs["a"].state == "cancelled"
    assert all(loop_.view.occupancy.is_free(piece.id) for piece in ONE_NODE.slices())


def test_a_promise_on_a_node_that_fails_is_made_anew_elsewhere() -> None:
    low = [ask(0, f"low{k}", 1000, preemption="low") for k in range(2)]
    world = World(TWO_NODES, (*low, ask(10, "high", 10, preemption="high")))
    loop_ = Loop(world.fleet, {a.job: a.behaviour for a in world.asks}, START_NS)
    for one in world.asks:
        loop_.to(START_NS + one.at_s * S)
        loop_.controller.submit(one.job, one.spec)
    loop_.to(START_NS + 11 * S)
    (node,) = loop_.view.promised["high"].devices
    loop_.engine._break(NodeFault(loop_.now_ns, node, START_NS + 5000 * S))
    loop_.to_the_end(START_NS + 10**4 * S)
    high = loop_.view.jobs["high"]
    assert {p.node for p in high.attempts[0].places} == {"n0", "n1"} - {node}
    assert high.attempts[0].placed_ns <= START_NS + 20 * S
    assert all(job.state == "succeeded" for job in loop_.view.jobs.values())
