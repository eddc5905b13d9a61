"""A whole log from what is left of a damaged one: each event that is lost has a placeholder, with its number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.store.protocol import StoredEvent
from unidle.store.salvage import Salvage
from unidle.view.fold import apply
from unidle.view.state import View

SOURCE = "repair"


@dataclass(frozen=True, slots=True)
class Hole:
    """Lost events ``first`` to ``last``; times are those of the events around them.

    Until ``unsure_ns`` later events contradict what is left. ``known``: kind and job of those that could be read.
    """

    first: int
    last: int
    since_ns: int
    until_ns: int
    unsure_ns: int
    known: dict[int, tuple[str, str]]

    def line(self) -> str:
        """For people."""
        what = f"event {self.first}" if self.first == self.last else f"events {self.first} to {self.last}"
        named = [f"{kind} of {job}" if job else kind for kind, job in self.known.values() if kind]
        more = f" ({', '.join(named[:8])}{', ...' if len(named) > 8 else ''})" if named else ""
        return f"{what} lost{more}: {(self.until_ns - self.since_ns) / 1e9:.3f} s of the log"


@dataclass(frozen=True, slots=True)
class Plan:
    """How the log is made whole. ``misfits``: whole events that contradict what is left; they stay in the log.

    ``view``: the state after it.
    """

    holes: tuple[Hole, ...]
    last_seq: int
    misfits: int
    view: View

    def events(self, found: Salvage) -> Iterator[StoredEvent]:
        """The log from event 1 on, without gaps."""
        left = iter(found.seqs)
        seq = next(left, None)
        for hole in self.holes:
            while seq is not None and seq < hole.first:
                yield found.event(seq)
                seq = next(left, None)
            yield from _placeholders(hole)
        while seq is not None:
            yield found.event(seq)
            seq = next(left, None)


def plan(found: Salvage) -> Plan:
    """What is lost, and how long that makes the state uncertain. Errors: :class:`StoreDamaged` if the rest has no sense."""
    holes = _holes(found)
    last_seq = max(found.last_seq or 0, found.seqs[-1] if found.seqs else 0)
    view, at = View(), -1
    first = Plan(tuple(holes), last_seq, 0, view)
    for event in first.events(found):
        if event.kind == "events_lost" and at + 1 < len(holes) and event.seq == holes[at + 1].first:
            at += 1
        before = view.misfits
        try:
            apply(view, ev.decode(event.kind, event.body, event.seq), event.seq, event.time_ns)
        except (KeyError, IndexError, ValueError) as error:
            raise StoreDamaged(
                f"what is left cannot be read: {error!r}", field=f"event {event.seq}"
            ) from error
        if view.misfits > before and at >= 0:
            holes[at] = replace(holes[at], unsure_ns=max(holes[at].unsure_ns, event.time_ns))
    return Plan(tuple(holes), last_seq, view.misfits, view)


def _holes(found: Salvage) -> list[Hole]:
    holes: list[Hole] = []
    before = before_ns = 0
    for seq in found.seqs:
        if seq != before + 1:
            time_ns = found.event(seq).time_ns
            holes.append(
                _hole(found, before + 1, seq - 1, found.event(before).time_ns if before else time_ns, time_ns)
            )
        before = seq
    if found.last_seq is not None and found.last_seq > before:
        before_ns = found.event(before).time_ns if before else found.last_time_ns or 0
        until_ns = max(found.last_time_ns or 0, before_ns)
        holes.append(_hole(found, before + 1, found.last_seq, before_ns, until_ns))
    return holes


def _hole(found: Salvage, first: int, last: int, since_ns: int, until_ns: int) -> Hole:
    known = {seq: _known(*found.traces[seq]) for seq in found.traces if first <= seq <= last}
    return Hole(first, last, since_ns, until_ns, until_ns, dict(sorted(known.items())))


def _known(kind: str, body: bytes) -> tuple[str, str]:
    try:
        job = msgspec.json.decode(body).get("job", "")
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, RecursionError):
        job = ""
    return (kind if kind in ev.KINDS else ""), (job if isinstance(job, str) else "")


def _placeholders(hole: Hole) -> Iterator[StoredEvent]:
    for seq in range(hole.first, hole.last + 1):
        kind, job = hole.known.get(seq, ("", ""))
        lost = ev.EventsLost(
            hole.first, hole.last, hole.since_ns, hole.until_ns, hole.unsure_ns, kind=kind, job=job
        )
        # the first of them opens the hole, before any time in it is posted
        yield StoredEvent(seq, hole.until_ns, SOURCE, seq, *ev.encode(lost))
