"""Rounds over random worlds: nobody starves, nothing goes in circles, what is freed reaches its job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from place.queues import anywhere, decide, shares
from unidle.fleet.queues import QueueSpec
from unidle.place.model import Backfill, Demand, RoundRules, Running
from unidle.place.queue.pending import PendingJobs
from unidle.place.queue.state import Allocations
from unidle.place.session import Draft
from unidle.place.slices.fit import StartRoom

S = 1_000_000_000


@dataclass
class World:
    """Jobs that run as long as they were expected to; stopped ones wait again and start anew."""

    nodes: int
    per: int
    specs: list[QueueSpec]
    arrivals: list[Demand]
    rules: RoundRules
    rounds: list[Draft] = field(default_factory=list)
    ended_ns: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    first_planned: dict[str, int] = field(default_factory=dict)

    def run(self, most_rounds: int = 400) -> World:
        books = shares(*self.specs, gpus=self.nodes * self.per)
        state = Allocations(np.full(self.nodes, self.per), books)
        waiting = PendingJobs(books, self.rules.backfill)
        to_come = sorted(self.arrivals, key=lambda d: (d.submitted_ns, d.job))
        known = {d.job: d for d in to_come}
        again: list[str] = []
        now = 0
        for _ in range(most_rounds):
            for job in [j for j, r in state.running.items() if r.started_ns + (r.estimate_ns or 0) <= now]:
                state.stop(job)
                self.ended_ns[job] = now
            for job in again:
                waiting.add(known[job])
            while to_come and to_come[0].submitted_ns <= now:
                waiting.add(to_come.pop(0))
            done = decide(state, waiting, lambda d: anywhere(d.ranks), now, self.rules)
            self._look(state, done, now)
            again = [v for stop in done.stops for v in stop.victims]
            ends = [r.started_ns + (r.estimate_ns or 0) for r in state.running.values()]
            times = [
                *ends,
                *(d.submitted_ns for d in to_come[:1]),
                *([now + S] if state.holds or again else []),
            ]
            if not times:
                break
            now = max(min(times), now + 1)
        return self

    def _look(self, state: Allocations, done: Draft, now: int) -> None:
        self.rounds.append(done)
        used = np.zeros(self.nodes, np.int64)
        for held in (*state.running.values(), *state.holds.values()):
            for node, devices in held.devices.items():
                used[node] += devices
        assert (used + state.free == self.per).all()
        assert (state.free >= 0).all()
        for run in state.running.values():
            assert run.size == run.ranks * run.each
        begun = {start.job for start in done.starts}
        assert not begun & {victim for stop in done.stops for victim in stop.victims}
        for start in done.starts:
            self.starts[start.job] = now
        books = state.shares
        for queue in range(1, len(books.tree)):
            assert books.used[queue][0] <= books.quota.bound[queue][0]
            assert books.firm[queue][0] <= books.quota.deserved[queue][0]
        for job, planned in done.planned_ns.items():
            self.first_planned.setdefault(job, planned)


@st.composite
def worlds(
    draw: st.DrawFn, levels: tuple[str, ...] = ("low", "low", "medium", "high"), queues: int = 3
) -> World:
    nodes, per = draw(st.integers(1, 3)), draw(st.sampled_from([2, 4]))
    names = [f"q{k}" for k in range(draw(st.integers(1, queues)))]
    specs = [QueueSpec(name, weight=draw(st.integers(1, 3))) for name in names]
    quota = shares(*specs, gpus=nodes * per).quota
    jobs = []
    for k in range(draw(st.integers(1, 16))):
        which = draw(st.integers(0, len(names) - 1))
        level = draw(st.sampled_from(levels))
        most = quota.deserved[which + 1][0] // 1000 if level != "low" else nodes * per
        ranks = draw(st.integers(1, max(most, 1)))
        if ranks > most:
            continue
        jobs.append(
            Demand(
                f"j{k}", names[which], level, ranks, 1, (ranks * 1000,), draw(st.integers(0, 60)) * S,
                draw(st.integers(1, 50)) * S, draw(st.integers(0, 2)),
            )
        )  # fmt: skip
    rule = draw(st.sampled_from(["easy", "conservative"]))
    backfill = Backfill(
        rule, draw(st.integers(0, 2)), age_ns=20 * S, starved_ns=draw(st.sampled_from([50, 500])) * S
    )
    return World(nodes, per, specs, jobs, RoundRules(backfill, hold_ns=100 * S))


@settings(max_examples=150)
@given(worlds())
def test_every_job_ends_and_no_round_is_endless(world: World):
    world.run()
    assert set(world.ended_ns) == {d.job for d in world.arrivals}


@settings(max_examples=100)
@given(worlds())
def test_what_was_freed_for_a_job_is_where_it_starts(world: World):
    world.run()
    for before, after in zip(world.rounds, world.rounds[1:], strict=False):
        started = {start.job: start.devices for start in after.starts}
        for stop in before.stops:
            assert started.get(stop.job) == stop.hold.devices


@settings(max_examples=60)
@given(worlds())
def test_the_same_world_goes_the_same_way(world: World):
    again = World(world.nodes, world.per, world.specs, world.arrivals, world.rules)
    assert world.run().rounds == again.run().rounds


@settings(max_examples=100)
@given(worlds(levels=("medium",), queues=1))
def test_with_true_estimates_a_reserved_job_starts_no_later_than_planned(world: World):
    """One queue, and nobody overtakes by level: what was reserved first stands."""
    world = World(
        world.nodes, world.per, world.specs, [_plain(d) for d in world.arrivals],
        RoundRules(Backfill("conservative", age_ns=10**15, starved_ns=10**15)),
    ).run()  # fmt: skip
    late = {job: (at, world.starts[job]) for job, at in world.first_planned.items() if world.starts[job] > at}
    assert late == {}


def _plain(demand: Demand) -> Demand:
    return Demand(
        demand.job,
        demand.queue,
        demand.level,
        demand.ranks,
        1,
        demand.charged,
        demand.submitted_ns,
        demand.estimate_ns,
    )


@dataclass
class FullDevices:
    """Devices in parts, of which nobody gets another one before all who run have left; counts how often it is asked."""

    asked: int = 0

    def then(self, demand: Demand, gone: frozenset[str]) -> StartRoom | None:
        self.asked += 1
        return StartRoom({}, ("n0/0",), demand.charged) if len(gone) == 8 else None

    def apart(self, job: str) -> str:
        return job[:1]

    def parts_of(self, job: str) -> list[str]:
        return []

    def keep(self, job: str, devices: Iterable[str]) -> None:
        raise AssertionError(f"nothing is kept for {job}: {devices}")


def test_when_a_part_is_free_is_asked_once_for_all_who_want_the_same():
    books = shares(QueueSpec("q"), gpus=400)
    running = [
        Running(f"r{k}", "q", "medium", 0, {}, (500,), estimate_ns=(k + 2) * S, parts={f"n{k}/0": 0}, parts_milli=500)
        for k in range(8)
    ]  # fmt: skip
    state = Allocations(np.zeros(1, np.int64), books, running)
    waiting = PendingJobs(books, Backfill())
    for k in range(40):
        waiting.add(Demand(f"{'ab'[k % 2]}{k}", "q", "medium", 0, 1, (500,), most=(500,)))
    parts = FullDevices()
    done = decide(state, waiting, lambda _: lambda _: None, S, parts=parts, find=lambda *_: None)
    assert done.planned_ns == dict.fromkeys(waiting.jobs, 9 * S)
    assert parts.asked <= 2 * 4, "a search by halves over eight ends for each of two loads"
