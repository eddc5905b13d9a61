"""Whose turn it is: dominant-resource fairness over the tree of queues, with decayed history.

A queue's share is the largest of its shares of the fleet's resources (Ghodsi et al., "Dominant
Resource Fairness", NSDI 2011), compared among siblings from the root down. Queues below their
guarantee come first, then those below what they deserve, then borrowers, by how far above it they
are for their weight. A part of the share that is compared is its average over the past, in which
time counts half as much every half life.

A placement changes the amounts and the place of the queue's ancestors only: O(depth).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from unidle.ledger.apportion import by_weight
from unidle.place.model import Amounts
from unidle.place.queue.tree import ROOT, Entitlement, QueueTree
from unidle.view.usage import decay_ppb

PPB: Final = 1_000_000_000
PPM: Final = 1_000_000
HOUR_NS: Final = 3_600_000_000_000
DAY_NS: Final = 24 * HOUR_NS
RANKS_PER_HALF_LIFE: Final = 4096
_STALE_MOST: Final = 256


@dataclass(frozen=True, slots=True)
class Fairness:
    """How the past counts. ``history_ppm`` of the share that is compared is its average over the past."""

    half_life_ns: int = DAY_NS
    history_ppm: int = 500_000
    firm_borrows: bool = False  # may jobs that are never preempted run on borrowed shares?


class Refusal(NamedTuple):
    """Which bound of which queue a job would exceed, in thousandths of the resource."""

    queue: int
    resource: int
    rule: str  # "limit", "deserved" (a firm job cannot borrow), "kept" (idle, but kept for others) or "full"
    bound: int
    used: int
    asked: int


@dataclass(frozen=True, slots=True)
class QueueAccount:
    """A queue's books, by resource in thousandths; ``lent`` is idle and used by others now."""

    queue: str
    deserved: Amounts
    guarantee: Amounts
    bound: Amounts
    entitled: Amounts
    used: Amounts
    borrowed: Amounts
    lent: Amounts
    waiting: Amounts
    waiting_jobs: int
    share_ppb: int
    history_ppb: int


class FairShare:
    """What queues use and wait for. Call :meth:`begin` at the start of a round of decisions."""

    def __init__(
        self, tree: QueueTree, capacity: Amounts, now_ns: int, fairness: Fairness | None = None
    ) -> None:
        self.tree = tree
        self.fairness = fairness or Fairness()
        count, width = len(tree), len(tree.resources)
        self._paths = [tree.path(queue) for queue in range(count)]
        self.used = [[0] * width for _ in range(count)]
        self.firm = [[0] * width for _ in range(count)]  # of that, by jobs that are never preempted
        self.waiting = [[0] * width for _ in range(count)]
        self._jobs = [0] * count  # waiting jobs, of inner queues those of all leaves
        self._history_ppb = [0] * count
        self._owed = [[0] * width for _ in range(count)]  # kept for the queue, and not used by it
        self._inside = [[0] * width for _ in range(count)]  # the children's part of that, summed
        self._since_ns = [now_ns] * count  # up to when the history is counted
        self._now_ns = self._ranked_ns = now_ns
        self._window = -1
        self._blocked: set[int] = set()
        self._open = [0] * count  # leaves below that wait and are not blocked
        self._heaps: list[list[tuple[int, int, int, int]]] = [[] for _ in range(count)]
        self._version = [0] * count
        self._unranked: set[int] = set()  # queues whose place among their siblings is to be found again
        self._entitled: Entitlement | None = None
        self.quota = tree.quota(capacity, now_ns)
        self._requota(capacity, now_ns)
        self._rank_all()

    # -- rounds ----------------------------------------------------------------------------------

    def begin(self, now_ns: int, capacity: Amounts | None = None) -> None:
        """A new round: history decays, windows open and close, queues blocked before get another turn."""
        self._now_ns = max(now_ns, self._now_ns)
        capacity = self.quota.capacity if capacity is None else capacity
        changed = capacity != self.quota.capacity or self.tree.window_of(now_ns) != self._window
        if changed:
            self._requota(capacity, now_ns)
        # between changes of a queue its place moves only as fast as its history
        if changed or (self._now_ns - self._ranked_ns) * RANKS_PER_HALF_LIFE >= self.fairness.half_life_ns:
            self._blocked.clear()
            self._rank_all()
            return
        blocked, self._blocked = sorted(self._blocked), set()
        for leaf in blocked:
            if self._jobs[leaf] > 0:
                self._opened(leaf, +1)

    def _requota(self, capacity: Amounts, now_ns: int) -> None:
        self._window = self.tree.window_of(now_ns)
        self.quota = self.tree.quota(capacity, now_ns)
        self._entitled = None
        self._due_ppb = [self._dominant_ppb(row) for row in self.quota.deserved]
        for queue in range(len(self.tree) - 1, -1, -1):
            self._set_owed(queue)

    def _decay(self, queue: int) -> int:
        """The queue's history up to now, in billionths; to be called before its use changes."""
        past_ns = self._now_ns - self._since_ns[queue]
        if past_ns > 0:
            keep_ppb = decay_ppb(past_ns, self.fairness.half_life_ns)
            old, now = self._history_ppb[queue], self.share_ppb(queue)
            self._history_ppb[queue] = (old * keep_ppb + now * (PPB - keep_ppb)) // PPB
            self._since_ns[queue] = self._now_ns
        return self._history_ppb[queue]

    def history_ppb(self, queue: int) -> int:
        """The queue's dominant share averaged over the past, in billionths of the fleet."""
        return self._decay(queue)

    def set_history(self, queue: int, past_ppb: int) -> None:
        """Load a history that was kept elsewhere."""
        self._history_ppb[queue], self._since_ns[queue] = past_ppb, self._now_ns
        self._unranked.add(queue)

    # -- changes ---------------------------------------------------------------------------------

    def submit(self, leaf: int, amounts: Sequence[int]) -> None:
        """A job begins to wait."""
        self._count(leaf, amounts, +1)

    def withdraw(self, leaf: int, amounts: Sequence[int]) -> None:
        """A waiting job goes, without a start."""
        self._count(leaf, amounts, -1)

    def charge(self, leaf: int, amounts: Sequence[int], *, firm: bool) -> None:
        """A job of this queue holds these amounts from now on."""
        self._use(leaf, amounts, +1, firm=firm)

    def refund(self, leaf: int, amounts: Sequence[int], *, firm: bool) -> None:
        """A job of this queue holds these amounts no more."""
        self._use(leaf, amounts, -1, firm=firm)

    def _count(self, leaf: int, amounts: Sequence[int], sign: int) -> None:
        was = self._jobs[leaf] > 0 and leaf not in self._blocked
        for queue in self._paths[leaf]:
            row = self.waiting[queue]
            for r, amount in enumerate(amounts):
                row[r] += sign * amount
            self._jobs[queue] += sign
        now = self._jobs[leaf] > 0 and leaf not in self._blocked
        if was != now:
            self._opened(leaf, +1 if now else -1)
        self._wants(leaf)

    def _use(self, leaf: int, amounts: Sequence[int], sign: int, *, firm: bool) -> None:
        changes = [0] * len(amounts)  # of what the child is owed
        for queue in self._paths[leaf]:
            self._decay(queue)
            row = self.used[queue]
            for r, amount in enumerate(amounts):
                row[r] += sign * amount
            if firm:
                row = self.firm[queue]
                for r, amount in enumerate(amounts):
                    row[r] += sign * amount
            self._move_owed(queue, changes)
            self._unranked.add(queue)
        self._wants(leaf)

    def _wants(self, leaf: int) -> None:
        if self._entitled is not None:
            self._entitled.want(leaf, self._wanted(leaf))

    def _wanted(self, queue: int) -> list[int]:
        return [u + w for u, w in zip(self.used[queue], self.waiting[queue], strict=True)]

    # -- what is kept for others -----------------------------------------------------------------

    def _set_owed(self, queue: int) -> None:
        below = self.tree.children[queue]
        self._inside[queue] = [sum(self._owed[c][r] for c in below) for r in range(len(self.tree.resources))]
        self._move_owed(queue, [0] * len(self.tree.resources))

    def _move_owed(self, queue: int, changes: list[int]) -> None:
        """Count again; ``changes`` are those of a child, and become those of this queue."""
        owed, inside, used = self._owed[queue], self._inside[queue], self.used[queue]
        for r, kept in enumerate(self.quota.kept[queue]):
            inside[r] += changes[r]
            now = max(inside[r], kept - used[r])
            changes[r] = now - owed[r]
            owed[r] = now

    # -- may it start? ---------------------------------------------------------------------------

    def refusal(
        self, leaf: int, amounts: Sequence[int], *, firm: bool, reserved: Mapping[int, Amounts] | None = None
    ) -> Refusal | None:
        """The first bound, from the queue upwards, that forbids a job of these amounts; None if it may start.

        ``reserved`` are amounts by queue that are to fit in with it. A job within what is kept for its
        queue is never refused for the sake of others, also where the fleet has shrunk.
        """
        own = [0] * len(amounts)  # how much of the job comes out of what is owed to this branch
        strict = firm and not self.fairness.firm_borrows
        none = (0,) * len(amounts)
        quota = self.quota
        for queue in self._paths[leaf]:
            used, bound = self.used[queue], quota.bound[queue]
            more = reserved.get(queue, none) if reserved else none
            for r, amount in enumerate(amounts):
                if not amount:
                    continue
                after = used[r] + amount
                if after + more[r] > bound[r] and queue:
                    return Refusal(queue, r, "limit", bound[r], used[r] + more[r], amount)
                held = self.firm[queue][r] + more[r]
                if strict and queue and held + amount > quota.deserved[queue][r]:
                    return Refusal(queue, r, "deserved", quota.deserved[queue][r], held, amount)
                left = max(self._inside[queue][r] - own[r], quota.kept[queue][r] - after, 0)
                own[r] = self._owed[queue][r] - left
                left = max(left - more[r], 0)
                if own[r] < amount and after + more[r] + left > bound[r]:
                    rule = "kept" if left else "full"
                    return Refusal(queue, r, rule, bound[r] - left, used[r] + more[r], amount)
        return None

    # -- whose turn ------------------------------------------------------------------------------

    def next_queue(self) -> int | None:
        """The leaf whose first job is considered next; None if no job waits or all leaves are blocked."""
        queue = ROOT
        if not self._open[ROOT]:
            return None
        while self._unranked:
            self._rank(self._unranked.pop())
        while self.tree.children[queue]:
            heap = self._heaps[queue]
            while heap[0][3] != self._version[heap[0][2]] or not self._open[heap[0][2]]:
                heapq.heappop(heap)
            queue = heap[0][2]
        return queue

    def block(self, leaf: int) -> None:
        """Pass this leaf over for the rest of the round."""
        if leaf not in self._blocked:
            self._blocked.add(leaf)
            if self._jobs[leaf] > 0:
                self._opened(leaf, -1)

    def _opened(self, leaf: int, step: int) -> None:
        for queue in self._paths[leaf]:
            self._open[queue] += step
            if self._open[queue] == 1 and step > 0:
                self._unranked.add(queue)

    def _rank(self, queue: int) -> None:
        if queue == ROOT:
            return
        self._version[queue] += 1
        if self._open[queue]:
            class_, key = self._key(queue)
            heap = self._heaps[self.tree.parent[queue]]
            heapq.heappush(heap, (class_, key, queue, self._version[queue]))
            if len(heap) > _STALE_MOST + 2 * len(self.tree):  # entries of versions that are gone
                heap[:] = [entry for entry in heap if entry[3] == self._version[entry[2]]]
                heapq.heapify(heap)

    def _rank_all(self) -> None:
        self._ranked_ns = self._now_ns
        for heap in self._heaps:
            heap.clear()
        for queue in range(len(self.tree)):
            self._open[queue] = 0
        for leaf, jobs in enumerate(self._jobs):
            if jobs and not self.tree.children[leaf] and leaf not in self._blocked:
                for queue in self._paths[leaf]:
                    self._open[queue] += 1
        for queue in range(1, len(self.tree)):
            self._rank(queue)

    def share_ppb(self, queue: int) -> int:
        """The dominant share of the fleet that the queue uses, in billionths."""
        return self._dominant_ppb(self.used[queue])

    def _dominant_ppb(self, amounts: Sequence[int]) -> int:
        most = 0
        for amount, whole in zip(amounts, self.quota.capacity, strict=True):
            if amount and whole:
                most = max(most, amount * PPB // whole)
        return most

    def _key(self, queue: int) -> tuple[int, int]:
        """The queue's place among its siblings, the least first: class, and share in the measure of the class."""
        used, past, share = self.used[queue], self._decay(queue), self.share_ppb(queue)
        felt = share + (past - share) * self.fairness.history_ppm // PPM
        due = self._due_ppb[queue]
        if _below(used, self.quota.guarantee[queue]):
            return 0, felt * PPB // max(due, 1)
        deserved = self.quota.deserved[queue]
        if share < due and _below(used, deserved) and all(map(int.__ge__, deserved, used)):
            return 1, felt * PPB // due
        spec = self.tree.specs[queue - 1]
        return 3 if spec.kind == "public" else 2, (felt - due) * PPM // spec.weight

    # -- the books -------------------------------------------------------------------------------

    def entitled(self, queue: int) -> Amounts:
        """What the queue may use now, given what all want (see :class:`Entitlement`)."""
        if self._entitled is None:
            wanted = [self._wanted(k) for k in range(len(self.tree))]
            self._entitled = Entitlement(self.tree, self.quota, wanted)
        return self._entitled.of(queue)

    def above(self, queue: int, r: int) -> int:
        """What the queue uses of a resource beyond what it deserves; negative where it uses less."""
        return self.used[queue][r] - self.quota.deserved[queue][r]

    def report(self) -> tuple[QueueAccount, ...]:
        """The books of all queues, parents first."""
        lent = self._lent()
        return tuple(
            QueueAccount(
                self.tree.name(queue),
                self.quota.deserved[queue],
                self.quota.guarantee[queue],
                self.quota.bound[queue],
                self.entitled(queue),
                tuple(self.used[queue]),
                tuple(max(self.above(queue, r), 0) for r in range(len(self.tree.resources))),
                tuple(lent[queue]),
                tuple(self.waiting[queue]),
                self._jobs[queue],
                self.share_ppb(queue),
                self.history_ppb(queue),
            )
            for queue in range(1, len(self.tree))
        )

    def _lent(self) -> list[list[int]]:
        """What others use of each queue's part: of its idle amounts that may be lent, in proportion.

        From the root down: siblings lend each other what the ones use beyond, and the others below, what
        they deserve, and together what their parent lends.
        """
        lent = [[0] * len(self.tree.resources) for _ in range(len(self.tree))]
        for parent in range(len(self.tree)):
            children = self.tree.children[parent]
            for r in range(len(self.tree.resources) if children else 0):
                above = [self.above(child, r) for child in children]
                kept = [max(self.quota.kept[k][r] - self.used[k][r], 0) for k in children]
                idle = [max(-a - k, 0) for a, k in zip(above, kept, strict=True)]
                inside = max(sum(max(a, 0) for a in above) - max(self.above(parent, r), 0), 0)
                parts = by_weight(min(inside + lent[parent][r], sum(idle)), idle)
                for child, part in zip(children, parts, strict=True):
                    lent[child][r] = part
        return lent


def _below(used: Sequence[int], amounts: Sequence[int]) -> bool:
    """Whether something is due, and nothing that is due is used up."""
    some = False
    for u, amount in zip(used, amounts, strict=True):
        if amount:
            if u >= amount:
                return False
            some = True
    return some
