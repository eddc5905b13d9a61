"""The view: the state that the log describes, as one value. Built only by ``unidle.view.fold``.

What a snapshot keeps are the public fields; indexes (names with a leading underscore) are rebuilt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from unidle.fleet import Barred, CutMode, Device, Fleet, Health, Node, models_of, slices_of
from unidle.jobs.speeds import Speeds
from unidle.ledger.book import Book
from unidle.view.changes import Changes
from unidle.view.fillers import Fillers
from unidle.view.host_clocks import ClockView
from unidle.view.job_table import JobTable
from unidle.view.jobs import JobView
from unidle.view.node_health import Care
from unidle.view.occupancy import Occupancy
from unidle.view.records import (
    FaultView,
    Promise,
    Stay,
    TakenView,
    WatchView,
    users_of,
)
from unidle.view.removed import RemovedJobs
from unidle.view.usage import Usage
from unidle.view.waiting import Shape, Waiting


@dataclass(slots=True)
class View:
    """The fold's state after event ``seq``."""

    seq: int = 0
    time_ns: int = 0
    first_ns: int = 0
    fleet: Fleet = field(default_factory=Fleet)
    health: dict[str, Health] = field(default_factory=dict)  # node or device id -> not healthy
    closed: dict[str, Health] = field(default_factory=dict)  # node or device id that takes no new job -> why
    care: Care = field(default_factory=Care)  # of what is sick
    jobs: JobTable = field(default_factory=JobTable)
    book: Book = field(default_factory=Book)
    promised: dict[str, Promise] = field(default_factory=dict)  # waiting job -> what is kept for it
    ended: list[str] = field(default_factory=list)  # jobs that ended last, in this order
    stored: dict[str, int] = field(
        default_factory=dict
    )  # ended jobs that were not removed, in the order of their ends, each with when that was
    removed: RemovedJobs = field(default_factory=RemovedJobs)
    keep: set[str] = field(default_factory=set)  # jobs that retention leaves alone
    unposted: list[str] = field(default_factory=list)  # jobs that have ended, their time not in the book yet
    unposted_size: int = 0  # about how many postings that time is
    running: bool = False  # a controller has the store up, as far as the log knows
    modelled: bool = False  # the log is a simulation's
    policy: str = ""  # who places jobs, by its name in ``unidle.place.policy``; empty: the usual one
    boot: str = ""  # the boot of the last controller's machine, and its clock there
    clock_offset_ns: int = 0
    live: set[str] = field(default_factory=set)  # jobs with an attempt that holds slices
    usage: Usage = field(default_factory=Usage)  # of queues, with what is left of their past
    speeds: Speeds = field(default_factory=dict)  # of jobs that have ended
    stays: dict[str, list[Stay]] = field(default_factory=dict)  # by device, while it is in parts
    # by mode, load and other load: the sum of slow-downs that were seen, in ppm, and how many
    pairs: dict[tuple[CutMode, str, str], tuple[int, int]] = field(default_factory=dict)
    faults: list[FaultView] = field(default_factory=list)  # of nodes and devices, the latest
    watching: dict[str, dict[str, WatchView]] = field(default_factory=dict)  # by node and detector
    profiler: str | None = None  # why running jobs are not looked at though they should be; empty: they are
    spares: set[str] = field(default_factory=set)  # nodes that are kept as hot spares
    taken: dict[str, TakenView] = field(default_factory=dict)  # by node, what others use of it
    clocks: dict[str, ClockView] = field(
        default_factory=dict
    )  # by node with a clock of its own, also of those that left
    failures: int = 0  # attempts that failed, but for commands that do not exist
    misfits: int = 0  # events that do not fit what is left of a damaged log
    device_ns: int = 0  # time of devices under attempts that have ended
    _shut: frozenset[str] | None = (
        None  # nodes that one decision is kept off, see ``control.nodes.maintenance``
    )
    _nodes: dict[str, int] | None = None
    _taken: dict[str, tuple[str, str]] | None = None
    _occupancy: Occupancy | None = None
    _models: tuple[str, ...] | None = None
    _cuttable: dict[str, int] | None = None
    _in_parts: dict[str, tuple[int, int]] | None = None
    _hosts: dict[str, list[int]] | None = None
    _firm: dict[str, int] | None = None
    _queue: Waiting | None = None
    _fillers: Fillers | None = None
    _changed: Changes[str] | None = None  # jobs of which a placement policy sees something new
    _requested: Changes[str] | None = None  # nodes on which ``hosts`` changed
    _edited: Changes[str] | None = None  # nodes that changed without a change of their devices

    @property
    def occupancy(self) -> Occupancy:
        """Which slices are free now."""
        if self._occupancy is None:
            taken = {s for job in self.live if not (j := self.jobs[job]).spec.is_filler for s in _held(j)}
            self._occupancy = Occupancy.of(self.fleet, taken, self.unfit())
        return self._occupancy

    @property
    def models(self) -> tuple[str, ...]:
        """The models of devices that the fleet has, in order."""
        if self._models is None:
            self._models = models_of(self.fleet)
        return self._models

    @property
    def hosts(self) -> dict[str, list[int]]:
        """What live ranks requested of each node, and others use: thousandths of cores, and bytes of memory."""
        if self._hosts is None:
            self._hosts = {}
            for job in self.live:
                self.request(self.jobs[job], +1)
            for node, taken in self.taken.items():
                self._use_host(node, taken.cpu_milli, taken.memory_bytes)
        return self._hosts

    def _use_host(self, node: str, cpu_milli: int, memory_bytes: int) -> None:
        """So much more of a node is in use."""
        if self._hosts is not None and (cpu_milli or memory_bytes):
            used = self._hosts.setdefault(node, [0, 0])
            used[0] += cpu_milli
            used[1] += memory_bytes
            if self._requested is not None:
                self._requested.add(node)

    def request(self, job: JobView, sign: int) -> None:
        """The ranks of the job's live attempt come to (+1) or leave (-1) their nodes."""
        asked, attempt = job.spec.requests, job.live
        if (
            self._hosts is None
            or attempt is None
            or not (asked.cpus or asked.memory_bytes)
            or job.spec.is_filler
        ):
            return
        for place in attempt.places:
            self._use_host(place.node, sign * asked.cpu_milli, sign * asked.memory_bytes)

    def set_taken(self, node: str, taken: TakenView | None) -> None:
        """Others use this of a node from now on; None: nothing."""
        before = self.taken.pop(node, None)
        if before is not None:
            self._use_host(node, -before.cpu_milli, -before.memory_bytes)
        if taken is not None:
            self.taken[node] = taken
            self._use_host(node, taken.cpu_milli, taken.memory_bytes)
        if self._taken is not None:
            for device in before.devices if before is not None else ():
                self._taken.pop(device, None)
            self._taken.update(users_of(taken))

    @property
    def taken_devices(self) -> Mapping[str, tuple[str, str]]:
        """Devices that others use, each with its leaf of the ledger, and the name of its user where that is known."""
        if self._taken is None:
            self._taken = {}
            for taken in self.taken.values():
                self._taken.update(users_of(taken))
        return self._taken

    @property
    def firm(self) -> dict[str, int]:
        """By node, how many ranks of live jobs are there that may not be stopped at any moment."""
        if self._firm is None:
            self._firm = {}
            for job in self.live:
                self.count_firm(self.jobs[job], +1)
        return self._firm

    def count_firm(self, job: JobView, sign: int) -> None:
        """The ranks of the job's live attempt come to (+1) or leave (-1) their nodes."""
        attempt = job.live
        if self._firm is None or attempt is None or job.spec.gives_way or job.spec.is_filler:
            return
        for place in attempt.places:
            self._firm[place.node] = self._firm.get(place.node, 0) + sign
            if not self._firm[place.node]:
                del self._firm[place.node]

    @property
    def requested(self) -> Changes[str]:
        """Nodes on which requests changed, from the first call on."""
        _ = self.hosts
        if self._requested is None:
            self._requested = Changes()
        return self._requested

    @property
    def edited(self) -> Changes[str]:
        """Nodes of which something else than devices changed, such as a label, from the first call on."""
        if self._edited is None:
            self._edited = Changes()
        return self._edited

    @property
    def changed(self) -> Changes[str]:
        """Jobs that came, went, started, ended, are to stop or got a prediction, from the first call on."""
        if self._changed is None:
            self._changed = Changes()
        return self._changed

    @property
    def followed(self) -> bool:
        """Whether :attr:`changed` is in use."""
        return self._changed is not None

    def touch(self, job: str) -> None:
        """A placement policy sees something new of the job."""
        if self._changed is not None:
            self._changed.add(job)

    @property
    def barred(self) -> Mapping[str, Barred]:
        """Nodes and devices that no job may be placed on."""
        if self.closed or self.taken:
            return {**dict.fromkeys(self.taken_devices, "taken"), **self.closed, **self.health}
        return self.health

    def shut_nodes(self) -> set[str]:
        """Nodes and devices that no rank may be placed on now, also none that takes no device."""
        return {*self.barred, *(self._shut or ())}

    def unfit(self) -> set[str]:
        """Slices on nodes and devices that are not healthy, or take no new job."""
        barred = self.barred
        return self.slices_of(barred) if barred else set()

    def slices_of(self, targets: Collection[str]) -> set[str]:
        """Slices on these nodes and devices."""
        nodes = {self.node_at(target) for target in targets}
        return {
            piece.id
            for node in (
                self.fleet.nodes
                if None in nodes
                else (self.fleet.nodes[at] for at in nodes if at is not None)
            )
            for device in node.devices
            if node.id in targets or device.id in targets
            for piece in slices_of(device)
        }

    @property
    def nodes(self) -> dict[str, int]:
        """The place of each node, by its id, among those of the fleet."""
        if self._nodes is None:
            self._nodes = {node.id: order for order, node in enumerate(self.fleet.nodes)}
        return self._nodes

    def node(self, name: str) -> Node | None:
        """A node of the fleet by its id."""
        order = self.nodes.get(name)
        return None if order is None else self.fleet.nodes[order]

    def node_at(self, target: str) -> int | None:
        """The place of a node, or of a device's node by the device's name; None if the fleet has no such node."""
        nodes = self.nodes
        order = nodes.get(target)
        return nodes.get(target.rpartition("/")[0]) if order is None else order

    @property
    def queue(self) -> Waiting:
        """Jobs that wait."""
        if self._queue is None:
            self._queue = Waiting(self.jobs)
        return self._queue

    @property
    def fillers(self) -> Fillers:
        """Filler jobs, which are not in :attr:`queue`."""
        if self._fillers is None:
            self._fillers = Fillers(self.jobs)
        return self._fillers

    def fillers_moved(self) -> None:
        """Their attempts may have other slices now."""
        self._fillers = None

    @contextmanager
    def beside_fillers(self) -> Iterator[None]:
        """While the block runs, what fillers use is not free, nor are the cores and memory that they requested."""
        occupancy = self.occupancy
        taken = [s for s in self.fillers.on if occupancy.knows(s) and occupancy.is_free(s)]
        asked = [
            (place.node, job.spec.requests)
            for job in map(self.jobs.open.__getitem__, dict.fromkeys(self.fillers.on.values()))
            if job.spec.requests.given and job.live is not None
            for place in job.live.places
        ]
        _ = self.hosts
        occupancy.take(taken)
        for node, requests in asked:
            self._use_host(node, requests.cpu_milli, requests.memory_bytes)
        try:
            yield
        finally:
            for node, requests in asked:
                self._use_host(node, -requests.cpu_milli, -requests.memory_bytes)
            occupancy.give_back(taken)

    @property
    def waiting(self) -> dict[Shape, list[tuple[int, int, str]]]:
        """Waiting jobs by shape, each list in queue order: (-priority, order of submission, job)."""
        return self.queue.lines

    @property
    def unjudged(self) -> set[str]:
        """Waiting jobs for which no reason to wait was recorded yet."""
        return self.queue.unjudged

    def enqueue(self, job: JobView) -> None:
        """The job, which now is in a waiting state, enters the queue."""
        if self._queue is not None:
            self._queue.add(job)

    def resize(self, job: JobView, ranks: int) -> None:
        """The job, which is elastic, has so many ranks from its next attempt on."""
        waits = job.state in ("queued", "restarting")
        if waits:
            self.queue.remove(job)
        job.spec = job.spec.at_size(ranks)
        if waits:
            self.enqueue(job)
        self.touch(job.id)

    @contextmanager
    def keeping_off(self, nodes: Iterable[str]) -> Iterator[None]:
        """While the block runs, nothing on these nodes is free."""
        shut, occupancy = frozenset(nodes), self.occupancy
        free = [
            s for kind in occupancy.nodes.values() for slots in kind if slots.node in shut
            for k, s in enumerate(slots.slices) if slots.free >> k & 1
        ]  # fmt: skip
        occupancy.take(free)
        self._shut = shut
        try:
            yield
        finally:
            occupancy.give_back(free)
            self._shut = None

    def fleet_changed(self) -> None:
        """The fleet has other nodes or devices now."""
        self._occupancy = self._cuttable = self._in_parts = self._models = self._nodes = None

    def cuttable(self, device_id: str) -> Device | None:
        """A device that may be cut on demand, or is cut, by its id; None for others."""
        order = self.cuttable_nodes().get(device_id)
        if order is None:
            return None
        return next(d for d in self.fleet.nodes[order].devices if d.id == device_id)

    def cuttable_nodes(self) -> dict[str, int]:
        """Devices that may be cut on demand, or are cut, each with the place of its node in the fleet."""
        if self._cuttable is None:
            self._cuttable = {
                device.id: order
                for order, node in enumerate(self.fleet.nodes)
                for device in node.devices
                if device.sharing is not None or device.cut is not None
            }
        return self._cuttable

    def in_parts(self) -> dict[str, tuple[int, int]]:
        """Devices that are cut on demand now, by id, with the place of their node and theirs on it."""
        if self._in_parts is None:
            self._in_parts = {
                device.id: (order, device.index)
                for order in dict.fromkeys(self.cuttable_nodes().values())
                for device in self.fleet.nodes[order].devices
                if device.cut is not None
            }
        return self._in_parts

    def cut_changed(self, device: Device) -> None:
        """This device, which may be cut on demand, has other slices now."""
        order = self.cuttable_nodes()[device.id]
        nodes, node = self.fleet.nodes, self.fleet.nodes[order]
        before = next(d for d in node.devices if d.id == device.id)
        node = replace(node, devices=tuple(device if d is before else d for d in node.devices))
        if self._in_parts is not None:
            self._in_parts.pop(device.id, None)
            if device.cut is not None:
                self._in_parts[device.id] = (order, device.index)
        self.fleet = replace(self.fleet, nodes=(*nodes[:order], node, *nodes[order + 1 :]))
        if self._occupancy is not None:
            down = node.id in self.barred or device.id in self.barred
            self._occupancy.recut(before, device, down=down)


def _held(job: JobView) -> list[str]:
    attempt = job.live
    return [s for place in attempt.places for s in place.slices] if attempt else []
