"""The tree of queues, what each queue may hold at a given time and capacity, and what it is entitled to use.

Queue 0 is the root, the whole fleet; a queue's index is higher than its parent's. Amounts are
integers in thousandths of a device or core, one per resource, in the order of ``resources``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from unidle.errors import BadInput
from unidle.fleet.queues import UTC, QueueSpec, Zone, check, minute_of_week, next_edge_ns
from unidle.jobs import Reason
from unidle.ledger.apportion import by_weight, fill, fill_over
from unidle.place.model import Amounts

ROOT: Final = 0
MILLI: Final = 1_000
UNBOUNDED: Final = 1 << 60


def to_milli(amount: float) -> int:
    """Devices or cores in thousandths."""
    return amount * MILLI if isinstance(amount, int) else round(amount * MILLI)


@dataclass(frozen=True, slots=True)
class QueueQuota:
    """What holds now, by queue: ``deserved[queue][resource]`` and so on, in thousandths.

    ``kept`` is the part of what a queue deserves that is never lent, at least its guarantee;
    ``bound`` is the most that it may ever use: its limit, or what it deserves and may borrow.
    """

    capacity: Amounts
    guarantee: tuple[Amounts, ...]
    deserved: tuple[Amounts, ...]
    kept: tuple[Amounts, ...]
    bound: tuple[Amounts, ...]


@dataclass(frozen=True, slots=True)
class QueueTree:
    """A validated tree. Make one with :meth:`of`."""

    resources: tuple[str, ...]
    specs: tuple[QueueSpec, ...]  # spec of queue k + 1
    parent: tuple[int, ...]  # of the root: -1
    children: tuple[tuple[int, ...], ...]
    index: Mapping[str, int]
    zone: Zone = UTC
    models: tuple[str, ...] = ()  # of devices, that the fleet has

    @classmethod
    def of(
        cls,
        specs: Iterable[QueueSpec],
        resources: Sequence[str],
        zone: Zone = UTC,
        models: tuple[str, ...] = (),
    ) -> QueueTree:
        """Check the queues and make the tree; :class:`BadInput` for the first mistake, also inside a window."""
        ordered = tuple(check(tuple(specs), resources))
        index = {spec.name: k for k, spec in enumerate(ordered, 1)}
        parent = (-1, *(index[spec.parent] if spec.parent else ROOT for spec in ordered))
        children: list[list[int]] = [[] for _ in parent]
        for k, above in enumerate(parent[1:], 1):
            children[above].append(k)
        tree = cls(tuple(resources), ordered, parent, tuple(map(tuple, children)), index, zone, models)
        for minute in sorted({0} | {e for s in ordered for w in s.windows for e in w.when.edges()}):
            _check_amounts(tree, tree.at_minute(minute))
        return tree

    def __len__(self) -> int:
        return len(self.parent)

    def name(self, queue: int) -> str:
        """A queue's name; the root has none."""
        return self.specs[queue - 1].name if queue else ""

    def leaf(self, name: str) -> int:
        """The index of a queue that takes jobs; :class:`BadInput` if no such queue has this name."""
        queue = self.index.get(name)
        if queue is None:
            known = ", ".join(sorted(self.index)[:8])
            raise BadInput("no such queue", field="queue", value=name, remedy=f"there are {known}")
        if self.children[queue]:
            below = ", ".join(self.name(k) for k in self.children[queue])
            raise BadInput(
                "this queue only holds other queues", field="queue", value=name, remedy=f"use {below}"
            )
        return queue

    def path(self, queue: int) -> tuple[int, ...]:
        """The queue, its ancestors and the root, in this order."""
        found = [queue]
        while queue:
            queue = self.parent[queue]
            found.append(queue)
        return tuple(found)

    def check_capacity(self, capacity: Amounts) -> None:
        """:class:`BadInput` where the guarantees exceed what the fleet has when all of it is healthy."""
        for minute in sorted({0} | {e for s in self.specs for w in s.windows for e in w.when.edges()}):
            specs = self.at_minute(minute)
            for r, resource in enumerate(self.resources):
                parts = {self.name(k): _guarantee(self, specs, k, resource) for k in self.children[ROOT]}
                if sum(parts.values()) > capacity[r]:
                    each = " + ".join(
                        f"{name} {amount / MILLI:g}" for name, amount in parts.items() if amount
                    )
                    raise BadInput(
                        f"the queues guarantee {sum(parts.values()) / MILLI:g} {resource} ({each}), and the fleet "
                        f"has {capacity[r] / MILLI:g}",
                        field="queues", remedy="lower a guarantee",
                    )  # fmt: skip

    def at_minute(self, minute: int) -> tuple[QueueSpec, ...]:
        """The queues with the amounts that hold at this minute of the week; later windows overrule earlier."""
        specs = []
        for spec in self.specs:
            for window in spec.windows:
                if window.when.holds(minute):
                    spec = replace(
                        spec,
                        guarantee={**spec.guarantee, **window.guarantee},
                        deserved={**spec.deserved, **window.deserved},
                        limit={**spec.limit, **window.limit},
                    )
            specs.append(spec)
        return tuple(specs)

    def window_of(self, now_ns: int) -> int:
        """Changes whenever a window opens or closes: the same number means the same amounts."""
        minute = minute_of_week(now_ns, self.zone)
        flags = 0
        for spec in self.specs:
            for window in spec.windows:
                flags = flags << 1 | window.when.holds(minute)
        return flags

    def next_window_ns(self, now_ns: int) -> int | None:
        """When amounts may change next by time alone."""
        return next_edge_ns(now_ns, self.zone, (w.when for s in self.specs for w in s.windows))

    def quota(self, capacity: Amounts, now_ns: int) -> QueueQuota:
        """What every queue may hold, of this capacity at this time.

        If the capacity is too small (nodes are down), guarantees come first, then given deserved shares.
        Each is scaled by the same factor among siblings. What children deserve never sums to more than
        what their parent deserves.
        """
        specs = self.at_minute(minute_of_week(now_ns, self.zone))
        count, width = len(self), len(self.resources)
        guarantee = [[0] * width for _ in range(count)]
        deserved = [[0] * width for _ in range(count)]
        deserved[ROOT] = list(capacity)
        for r, resource in enumerate(self.resources):
            for queue in range(count - 1, 0, -1):
                below = sum(guarantee[child][r] for child in self.children[queue])
                own = specs[queue - 1].guarantee.get(resource)
                guarantee[queue][r] = below if own is None else max(to_milli(own), below)
            guarantee[ROOT][r] = sum(guarantee[child][r] for child in self.children[ROOT])
            for queue in range(count):
                self._divide(queue, r, specs, guarantee, deserved)
        kept, bound = self._bounds(specs, guarantee, deserved)
        return QueueQuota(capacity, _frozen(guarantee), _frozen(deserved), kept, bound)

    def _divide(
        self,
        queue: int,
        r: int,
        specs: Sequence[QueueSpec],
        guarantee: list[list[int]],
        deserved: list[list[int]],
    ) -> None:
        """What the queue deserves of one resource, divided among its children."""
        below = self.children[queue]
        if not below:
            return
        total, resource = deserved[queue][r], self.resources[r]
        floors = [guarantee[child][r] for child in below]
        limits = [_amount(specs[child - 1].limit.get(resource), UNBOUNDED) for child in below]
        given = [
            None if (own := _stated(specs[child - 1], resource)) is None else min(max(own, floor), limit)
            for child, floor, limit in zip(below, floors, limits, strict=True)
        ]
        extra = [0 if own is None else own - floor for own, floor in zip(given, floors, strict=True)]
        left = total - sum(floors)
        if left <= 0:
            parts = by_weight(total, floors)
            for child, part in zip(below, parts, strict=True):
                guarantee[child][r] = min(guarantee[child][r], part)
        elif sum(extra) >= left:
            parts = [f + x for f, x in zip(floors, by_weight(left, extra), strict=True)]
        else:
            lows = [floor if own is None else own for own, floor in zip(given, floors, strict=True)]
            highs = [limit if own is None else own for own, limit in zip(given, limits, strict=True)]
            parts = fill(total, lows, highs, [specs[child - 1].weight for child in below])
        for child, part in zip(below, parts, strict=True):
            deserved[child][r] = part

    def _bounds(
        self, specs: Sequence[QueueSpec], guarantee: list[list[int]], deserved: list[list[int]]
    ) -> tuple[tuple[Amounts, ...], tuple[Amounts, ...]]:
        kept, bound = [(0,) * len(self.resources)], [tuple(deserved[ROOT])]
        for queue, spec in enumerate(specs, 1):
            own, floor = deserved[queue], guarantee[queue]
            apart = spec.kind == "exclusive"
            lend = [0 if apart else _amount(spec.lend.get(r), UNBOUNDED) for r in self.resources]
            borrow = [0 if apart else _amount(spec.borrow.get(r), UNBOUNDED) for r in self.resources]
            limit = [_amount(spec.limit.get(r), UNBOUNDED) for r in self.resources]
            kept.append(tuple(max(f, d - x) for f, d, x in zip(floor, own, lend, strict=True)))
            bound.append(tuple(min(d + x, m) for d, x, m in zip(own, borrow, limit, strict=True)))
        return tuple(kept), tuple(bound)


def _stated(spec: QueueSpec, resource: str) -> int | None:
    """The deserved amount that is set rather than derived from weights; None if it is not set."""
    own = spec.deserved.get(resource)
    if own is not None:
        return to_milli(own)
    return 0 if spec.kind == "public" else None


def _guarantee(tree: QueueTree, specs: Sequence[QueueSpec], queue: int, resource: str) -> int:
    """A queue's own guarantee, or what its children's add up to."""
    own = specs[queue - 1].guarantee.get(resource)
    below = sum(_guarantee(tree, specs, child, resource) for child in tree.children[queue])
    return below if own is None else max(to_milli(own), below)


def _amount(given: float | None, otherwise: int) -> int:
    return otherwise if given is None else to_milli(given)


def _frozen(rows: list[list[int]]) -> tuple[Amounts, ...]:
    return tuple(map(tuple, rows))


def _check_amounts(tree: QueueTree, specs: tuple[QueueSpec, ...]) -> None:
    """Amounts that contradict each other."""
    for resource in tree.resources:
        implied = [0] * len(tree)  # what a queue has to guarantee for its children's sake
        for queue in range(len(tree) - 1, 0, -1):
            spec, below = specs[queue - 1], tree.children[queue]
            parts = {tree.name(k): implied[k] for k in below}
            _check_sum(spec, "guarantee", resource, parts)
            _check_sum(
                spec,
                "deserved",
                resource,
                {tree.name(k): _stated(specs[k - 1], resource) or 0 for k in below},
            )
            _check_order(spec, resource)
            own = spec.guarantee.get(resource)
            implied[queue] = sum(parts.values()) if own is None else to_milli(own)


def _check_order(spec: QueueSpec, resource: str) -> None:
    at = f"queues.{spec.name}"
    low, own, high = (getattr(spec, name).get(resource) for name in ("guarantee", "deserved", "limit"))
    for first, second, name, than in (
        (low, own, "deserved", "guarantee"), (own, high, "limit", "deserved share"), (low, high, "limit", "guarantee"),
    ):  # fmt: skip
        if first is not None and second is not None and second < first:
            raise BadInput(
                f"is less than the queue's {than} of {first:g}", field=f"{at}.{name}.{resource}", value=second,
                remedy=f"raise it to {first:g}, or lower the {than}",
            )  # fmt: skip


def _check_sum(spec: QueueSpec, what: str, resource: str, parts: Mapping[str, int]) -> None:
    total = sum(parts.values())
    names = ("guarantee", "deserved", "limit") if what == "guarantee" else ("deserved", "limit")
    for name in names:
        most: float | None = getattr(spec, name).get(resource)
        if most is not None and total > to_milli(most):
            each = " + ".join(f"{child} {amount / MILLI:g}" for child, amount in parts.items() if amount)
            verb = "guarantee" if what == "guarantee" else "deserve"
            raise BadInput(
                f"its children {verb} {total / MILLI:g} ({each}), more than that",
                field=f"queues.{spec.name}.{name}.{resource}", value=most,
                remedy=f"raise it to {total / MILLI:g}, or lower what the children {verb}",
            )  # fmt: skip


class Entitlement:
    """What each queue is entitled to use now: water-filling over the tree, repeated only where demand changed.

    Per resource and from the root down: each queue gets its demand, up to what it deserves. The rest is shared
    by weight among the queues with more demand, up to their bounds. What a queue does not lend (its guarantee,
    an exclusive share) is not shared, even while it is idle. :meth:`want` is cheap; :meth:`of` settles what is due.
    """

    def __init__(self, tree: QueueTree, quota: QueueQuota, wanted: Sequence[Sequence[int]]) -> None:
        """``wanted``: used and waiting amounts of each leaf; inner queues are summed here."""
        self._tree, self._quota = tree, quota
        self._width = len(tree.resources)
        count = len(tree)
        self._wanted = [list(row) for row in wanted]
        self._asked = [[0] * self._width for _ in range(count)]  # wanted, within bounds
        self._idle = [[0] * self._width for _ in range(count)]  # deserved, unused and not lent
        self._part = [[0] * self._width for _ in range(count)]
        self._changed: set[int] = set()  # leaves
        for queue in range(count - 1, -1, -1):
            self._sum_up(queue)
        self._fill_root()
        self._fill_below(ROOT, set(range(count)))

    def want(self, leaf: int, amounts: Sequence[int]) -> None:
        """Set the total demand of the leaf: what it uses and waits for."""
        self._wanted[leaf] = list(amounts)
        self._changed.add(leaf)

    def of(self, queue: int) -> Amounts:
        """What the queue may use, if all queues use what they want and are entitled to."""
        self._settle()
        return tuple(self._part[queue])

    def _settle(self) -> None:
        if not self._changed:
            return
        touched: set[int] = set()
        for leaf in self._changed:
            touched.update(self._tree.path(leaf))
        self._changed.clear()
        for queue in sorted(touched, reverse=True):  # children before parents
            self._sum_up(queue)
        self._fill_root()
        self._fill_below(ROOT, touched)

    def _sum_up(self, queue: int) -> None:
        below, quota = self._tree.children[queue], self._quota
        for r in range(self._width):
            if below:
                want = sum(self._asked[child][r] for child in below)
                idle = sum(self._idle[child][r] for child in below)
            else:
                want, idle = self._wanted[queue][r], 0
            self._asked[queue][r] = asked = min(want, quota.bound[queue][r])
            self._idle[queue][r] = max(idle, quota.kept[queue][r] - asked)

    def _fill_root(self) -> None:
        free = (max(c - i, 0) for c, i in zip(self._quota.capacity, self._idle[ROOT], strict=True))
        self._part[ROOT] = [min(f, a) for f, a in zip(free, self._asked[ROOT], strict=True)]

    def _fill_below(self, queue: int, touched: set[int]) -> None:
        """Divide a queue's part among its children, then below each child that is touched or got another part."""
        below = self._tree.children[queue]
        if not below:
            return
        weights = [self._tree.specs[child - 1].weight for child in below]
        before = [tuple(self._part[child]) for child in below]
        for r in range(self._width):
            asked = [self._asked[child][r] for child in below]
            own = [self._quota.deserved[child][r] - self._idle[child][r] for child in below]
            floors = [min(a, max(o, 0)) for a, o in zip(asked, own, strict=True)]
            parts = fill_over(self._part[queue][r], floors, asked, weights)
            for child, part in zip(below, parts, strict=True):
                self._part[child][r] = part
        for child, old in zip(below, before, strict=True):
            if child in touched or old != tuple(self._part[child]):
                self._fill_below(child, touched)


def no_queue(tree: QueueTree, queue: str) -> Reason | None:
    """That no queue of this name takes jobs; None where one does."""
    index = tree.index.get(queue)
    if index is not None and not tree.children[index]:
        return None
    leaves = sorted(name for name, k in tree.index.items() if not tree.children[k])
    return Reason("no_queue", f"there is no queue {queue} that takes jobs; there are {', '.join(leaves[:8])}")
