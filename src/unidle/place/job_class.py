"""What jobs of one shape have in common: on which devices they may go, what they are charged, why they never start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from unidle.jobs import JobSpec, Reason
from unidle.place.admission import ALL, ChargeBounds, charges_of_parts, never_in, never_in_parts
from unidle.place.explain.gang import never_fits
from unidle.place.model import Amounts, Asks
from unidle.place.network.constraint import Gang, gang_of
from unidle.place.nodes.hardware import Option
from unidle.place.nodes.rank_class import RankClass, RankClasses
from unidle.place.nodes.reserve import OPEN, Access
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.spec import MILLI
from unidle.place.queue.tree import ROOT
from unidle.place.queue_order import KINDS
from unidle.place.slices.devices import SliceMemo
from unidle.place.slices.offers import SliceOffers
from unidle.view.jobs import JobView
from unidle.view.state import View
from unidle.view.usage import charged, milli_of
from unidle.view.waiting import Shape

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
    parts: JobSpec | None = (
        None  # for parts of devices that are cut on demand: the job, on one kind of devices
    )
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
        by_queue = (
            job.spec.share is not None or job.spec.device == "any"
        )  # its limits say what is for the job
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
