"""Filler jobs: which start on devices that no other job uses, and which make room for a job that starts.

All other jobs are decided on first, as if there were no fillers: in the view their devices are free
(``unidle.view.fillers``). So a filler can change no decision on another job. What is left then goes to fillers, by priority
and submission: also spares, what is kept while a gang gathers, and what no quota lets others use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from unidle.fleet import device_of
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.place.protocol import Place, Wait
from unidle.view.jobs import JobView
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.place.scheduler import Scheduler

GRACE_NS: Final = 300_000_000
"""What a filler without a checkpoint gets to end by itself; one that resumes from a checkpoint gets nothing."""


@dataclass(frozen=True, slots=True)
class FillerPlan:
    """Fillers that start, and why the others wait that have no reason yet."""

    places: tuple[Place, ...] = ()
    waits: tuple[Wait, ...] = ()


class FillerPolicy:
    """Pure: the view is as it was when a method returns. What it keeps between calls follows from the view."""

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None

    def decide(self, view: View, now_ns: int) -> FillerPlan:
        """Give what no other job uses now to the fillers that wait."""
        left = sum(view.occupancy.free.values()) - sum(map(_free_in(view), view.fillers.on))
        names = view.fillers.waiting
        waiting = [job for name in names if (job := view.jobs.open[name]).not_before_ns <= now_ns]
        # those for which too little is free are looked at once, for the reason
        waiting = [job for job in waiting if job.spec.devices <= left or job.verdict is None]
        if not waiting:
            return FillerPlan()
        places: list[Place] = []
        waits: list[Wait] = []
        refused: dict[str, Reason] = {}
        with view.beside_fillers():
            taken: list[str] = []
            for job in sorted(waiting, key=order_of):
                like = _like(job.spec)
                found = refused.get(like) or self._found(view, job, taken)
                if isinstance(found, Place):
                    places.append(found)
                    continue
                refused[like] = found
                if job.verdict is None:
                    waits.append(Wait(job.id, found))
            view.occupancy.give_back(taken)
        return FillerPlan(tuple(places), tuple(waits))

    def why_not(self, view: View, spec: JobSpec) -> Place | Reason:
        """Where a filler like this would start now, were it the next one; else why it would not."""
        with view.beside_fillers():
            places, because = self._try(view, spec)
        return _refusal(because) if places is None else Place("", places, because)

    def _found(self, view: View, job: JobView, taken: list[str]) -> Place | Reason:
        places, because = self._try(view, job.spec)
        if places is None:
            return _refusal(because)
        ids = [slice_id for place in places for slice_id in place.slices]
        view.occupancy.take(ids)
        taken += ids
        text = f"devices that no other job uses: {because.text}"
        return Place(job.id, places, Reason("filler", text, because.figures))

    def _try(self, view: View, spec: JobSpec) -> tuple[tuple[RankPlace, ...] | None, Reason]:
        """Where it starts (None: nowhere), and why. No quota counts, but its queue has to be there."""
        if view.fleet.queues:
            from unidle.place.admission import tree_of_queues
            from unidle.place.queue.tree import no_queue

            if (missing := no_queue(tree_of_queues(view.fleet), spec.queue)) is not None:
                return None, missing
        if self._scheduler is None:
            from unidle.place.scheduler import Scheduler  # needs NumPy, which few fleets without fillers load

            self._scheduler = Scheduler()
        found = self._scheduler.try_one(view, spec)
        return getattr(found, "places", None), found.because


def order_of(job: JobView) -> tuple[int, int]:
    """Fillers by priority and submission."""
    return -job.spec.priority, job.order


def grace_ns(spec: JobSpec) -> int:
    """How long a filler may take to make room."""
    return 0 if spec.checkpoint_path is not None else min(int(spec.grace_s * 1e9), GRACE_NS)


def in_the_way(view: View, job: JobView, places: Iterable[RankPlace]) -> Iterator[str]:
    """The fillers that make room for a job, which is given these places: by devices, and by cores and memory."""
    fillers = view.fillers
    if not fillers.on or job.spec.is_filler:
        return
    places = tuple(places)
    slices = [slice_id for place in places for slice_id in place.slices]
    named = dict.fromkeys(name for slice_id in slices if (name := fillers.on.get(slice_id)) is not None)
    if job.spec.requests.given:
        named |= dict.fromkeys(_short_of_cores(view, job.spec, places, named.keys()))
    yield from named


def on_device(view: View, device: str) -> Iterator[str]:
    """The fillers on a device that is cut again."""
    named = (name for slice_id, name in view.fillers.on.items() if device_of(slice_id) == device)
    yield from dict.fromkeys(named)


def _short_of_cores(
    view: View, spec: JobSpec, places: tuple[RankPlace, ...], gone: Iterable[str]
) -> Iterator[str]:
    """Fillers, besides those that are gone, on nodes whose cores or memory do not hold them and this job."""
    there: dict[str, list[JobView]] = {}
    for name in dict.fromkeys(view.fillers.on.values()):
        filler = view.jobs.open[name]
        if filler.spec.requests.given and filler.live is not None and name not in gone:
            for place in filler.live.places:
                there.setdefault(place.node, []).append(filler)
    for name in dict.fromkeys(place.node for place in places):
        node, here = view.node(name), there.get(name, [])
        if node is None or not here:
            continue
        ranks = sum(place.node == name for place in places)
        used = view.hosts.get(name, (0, 0))
        asked = [spec.requests] * ranks + [filler.spec.requests for filler in here]
        cpu_milli = used[0] + sum(each.cpu_milli for each in asked)
        memory_bytes = used[1] + sum(each.memory_bytes for each in asked)
        if 0 < node.cpus * 1000 < cpu_milli or 0 < node.memory_bytes < memory_bytes:
            yield from dict.fromkeys(filler.id for filler in here)


def _free_in(view: View) -> Callable[[str], bool]:
    """Whether a slice that a filler uses counts as free, as it does unless it is not healthy."""
    occupancy = view.occupancy
    return lambda slice_id: occupancy.knows(slice_id) and occupancy.is_free(slice_id)


def _like(spec: JobSpec) -> str:
    return repr((spec.queue, spec.ranks, spec.devices_per_rank, spec.device, spec.wish))


def _refusal(why: Reason) -> Reason:
    if why.code == "no_queue":
        return why
    return Reason(why.code, f"a filler gets what no other job uses: {why.text}", why.figures)
