"""From the log: when each node or device was not healthy, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from unidle.events import types as ev
from unidle.fleet import Health
from unidle.jobs import Reason
from unidle.store.protocol import Store


@dataclass(frozen=True, slots=True)
class UnhealthySpell:
    """``target`` (a node or device) was not healthy; ``end_ns`` is None where it still is not.

    ``health`` and ``because`` are the first that were logged: states during its treatment are not further faults.
    """

    target: str
    start_ns: int
    end_ns: int | None
    health: Health
    because: Reason


def spells(store: Store) -> Iterator[UnhealthySpell]:
    """All of them, in the order in which they ended; those that last come last."""
    since: dict[str, UnhealthySpell] = {}
    for stored in store.read():
        if stored.kind != "health_set":
            continue
        event = ev.decode(stored.kind, stored.body, stored.seq)
        if not isinstance(event, ev.HealthSet):
            continue
        if event.health != "healthy":
            begun = UnhealthySpell(event.target, stored.time_ns, None, event.health, event.because)
            since.setdefault(event.target, begun)
        elif event.target in since:
            yield replace(since.pop(event.target), end_ns=stored.time_ns)
    yield from since.values()
