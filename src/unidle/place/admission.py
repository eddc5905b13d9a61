"""Which jobs the queues of a fleet can ever admit, on which devices, and what those are charged.

Jobs of one shape are one class: the pools of devices that they may use, their charge, or why they never start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from unidle.fleet import WHOLE_PPM, Device, Fleet, models_of, slices_of
from unidle.fleet.queues import QueueSpec, amounts_of
from unidle.jobs import JobSpec, Reason, Share
from unidle.place.explain import never_fits
from unidle.place.model import Amounts, Asks
from unidle.place.network.constraint import Gang, gang_of
from unidle.place.nodes.free import OPEN, Access
from unidle.place.nodes.hardware import Option
from unidle.place.nodes.rank_class import RankClass, RankClasses
from unidle.place.protocol import KINDS
from unidle.place.queue.fair_share import Fairness, FairShare
from unidle.place.queue.reservations import most_of
from unidle.place.queue.tree import MILLI, ROOT, QueueTree, no_queue
from unidle.place.slices.devices import SliceMemo
from unidle.place.slices.offers import SliceOffers
from unidle.share.mig_models import mig_models
from unidle.share.offers import promises
from unidle.share.parts import share_of
from unidle.view.jobs import JobView
from unidle.view.state import View
from unidle.view.usage import charged, milli_of
from unidle.view.waiting import Shape


def fairness_of(fleet: Fleet) -> Fairness:
    """How the past counts in this fleet; jobs of every level may borrow."""
    return Fairness(fleet.history.half_life_ns, fleet.history.weight_ppm, firm_borrows=True)


ALL: Final = "jobs"  # the one queue of a fleet that declares none


def never(fleet: Fleet, spec: JobSpec, now_ns: int, sharing: SliceOffers | None = None) -> Reason | None:
    """Why no state of these queues lets the job start; None where one does.

    With ``sharing`` it is to start on parts that are cut on demand, of which there are enough but for the quota.
    """
    if not fleet.queues:
        return None
    empty = empty_books(fleet, now_ns)
    kinds = tuple(dict.fromkeys(device.kind for device in fleet.devices()))
    if sharing is None:
        return never_in(empty, spec, spec.queue, kinds, partial(ChargeBounds.of(fleet).least_milli, spec))
    reasons = [
        never_in_parts(empty, sharing, of_kind, spec.queue)
        for of_kind in (
            replace(spec, device="gpu" if kind == "gpu" else "cpu") for kind in KINDS[spec.device]
        )
        if sharing.never(of_kind) is None
    ]
    return None if None in reasons else next(iter(reasons), None)


def empty_books(fleet: Fleet, now_ns: int) -> FairShare:
    """Books of the fleet's queues in which nothing is used."""
    tree = tree_of_queues(fleet)
    return FairShare(tree, totals(fleet, tree.resources, frozenset()), now_ns, fairness_of(fleet))


class ChargeBounds(NamedTuple):
    """What bounds a charge from below: all kinds, kinds with whole devices, the largest factor and memory.

    ``sizes``: for devices with declared parts, how many parts there are of each size in ppm, the smallest first.
    ``cuttable``: one unused device of each sort that is cut on demand.
    """

    kinds: frozenset[str]
    whole_kinds: frozenset[str]
    factor_ppm: int
    memory_bytes: int
    sizes: dict[str, tuple[tuple[int, int], ...]]
    cuttable: tuple[Device, ...]

    @classmethod
    def of(cls, fleet: Fleet) -> ChargeBounds:
        devices = fleet.devices()
        whole = frozenset(d.kind for d in devices if len(d.slices_ppm) == 1)
        sizes: dict[str, Counter[int]] = {}
        for device in devices:
            if len(device.slices_ppm) > 1:
                sizes.setdefault(device.kind, Counter()).update(device.slices_ppm)
        return cls(
            frozenset(d.kind for d in devices),
            whole,
            max((d.sharing.compute_ppm for d in devices if d.sharing is not None), default=WHOLE_PPM),
            max((d.memory_bytes for d in devices), default=0),
            {kind: tuple(sorted(counts.items())) for kind, counts in sizes.items()},
            tuple({_sort(d): replace(d, cut=None) for d in devices if d.sharing is not None}.values()),
        )

    def least_milli(self, spec: JobSpec, kind: str) -> int:
        """The least that a queue is charged for the job, wherever it runs on this kind, in thousandths of devices."""
        share = spec.share
        if share is None:
            if kind in self.whole_kinds:
                return spec.devices * MILLI
            return self._smallest_milli(kind, spec.devices) if kind in self.kinds else 0
        ways = []  # a gang is on parts that are declared, or on some that are cut on demand
        if kind in self.sizes:
            size_ppm = max(share.compute_ppm, self._of_memory_ppm(share))
            ways.append(self._smallest_milli(kind, spec.devices, size_ppm))
        ways += [
            spec.ranks * milli_of(share_of(device, promise))
            for device in self.cuttable
            if device.kind == kind
            for promise in promises(device, share)
        ]
        return max(spec.ranks * self._part_milli(share), min(ways, default=0))

    def _part_milli(self, share: Share) -> int:
        """What one part that is cut on demand counts at least."""
        if share.profile:
            sizes = [m.compute_ppm(m.profile(share.profile)) for m in mig_models() if m.knows(share.profile)]
            return min(sizes, default=0) * MILLI // WHOLE_PPM
        return (share.compute_ppm or self._of_memory_ppm(share)) * MILLI // self.factor_ppm

    def _of_memory_ppm(self, share: Share) -> int:
        """Of how much of its device's memory a part has at least; 0 where none is asked for."""
        return share.memory_bytes * WHOLE_PPM // self.memory_bytes if self.memory_bytes else 0

    def _smallest_milli(self, kind: str, devices: int, least_ppm: int = 0) -> int:
        """What so many slices of a kind count at least: the smallest that there are, from ``least_ppm`` on."""
        total = 0
        for ppm, count in self.sizes[kind]:
            taken = min(count, devices) if ppm >= least_ppm else 0
            total, devices = total + taken * milli_of(ppm), devices - taken
        return total


def _sort(device: Device) -> tuple[object, ...]:
    return device.kind, device.model, device.memory_bytes, device.sharing


def never_in(
    empty: FairShare, spec: JobSpec, queue: str, kinds: Sequence[str], asked: Callable[[str], int]
) -> Reason | None:
    """The same for books in which nothing is used, and a job that is charged ``asked(kind)`` thousandths of devices.

    A job that may have any device is refused only where it is on each of these kinds.
    """
    tree = empty.tree
    if (missing := no_queue(tree, queue)) is not None:
        return missing
    index = tree.index[queue]
    if any(spec.windows for spec in tree.specs):
        return None  # at other hours it may
    share = spec.share
    of_gpu = share is not None and (bool(share.profile) or share.mode != "any")  # no CPU device is cut so
    may = [kind for kind in KINDS[spec.device] if kind in kinds and not (of_gpu and kind == "cpu")]
    there = dict(zip(tree.resources, empty.quota.capacity, strict=True))
    # where all are too few, whichever job asks
    may = [kind for kind in may if asked(kind) <= there[kind]] or may
    found = [_never_of(empty, spec, index, kind, asked(kind)) for kind in may]
    # without such devices the fleet's own reason says so
    return None if None in found else next(iter(found), None)


def never_in_parts(empty: FairShare, sharing: SliceOffers, spec: JobSpec, queue: str) -> Reason | None:
    """The same for parts of devices of one kind, of which there are enough but for what the queue may use."""
    least, most = charges_of_parts(sharing, spec)
    refused = never_in(empty, spec, queue, (spec.device,), lambda _: least)
    if refused is not None or any(spec.windows for spec in empty.tree.specs):
        return refused
    leaf, firm = empty.tree.leaf(queue), spec.preemption != "low"
    wanted = [_amounts(empty.tree, spec, spec.device, milli) for milli in (least, most)]
    if empty.refusal(leaf, wanted[0], firm=firm) is not None:
        return None  # the fleet itself is too small
    may = max(most_of(empty, leaf, wanted[0], wanted[1], firm=firm))
    if may >= most or sharing.never(spec, may) is None:
        return None
    text = f"{queue} may use at most {may / MILLI:g} {spec.device} for it, and no parts for all of its ranks count so little"
    return Reason("over_limit", f"{text}: it can never start here", {"bound": may, "asked": least})


def charges_of_parts(sharing: SliceOffers, spec: JobSpec) -> tuple[int, int]:
    """The least and the most that parts for all ranks may count, in thousandths of devices."""
    counts = [milli_of(ppm) for ppm in sharing.share_ppm(spec)] or [MILLI]
    return min(counts) * spec.ranks, max(counts) * spec.ranks


def _amounts(tree: QueueTree, spec: JobSpec, kind: str, milli: int) -> Amounts:
    amounts = charged(spec, kind, milli, tree.models)
    return tuple(amounts.get(resource, 0) for resource in tree.resources)


def _never_of(empty: FairShare, spec: JobSpec, index: int, kind: str, asked: int) -> Reason | None:
    tree = empty.tree
    wanted = _amounts(tree, spec, kind, asked)
    refusal = empty.refusal(index, wanted, firm=spec.preemption != "low")
    if refusal is None or (refusal.queue == ROOT and refusal.rule == "full"):
        return None  # the fleet itself is too small, and its own reason says so
    bound, of = refusal.bound, tree.resources[refusal.resource]
    text = f"{tree.name(refusal.queue) or 'a queue'} may use at most {bound / MILLI:g} {of}"
    if refusal.rule == "kept":
        whole = empty.quota.bound[refusal.queue][refusal.resource]
        of_all = f"{tree.name(refusal.queue) or 'the fleet'}'s {whole / MILLI:g} {of}"
        text = f"{(whole - bound) / MILLI:g} of {of_all} are kept for other queues"
    text += f", and the job needs {refusal.asked / MILLI:g}: it can never start here"
    return Reason("over_limit", text, {"bound": bound, "asked": refusal.asked})


def check_queues(fleet: Fleet) -> None:
    """:class:`BadInput` for the first mistake in a fleet's queues, with the field ``queues.NAME...``."""
    tree = tree_of_queues(fleet)
    tree.check_capacity(totals(fleet, tree.resources, frozenset()))


def totals(fleet: Fleet, resources: Sequence[str], unfit: Collection[str]) -> Amounts:
    """Devices that are healthy, in thousandths, by resource."""
    totals = dict.fromkeys(resources, 0)
    for device in fleet.devices():
        if slices_of(device)[0].id in unfit:
            continue
        for resource in (device.kind, f"{device.kind}:{device.model}"):
            if resource in totals:
                totals[resource] += MILLI
    return tuple(totals[resource] for resource in resources)


def tree_of_queues(fleet: Fleet) -> QueueTree:
    specs = tuple(replace(q, order=q.order or fleet.order.by) for q in fleet.queues or (QueueSpec(ALL),))
    named = {resource for spec in specs for _, amounts in amounts_of(spec) for resource in amounts}
    models = sorted({f"{d.kind}:{d.model}" for d in fleet.devices() if d.model}) if named else []
    if named <= {"gpu", "cpu", *models}:
        models = [model for model in models if model in named]
    return QueueTree.of(specs, ("gpu", "cpu", *models), fleet.zone, models_of(fleet))


def without_windows(fleet: Fleet) -> Fleet:
    """The fleet with what its queues may have outside of all windows of time."""
    return replace(fleet, queues=tuple(replace(queue, windows=()) for queue in fleet.queues))


_NO_DEVICE: Final = Reason("never_fits", "no such device: it can never start here")
_CLASSES_KEPT: Final = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class JobClass:
    """What gangs of one shape have in common: the pools of devices that they may use, or why they can never start."""

    gang: Gang
    options: tuple[tuple[Option, RankClass], ...]
    never: Reason | None
    charged: Amounts
    asks: Asks
    alike: str
    # for parts of devices that are cut on demand: the job, on one kind of devices
    parts: JobSpec | None = None
    most: Amounts = ()  # where the charge depends on the place: the most, and ``charged`` is the least
    other: JobClass | None = None  # the same on another kind of devices, where the job may have any


class JobClasses:
    """Classes of jobs by shape, found when they are first asked for. ``empty``: its shares while nothing is used."""

    def __init__(
        self, classes: RankClasses, memo: SliceMemo, kinds: tuple[str, ...], empty: FairShare
    ) -> None:
        self._classes, self._memo, self._free_slices = classes, memo, classes.free_slices
        self._kinds, self._empty, self._tree = kinds, empty, empty.tree
        self._declared = bool(self._free_slices.fleet.queues)
        self._bounds = ChargeBounds.of(self._free_slices.fleet)
        self._refused: dict[tuple[Shape, str], Reason | None] = {}
        self._by_shape: dict[tuple[Shape, str, Access], JobClass] = {}

    def refused(self, spec: JobSpec, shape: Shape) -> Reason | None:
        """Why the queue never lets jobs of this shape start; None where it does."""
        queue = self.queue(spec)
        key = (shape, queue)
        if key not in self._refused:
            if len(self._refused) >= _CLASSES_KEPT:
                self._refused.clear()
            least = partial(self._bounds.least_milli, spec)
            self._refused[key] = never_in(self._empty, spec, queue, self._kinds, least)
        return self._refused[key]

    def of(self, job: JobView, shape: Shape, view: View | None) -> JobClass:
        """What the job has in common with those of its shape."""
        # its limits say what is for the job
        by_queue = job.spec.share is not None or job.spec.device == "any"
        access = self._free_slices.access(job.spec, job)
        key = (shape, self.queue(job.spec) if by_queue else "", access)
        found = self._by_shape.get(key)
        if found is None:
            if len(self._by_shape) >= _CLASSES_KEPT:
                self._by_shape.clear()
            found = self._by_shape[key] = self._job_class_of(job.spec, access, view)
        return found

    def queue(self, spec: JobSpec) -> str:
        """The queue of such a job; ``ALL`` if the fleet declares no queues."""
        return spec.queue if self._declared else ALL

    def charged(self, spec: JobSpec, kind: str, milli: int) -> Amounts:
        """What the job's queue is charged, of devices and of those of a model where it names just one."""
        resources = charged(spec, kind, milli, self._tree.models)
        return tuple(resources.get(resource, 0) for resource in self._tree.resources)

    def _job_class_of(self, spec: JobSpec, access: Access, view: View | None) -> JobClass:
        """The family on the first kind of devices that the job may ever have, with that on another kind."""
        kinds = [kind for kind in KINDS[spec.device] if kind in self._kinds]
        if len(kinds) < 2:
            return self._of_one_kind(spec, access, view)
        found = [
            self._of_one_kind(replace(spec, device="gpu" if kind == "gpu" else "cpu"), access, view)
            for kind in kinds
        ]
        able = [
            job_class for job_class in found if job_class.never is None and self._may_ever(spec, job_class)
        ]
        if not able:
            return next((job_class for job_class in found if job_class.never is None), found[0])
        return replace(able[0], other=able[1]) if len(able) > 1 else able[0]

    def _may_ever(self, spec: JobSpec, job_class: JobClass) -> bool:
        """Whether the queue lets the job have these devices in some state."""
        leaf = self._tree.index.get(self.queue(spec))
        if leaf is None or any(queue.windows for queue in self._tree.specs):
            return True
        refusal = self._empty.refusal(leaf, job_class.charged, firm=spec.preemption != "low")
        return refusal is None or (refusal.queue == ROOT and refusal.rule == "full")

    def _of_one_kind(self, spec: JobSpec, access: Access, view: View | None) -> JobClass:
        gang = gang_of(spec)
        over = None
        if (parts := self._parts_of(spec, gang, view)) is not None:
            if parts.never is None:
                return parts
            over = parts.never
        options: list[tuple[Option, RankClass]] = []
        for option, rank_class in self._classes.of_job(spec, access=access):
            kind = options[0][1].kind if options else rank_class.kind
            if rank_class.kind not in self._kinds or rank_class.kind != kind:
                continue
            if rank_class.fits_ever(gang):
                options.append((option, rank_class))
        if options:
            kind = options[0][1].kind
            alike = f"{kind} {spec.layout} {spec.requests} {spec.where} {spec.topology} {spec.share} {spec.hardware}"
            alike += f" {access}" if access != OPEN else ""
            charges = [rank_class.charges(spec.devices) for _, rank_class in options]
            least, most = min(least for least, _ in charges), max(most for _, most in charges)
            amounts = [self.charged(spec, kind, milli) for milli in (least, most)]
            by_place = amounts[1] if most > least else ()
            return JobClass(gang, tuple(options), None, amounts[0], asks_of(spec), alike, most=by_place)
        refused = never_fits(self._classes, spec, access)
        never = over or (refused.because if refused is not None else _NO_DEVICE)
        return JobClass(gang, (), never, (), asks_of(spec), "")

    def _parts_of(self, spec: JobSpec, gang: Gang, view: View | None) -> JobClass | None:
        """The family of a job that may get parts of devices that are cut on demand; None if it never gets any.

        If only the limit of the queue prevents that, ``never`` of the family is the reason.
        """
        if spec.share is None or view is None or not view.cuttable_nodes():
            return None
        sharing = SliceOffers(self._free_slices, view, self._memo)
        for kind in KINDS[spec.device]:
            of_kind = replace(spec, device="gpu" if kind == "gpu" else "cpu")
            if kind not in self._kinds or sharing.never(of_kind) is not None:
                continue
            over = never_in_parts(self._empty, sharing, of_kind, self.queue(spec))
            if over is not None:
                return JobClass(gang, (), over, (), asks_of(spec), "")
            declared = [(o, c) for o, c in self._classes.of_job(of_kind) if c.fits_ever(gang)]
            least, most = charges_of_parts(sharing, of_kind)
            if declared:  # which may count less, and more
                slices = (d.slices_ppm for d in self._free_slices.fleet.devices() if d.kind == kind)
                least = min(least, spec.ranks * milli_of(min(map(min, slices))))
                most = max(most, spec.ranks * MILLI)
            alike = f"parts {kind} {spec.requests} {spec.where} {spec.topology} {spec.share} {spec.ranks} {spec.hardware}"
            amounts = [self.charged(spec, kind, milli) for milli in (least, most)]
            return JobClass(
                gang, tuple(declared), None, amounts[0], asks_of(spec), alike, of_kind, amounts[1]
            )
        return None


def asks_of(spec: JobSpec) -> Asks:
    """What each rank requests of its node: thousandths of cores, and bytes of memory."""
    return spec.requests.cpu_milli, spec.requests.memory_bytes
