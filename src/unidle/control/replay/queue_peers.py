"""Queue orders that the order of ``unidle`` is compared with, as policies of ``replay trace``. Nodes: as first fit.

All place gangs on the first nodes that hold them (``baselines.first_fit``), so that they differ in the order alone.
What they know of run times is what ``--estimates`` gives to all policies, but for ``sjf-true``. Wishes about the
network, queues and rights to preempt are ignored, as by the other baselines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from unidle.control.replay.baselines import NodeOrder, PeerRound, first_nodes
from unidle.jobs import Reason
from unidle.place.gang.fit import Like
from unidle.place.model import Fits
from unidle.place.network.tree import Ints
from unidle.place.protocol import Place, Plan, Stop, Wait
from unidle.place.queue.backfill import FreeProfile, StartSlot
from unidle.place.slices.fit import SliceFit
from unidle.place.snapshot import SessionCache
from unidle.view.jobs import JobView
from unidle.view.state import View
from unidle.view.waiting import Shape

_HOUR_NS: Final = 3_600_000_000_000
UNKNOWN_NS: Final = 24 * _HOUR_NS
"""The run time of a job of which none is known, for reservations."""
PLANNED_MOST: Final = 100
"""For so many jobs, the first ones, ``conservative`` makes reservations in a round; the others wait (Slurm's bf_max_job_test)."""


class QueuePeer(NodeOrder, ABC):
    """Offers waiting jobs in an order of its own; ``key`` is asked once for each time that a job begins to wait."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "first", first_nodes)
        self._name = name
        self._keys: dict[str, tuple[int, tuple[int, ...]]] = {}

    @abstractmethod
    def key(self, job: JobView) -> tuple[int, ...]:
        """What sorts the job among those that wait."""

    def decide(self, view: View, now_ns: int) -> Plan:
        cache = self._on(view)
        try:
            round_ = _PeerQueue(cache, view, now_ns, self._name)
            self.offer(round_, [view.jobs.open[job] for job in self._in_order(view, now_ns)])
            return round_.plan()
        finally:
            cache.log.rollback()

    def offer(self, round_: _PeerQueue, jobs: list[JobView]) -> None:
        """Start what may start; by default whatever fits, in order."""
        for job in jobs:
            if not round_.left:
                return
            round_.start(job)

    def _in_order(self, view: View, now_ns: int) -> list[str]:
        found = []
        for line in view.waiting.values():
            for _, _, name in line:
                job = view.jobs.open[name]
                known = self._keys.get(name)
                if known is None or known[0] != len(job.attempts):
                    known = self._keys[name] = len(job.attempts), (*self.key(job), job.order)
                if job.not_before_ns <= now_ns:
                    found.append((known[1], name))
        found.sort()
        return [name for _, name in found]


class _PeerQueue(PeerRound):
    """One decision: starts, stops, and what is left."""

    def __init__(self, cache: SessionCache, view: View, now_ns: int, name: str) -> None:
        super().__init__(cache, view, first_nodes, (name, "first"))
        self.view, self.now_ns, self.name = view, now_ns, name
        self.left = view.occupancy.free.get("gpu", 0) + view.occupancy.free.get("cpu", 0)
        self.places: dict[str, Place] = {}
        self.stops: list[Stop] = []
        self.again_ns: int | None = None
        self._blocked: set[Shape] = set()
        self._position = cache.free_slices.place

    def start(self, job: JobView, within: Ints | None = None) -> bool:
        """Start the job if the nodes hold it; ``within``: the devices that it may take, by node."""
        if job.shape in self._blocked or job.spec.devices > self.left:
            return False
        self.within = within
        fit = self.find(job.spec, job)
        self.within = None
        if fit is not None:
            self.places[job.id] = Place(job.id, self.take(fit), fit.because())
        elif isinstance(given := self.part(job.id, job.spec), SliceFit):
            self.places[job.id] = Place(job.id, self.take_parts(given), given.because)
        else:
            if within is None and job.spec.share is None:  # else others of the shape may still fit
                self._blocked.add(job.shape)
            return False
        self.left -= job.spec.devices
        return True

    def free(self) -> Ints:
        """Free devices by node, (N,), topological."""
        found = np.zeros(len(self._free_slices.nodes), np.int64)
        for kind in self.view.occupancy.nodes:
            found += self._free_slices.left(kind)
        return found

    def held(self) -> Iterator[tuple[JobView, dict[int, int]]]:
        """Jobs that run, and their devices by node."""
        for name in sorted(self.view.live):
            job = self.view.jobs.open[name]
            attempt = job.live
            if attempt is None:
                continue
            devices: dict[int, int] = {}
            for place in attempt.places:
                at = self._position[place.node]
                devices[at] = devices.get(at, 0) + len(place.slices)
            yield job, devices

    def profile(self) -> FreeProfile:
        """Free devices over time, as running jobs, and those that start now, are expected to end."""
        ends = [(_end_ns(job, self.now_ns), devices) for job, devices in self.held()]
        for name, place in self.places.items():
            devices: dict[int, int] = {}
            for rank in place.places:
                at = self._position[rank.node]
                devices[at] = devices.get(at, 0) + len(rank.slices)
            ends.append((self.now_ns + length_ns(self.view.jobs.open[name]), devices))
        return FreeProfile(self.free(), self.now_ns, ends)

    def plan(self) -> Plan:
        unjudged = sorted(
            (self.view.jobs.open[name] for name in self.view.unjudged), key=lambda job: job.order
        )
        why: dict[Like, Reason] = {}
        waits = []
        for job in unjudged:
            if job.id in self.places or job.not_before_ns > self.now_ns:
                continue
            like = self.like(job)
            if like not in why:
                why[like] = self._why(job)
            waits.append(Wait(job.id, why[like]))
        return Plan(
            tuple(self.places.values()), tuple(waits), stops=tuple(self.stops), again_ns=self.again_ns, cuts=self.recuts(),
        )  # fmt: skip

    def _why(self, job: JobView) -> Reason:
        """Why a job waits: the nodes do not hold it, or others come before it."""
        held = self.find(job.spec, job) is not None or isinstance(self.part(job.id, job.spec), SliceFit)
        if not held:
            return self.refusal(job.spec, job.id).because
        text = f"nodes hold it now, and by the order {self.name} others come before it"
        return Reason("order", text, {"needs": job.spec.devices})


def length_ns(job: JobView) -> int:
    """How long an attempt of the job is planned to run."""
    return max(UNKNOWN_NS if job.run_time_ns is None else job.run_time_ns, 1)


def _end_ns(job: JobView, now_ns: int) -> int:
    """When a running job is expected to end; one that outlived its estimate: after half as long again, as often as it takes."""
    begun_ns = job.attempts[-1].placed_ns
    total = length_ns(job)
    while begun_ns + total <= now_ns:
        total += total // 2 + 1
    return begun_ns + total


class Fifo(QueuePeer):
    """No job passes: the first that does not fit keeps all others waiting."""

    def __init__(self, name: str = "fifo") -> None:
        super().__init__(name)

    def key(self, job: JobView) -> tuple[int, ...]:
        return (-job.spec.priority,)

    def offer(self, round_: _PeerQueue, jobs: list[JobView]) -> None:
        for job in jobs:
            if not round_.start(job):
                return


class Easy(Fifo):
    """As FIFO, and who delays not the first that waits may pass: Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995."""

    planned_most = 1

    def offer(self, round_: _PeerQueue, jobs: list[JobView]) -> None:
        at = 0
        while at < len(jobs) and round_.start(jobs[at]):
            at += 1
        if at == len(jobs) or not round_.left:
            return
        profile, planned = round_.profile(), 0
        for job in jobs[at:]:
            spec = job.spec
            if planned >= self.planned_most and (not round_.left or self.planned_most > 1):
                return
            if planned and self._starts(round_, profile, job):
                continue
            if planned < self.planned_most:
                fits = _first_fitting(spec.ranks)
                slot = profile.earliest(
                    spec.ranks, max(spec.devices_per_rank, 1), length_ns(job), fits, round_.now_ns
                )
                planned += 1
                if slot is not None and slot.start_ns > round_.now_ns:
                    profile.take(slot, max(spec.devices_per_rank, 1), length_ns(job))

    def _starts(self, round_: _PeerQueue, profile: FreeProfile, job: JobView) -> bool:
        """Start the job on what no reservation needs for as long as it runs."""
        spec = job.spec
        if spec.devices > round_.left:
            return False
        before = round_.free()
        if not round_.start(job, profile.room(round_.now_ns, length_ns(job), 1)):
            return False
        taken = before - round_.free()
        profile.take(StartSlot(round_.now_ns, taken), 1, length_ns(job))
        return True


class Conservative(Easy):
    """A reservation for every job: none is delayed by one that came later (Mu'alem and Feitelson, TPDS 2001)."""

    planned_most = PLANNED_MOST


def _first_fitting(ranks: int) -> Fits:
    def fits(room: Ints) -> Ints | None:
        if int(room.sum()) < ranks:
            return None
        before = np.cumsum(room) - room
        counts: Ints = np.clip(ranks - before, 0, room)
        return counts

    return fits


class ShortestTrue(QueuePeer):
    """Shortest job first with true run times, and who does not fit is passed over: the bound of all that do not stop jobs."""

    def __init__(self) -> None:
        super().__init__("sjf-true")
        self._work_ns: Mapping[
            str, int
        ] = {}  # empty where only a log is at hand: then what the log knows counts

    def know(self, work_ns: Mapping[str, int]) -> None:
        """The true run times."""
        self._work_ns = work_ns

    def key(self, job: JobView) -> tuple[int, ...]:
        return (self._work_ns.get(job.id, length_ns(job)),)


class Qssf(QueuePeer):
    """Quasi-shortest service first: by predicted GPU-time (Hu et al., "Characterization and prediction of deep learning
    workloads in large-scale GPU datacenters", SC 2021; the scheduler of Helios, without its gradient-boosted model).

    The run time is the mean of those of ended jobs of the same user and name, the late ones counting more; else of the
    user's with as many GPUs, else of all with as many, else of all. As in the paper the order is kept: no job passes one
    that does not fit.
    """

    _DECAY: Final = 0.8  # weight of what was known, at each new run time

    def __init__(self) -> None:
        super().__init__("qssf")
        self._means: dict[tuple[object, ...], float] = {}
        self._seen_live: set[str] | None = None

    def decide(self, view: View, now_ns: int) -> Plan:
        live = set(view.live)
        gone = set(view.jobs) if self._seen_live is None else self._seen_live - live
        ended = [view.jobs[name] for name in gone if name not in view.jobs.open]
        for job in sorted(ended, key=lambda job: (job.ended_ns or 0, job.order)):
            if job.state == "succeeded":
                self._learn(job)
        self._seen_live = live
        plan = super().decide(view, now_ns)
        self._seen_live.update(place.job for place in plan.places)
        return plan

    def _learn(self, job: JobView) -> None:
        ran = float(job.run_ns(job.ended_ns or 0))
        for kind in _kinds_of(job):
            known = self._means.get(kind)
            self._means[kind] = ran if known is None else self._DECAY * known + (1 - self._DECAY) * ran

    def key(self, job: JobView) -> tuple[int, ...]:
        ran = next((self._means[kind] for kind in _kinds_of(job) if kind in self._means), 0.0)
        return (int(ran) * job.spec.devices,)

    def offer(self, round_: _PeerQueue, jobs: list[JobView]) -> None:
        for job in jobs:
            if not round_.start(job):
                return


def _kinds_of(job: JobView) -> tuple[tuple[object, ...], ...]:
    spec = job.spec
    return (("name", spec.user, spec.name), ("user", spec.user, spec.devices), ("size", spec.devices), ())


class Las(QueuePeer):
    """Least attained service in two queues with preemption: Gu et al., "Tiresias", NSDI 2019 (discretised 2D-LAS).

    A job moves to the second queue once its GPU-time is over ``THRESHOLD``; in a queue the order is that of submission.
    Jobs of the second queue are stopped for jobs of the first that do not fit, the last ones first. Nothing is promoted.
    """

    THRESHOLD: Final = _HOUR_NS  # GPU-time, in ns

    def __init__(self) -> None:
        super().__init__("las")

    def key(self, job: JobView) -> tuple[int, ...]:
        return (self._queue_of(job, 0),)

    def _queue_of(self, job: JobView, now_ns: int) -> int:
        return int(job.run_ns(now_ns) * job.spec.devices >= self.THRESHOLD)

    def offer(self, round_: _PeerQueue, jobs: list[JobView]) -> None:
        live = list(round_.held())
        if any(job.attempts[-1].stop is not None for job, _ in live):
            return  # room is being made: who gets it is decided when it is there
        later = [(job, held) for job, held in live if self._queue_of(job, round_.now_ns)]
        later.sort(key=lambda one: -one[0].order)
        later = [one for one in later if one[0].spec.preemption == "low"]
        for job in jobs:
            if round_.start(job) or self.key(job)[0]:
                continue
            if victims := _victims(round_, job, later):
                because = Reason("las", f"{job.id} has had less service")
                round_.stops += [Stop(victim.id, because, job.id) for victim in victims]
                break  # the next one when they have left
        if len(round_.places) < len(jobs):
            times = [self._moves_ns(job, round_.now_ns) for job, _ in live]
            round_.again_ns = min((at_ns for at_ns in times if at_ns > round_.now_ns), default=None)

    def _moves_ns(self, job: JobView, now_ns: int) -> int:
        missing = self.THRESHOLD - job.run_ns(now_ns) * job.spec.devices
        return now_ns + -(-missing // max(job.spec.devices, 1)) if missing > 0 else 0


def _victims(round_: _PeerQueue, job: JobView, later: list[tuple[JobView, dict[int, int]]]) -> list[JobView]:
    """The fewest of these, from the first on, whose devices the job would fit on; those that are not needed stay."""
    each, ranks = max(job.spec.devices_per_rank, 1), job.spec.ranks
    free, chosen = round_.free(), list[tuple[JobView, dict[int, int]]]()
    for victim, held in later:
        if int((free // each).sum()) >= ranks:
            break
        chosen.append((victim, held))
        for node, count in held.items():
            free[node] += count
    if int((free // each).sum()) < ranks:
        return []
    for one in list(chosen[:-1]):
        without = free.copy()
        for node, count in one[1].items():
            without[node] -= count
        if int((without // each).sum()) >= ranks:
            free = without
            chosen.remove(one)
    return [victim for victim, _ in chosen]


PEERS: Final[dict[str, Callable[[], QueuePeer]]] = {
    "fifo": Fifo,
    "easy": lambda: Easy("easy"),
    "conservative": lambda: Conservative("conservative"),
    "las": Las,
    "qssf": Qssf,
    "sjf-true": ShortestTrue,
}
"""By the name of the policy."""
