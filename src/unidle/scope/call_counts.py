"""Calls that were counted: operators, collectives, copies, launches, by name over all threads."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from unidle.scope.device_use import BUSY, IDLE
from unidle.scope.memory import size
from unidle.scope.model import Call, Profile

_MOST: Final = 8
# Counted always, and told elsewhere (steps) or of interest only as a sum.
_QUIET: Final = frozenset({"alloc", "free", "backward", "gil", "machine", "model"})


@dataclass(frozen=True, slots=True)
class Counted:
    """A function with its calls in all processes and threads."""

    name: str
    kind: str
    count: int
    ns: int | None
    n_bytes: int


def counts_of(profile: Profile) -> list[Counted]:
    """By kind and name, most calls first. ``ns`` is nothing where one of the rows does not know it. Sums of devices are no calls."""
    rows: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in profile.calls:
        if call.kind not in (BUSY, IDLE):
            rows[call.kind, call.name].append(call)
    found = []
    for (kind, name), calls in rows.items():
        times = [call.ns for call in calls]
        known = None if any(ns is None for ns in times) else sum(ns or 0 for ns in times)
        found.append(Counted(name, kind, sum(c.count for c in calls), known, sum(c.n_bytes for c in calls)))
    return sorted(found, key=lambda c: (-c.count, c.kind, c.name))


def counts_json(profile: Profile, most: int = 200) -> list[dict[str, Any]]:
    """The counts as ``--json`` prints them."""
    return [
        {"name": c.name, "kind": c.kind, "count": c.count, "ns": c.ns, "bytes": c.n_bytes}
        for c in counts_of(profile)[:most]
    ]


def counts_lines(profile: Profile, steps: int | None, width: int) -> list[str]:
    """The section of the first screen: calls a second, or of a step where steps are known."""
    counted = [one for one in counts_of(profile) if one.kind not in _QUIET and one.count]
    if not counted:
        return []
    per, unit = (steps, "step") if steps else (profile.seconds or 1.0, "s")
    lines = [f"Calls (of a {unit})" if unit == "step" else "Calls (a second)"]
    for one in counted[:_MOST]:
        parts = [f"{one.count / per:>12,.1f}  {one.kind:<10}  {one.name}"]
        if one.n_bytes:
            parts.append(f"{size(round(one.n_bytes / per))}")
        if one.ns is not None:
            parts.append(f"{one.ns / per / 1e6:.2f} ms")
        lines.append(("  " + ", ".join(parts))[:width])
    return [*lines, ""]
