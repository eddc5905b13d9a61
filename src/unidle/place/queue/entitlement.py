"""What each queue is entitled to use now: water-filling over the tree, repeated only where demand changed.

Per resource and from the root down: each queue gets its demand, up to what it deserves. The rest is shared
by weight among the queues with more demand, up to their bounds. What a queue does not lend (its guarantee,
an exclusive share) is not shared, even while it is idle.
"""

from __future__ import annotations

from collections.abc import Sequence

from unidle.place.model import Amounts
from unidle.place.queue.spec import fill_over
from unidle.place.queue.tree import ROOT, QueueQuota, QueueTree


class Entitlement:
    """Follows what queues use and wait for. :meth:`want` is cheap; :meth:`of` settles what is due."""

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
