"""The fold is a function of what happened, not of how it arrived or in how many parts it was folded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.worlds import Run, World, canonical, worlds
from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.ledger.rows import Entry
from unidle.store.protocol import StoredEvent
from unidle.view import snapshot
from unidle.view.accounts import entries
from unidle.view.fold import fold
from unidle.view.state import View

few = settings(max_examples=50, deadline=None)


def log_of(world: World) -> list[StoredEvent]:
    run = Run(world)
    run.to_the_end()
    return list(run.store.read())


def postings(view: View) -> list[Entry]:
    return sorted(entries(view, view.time_ns), key=repr)


def check_ages(view: View) -> None:
    """Who waits the longest, by the index and by looking at all."""
    since = {job.waiting_since_ns for job in view.jobs.open.values() if job.state in ("queued", "restarting")}
    for after_ns in (-1, *since):
        assert view.queue.since_ns(after_ns) == min((ns for ns in since if ns > after_ns), default=None)


@few
@given(worlds(), st.data())
def test_a_log_gives_the_same_view_at_once_in_parts_and_over_snapshots(
    world: World, data: st.DataObject
) -> None:
    log = log_of(world)
    whole = fold(View(), log)
    parts = View()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(log)), max_size=4)))
    for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
        told = fold(parts, log[start:end])
        check_ages(told)
        parts = snapshot.decode(snapshot.encode(told))
    assert canonical(parts) == canonical(whole)
    assert postings(parts) == postings(whole)
    assert parts.waiting == whole.waiting
    assert parts.unjudged == whole.unjudged
    assert parts.occupancy.free == whole.occupancy.free


@few
@given(worlds(), st.data())
def test_marks_give_the_same_view_in_any_order_late_twice_and_in_other_batches(
    world: World, data: st.DataObject
) -> None:
    log = log_of(world)
    again = fold(View(), shuffled(log, data))
    assert canonical(again) == canonical(fold(View(), log))
    assert postings(again) == postings(fold(View(), log))


def shuffled(log: list[StoredEvent], data: st.DataObject) -> Iterable[StoredEvent]:
    """The same marks between the same decisions: each arrives between its attempt's start and the job's end."""
    decisions = [e for e in log if e.kind != "rank_saw"]
    decoded = [ev.decode(e.kind, e.body) for e in decisions]
    placed = {(e.job, e.attempt): k for k, e in enumerate(decoded) if isinstance(e, ev.AttemptPlaced)}
    ended = {e.job: k for k, e in enumerate(decoded) if isinstance(e, ev.JobEnded)}
    arrivals: dict[int, list[ev.RankSaw]] = {}
    for seen in (ev.decode(e.kind, e.body) for e in log if e.kind == "rank_saw"):
        for part in data.draw(_cut(seen)):
            key = (part.job, part.attempt)
            for _ in range(data.draw(st.sampled_from([1, 1, 2]))):
                at = data.draw(st.integers(placed[key], ended.get(part.job, len(decisions)) - 1))
                arrivals.setdefault(at, []).append(part)
    seq = 0
    for k, event in enumerate(decisions):
        seq += 1
        yield event._replace(seq=seq)
        for part in data.draw(st.permutations(arrivals.get(k, []))):
            seq += 1
            kind, body = ev.encode(part)
            yield StoredEvent(seq, event.time_ns, "rank", part.first, kind, body)


def _cut(seen: ev.RankSaw) -> st.SearchStrategy[list[ev.RankSaw]]:
    whole = len(seen.marks)

    def parts(cuts: set[int]) -> list[ev.RankSaw]:
        edges = [0, *sorted(cuts), whole]
        return [
            ev.RankSaw(seen.job, seen.attempt, seen.rank, seen.first + a, seen.marks[a:b])
            for a, b in pairwise(edges)
        ]

    return st.sets(st.integers(1, whole - 1), max_size=2).map(parts) if whole > 1 else st.just([seen])


BAD = [
    (ev.CancelAsked("ghost", "ann"), "never submitted"),
    (ev.RankSaw("j", 2, 0, 0, (Mark("spawn", 1),)), "never placed"),
    (ev.RankSaw("j", 1, 7, 0, (Mark("spawn", 1),)), "rank that its gang does not have"),
]


@pytest.mark.parametrize(("event", "problem"), BAD)
def test_a_log_that_names_what_it_never_told_of_is_damaged(
    event: ev.Event, problem: str, one_job: View
) -> None:
    with pytest.raises(StoreDamaged, match=problem):
        fold(one_job, [StoredEvent(one_job.seq + 1, 9, "control", 9, *ev.encode(event))])


def test_a_log_with_a_hole_is_damaged(one_job: View) -> None:
    with pytest.raises(StoreDamaged, match="follows event"):
        fold(one_job, [StoredEvent(one_job.seq + 2, 9, "control", 9, *ev.encode(ev.Sighted()))])


def test_a_snapshot_that_cannot_be_read_is_passed_over(one_job: View) -> None:
    kept = snapshot.encode(one_job)
    for body in (b"", b"\xc1", kept.body[:-3], b"\x80"):
        assert snapshot.decode(type(kept)(kept.seq, kept.fold_version, body)) is None
    assert snapshot.decode(type(kept)(kept.seq, kept.fold_version + 1, kept.body)) is None
