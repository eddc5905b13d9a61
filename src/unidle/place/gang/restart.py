"""Where a gang restarts after a failure: its ranks keep their places, as far as those are still free.

A view has the places of each waiting job's last attempt. The gangs that come back are repaired together
(``gang.repair``), including those in their back-off. So none takes the spares of another's leaf
unless it has to. Only the place is decided here, not whether or when the gang starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from unidle.jobs import Layout, Reason
from unidle.place.gang.repair import Repair, RepairBounds, repair
from unidle.place.model import LEVEL, Fits, Ints, Running
from unidle.place.network.constraint import Gang, GangPlan, gang_of
from unidle.place.network.domains import DomainCapacity
from unidle.place.network.rank_order import RankOrder, map_ranks, ordered
from unidle.place.network.traffic import closest, tree_chain, usual_traffic
from unidle.place.network.tree import NODE, Tree
from unidle.place.nodes.free import FreeSlices
from unidle.place.nodes.hardware import Option
from unidle.place.nodes.rank_class import RankClass, RankClasses
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View
from unidle.words import does, latency

Choice: TypeAlias = tuple[Option, RankClass]

WORSE_MOST_PPM: Final = 1_250_000
"""A step's communication may take so much of what a new order of ranks takes; beyond, the order is made again."""
_NAMED: Final = 3  # nodes that are named in a reason


@dataclass(frozen=True, slots=True, eq=False)
class LastPlaces:
    """A job's last attempt on this fleet. ``node_of_rank`` are positions, -1 for a node that is gone."""

    job: str
    kind: str
    node_of_rank: tuple[int, ...]
    slices: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    before: Ints  # ranks by position


@dataclass(frozen=True, slots=True, eq=False)
class RestartFit:
    """A plan with its reason, the node of each rank (as in :class:`RankOrder`), and slices that ranks had and keep.

    ``theirs`` are slices that other gangs which come back had, better left to them.
    """

    plan: GangPlan
    node_of_rank: Ints
    mapping: RankOrder | None
    own: dict[int, tuple[str, ...]]
    theirs: frozenset[str]


class Restarts:
    """The jobs of one round that ran before."""

    def __init__(self, classes: RankClasses, view: View, left_of: Callable[[str], Ints]) -> None:
        """``left_of(kind)``: devices by position that are free in that round, shape (N,)."""
        self._classes, self._view, self._left_of = classes, view, left_of
        self._free_slices = classes.free_slices
        self._last: dict[str, LastPlaces | None] = {}
        self._together: dict[str, dict[str, Ints]] = {}  # kind -> job -> ranks by position
        self._spare: dict[str, Ints] = {}  # kind -> devices by position that no survivor claims
        self._keep: dict[str, Ints] = {}  # job -> its survivors by position
        self._tiers: list[Ints] | None = None
        self._had: dict[str, str] | None = None

    def plan(self, job: str, rank_class: RankClass, gang: Gang, room: Ints) -> GangPlan | None:
        """The best place for the gang to restart in this ``room`` (ranks by position); None: no place is preferred."""
        last = self.last(job)
        if last is None or last.kind != rank_class.kind:
            return None
        counts = self._all(rank_class.kind).get(job)
        if counts is None or bool((counts > room).any()):
            unclaimed = np.minimum(room, self._unclaimed(job, rank_class))
            counts = self._alone(last, rank_class, gang, unclaimed)
            if counts is None:  # it has its turn, so it may have what others that come back would like
                counts = self._alone(last, rank_class, gang, room)
        if counts is None:
            return None
        return DomainCapacity(self._free_slices.tree, counts).place(gang)

    def order(
        self, job: str, rank_class: RankClass, plan: GangPlan, free: Sequence[int]
    ) -> RestartFit | None:
        """Which rank goes where on the plan's nodes; ``free[i]`` is the mask of free slices of its i-th node."""
        last = self.last(job)
        if last is None or last.kind != rank_class.kind:
            return None
        tree, layout = self._free_slices.tree, self._view.jobs[job].spec.layout
        free_slices = {
            name
            for position, mask in zip(plan.nodes.tolist(), free, strict=True)
            for bit, name in enumerate(rank_class.slots(position).slices)
            if mask >> bit & 1
        }
        order, mapping, note = _kept_order(last, plan, free_slices, self.tiers()), None, ""
        if layout is not None and len(plan.nodes) > 1:
            order, mapping, note = _better(tree, plan, layout, order, last)
        own = {
            rank: last.slices[rank]
            for rank, at in enumerate(order.tolist())
            if int(plan.nodes[at]) == last.node_of_rank[rank] and free_slices.issuperset(last.slices[rank])
        }
        because = _because(tree, self._view, last, plan, order, len(own), note)
        theirs = frozenset(s for s in free_slices if self._whose().get(s, job) != job)
        return RestartFit(replace(plan, because=because), order, mapping, own, theirs)

    def _whose(self) -> dict[str, str]:
        """The gang that had a slice, of those that come back."""
        if self._had is None:
            came = [last for job in self._in_order() if (last := self.last(job.id)) is not None]
            self._had = {s: last.job for last in reversed(came) for slices in last.slices for s in slices}
        return self._had

    def last(self, job: str) -> LastPlaces | None:
        """The attempt whose places the job had best come back to; None where that is none."""
        if job not in self._last:
            found = self._view.jobs.get(job)
            ended = found.attempts[-1] if found is not None and found.attempts else None
            left = ended is not None and not ended.live and ended.left_places
            if found is not None and ended is not None and len(ended.places) != found.spec.ranks:
                left = False  # an elastic gang of another size is placed again
            self._last[job] = _last(self._free_slices, job, ended) if ended is not None and left else None
        return self._last[job]

    def tiers(self) -> list[Ints]:
        """The vertex above each node at each tier, from the nearest on, below that of the whole fleet."""
        if self._tiers is None:
            tree, self._tiers = self._free_slices.tree, []
            here = tree.above.copy()
            while (here > 0).any():
                self._tiers.append(here)
                here = np.where(here > 0, tree.parent[here], 0)
        return self._tiers

    def _all(self, kind: str) -> dict[str, Ints]:
        """Where all that come back would go, were they to start now."""
        if kind not in self._together:
            self._together[kind] = self._repaired(kind)
        return self._together[kind]

    def _repaired(self, kind: str) -> dict[str, Ints]:
        left = self._left_of(kind).copy()
        ways: dict[str, tuple[RankClass, Gang]] = {}
        came: list[tuple[JobView, LastPlaces]] = []
        for job in self._in_order():
            last = self.last(job.id)
            if last is None or last.kind != kind:
                continue
            gang = gang_of(job.spec)
            rank_class = self._class(job, last)
            if rank_class is not None and rank_class.fits_ever(gang):
                ways[job.id] = rank_class, gang
                came.append((job, last))
        for same in (True, False):  # first the very devices, then others of the node
            for job, last in came:
                rank_class = ways[job.id][0]
                had = self._keep.get(job.id, np.zeros_like(left))
                wish = self._on_free_devices(last) if same else last.before
                more = np.minimum(np.minimum(wish, rank_class.rooms.room) - had, left // rank_class.each)
                self._keep[job.id] = had + np.maximum(more, 0)
                left -= np.maximum(more, 0) * rank_class.each
        runs = [_running(job, last, self._keep[job.id], ways[job.id][0].each) for job, last in came]
        self._spare[kind] = left
        found = repair(
            runs, (), left, self.tiers(), lambda run: self._fits(ways[run.job][1], None),
            lambda run: _bounds(ways[run.job][1], ways[run.job][0].rooms.room),
        )  # fmt: skip
        return {
            run.job: counts
            for run in runs
            if (counts := _counts(found.get(run.job), run, len(left))) is not None
        }

    def home_first(self, job: str, options: Iterable[Choice]) -> Iterable[Choice]:
        """The options of a job in their order, those first on whose devices it was."""
        last = self.last(job)
        return options if last is None else sorted(options, key=lambda pair: not _was_on(last, pair[1]))

    def _class(self, job: JobView, last: LastPlaces) -> RankClass | None:
        """The class of the job's ranks on the devices that it comes back to, else on the first of that kind."""
        options = self._classes.of_job(job.spec, self._view, job)
        found = (rank_class for _, rank_class in self.home_first(job.id, options))
        return next((rank_class for rank_class in found if rank_class.kind == last.kind), None)

    def _on_free_devices(self, last: LastPlaces) -> Ints:
        """Ranks by position whose very devices are free."""
        occupancy, found = self._view.occupancy, np.zeros_like(last.before)
        for at, slices in zip(last.node_of_rank, last.slices, strict=True):
            found[at] += at >= 0 and all(occupancy.knows(s) and occupancy.is_free(s) for s in slices)
        return found

    def _unclaimed(self, job: str, rank_class: RankClass) -> Ints:
        """Ranks by position on devices that survivors of other gangs do not claim."""
        spare = self._spare[rank_class.kind] // rank_class.each
        return spare + self._keep[job] if job in self._keep else spare

    def _alone(self, last: LastPlaces, rank_class: RankClass, gang: Gang, room: Ints) -> Ints | None:
        keep, each = np.minimum(last.before, room), rank_class.each
        run = _running(self._view.jobs[last.job], last, keep, each)
        found = repair(
            [run], (), (room - keep) * each, self.tiers(), lambda _: self._fits(gang, room),
            lambda _: _bounds(gang, room),
        )  # fmt: skip
        return _counts(found.get(last.job), run, len(room))

    def _fits(self, gang: Gang, most: Ints | None) -> Fits:
        def fits(room: Ints) -> Ints | None:
            part = room if most is None else np.minimum(room, most)
            if int(part.sum()) < gang.ranks:
                return None
            plan = DomainCapacity(self._free_slices.tree, part).place(gang)
            if plan is None:
                return None
            counts = np.zeros(len(room), np.int64)
            counts[plan.nodes] = plan.counts
            return counts

        return fits

    def _in_order(self) -> list[JobView]:
        """Jobs that wait after an attempt: by level, then as they are queued."""
        view = self._view
        waiting = (view.jobs[job] for queue in view.waiting.values() for _, _, job in queue)
        came = [job for job in waiting if job.attempts]
        return sorted(came, key=lambda job: (LEVEL[job.spec.preemption], -job.spec.priority, job.order))


def _was_on(last: LastPlaces, rank_class: RankClass) -> bool:
    return last.kind == rank_class.kind and bool((last.before * rank_class.each <= rank_class.most).all())


def _last(free_slices: FreeSlices, job: str, attempt: AttemptView) -> LastPlaces | None:
    occupancy, tree = free_slices.occupancy, free_slices.tree
    if any(occupancy.is_part(s) for place in attempt.places for s in place.slices):
        return None  # parts are made again where they fit best
    found = [next(filter(None, map(free_slices.at, place.slices)), None) for place in attempt.places]
    kinds = {at[0] for at in found if at is not None}
    if len(kinds) != 1:
        return None
    nodes = tuple(at[1] if at is not None else -1 for at in found)
    before = np.bincount([n for n in nodes if n >= 0], minlength=len(tree.nodes)).astype(np.int64)
    names = tuple(place.node for place in attempt.places)
    slices = tuple(place.slices for place in attempt.places)
    return LastPlaces(job, kinds.pop(), nodes, slices, names, before)


def _running(job: JobView, last: LastPlaces, keep: Ints, each: int) -> Running:
    held = {int(n): int(keep[n]) * each for n in np.flatnonzero(last.before)}
    spec = job.spec
    return Running(job.id, spec.queue, spec.preemption, 0, held, (), ranks=spec.ranks, each=each)


def _bounds(gang: Gang, most: Ints) -> RepairBounds:
    hard, wished = 1, 1
    for constraint in gang.constraints:
        if constraint.within == NODE and constraint.group != "gang":
            size = gang.size(constraint.group)
            hard, wished = hard * (size if constraint.hard else 1), wished * size
    return RepairBounds(most, hard, wished)


def _counts(found: Repair | Reason | None, run: Running, width: int) -> Ints | None:
    """Ranks by position; those that the job has where nothing was to be repaired, None where nothing was found."""
    if isinstance(found, Reason):
        return None
    counts = np.zeros(width, np.int64)
    if found is None:
        for node, devices in run.devices.items():
            counts[node] = devices // run.each
        return counts
    for node, ranks in (*found.keep.items(), *found.add.items()):
        counts[node] += ranks
    return counts


# -- the order of ranks --------------------------------------------------------------------------------


def _kept_order(last: LastPlaces, plan: GangPlan, free: set[str], tiers: Sequence[Ints]) -> Ints:
    """Survivors keep their numbers, those with free slices first; lost ranks take the new places, near ones first."""
    left = dict(zip(plan.nodes.tolist(), plan.counts.tolist(), strict=True))
    index = {position: k for k, position in enumerate(plan.nodes.tolist())}
    order = np.full(len(last.node_of_rank), -1, np.int64)
    ranks = sorted(range(len(order)), key=lambda rank: (not free.issuperset(last.slices[rank]), rank))
    lost: dict[int, list[int]] = {}
    for rank in ranks:
        at = last.node_of_rank[rank]
        if left.get(at, 0):
            order[rank] = index[at]
            left[at] -= 1
        else:
            lost.setdefault(at, []).append(rank)
    for tier in (*tiers, None):
        for at in sorted(lost):
            near = [n for n, count in left.items() if count and _joined(tier, n, at)]
            mine = sorted(lost[at])
            for node in sorted(near, key=lambda n: (left[n] != len(mine), n)):
                taken, mine = mine[: left[node]], mine[left[node] :]
                order[taken] = index[node]
                left[node] -= len(taken)
            lost[at] = mine
    return order


def _joined(tier: Ints | None, a: int, b: int) -> bool:
    return tier is None or (b >= 0 and int(tier[a]) == int(tier[b]) > 0)


def _better(
    tree: Tree, plan: GangPlan, layout: Layout, order: Ints, last: LastPlaces
) -> tuple[Ints, RankOrder, str]:
    """The order given, or one made again where groups would be torn or the given one is too slow; and a word on it."""
    traffic, hard = usual_traffic(layout), [c for c in plan.kept if c.hard]
    kept = ordered(tree, plan.nodes, order, layout, traffic, plan.fabric, hard)
    new = map_ranks(tree, plan.nodes, plan.counts, layout, traffic, plan.fabric, plan.kept)
    again = _like(new.node_of_rank, last, plan, layout)
    if kept is None:
        return again, new, "; in a new order, because the old one would split groups"
    if kept.time_ns * 1_000_000 <= new.time_ns * WORSE_MOST_PPM:
        return order, kept, ""
    note = (
        f"; in a new order: in the old one, collectives would take {latency(kept.time_ns)} a step,"
        f" more than {WORSE_MOST_PPM / 1e6:g} times as long"
    )
    return again, new, note


def _like(order: Ints, last: LastPlaces, plan: GangPlan, layout: Layout) -> Ints:
    """The order with its groups numbered as they were, as far as they are where they were."""
    index = {position: k for k, position in enumerate(plan.nodes.tolist())}
    old = np.array([index.get(at, -1) for at in last.node_of_rank], np.int64)
    shape = layout.pp, layout.dp, layout.tp
    return closest(order.reshape(shape), old.reshape(shape)).reshape(-1)


def _because(
    tree: Tree, view: View, last: LastPlaces, plan: GangPlan, order: Ints, own: int, note: str
) -> Reason:
    """How many ranks stay, how many move, and how far."""
    now = plan.nodes[order].tolist()
    moves = {(a, b) for a, b in zip(last.node_of_rank, now, strict=True) if a != b}
    total = len(now)
    stay = sum(a == b for a, b in zip(last.node_of_rank, now, strict=True))
    joins = [_join(tree, a, b) for a, b in moves]
    far = max(joins, key=lambda vertex: (int(tree.height[vertex]), vertex), default=-1)
    tier = tree.kind_name(far) if far >= 0 else ""
    figures: dict[str, int | float | str] = {
        **plan.because.figures, "ranks": total, "stay": stay, "moved": total - stay, "same_slices": own, "within": tier,
    }  # fmt: skip
    if not stay:
        return replace(
            plan.because,
            text=f"{plan.because.text}; none of the ranks could stay where it was",
            figures=figures,
        )
    text = "the nodes of its last attempt: "
    if stay == total:
        text += "the rank stays where it was" if total == 1 else f"all {total} ranks stay where they were"
    else:
        where = f"{tier} {tree.tiers[far]}" if far > 0 else "the fleet"
        text += f"{stay} of {total} ranks {does(stay, 'stay')}, {total - stay} {does(total - stay, 'move')}"
        text += f" within {where}{_why(view, last, now)}"
    text += note + "".join(f"; not kept: {constraint.text()}" for constraint in plan.relaxed)
    return Reason("repair", text, figures)


def _why(view: View, last: LastPlaces, now: Sequence[int]) -> str:
    """The nodes that ranks left because they are down."""
    left = dict.fromkeys(
        name for a, name, b in zip(last.node_of_rank, last.names, now, strict=True) if a != b
    )
    down = [
        name for name in left if name in view.barred or any(d.startswith(f"{name}/") for d in view.barred)
    ]
    if not down:
        return ""
    more = f" and {len(down) - _NAMED} more" if len(down) > _NAMED else ""
    return f" ({', '.join(down[:_NAMED])}{more} down)"


def _join(tree: Tree, a: int, b: int) -> int:
    """The lowest vertex above both nodes; the whole fleet where one is gone."""
    if a < 0 or b < 0:
        return 0
    above = set(tree_chain(tree, int(tree.above[a])))
    return next(vertex for vertex in tree_chain(tree, int(tree.above[b])) if vertex in above)
