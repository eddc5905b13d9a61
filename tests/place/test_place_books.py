"""What a scheduler keeps from round to round changes nothing: it decides as one that has seen nothing before."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec, Layout, Reason, Requests, Select, Topology, Where
from unidle.place.protocol import Plan
from unidle.place.scheduler import Scheduler
from unidle.view.fold import apply
from unidle.view.state import View

S = 1_000_000_000
DONE = Reason("done", "")
QUEUES = (
    QueueSpec("lab"),
    QueueSpec("a", "lab", deserved={"gpu": 6}),
    QueueSpec("b", "lab", weight=2, limit={"gpu": 9}),
    QueueSpec("c", guarantee={"gpu": 2}),
)


def fleet(queues: tuple[QueueSpec, ...]) -> Fleet:
    tiers = (Tier("s", "site"), Tier("l0", "leaf", "s"), Tier("l1", "leaf", "s"))
    nodes = tuple(
        Node(
            f"n{k}", f"l{k % 2}",
            tuple(Device(f"n{k}/{i}", f"n{k}", i, "gpu", "H100" if k < 3 else "A100") for i in range(4)),
            cpus=16, memory_bytes=64 << 30, labels={"zone": "x" if k % 3 else "y"},
        )
        for k in range(5)
    )  # fmt: skip
    return Fleet(tiers, nodes, queues=queues)


class World:
    """Carries decisions out, and asks a scheduler that follows and a new one for each."""

    def __init__(self, queues: tuple[QueueSpec, ...]) -> None:
        self.view, self.policy, self.now_ns = View(), Scheduler(), S
        self.tell(ev.FleetSeen(fleet(queues)))

    def tell(self, event: ev.Event) -> None:
        apply(self.view, event, self.view.seq + 1, self.now_ns)

    def decide(self) -> Plan:
        kept = self.policy.decide(self.view, self.now_ns)
        assert kept == Scheduler().decide(self.view, self.now_ns)
        assert kept == self.policy.decide(self.view, self.now_ns)
        return kept

    def step(self) -> None:
        plan = self.decide()
        held = [piece for place in plan.places for rank in place.places for piece in rank.slices]
        assert len(held) == len(set(held))
        assert all(self.view.occupancy.is_free(piece) for piece in held)
        for place in plan.places:
            job = self.view.jobs[place.job]
            assert len(place.places) == job.spec.ranks
            self.tell(ev.AttemptPlaced(job.id, len(job.attempts) + 1, place.places, place.because))
        for wait in plan.waits:
            self.tell(ev.JobJudged(wait.job, wait.because))
        for keep in plan.keeps:
            self.tell(ev.Promised(keep.job, keep.kind, keep.devices, keep.expires_ns, keep.because))
        for stop in plan.stops:
            number = len(self.view.jobs[stop.job].attempts)
            self.tell(ev.StopAsked(stop.job, number, "preempted", S, stop.because, for_job=stop.for_job))
        self.requests_hold()

    def requests_hold(self) -> None:
        for node in self.view.fleet.nodes:
            cpu, memory = self.view.hosts.get(node.id, (0, 0))
            assert cpu <= node.cpus * 1000 and memory <= node.memory_bytes

    def ended(self, at: int) -> None:
        """One of the running jobs ends; one that was to be preempted waits again."""
        if not self.view.live:
            return
        job = self.view.jobs[sorted(self.view.live)[at % len(self.view.live)]]
        attempt = job.attempts[-1]
        preempted = attempt.stop is not None
        self.tell(ev.AttemptEnded(job.id, attempt.number, "preempted" if preempted else "succeeded", DONE))
        self.tell(ev.Requeued(job.id, DONE) if preempted else ev.JobEnded(job.id, "succeeded", DONE))

    def saved(self, at: int) -> None:
        if self.view.live:
            job = self.view.jobs[sorted(self.view.live)[at % len(self.view.live)]]
            rank = job.attempts[-1].ranks[0]
            self.tell(ev.RankSaw(job.id, len(job.attempts), 0, rank.count, (Mark("saved", self.now_ns),)))

    def foretold(self, at: int) -> None:
        open_jobs = sorted(self.view.jobs.open)
        if open_jobs:
            job = open_jobs[at % len(open_jobs)]
            self.tell(ev.Predicted(job, "run_time", 50 * S, 40 * S, (60 + at) * S, 800_000, "history"))

    def health(self, at: int) -> None:
        target = ("n0", "n1/2", "n4")[at % 3]
        now = "healthy" if target in self.view.health else "maintenance"
        self.tell(ev.HealthSet(target, now, Reason("seen", "")))


specs = st.builds(
    lambda ranks, each, queue, level, more: JobSpec(
        ("x",), ranks=ranks, devices_per_rank=each, device="gpu", queue=queue, preemption=level, **more
    ),
    st.integers(1, 4), st.integers(1, 2), st.sampled_from("abc"), st.sampled_from(["low", "low", "medium", "high"]),
    st.sampled_from(
        [
            {}, {"priority": 3}, {"estimate_s": 30.0}, {"estimate_s": 300.0}, {"min_runtime_s": 20.0},
            {"requests": Requests(6, 8 << 30)}, {"requests": Requests(2, 30 << 30)},
            {"topology": Topology("leaf")}, {"where": Where(models=Select(("A100",)))},
            {"where": Where(labels={"zone": "x"})},
        ]
    ),
)  # fmt: skip
moves = st.one_of(
    st.tuples(st.just("submit"), specs),
    st.tuples(st.sampled_from(["ended", "ended", "saved", "foretold", "health"]), st.integers(0, 20)),
    st.tuples(st.just("wait"), st.sampled_from([1, 15, 700, 90_000])),
    st.tuples(st.just("step"), st.none()),
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.booleans(), st.lists(moves, min_size=4, max_size=40))
def test_a_scheduler_that_follows_decides_as_a_new_one(queued: bool, drawn: list[tuple[str, Any]]) -> None:
    world = World(QUEUES if queued else ())
    for what, how in drawn:
        if what == "submit":
            world.tell(ev.JobSubmitted(f"j{len(world.view.jobs)}", how))
        elif what == "wait":
            world.now_ns += how * S
        elif what == "step":
            world.step()
        else:
            getattr(world, what)(how)
    world.step()
    world.step()
    assert world.decide() == Scheduler().decide(world.view, world.now_ns)


def test_a_job_waits_for_its_time_and_is_then_looked_at_again():
    world = World(QUEUES)
    world.tell(ev.JobSubmitted("j", JobSpec(("x",), device="gpu", queue="a")))
    world.step()
    world.tell(ev.AttemptEnded("j", 1, "failed", DONE))
    world.tell(ev.RetryPlanned("j", world.now_ns + 5 * S, DONE))
    assert world.decide().places == ()
    world.now_ns += 5 * S
    assert [place.job for place in world.decide().places] == ["j"]


def test_a_node_of_cpus_and_gpus_gives_both():
    devices = tuple(Device(f"n/{k}", "n", k, "gpu" if k < 2 else "cpu") for k in range(70))
    world = World(())
    world.tell(ev.FleetSeen(Fleet((Tier("s", "site"),), (Node("n", "s", devices),), queues=QUEUES[3:])))
    for name, ranks, kind in (("g", 2, "gpu"), ("c", 67, "cpu"), ("d", 1, "cpu"), ("z", 1, "any")):
        world.tell(ev.JobSubmitted(name, JobSpec(("x",), ranks=ranks, device=kind, queue="c")))
    world.step()
    held = {n: [p.slices[0] for p in world.view.jobs[n].attempts[0].places] for n in "gcd"}
    assert held["g"] == ["n/0", "n/1"] and held["d"] == ["n/69"] and len(held["c"]) == 67
    assert world.view.jobs["z"].verdict is not None


def test_a_gang_with_groups_finds_its_place_among_what_was_given_away_in_the_same_round():
    world = World(QUEUES)
    layout = Layout(tp=2, dp=2)
    for k in range(4):
        spec = JobSpec(
            ("x",), ranks=4, device="gpu", queue="b" if k else "a", layout=layout,
            topology=Topology("leaf", groups={"tp": "node"}),
        )  # fmt: skip
        world.tell(ev.JobSubmitted(f"j{k}", spec))
    world.step()
    assert len(world.view.live) == 3  # b may use 9
