"""What a queue declares, in thousandths, and its hours."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from unidle.errors import BadInput
from unidle.fleet.queues import DAY_MINUTES, WEEK_MINUTES, Given, QueueSpec, Weekly, Zone

KINDS: Final = ("exclusive", "pooled", "public")
AMOUNTS: Final = ("guarantee", "deserved", "limit", "lend", "borrow")
MILLI: Final = 1_000
WEIGHT_MOST: Final = 1_000_000
AMOUNT_MOST: Final = 10**9
DEPTH_MOST: Final = 16


def check(specs: Sequence[QueueSpec], resources: Sequence[str]) -> list[QueueSpec]:
    """The queues with parents before children, else as given. :class:`BadInput` for the first mistake."""
    by_name: dict[str, QueueSpec] = {}
    for spec in specs:
        if not spec.name:
            raise BadInput("a queue has no name", field="queues", remedy="give each queue a name")
        if spec.name in by_name:
            raise BadInput(
                "two queues have this name", field="queues", value=spec.name, remedy="rename one of them"
            )
        by_name[spec.name] = spec
    for spec in specs:
        _check_one(spec, by_name, resources)
    return _parents_first(specs, by_name)


def _check_one(spec: QueueSpec, by_name: Mapping[str, QueueSpec], resources: Sequence[str]) -> None:
    at = f"queues.{spec.name}"
    if spec.parent is not None and spec.parent not in by_name:
        near = difflib.get_close_matches(spec.parent, by_name, n=1)
        remedy = f"the closest known queue is {near[0]}" if near else "declare it, or leave the parent out"
        raise BadInput("no such queue", field=f"{at}.parent", value=spec.parent, remedy=remedy)
    if (
        isinstance(spec.weight, bool)
        or not isinstance(spec.weight, int)
        or not 1 <= spec.weight <= WEIGHT_MOST
    ):
        remedy = f"a whole number from 1 to {WEIGHT_MOST:,}"
        raise BadInput("not a weight", field=f"{at}.weight", value=spec.weight, remedy=remedy)
    if spec.kind not in KINDS:
        raise BadInput(
            "no such kind of queue", field=f"{at}.kind", value=spec.kind, remedy="one of " + ", ".join(KINDS)
        )
    for where, amounts in amounts_of(spec):
        for resource, amount in amounts.items():
            _check_amount(f"{where}.{resource}", resource, amount, resources)
    if spec.kind == "exclusive" and any(spec.borrow.values()):
        remedy = "leave borrow out, or make the queue pooled"
        raise BadInput("an exclusive queue does not borrow", field=f"{at}.borrow", remedy=remedy)


def amounts_of(spec: QueueSpec) -> Iterator[tuple[str, Given]]:
    """Every mapping of amounts with its field path."""
    at = f"queues.{spec.name}"
    for name in AMOUNTS:
        yield f"{at}.{name}", getattr(spec, name)
    for k, window in enumerate(spec.windows):
        for name in ("guarantee", "deserved", "limit"):
            yield f"{at}.windows[{k}].{name}", getattr(window, name)


def _check_amount(at: str, resource: str, amount: object, resources: Sequence[str]) -> None:
    if resource not in resources:
        near = difflib.get_close_matches(resource, resources, n=1, cutoff=0.0)
        remedy = f"the fleet has {', '.join(resources)}" + (f"; the closest is {near[0]}" if near else "")
        raise BadInput("no such resource", field=at, value=resource, remedy=remedy)
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not math.isfinite(amount):
        raise BadInput("not an amount", field=at, value=amount, remedy="give a number from 0 on")
    if not 0 <= amount <= AMOUNT_MOST:
        remedy = f"give a number from 0 to {AMOUNT_MOST:,}"
        raise BadInput("an amount out of range", field=at, value=amount, remedy=remedy)


def to_milli(amount: float) -> int:
    """Devices or cores in thousandths."""
    return amount * MILLI if isinstance(amount, int) else round(amount * MILLI)


def _parents_first(specs: Sequence[QueueSpec], by_name: Mapping[str, QueueSpec]) -> list[QueueSpec]:
    depth: dict[str, int] = {}
    for spec in specs:
        path: list[str] = []
        at: str | None = spec.name
        while at is not None and at not in depth:
            if at in path:
                loop = " -> ".join([*path[path.index(at) :], at])
                raise BadInput(
                    "a queue is its own ancestor", field=f"queues.{at}.parent", value=loop,
                    remedy="give one of them another parent, or none",
                )  # fmt: skip
            path.append(at)
            at = by_name[at].parent
        base = depth[at] if at is not None else 0
        for k, name in enumerate(reversed(path)):
            depth[name] = base + k + 1
        if depth[spec.name] > DEPTH_MOST:
            raise BadInput(
                "the tree of queues is too deep", field=f"queues.{spec.name}.parent", value=depth[spec.name],
                remedy=f"at most {DEPTH_MOST} levels",
            )  # fmt: skip
    return sorted(specs, key=lambda spec: depth[spec.name])  # stable: else in the order given


MINUTE_NS: Final = 60_000_000_000

_EPOCH_MINUTES: Final = 3 * DAY_MINUTES  # the epoch was a Thursday, and weeks begin on Monday


def minute_of_week(now_ns: int, zone: Zone) -> int:
    """Local minutes since Monday 00:00."""
    return ((now_ns + zone.offset_ns(now_ns)) // MINUTE_NS + _EPOCH_MINUTES) % WEEK_MINUTES


def next_edge_ns(now_ns: int, zone: Zone, windows: Iterable[Weekly]) -> int | None:
    """The next time (UTC) at which one of the windows may open or close; None without windows.

    Where the zone's offset changes before, it is that time: one has to look again then.
    """
    edges = {edge for window in windows for edge in window.edges()}
    if not edges:
        return None
    minute = minute_of_week(now_ns, zone)
    wait = min((edge - minute - 1) % WEEK_MINUTES + 1 for edge in edges)
    into_minute = (now_ns + zone.offset_ns(now_ns)) % MINUTE_NS
    at_ns = now_ns - into_minute + wait * MINUTE_NS
    change_ns = zone.next_change_ns(now_ns)
    return at_ns if change_ns is None else min(at_ns, change_ns)
