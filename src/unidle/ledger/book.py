"""The book: postings that are final, and where each slice's next posting begins.

Slices are numbered in the order of their first sighting. Time of a slice that no job holds is ``free`` with one
fleet-wide cause at a time, ``down`` while it is unhealthy, or ``unseen`` without a controller; the book posts
such time when it ends. Time under an attempt is posted by ``unidle.ledger.attempt``, permanently once the job has
ended and is sealed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter

from unidle.ledger.rows import Entry
from unidle.ledger.taxonomy import How

_FREE_CAUSES_KEPT = 4096
_END = itemgetter(1)  # of a gap


@dataclass(slots=True)
class SliceRef:
    """A slice that was sighted once. ``gone_ns`` is its last sighting, once it left the fleet."""

    id: str
    device: str
    node: str
    model: str
    share_ppm: int
    first_ns: int
    gone_ns: int | None = None


@dataclass(slots=True)
class Book:
    """Mutable state of the posting side. Times never decrease from call to call."""

    slices: list[SliceRef] = field(default_factory=list)
    since: list[int] = field(default_factory=list)  # per slice: from here on nothing is posted
    held: list[bool] = field(default_factory=list)
    down: dict[int, tuple[int, str]] = field(default_factory=dict)  # slice -> (since, leaf)
    users: dict[int, str] = field(default_factory=dict)  # of slices that are down: who of others uses them
    stranded: set[int] = field(default_factory=set)  # slices whose node has no cores or memory left for them
    down_log: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    cause_ns: list[int] = field(default_factory=lambda: [0])
    causes: list[str] = field(default_factory=lambda: ["no_demand"])
    gaps: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)  # holes in the log: no posting knows of them
    damaged: bool = False  # whether the log has, or had, such holes
    seen_ns: int = 0
    covers_ns: int = 0  # how long one sighting covers the time after it
    closed: list[Entry] = field(default_factory=list)  # final postings that are not sealed
    sealed: list[int] = field(default_factory=list)  # per slice: postings before it are in segments
    segments: list[int] = field(default_factory=list)  # their ``seq``
    _index: dict[str, int] = field(default_factory=dict)
    _on: dict[str, list[int]] | None = None  # by node, its slices in the fleet

    def index(self, slice_id: str) -> int:
        """The number of a slice; it must have been sighted."""
        return self._numbers()[slice_id]

    def indexes(self, slice_ids: Iterable[str]) -> tuple[int, ...]:
        """The numbers of slices, in the same order."""
        numbers = self._numbers()
        return tuple([numbers[slice_id] for slice_id in slice_ids])

    def knows(self, slice_id: str) -> bool:
        return slice_id in self._numbers()

    def _numbers(self) -> dict[str, int]:
        if len(self._index) != len(self.slices):
            self._index = {ref.id: k for k, ref in enumerate(self.slices)}
        return self._index

    def on(self, target: str) -> list[int]:
        """The numbers of the slices that a node or device (its id) has in the fleet, in order."""
        nodes = self._nodes()
        if target in nodes:
            return sorted(nodes[target])
        node = target.rpartition("/")[0]
        if node in nodes:
            return sorted(k for k in nodes[node] if self.slices[k].device == target)
        there = enumerate(self.slices)  # a device that is not named after its node
        return [k for k, ref in there if ref.device == target and ref.gone_ns is None]

    def _nodes(self) -> dict[str, list[int]]:
        if self._on is None:
            self._on = {}
            for k, ref in enumerate(self.slices):
                if ref.gone_ns is None:
                    self._on.setdefault(ref.node, []).append(k)
        return self._on

    # -- sightings -------------------------------------------------------------------------------

    def sight(self, now_ns: int) -> None:
        """The controller was present at ``now_ns``. Time that its last sighting does not cover is unseen."""
        if self.seen_ns and now_ns - self.seen_ns > self.covers_ns:
            begin_ns = max(self.seen_ns, self.gaps[-1][1]) if self.gaps else self.seen_ns
            if begin_ns < now_ns:
                self.gaps.append((begin_ns, now_ns))
        self.seen_ns = max(self.seen_ns, now_ns)

    def lose(self, since_ns: int, until_ns: int, unsure_ns: int) -> None:
        """The log has a hole. All time in it is unseen; after it, until ``unsure_ns``, what seems to be free is, too."""
        self.damaged = True
        if since_ns < until_ns:
            self.lost.append((since_ns, until_ns))
        end_ns = max(until_ns, unsure_ns)
        if self.gaps and self.gaps[-1][1] > since_ns:  # its sighting, or a hole before it
            before = self.gaps.pop()
            since_ns, end_ns = min(before[0], since_ns), max(before[1], end_ns)
        if since_ns < end_ns:
            self.gaps.append((since_ns, end_ns))

    def holes(self, start_ns: int, end_ns: int) -> list[tuple[int, int, str]]:
        """The parts of a window that are lost."""
        return [
            (max(a, start_ns), min(b, end_ns), "unseen") for a, b in self.lost if a < end_ns and b > start_ns
        ]

    def watched_ns(self, start_ns: int, now_ns: int) -> int:
        """How much of ``[start_ns, now_ns)`` is covered by sightings so far."""
        open_gap = [(self.seen_ns, now_ns)] if now_ns - self.seen_ns > self.covers_ns else []
        unseen_ns = 0
        for a, b in chain(open_gap, reversed(self.gaps)):
            if b <= start_ns:
                break
            unseen_ns += min(b, now_ns) - max(a, start_ns)
        return max(now_ns - start_ns, 0) - unseen_ns

    def add(self, ref: SliceRef) -> None:
        """A slice's first sighting (or its return under the same name)."""
        if self.knows(ref.id):
            k = self.index(ref.id)
            gone = self.slices[k].gone_ns
            if gone is not None and gone < ref.first_ns:
                self.closed.append(Entry((k,), gone, ref.first_ns, "unseen", observer="control"))
                self.since[k] = ref.first_ns
            ref.first_ns = self.slices[k].first_ns
            self.slices[k] = ref
            if gone is not None and self._on is not None:
                self._on.setdefault(ref.node, []).append(k)
            return
        self.slices.append(ref)
        self.since.append(ref.first_ns)
        self.held.append(False)
        self.sealed.append(ref.first_ns)
        self._index[ref.id] = len(self.slices) - 1
        if self._on is not None:
            self._on.setdefault(ref.node, []).append(len(self.slices) - 1)

    def remove(self, k: int, now_ns: int) -> None:
        """A slice left the fleet: its time ends here."""
        self._post((k,), now_ns)
        ref = self.slices[k]
        if ref.gone_ns is None and self._on is not None:
            self._on[ref.node].remove(k)
        ref.gone_ns = now_ns
        self.users.pop(k, None)
        self.stranded.discard(k)
        self.down.pop(k, None)  # asked of the fleet's health again when it returns

    # -- causes ----------------------------------------------------------------------------------

    def set_free_cause(self, leaf: str, now_ns: int) -> None:
        """From ``now_ns`` on, free time has this cause (a leaf of group ``free``)."""
        if self.causes[-1] == leaf:
            return
        if self.cause_ns[-1] == now_ns and len(self.causes) > 1:
            self.cause_ns.pop()
            self.causes.pop()
            if self.causes[-1] == leaf:
                return
        self.cause_ns.append(now_ns)
        self.causes.append(leaf)
        if len(self.causes) > _FREE_CAUSES_KEPT:
            self._forget_causes()

    def set_down(self, k: int, leaf: str | None, user: str = "", *, now_ns: int) -> None:
        """A slice becomes unhealthy (a leaf of group ``down``) or healthy again (None). ``user``: who of others uses it."""
        before = self.down.get(k)
        if before is not None and (before[1], self.users.get(k, "")) == (leaf, user):
            return
        if not self.held[k]:
            self._post((k,), now_ns)
        elif before is not None:
            self.down_log.setdefault(k, []).append((before[0], now_ns, before[1]))
        if leaf is None:
            self.down.pop(k, None)
        else:
            self.down[k] = (now_ns, leaf)
        if user:
            self.users[k] = user
        else:
            self.users.pop(k, None)

    def set_stranded(self, k: int, on: bool, now_ns: int) -> None:
        """From now on, while it is free, a slice is stranded or not (leaf ``stranded``)."""
        if on == (k in self.stranded):
            return
        if not self.held[k]:
            self._post((k,), now_ns)
        if on:
            self.stranded.add(k)
        else:
            self.stranded.remove(k)

    def _cause(self, k: int) -> str | None:
        """Why it does not work while no job holds it, where that is known of the slice itself."""
        down = self.down.get(k)
        return down[1] if down is not None else "stranded" if k in self.stranded else None

    # -- allocation ------------------------------------------------------------------------------

    def take(self, slices: Iterable[int], now_ns: int, wanted_ns: int, job: str) -> None:
        """A job gets the slices; since ``wanted_ns`` it only waited for this decision."""
        taken, since, held = tuple(slices), self.since, self.held
        latest = max([since[k] for k in taken], default=now_ns)
        latency_ns = min(max(wanted_ns, latest), now_ns)
        self._post(taken, latency_ns)
        for a, b, leaf, how in self._uncovered(latency_ns, now_ns):
            if leaf:
                self.closed.append(Entry(taken, a, b, leaf, how=how))
            else:
                self.closed.append(Entry(taken, a, b, "scheduler_latency", job))
        for k in taken:
            since[k] = now_ns
            held[k] = True

    def give_back(self, slices: Iterable[int], now_ns: int) -> None:
        """The slices are free from ``now_ns`` on; their time before is the attempt's to post."""
        since, held, down = self.since, self.held, self.down
        for k in slices:
            since[k] = now_ns
            held[k] = False
            if k in down:
                start, leaf = down[k]
                self.down_log.setdefault(k, []).append((start, now_ns, leaf))
                down[k] = (now_ns, leaf)

    def leave_unused(self, k: int, now_ns: int, job: str, attempt: int) -> None:
        """An attempt that held a slice got another one: until now it only waited on this one for its gang."""
        for a, b, unseen, how in self._uncovered(self.since[k], now_ns):
            at, downs = a, [] if unseen else sorted(self.faults(k, a, b))
            for start, end, leaf in [*downs, (b, b, "")]:
                start, end = max(start, at), min(end, b)
                if at < start:
                    kind = unseen or "gang_wait"
                    self.closed.append(
                        Entry((k,), at, start, kind, job, attempt, how=how, observer="control")
                    )
                if start < end:
                    self.closed.append(Entry((k,), start, end, leaf, job, attempt, observer="control"))
                at = max(at, end)
        self.give_back((k,), now_ns)

    def faults(self, k: int, start_ns: int, end_ns: int) -> list[tuple[int, int, str]]:
        """Unhealthy times of a held slice within a window."""
        found = [d for d in self.down_log.get(k, ()) if d[0] < end_ns and d[1] > start_ns]
        if self.held[k] and k in self.down and self.down[k][0] < end_ns:
            found.append((self.down[k][0], end_ns, self.down[k][1]))
        return found

    # -- postings --------------------------------------------------------------------------------

    def open_entries(self, now_ns: int) -> list[Entry]:
        """Postings of the slices without a job, if their time ended at ``now_ns``."""
        groups: dict[tuple[int, str | None, str], list[int]] = {}
        for k, ref in enumerate(self.slices):
            if ref.gone_ns is None and not self.held[k] and self.since[k] < now_ns:
                groups.setdefault((self.since[k], self._cause(k), self.users.get(k, "")), []).append(k)
        return [
            entry
            for (since, down, user), slices in groups.items()
            for entry in self._pieces(tuple(slices), (since, now_ns), down, user)
        ]

    def _post(self, slices: tuple[int, ...], until_ns: int) -> None:
        groups: dict[tuple[int, str | None, str], list[int]] = {}
        since, users, special = self.since, self.users, bool(self.down or self.stranded)
        for k in slices:
            begin = since[k]
            if begin < until_ns:
                key = (begin, self._cause(k), users.get(k, "")) if special else (begin, None, "")
                if key in groups:
                    groups[key].append(k)
                else:
                    groups[key] = [k]
                since[k] = until_ns
        for (begin, leaf, user), group in groups.items():
            if leaf is None and not self.gaps:  # nearly always
                self.closed += [Entry(tuple(group), *piece) for piece in self._free(begin, until_ns)]
            else:
                self.closed += self._pieces(tuple(group), (begin, until_ns), leaf, user)

    def _pieces(
        self, slices: tuple[int, ...], window: tuple[int, int], down: str | None, user: str
    ) -> Iterator[Entry]:
        for a, b, leaf, how in self._uncovered(*window):
            if leaf:
                yield Entry(slices, a, b, leaf, how=how)
            elif down:
                yield Entry(slices, a, b, down, user)
            else:
                yield from (Entry(slices, c, d, cause) for c, d, cause in self._free(a, b))

    def _uncovered(self, start: int, end: int) -> Iterator[tuple[int, int, str, How]]:
        """``[start, end)`` cut at the gaps without a controller (leaf ``unseen``, else empty)."""
        at = start
        gaps = self.gaps  # in order of time
        for k in range(bisect_right(gaps, start, key=_END), len(gaps)):
            a, b = max(gaps[k][0], at), min(gaps[k][1], end)
            if a < b:
                if at < a:
                    yield at, a, "", "measured"
                yield a, b, "unseen", "inferred"
                at = b
        if at < end:
            yield at, end, "", "measured"

    def _free(self, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        k = max(bisect_right(self.cause_ns, start) - 1, 0)
        while start < end:
            stop = self.cause_ns[k + 1] if k + 1 < len(self.causes) else end
            stop = min(stop, end)
            if start < stop:
                yield start, stop, self.causes[k]
                start = stop
            k += 1

    def _forget_causes(self) -> None:
        """Post all free time up to now's last cause, so that older causes are needed no more."""
        until = self.cause_ns[-1]
        free = tuple(k for k, ref in enumerate(self.slices) if ref.gone_ns is None and not self.held[k])
        self._post(free, until)
        self.cause_ns, self.causes = self.cause_ns[-1:], self.causes[-1:]
        self.gaps = [gap for gap in self.gaps if gap[1] > until]
