"""What holds in every world, whoever decides. Worlds are by chance; the log is checked after every turn (``loopcheck``).

Each test drives worlds that are made to break its invariant, and looks at the outcome once more by itself.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings

from loop.drive import Loop
from loop.worlds import START_NS, S, World, crowded, live, worlds
from unidle.events import types as ev
from unidle.place.policy import Unidle
from unidle.place.protocol import Plan
from unidle.view.state import View

some = settings(max_examples=15, deadline=None)


class Twice(Unidle):
    """What a policy keeps between rounds must not change what it decides."""

    def decide(self, view: View, now_ns: int) -> Plan:
        fresh, kept = Unidle().decide(view, now_ns), super().decide(view, now_ns)
        assert kept == fresh
        return kept


def held(loop: Loop) -> dict[str, list[tuple[int, int, str]]]:
    """By slice: who held it from when to when, as the final view has it."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for job in loop.view.jobs.values():
        for attempt in job.attempts:
            for place in attempt.places:
                for piece in place.slices:
                    end_ns = attempt.ended_ns if attempt.ended_ns is not None else 10**19
                    found.setdefault(piece, []).append((attempt.placed_ns, end_ns, job.id))
    return found


@some
@given(worlds())
def test_a_gang_holds_all_its_devices_or_none(world: World) -> None:
    loop = live(world)
    wanted = {ask.job: ask.spec.devices for ask in world.asks}
    moments = {t for spans in held(loop).values() for start, end, _ in spans for t in (start, end)}
    for moment in moments:
        now = Counter(
            job for spans in held(loop).values() for start, end, job in spans if start <= moment < end
        )
        assert all(count == wanted[job] for job, count in now.items())


@some
@given(worlds(ranked=False))
def test_no_device_is_over_its_capacity(world: World) -> None:
    for spans in held(live(world)).values():
        assert all(end <= start for (_, end, _), (start, _, _) in pairwise(sorted(spans)))


@some
@given(worlds(queues=True, faults=False))
def test_quotas_and_guarantees_hold(world: World) -> None:
    """Checked for every start (``Checker._quota``); here, that no queue's limit was passed at any moment."""
    loop = live(world)
    queue_of = {ask.job: ask.spec.queue for ask in world.asks}
    stopping = {(e.job, t) for t, e in loop.events if isinstance(e, ev.StopAsked)}
    for queue in world.fleet.queues:
        spans = [s for found in held(loop).values() for s in found if queue_of[s[2]] == queue.name]
        for moment in {start for start, _, _ in spans}:
            now = [job for start, end, job in spans if start <= moment < end]
            if not any(job in now for job, _ in stopping):  # what gives way does not count any more
                assert len(now) <= queue.limit.get("gpu", len(now))


@some
@given(crowded(faults=True))
def test_what_is_freed_reaches_the_job_that_it_was_freed_for(world: World) -> None:
    """Between the first stop for a job and its start nobody else gets what was promised (``Checker``).

    And it does start: within the time that its victims take to leave, unless it is cancelled or a node fails.
    """
    loop = live(world)
    troubled = {job for _, job in world.cancels} if not world.faults else {ask.job for ask in world.asks}
    grace_ns = max((int(ask.spec.grace_s) * S for ask in world.asks), default=0)
    for _, _, waiter, at_ns in loop.checker.stops:
        placed = [a.placed_ns for a in loop.view.jobs[waiter].attempts if a.placed_ns >= at_ns]
        if waiter not in troubled:
            assert placed, f"{waiter} never started"
            assert placed[0] <= at_ns + grace_ns, (
                f"{waiter} started {(placed[0] - at_ns) / S} s after the stop"
            )


@some
@given(crowded(faults=True))
def test_there_is_no_preemption_loop(world: World) -> None:
    """No job is stopped twice for one that neither failed nor gave way in between (``Checker``), and stops are few in all.

    Jobs are stopped for a waiter only when it then starts with what they held: so each start of an attempt
    costs at most as many stops as it has devices, and a job that was stopped needs one more start.
    """
    loop = live(world)
    starts: Counter[str] = Counter(e.job for _, e in loop.events if isinstance(e, ev.AttemptPlaced))
    devices = {ask.job: ask.spec.devices for ask in world.asks}
    stops = Counter(waiter for _, _, waiter, _ in loop.checker.stops)
    for waiter, count in stops.items():
        again = (
            1 + len(world.faults) + sum(job == waiter for _, job in world.cancels)
        )  # a promise may come to nothing
        assert count <= (starts[waiter] + again) * devices[waiter]
    assert len(loop.checker.stops) <= len(world.asks) ** 2 * (1 + len(world.faults))


@some
@given(crowded())
def test_no_job_starves(world: World) -> None:
    """Each job that can run at all is over within the sum of all attempts after the last thing that came from outside.

    For while a job waits that could run on the empty fleet, something runs or stops: else its turn would have come. So
    there is no idle moment, and the end is at most the sum of the time that attempts took.
    """
    loop = live(world)
    ran_ns = 0
    for job in loop.view.jobs.values():
        if can_run(world, job.spec.queue, job.spec.devices):
            assert job.terminal, f"{job.id}: {job.verdict}"
        ran_ns += sum((a.ended_ns or 0) - a.placed_ns for a in job.attempts)
    last_ns = max((job.ended_ns or 0) for job in loop.view.jobs.values())
    assert last_ns <= START_NS + world.last_s * S + ran_ns


def can_run(world: World, queue: str, devices: int) -> bool:
    """Whether the empty fleet has so many devices for a queue, which others' guarantees and its limits leave it."""
    specs = {q.name: q for q in world.fleet.queues}
    path, here = [], specs.get(queue)
    while here is not None:
        path.append(here)
        here = specs.get(here.parent or "")
    others = sum(q.guarantee.get("gpu", 0) for q in specs.values() if q not in path)
    room = len(world.fleet.devices()) - others
    return devices <= min([room, *(q.limit.get("gpu", room) for q in path)])


@some
@given(worlds())
def test_the_same_world_gives_the_same_log_and_memory_changes_no_decision(world: World) -> None:
    assert live(world).log() == live(world, policy=Twice).log()
