"""From the log: when each node or device was not healthy, and why; and the faults that were seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from unidle.events import types as ev
from unidle.fleet import Health
from unidle.jobs import Reason
from unidle.store.protocol import Store

_KINDS: Final = frozenset({"health_set", "fault_seen"})


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


def health_log(store: Store) -> tuple[list[UnhealthySpell], list[tuple[int, ev.FaultSeen]]]:
    """All spells, in the order in which they ended, those that last last; and all faults, each with its time."""
    since: dict[str, UnhealthySpell] = {}
    spells: list[UnhealthySpell] = []
    faults: list[tuple[int, ev.FaultSeen]] = []
    for stored in store.read():
        if stored.kind not in _KINDS:
            continue
        event = ev.decode(stored.kind, stored.body, stored.seq)
        if isinstance(event, ev.FaultSeen):
            faults.append((stored.time_ns, event))
        elif isinstance(event, ev.HealthSet) and event.health != "healthy":
            begun = UnhealthySpell(event.target, stored.time_ns, None, event.health, event.because)
            since.setdefault(event.target, begun)
        elif isinstance(event, ev.HealthSet) and event.target in since:
            spells.append(replace(since.pop(event.target), end_ns=stored.time_ns))
    return [*spells, *since.values()], faults
