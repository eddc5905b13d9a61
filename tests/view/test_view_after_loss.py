"""A log with holes: what is left folds, all of the time has a leaf, and the holes are unseen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.worlds import Run, World, ledger_rows, worlds
from unidle.events import types as ev
from unidle.ledger.current import check_batches
from unidle.store.memory import MemoryStore
from unidle.store.protocol import NewEvent, StoredEvent
from unidle.store.salvage import Salvage, Trace
from unidle.view.repair import Plan, plan
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source
from view.telling import Telling


def without(events: list[StoredEvent], lost: set[int], *, tail: bool = True) -> Salvage:
    """What is left of a log of which these numbers are damaged; ``tail``: the head of the log is whole."""
    whole = {event.seq: event for event in events if event.seq not in lost}
    found = Salvage(sorted(whole), whole.__getitem__)
    found.traces = {event.seq: Trace(event.kind, event.body) for event in events if event.seq in lost}
    if tail and events:
        found.last_seq, found.last_time_ns = events[-1].seq, events[-1].time_ns
    return found


def repaired(found: Salvage) -> tuple[MemoryStore, Plan]:
    made, store = plan(found), MemoryStore()
    lease = store.acquire("test")
    store.append(lease, [NewEvent(*event[1:]) for event in made.events(found)])
    store.release(lease)
    return store, made


@settings(max_examples=150, deadline=None)
@given(worlds(), st.data())
def test_whatever_is_lost_the_rest_folds_and_the_time_is_conserved(world: World, data: st.DataObject) -> None:
    run = Run(world)
    run.to_the_end()
    events = list(run.store.read())
    first = data.draw(st.integers(3, len(events)))  # of a log that begins with a fleet
    length = data.draw(st.sampled_from([1, 1, 1, 2, 5, 50]))
    more = data.draw(st.sets(st.integers(3, len(events)), max_size=3))
    lost = {*range(first, min(first + length, len(events) + 1)), *more}
    store, made = repaired(without(events, lost))
    view = load_view(store)
    assert view.seq == len(events)
    source = ledger_source(store, view)
    assert check_batches(source.batches(source.extent())) == []
    assert {seq for hole in made.holes for seq in range(hole.first, hole.last + 1)} == lost
    rows = ledger_rows(store, view)
    for hole in made.holes:
        for row in rows if hole.since_ns < hole.until_ns else ():
            if row.start_ns < hole.until_ns and row.end_ns > hole.since_ns:
                assert row.leaf == "unseen", (hole, row)
                assert row.how == "modelled"  # all of a simulation is
    for job in view.jobs.values():
        assert (job.id in view.live) == (job.live is not None)
        assert not (job.terminal and job.live is not None)


def test_every_single_event_of_a_life_can_be_lost() -> None:
    told = Telling(2)
    told.submit("a").place("a", "n0/0")
    events = life()
    for lost in range(1, len(events) + 1):
        store, made = repaired(without(events, {lost}))
        view = load_view(store)
        source = ledger_source(store, view)
        assert check_batches(source.batches(source.extent())) == [], events[lost - 1].kind
        (hole,) = made.holes
        assert (hole.first, hole.last) == (lost, lost)
        assert hole.known[lost][0] == events[lost - 1].kind
        if events[lost - 1].kind != "job_submitted":
            assert view.jobs["a"].state == (
                "running" if events[lost - 1].kind == "job_ended" else "succeeded"
            ), events[lost - 1].kind


def life() -> list[StoredEvent]:
    """A job from its submission to its end, an event each 10 seconds."""
    from e2e.stores import job_events
    from sim.worlds import fleet_of

    told = [
        ev.ControllerStarted("test", 1, 3 * 10**10),
        ev.FleetSeen(fleet_of(2)),
        *job_events("a"),
        ev.Sighted(),
    ]
    return [StoredEvent(k, k * 10**10, "t", k, *ev.encode(event)) for k, event in enumerate(told, 1)]


def test_what_is_free_after_a_lost_start_is_unseen_until_the_rest_agrees() -> None:
    events = life()
    placed = next(event.seq for event in events if event.kind == "attempt_placed")
    store, made = repaired(without(events, {placed}))
    (hole,) = made.holes
    ended = next(event for event in events if event.kind == "attempt_ended")
    assert hole.unsure_ns == ended.time_ns
    assert made.misfits == 2  # the rank's marks and the end of the attempt
    view = load_view(store)
    unseen = sum(
        min(row.end_ns, hole.unsure_ns) - max(row.start_ns, hole.since_ns)
        for row in ledger_rows(store, view)
        if row.leaf == "unseen" and row.start_ns < hole.unsure_ns and row.end_ns > hole.since_ns
    )
    assert unseen == 2 * (hole.unsure_ns - hole.since_ns)  # both devices


def test_a_lost_end_of_the_log_has_the_time_of_its_head() -> None:
    events = life()
    store, made = repaired(without(events, {len(events) - 1, len(events)}))
    (hole,) = made.holes
    assert (hole.since_ns, hole.until_ns) == (events[-3].time_ns, events[-1].time_ns)
    assert store.last() == (len(events), events[-1].time_ns)


def test_a_log_without_a_hole_stays_as_it_is() -> None:
    events = life()
    found = without(events, set())
    made = plan(found)
    assert (made.holes, made.misfits) == ((), 0)
    assert list(made.events(found)) == events
