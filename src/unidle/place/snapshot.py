"""What is kept from one decision to the next, as to make it costs more than a decision.

For queues: running jobs, waiting jobs, free devices. All of it is derived from the view. The entries of a job that changed are removed and derived again, so the
cost of a round depends on what changed, not on the size of the fleet.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from unidle.fleet import Barred, device_of
from unidle.jobs import RankPlace, Reason
from unidle.place.admission import (
    JobClass,
    JobClasses,
    asks_of,
    fairness_of,
    totals,
    tree_of_queues,
    without_windows,
)
from unidle.place.gang.fit import GangRound
from unidle.place.model import Backfill, Demand, Hold, Running
from unidle.place.nodes.free import FreeSlices
from unidle.place.nodes.rank_class import RankClasses
from unidle.place.queue.fair_share import PPB, PPM, FairShare
from unidle.place.queue.order import Came, QueueTurns, served_us
from unidle.place.queue.pending import PendingJobs
from unidle.place.queue.state import Allocations, requested
from unidle.place.slices.devices import SliceMemo
from unidle.view.jobs import AttemptView, JobView
from unidle.view.spares import on_trial
from unidle.view.state import View
from unidle.view.usage import milli_of
from unidle.view.waiting import Shape

RESTART_NS: Final = 30_000_000_000  # until a stopped job is at work again, where nothing was measured


def restart_ns(job: JobView) -> int:
    """How long a job is away from its work by a stop: its last time to leave, and to begin again, that were seen."""
    begin = next((ns for a in reversed(job.attempts) if (ns := begin_ns(a)) is not None), None)
    return RESTART_NS if begin is None else begin + next(map(_leave_ns, _stopped(job)), 0)


def begin_ns(attempt: AttemptView) -> int | None:
    """From its placement until it began its first step; None before that was seen."""
    return None if attempt.begun_ns is None else max(attempt.begun_ns - attempt.placed_ns, 0)


REMEMBERED: Final = 2_000
"""So many of the latest jobs count for whose turn had come, when that is first asked."""


def settled_ns(job: JobView) -> int:
    """From when on a running job may be moved: once it worked for as long as its last move cost it. 0: it was not moved."""
    for moved, after in zip(job.attempts[-2::-1], job.attempts[:0:-1], strict=True):
        if moved.stop is not None and moved.stop.why == "moved":
            since_ns = max(moved.placed_ns, moved.saved_ns or 0)  # what was done since then is done again
            began_ns = begin_ns(after)
            begun_ns = after.placed_ns + (restart_ns(job) if began_ns is None else began_ns)
            return begun_ns + max(begun_ns - since_ns, 0)
    return 0


def _stopped(job: JobView) -> list[AttemptView]:
    """Its attempts that were asked to make room, the latest first."""
    return [
        a
        for a in reversed(job.attempts)
        if a.stop is not None and a.stop.why in ("preempted", "moved") and not a.live
    ]


def _leave_ns(attempt: AttemptView) -> int:
    return max((attempt.ended_ns or 0) - (attempt.stop_ns or 0), 0)


def take_history(shares: FairShare, view: View, now_ns: int) -> None:
    """Each queue's history: the dominant share of what it used on average, of its leaves together."""
    tree, capacity = shares.tree, shares.quota.capacity
    half_life_ns = view.fleet.history.half_life_ns
    past = [[0] * len(tree.resources) for _ in range(len(tree))]
    for name, use in view.usage.queues.items():
        leaf = tree.index.get(name) if view.fleet.queues else 1  # the one that all jobs are in
        if leaf is None:
            continue  # of another fleet file
        for resource, average in use.average_ppb(now_ns, half_life_ns).items():
            if average and resource in tree.resources:
                at = tree.resources.index(resource)
                for queue in tree.path(leaf):
                    past[queue][at] += average
    for queue in range(1, len(tree)):
        # billionths of a device over thousandths of devices
        parts = [a * (PPB // PPM) // whole for a, whole in zip(past[queue], capacity, strict=True) if whole]
        shares.set_history(queue, max(parts, default=0))


S: Final = 1_000_000_000


class QueueSnapshot:
    """Follows the view. Between two calls of :meth:`follow` all changes have to be undone by the journal."""

    def __init__(self, classes: RankClasses, memo: SliceMemo, now_ns: int) -> None:
        free_slices = classes.free_slices
        self._free_slices = free_slices
        self.kinds = tuple(kind for kind in ("gpu", "cpu") if free_slices.occupancy.nodes.get(kind))
        self.width = len(free_slices.nodes)
        self.tree = tree_of_queues(free_slices.fleet)
        self._whole = totals(free_slices.fleet, self.tree.resources, frozenset())
        # nothing is used: for what can never start
        empty = FairShare(self.tree, self._whole, now_ns, fairness_of(free_slices.fleet))
        self._table = JobClasses(classes, memo, self.kinds, empty)
        self._health: tuple[dict[str, Barred], frozenset[str]] = ({}, frozenset())
        self.capacity = self._whole
        self.shares = FairShare(self.tree, self._whole, now_ns, fairness_of(free_slices.fleet))
        size = len(self.kinds) * self.width
        self.state = Allocations(
            np.zeros(size, np.int64), self.shares, hosts=np.zeros((2, self.width), np.int64), log=free_slices.log
        )  # fmt: skip
        bound_ns = free_slices.fleet.order.bound_ns
        # turns come by what queues deserve of the whole fleet, so that they follow from the log however much is read at once
        always = tree_of_queues(without_windows(free_slices.fleet))
        self.turns = QueueTurns(always.quota(self._whole, 0).deserved, bound_ns)
        self.waiting = PendingJobs(self.shares, Backfill(starved_ns=bound_ns), self.turns)
        self.never: dict[str, Reason] = {}
        self.job_classes: dict[str, JobClass] = {}  # by job that waits
        self._shape_of: dict[str, Shape] = {}  # where the view says it for all at once: to find it takes long
        self._not_before: list[tuple[int, str]] = []  # jobs that wait for their time, a heap
        self._live: dict[str, Running] = {}  # also those that stop
        self._unknown: set[str] = set()  # of these, those whose run time is unknown
        self._stopping = np.zeros(size, np.int64)  # devices of jobs that are preempted: they count as free
        self._stopping_hosts = np.zeros((2, self.width), np.int64)
        self._moved: set[int] = set()  # positions at which that changed
        self._leavers: dict[str, int] = {}  # devices in parts, and how many who have some are preempted
        # of these, those that all leave, each with its node: they count as free
        self._vacated: dict[str, int] = {}
        # devices of which somebody has got or left a part since the last count
        self._in_parts: dict[str, int] = {}
        self._seen, self._seen_ground = -1, -1
        self._view: View | None = None

    def follow(self, view: View, now_ns: int) -> None:
        """Apply what changed since the last call."""
        self._view = view
        if (state := (view.barred, on_trial(view))) != self._health:
            self._health = dict(state[0]), state[1]
            unfit = view.unfit()
            if state[1]:  # jobs of level low may use it: it is capacity
                unfit -= view.slices_of(state[1])
            self.capacity = totals(view.fleet, self.tree.resources, unfit) if unfit else self._whole
        self.shares.begin(now_ns, self.capacity)
        for job in list(self.state.holds):
            self.state.release(job)
        first = self._seen < 0
        ended: Iterable[str] = islice(reversed(view.jobs), REMEMBERED) if first else ()
        self._seen, changed = view.changed.since(max(self._seen, 0))
        if first or changed is None:
            changed = [*self._live, *self.waiting.jobs, *self.never, *view.jobs.open]
            self._shape_of = {job: shape for shape, line in view.waiting.items() for _, _, job in line}
        for job in dict.fromkeys(changed):
            self._forget(job)
            self._learn(view.jobs.open.get(job), now_ns)
        while self._not_before and self._not_before[0][0] <= now_ns:
            job = heapq.heappop(self._not_before)[1]
            self._forget(job)
            self._learn(view.jobs.open.get(job), now_ns)
        self._shape_of = {}
        seen = (view.jobs.get(job) for job in dict.fromkeys((*ended, *self.turns.held, *changed)))
        of_devices = (job for job in seen if job is not None and job.spec.needs_devices)
        self.turns.follow(of_devices, self._came, now_ns)
        self._count_free()
        take_history(self.shares, view, now_ns)
        for job, promise in view.promised.items():
            if promise.expires_ns > now_ns and promise.kind in self.kinds:
                self._hold(view.jobs[job], promise.kind, promise.devices, promise.expires_ns)
        self.state.log.commit()

    @property
    def stopping(self) -> bool:
        """Whether jobs are being preempted whose devices count as free."""
        return len(self._live) > len(self.state.running)

    @property
    def in_turn(self) -> bool:
        """Whether the jobs of all queues are in the order of their submission."""
        return all(spec.order == "fifo" for spec in self.tree.specs)

    @property
    def all_known(self) -> bool:
        """Whether at least one job runs, and the run times of all running jobs are known."""
        return bool(self._live) and not self._unknown

    def assumed_from_ns(self, otherwise_ns: int) -> int | None:
        """From when on a plan rests on the run time that is assumed for jobs of which none is known; None: never."""
        started = min((self._live[job].started_ns for job in self._unknown), default=None)
        return None if started is None else started + otherwise_ns

    def _forget(self, job: str) -> None:
        self.never.pop(job, None)
        self.job_classes.pop(job, None)
        if job in self.waiting.jobs:
            self.waiting.remove(job)
        run = self._live.pop(job, None)
        if run is None:
            return
        self._unknown.discard(job)
        self._hold_for_user(run, -1)
        self._in_parts.update(run.parts)
        if job in self.state.running:
            self.state.drop(job)
        else:
            self._stops(run, -1)

    def _learn(self, job: JobView | None, now_ns: int) -> None:
        if job is None or not job.spec.needs_devices or job.spec.is_filler:
            return  # who needs no device is in no queue's books, nor is a filler
        attempt = job.live
        if attempt is not None:
            run = self._live[job.id] = self._running(job, attempt)
            self._hold_for_user(run, +1)
            self._in_parts.update(run.parts)
            if run.estimate_ns is None:
                self._unknown.add(job.id)
            if attempt.stop is not None and attempt.stop.why in ("preempted", "moved"):
                self._stops(run, +1)
            else:
                self.state.adopt(run)
        elif job.state in ("queued", "restarting"):
            if job.not_before_ns > now_ns:
                heapq.heappush(self._not_before, (job.not_before_ns, job.id))
            else:
                self._add(job)

    def _stops(self, run: Running, sign: int) -> None:
        """Devices of a job that is preempted are as good as free."""
        for index, count in run.devices.items():
            position = index % self.width
            self._stopping[index] += sign * count
            self._stopping_hosts[:, position] += requested(run.asks, sign * count // run.each)
            self._moved.add(position)
        for device in run.parts:
            self._leavers[device] = self._leavers.get(device, 0) + sign

    def _count_vacated(self) -> None:
        """Devices in parts also count as free if every job that has a part of them is being preempted."""
        for device, index in self._in_parts.items():
            vacated = self._leavers.get(device, 0) > 0 and device not in self.state.users
            if vacated != (device in self._vacated):
                self._stopping[index] += 1 if vacated else -1
                self._moved.add(index % self.width)
            if vacated:
                self._vacated[device] = index
            else:
                self._vacated.pop(device, None)
        self._in_parts.clear()

    def _count_free(self) -> None:
        """Count the free devices of each node that changed. Nothing is held for a waiting job yet."""
        self._count_vacated()
        free_slices, state, width = self._free_slices, self.state, self.width
        self._seen_ground, touched = free_slices.touched_since(self._seen_ground)
        changed = range(width) if touched is None else sorted(self._moved.union(touched))
        some = np.array(changed, np.int64)
        self._moved.clear()
        for k, kind in enumerate(self.kinds):
            here = k * width + some
            state.free[here] = free_slices.left(kind, some) + self._stopping[here]
        state.hosts[:, some] = free_slices.hosts[:, some] + self._stopping_hosts[:, some]

    def _hold(self, job: JobView, kind: str, devices: dict[str, int], expires_ns: int) -> None:
        first, place = self.kinds.index(kind) * self.width, self._free_slices.place
        kept = {first + place[name]: count for name, count in devices.items() if name in place}
        if all(self.state.free[index] >= count for index, count in kept.items()):
            held_for = self.waiting.jobs.get(job.id) or self._live.get(job.id)  # one that is moved runs still
            if held_for is not None:
                if isinstance(held_for, Demand) and held_for.most:  # of which slices is not known yet
                    held_for = replace(held_for, charged=held_for.most)
                self.state.hold(Hold.of(held_for, kept, expires_ns))

    # -- jobs ------------------------------------------------------------------------------------

    def _running(self, job: JobView, attempt: AttemptView) -> Running:
        spec, (held, parts) = job.spec, self._held(attempt)
        milli = self.milli_of(attempt.places)
        kind = self._free_slices.occupancy.kind_of(attempt.places[0].slices[0]) or "gpu"
        stop = attempt.stop
        ends = stop is not None and stop.why != "moved"  # its devices come back by themselves
        return Running(
            job.id, self._table.queue(spec), "medium" if ends else spec.preemption, attempt.placed_ns, held,
            self._table.charged(spec, kind, milli), attempt.saved_ns, int(spec.min_runtime_s * S),
            restart_ns(job), job.run_time_ns, checkpoints=spec.checkpoint_path is not None and stop is None,
            ranks=spec.ranks, each=spec.devices_per_rank, settled_ns=settled_ns(job), asks=asks_of(spec),
            parts=parts, parts_milli=milli if parts else 0, served_us=served_us(job), user=spec.user,
            expected_ns=job.given_ns, came_ns=job.submitted_ns,
        )  # fmt: skip

    def _held(self, attempt: AttemptView) -> tuple[dict[int, int], dict[str, int]]:
        """Devices by node, and those that it has parts of that were cut on demand, each with its node."""
        held: dict[int, int] = {}
        parts: dict[str, int] = {}
        for place in attempt.places:
            for slice_id in place.slices:
                found = self._free_slices.at(slice_id)
                if found is None or found[0] not in self.kinds:
                    continue
                index = self.kinds.index(found[0]) * self.width + found[1]
                if self._free_slices.occupancy.is_part(slice_id):
                    # no whole one is free before the last who has a part left
                    parts[device_of(slice_id)] = index
                else:
                    held[index] = held.get(index, 0) + 1
        return held, parts

    def _add(self, job: JobView) -> None:
        """The job waits."""
        refused, job_class = self._table.refused(job.spec, self._shape(job)), self.job_class(job)
        if refused is not None or job_class.never is not None:
            self.never[job.id] = refused or job_class.never or Reason("never_fits", "")
            return
        self.job_classes[job.id] = job_class
        self.waiting.add(self.demand(job, job_class))

    def _came(self, job: JobView) -> Came | None:
        """What its turn depends on; None where the job can never start."""
        refused, job_class = self._table.refused(job.spec, self._shape(job)), self.job_class(job)
        if refused is not None or job_class.never is not None:
            return None
        leaf = self.tree.leaf(self._table.queue(job.spec))
        aged_ns = job.submitted_ns - job.spec.priority * self.waiting.age_ns
        return Came(leaf, aged_ns, job_class.charged, self.waiting.limit_ns(leaf, job.spec.preemption))

    def _hold_for_user(self, run: Running, sign: int) -> None:
        key = self.tree.leaf(run.queue), run.user
        self.waiting.held[key] = self.waiting.held.get(key, 0) + sign * max(run.charged, default=0)

    def demand(self, job: JobView, job_class: JobClass) -> Demand:
        """What the job requests, on the devices of this family."""
        spec = job.spec
        return Demand(
            job.id, self._table.queue(spec), spec.preemption, 0 if job_class.parts else spec.ranks, spec.devices_per_rank,
            job_class.charged, job.waiting_since_ns, job.run_time_ns, spec.priority, int(spec.min_runtime_s * S),
            restart_ns(job), spec.checkpoint_path is not None, job_class.alike, job_class.asks, job_class.most,
            served_us(job), spec.user, job.submitted_ns, job.given_ns, job.guessed_ns,
        )  # fmt: skip

    def job_class(self, job: JobView) -> JobClass:
        """What the job has in common with those of its shape."""
        return self._table.of(job, self._shape(job), self._view)

    def _shape(self, job: JobView) -> Shape:
        return self._shape_of.get(job.id) or job.shape

    def milli_of(self, places: Iterable[RankPlace]) -> int:
        """Thousandths of devices that these places hold: a part of a device counts by its share."""
        assert self._view is not None
        book = self._view.book
        held = book.indexes(s for place in places for s in place.slices)
        return sum(milli_of(book.slices[k].share_ppm) for k in held)


def snapshot_of(view: View, now_ns: int) -> QueueSnapshot:
    """The queues of this view, for one look."""
    made = QueueSnapshot(RankClasses(FreeSlices(view)), SliceMemo(view.fleet), now_ns)
    made.follow(view, now_ns)
    return made


class SessionCache:
    """All that is kept, for the view of one fleet."""

    def __init__(self, view: View, *, keeps_back: bool = True) -> None:
        """Without ``keeps_back`` spares are ordinary nodes, and no job may use what is on probation."""
        self.free_slices = FreeSlices(view, keeps_back=keeps_back)
        self.log = self.free_slices.log  # of all that a decision tries
        self.classes = RankClasses(self.free_slices)
        self.slices = SliceMemo(view.fleet)
        self._snapshot: QueueSnapshot | None = None

    def follow(self, view: View) -> bool:
        """Apply what changed since the last call; False where all has to be made again."""
        return self.free_slices.follow(view)

    def snapshot_at(self, view: View, now_ns: int) -> QueueSnapshot:
        """The state of all queues; made when queues first count."""
        if self._snapshot is None:
            self._snapshot = QueueSnapshot(self.classes, self.slices, now_ns)
        self._snapshot.follow(view, now_ns)
        return self._snapshot

    def gangs(self, view: View) -> GangRound:
        """A round of gangs on this view, with all free that is."""
        return GangRound(self.classes, self.slices, view)
