"""Checks a log against what must hold, from its events alone: it knows nothing of how decisions are made.

Feed it every event in order (:meth:`Checker.see`) and tell it when all that can happen at a moment has
happened (:meth:`Checker.settled`). It keeps its own books of who holds what, and raises
:class:`Violation` with the name of the invariant that is broken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec

S = 1_000_000_000


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Held:
    """One attempt that holds slices."""

    number: int
    since_ns: int
    slices: tuple[str, ...]
    by_node: Counter[str]  # devices
    ranks_by_node: Counter[str]
    kind: str
    stop: ev.StopAsked | None = None


@dataclass
class Known:
    """One job as the log tells of it."""

    spec: JobSpec
    submitted_ns: int
    attempts: int = 0
    undone: int = 0  # attempts that failed or gave way: each makes what was done for it come to nothing
    live: Held | None = None
    not_before_ns: int = 0
    over: str | None = None
    cancelled: bool = False
    back: bool = False  # its last attempt failed, or was stopped as it hung or its node is sick
    placed_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Promise:
    kind: str
    devices: dict[str, int]
    expires_ns: int


class Checker:
    """The books. ``stops`` lists preemptions as (victim, its attempt, for whom, at)."""

    def __init__(self) -> None:
        self.jobs: dict[str, Known] = {}
        self.promised: dict[str, Promise] = {}
        self.down: set[str] = set()
        self.taken: dict[str, ev.NodeTaken] = {}
        self.stops: list[tuple[str, int, str, int]] = []
        self.seen = 0
        self._owner: dict[str, str] = {}
        self._ranks: dict[tuple[str, int], tuple[str, ...]] = {}  # by attempt and rank
        self._pairs: set[tuple[str, str, int]] = set()
        self._voided = 0
        self._now_ns = 0
        self._started: list[
            tuple[str, int, Promise | None]
        ] = []  # now, with capacity and what was kept for it

    # -- what is told --------------------------------------------------------------------------------

    def see(self, event: ev.Event, time_ns: int) -> None:
        """The next event of the log."""
        self._need(time_ns >= self._now_ns, "time runs forward", time_ns)
        self._now_ns = time_ns
        self.seen += 1
        if self._saw_fleet(event):
            return
        if isinstance(event, ev.RankLanded):
            self._landed(event)
        elif isinstance(event, ev.JobSubmitted):
            self.jobs.setdefault(event.job, Known(event.spec, time_ns))
        elif isinstance(event, ev.Resized):
            spec = self.jobs[event.job].spec
            self._need(event.ranks in spec.sizes, "a size that the job allows", f"{event.job}: {event.ranks}")
            self.jobs[event.job].spec = spec.at_size(event.ranks)
        elif isinstance(event, ev.CancelAsked):
            self.jobs[event.job].cancelled = True
        elif isinstance(event, ev.AttemptPlaced):
            self._placed(event)
        elif isinstance(event, ev.StopAsked):
            self._stop_asked(event)
        elif isinstance(event, ev.Promised):
            self._promised(event)
        elif isinstance(event, ev.AttemptEnded | ev.RetryPlanned | ev.JobEnded):
            self._after(event)

    def _saw_fleet(self, event: ev.Event) -> bool:
        """Whether the event is of the fleet."""
        if isinstance(event, ev.FleetSeen):
            self._fleet(event.fleet)
        elif isinstance(event, ev.FleetChanged):
            self._fleet_changed(event)
        elif isinstance(event, ev.NodeTaken):
            self._taken_by_others(event)
        elif isinstance(event, ev.DeviceCut):
            self._cut(event)
        elif isinstance(event, ev.HealthSet):
            self._health(event)
        else:
            return False
        return True

    def settled(self, time_ns: int) -> None:
        """Nothing more happens at this moment: what must hold of the whole."""
        self._now_ns = max(self._now_ns, time_ns)
        for name, capacity, kept in self._started:  # by now it is known who gives way
            self._quota(name, capacity)
            self._nothing_promised_is_taken(name, kept)
        self._started = []
        for name, job in self.jobs.items():
            self._need(not (job.over and job.live), "a job that is over holds nothing", name)
            if job.cancelled and not job.over:
                stopping = job.live is not None and job.live.stop is not None
                self._need(stopping, "a job that was cancelled is over or is being stopped", name)

    # -- the fleet -----------------------------------------------------------------------------------

    def _fleet(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.nodes: dict[str, Node] = {node.id: node for node in fleet.nodes}
        self.device_of: dict[str, Device] = {}
        for device in fleet.devices():
            parts = len(device.slices_ppm)
            for k in range(parts):
                self.device_of[device.id if parts == 1 else f"{device.id}#{k}"] = device
        self._ppm = {
            name: device.slices_ppm[int(name.partition("#")[2] or 0)]
            for name, device in self.device_of.items()
        }
        self._cuts = Counter[str]()
        self.queues: dict[str, QueueSpec] = {queue.name: queue for queue in fleet.queues}
        parents: dict[str, str | None] = {tier.id: tier.parent for tier in fleet.tiers}
        self._kind_of = {tier.id: tier.kind for tier in fleet.tiers}
        self._above: dict[str, list[str]] = {}
        for node in fleet.nodes:
            way: list[str] = []
            here: str | None = node.parent or None
            while here is not None:
                way.append(here)
                here = parents[here]
            self._above[node.id] = way

    def _fleet_changed(self, event: ev.FleetChanged) -> None:
        """Nodes keep their order, and new ones come last."""
        nodes = {node.id: node for node in self.fleet.nodes}
        for node in event.put:
            nodes[node.id] = node
        for edit in event.edits:
            changed = {name: getattr(edit, name) for name in edit.__struct_fields__ if name != "labels"}
            changed = {name: value for name, value in changed.items() if value is not UNSET}
            labels = {**nodes[edit.id].labels, **edit.labels}
            changed["labels"] = {name: value for name, value in labels.items() if value is not None}
            nodes[edit.id] = replace(nodes[edit.id], **changed)
        for name in event.gone:
            del nodes[name]
            self.taken.pop(name, None)
        self._fleet(replace(self.fleet, nodes=tuple(nodes.values())))
        self._voided += 1

    def _taken_by_others(self, event: ev.NodeTaken) -> None:
        """What was promised on such a node is void, as on one that fails."""
        self.taken[event.node] = event
        self._voided += 1
        self.promised = {job: kept for job, kept in self.promised.items() if event.node not in kept.devices}

    def _landed(self, event: ev.RankLanded) -> None:
        """A rank gets as many slices as it had; who had one of them has one that the rank leaves."""
        who = f"{event.job} attempt {event.attempt}"
        had, got = self._ranks[who, event.rank], event.slices
        self._need(len(got) == len(set(got)) == len(had), "a rank lands on as many slices", who)
        lost, new = [s for s in had if s not in got], [s for s in got if s not in had]
        for old, piece in zip(lost, new, strict=True):
            other = next(
                (
                    key
                    for key, slices in self._ranks.items()
                    if piece in slices and self._owner.get(piece) == key[0]
                ),
                None,
            )
            del self._owner[old]
            if other is not None:
                self._ranks[other] = tuple(old if s == piece else s for s in self._ranks[other])
                self._owner[old] = other[0]
                self._holds_again(other[0])
            self._owner[piece] = who
        self._ranks[who, event.rank] = got
        self._holds_again(who)

    def _holds_again(self, who: str) -> None:
        """The attempt's slices and nodes, from those of its ranks."""
        job = self.jobs[who.split(" attempt ")[0]]
        if job.live is not None:
            ranks = [slices for key, slices in self._ranks.items() if key[0] == who]
            job.live.slices = tuple(piece for slices in ranks for piece in slices)
            job.live.by_node = Counter(self.device_of[piece].node for piece in job.live.slices)
            job.live.ranks_by_node = Counter(self.device_of[slices[0]].node for slices in ranks if slices)

    def _cut(self, event: ev.DeviceCut) -> None:
        """The parts are all of the device, those in use stay what they are, and others have names of their own."""
        device = next(d for d in self.device_of.values() if d.id == event.device)
        parts = event.cut.parts
        self._cuts[device.id] += 1
        whole = len(parts) == 1 and not parts[0].job
        names = {
            f"{device.id}#{self._cuts[device.id]}.0" if whole else f"{device.id}#{p.name}": p.share_ppm
            for p in parts
        }
        self._need(sum(names.values()) == 1_000_000, "parts are all of a device", device.id)
        for piece in [name for name, of in self.device_of.items() if of.id == device.id]:
            if piece in self._owner:
                same = names.get(piece) == self._ppm[piece]
                self._need(same, "a part in use is not cut", f"{piece} of {self._owner[piece]}")
            known = names.get(piece, self._ppm[piece])
            self._need(known == self._ppm[piece], "a name stands for one share", piece)
            if piece not in names:
                del self.device_of[piece]
        for name, share in names.items():
            self.device_of[name], self._ppm[name] = device, share

    def _health(self, event: ev.HealthSet) -> None:
        """What was promised on a node that fails is void: it is no gang's room any more."""
        if event.health == "healthy":
            self.down.discard(event.target)
            return
        self.down.add(event.target)
        self._voided += 1
        node = event.target.partition("/")[0]
        self.promised = {job: kept for job, kept in self.promised.items() if node not in kept.devices}

    def healthy(self, device: Device) -> bool:
        return device.id not in self.down and device.node not in self.down

    def capacity(self, kind: str) -> int:
        """Healthy devices of a kind, that others do not use."""
        taken = {name for event in self.taken.values() for name in event.devices}
        there = (device for device in self.fleet.devices() if device.id not in taken)
        return sum(device.kind == kind and self.healthy(device) for device in there)

    def path(self, queue: str) -> list[QueueSpec]:
        """The queue and those above it."""
        found: list[QueueSpec] = []
        here: str | None = queue
        while here is not None and here in self.queues:
            found.append(self.queues[here])
            here = self.queues[here].parent
        return found

    def used(self, queue: str, kind: str) -> int:
        """Devices that a queue and all below it hold, promised ones included, being stopped ones not."""
        below = {name for name in self.queues if queue in [above.name for above in self.path(name)]}
        return sum(
            job.spec.devices
            for name, job in self.jobs.items()
            if job.spec.queue in below and self._charged(name, job) == kind
        )

    def _charged(self, name: str, job: Known) -> str | None:
        """The kind of device that the job's queue is charged for now."""
        if job.live is not None:
            return None if _gives_way(job.live) else job.live.kind
        return self.promised[name].kind if name in self.promised else None

    # -- gangs ---------------------------------------------------------------------------------------

    def _placed(self, event: ev.AttemptPlaced) -> None:
        job, spec = self.jobs[event.job], self.jobs[event.job].spec
        who = f"{event.job} attempt {event.attempt}"
        self._need(job.live is None and job.over is None, "only a job that waits is placed", who)
        self._need(not job.cancelled, "a job that was cancelled is not placed", who)
        self._need(event.attempt == job.attempts + 1, "attempts count up by one", who)
        self._need(self._now_ns >= job.not_before_ns, "a restart waits for its time", who)
        ranks = [place.rank for place in event.places]
        self._need(ranks == list(range(spec.ranks)), "no half gang", f"{who}: {ranks}")
        slices = tuple(piece for place in event.places for piece in place.slices)
        for place in event.places:
            self._need(len(place.slices) == spec.devices_per_rank, "no half rank", f"{who} rank {place.rank}")
            self._goes_on(who, spec, place.node)
            for piece in place.slices:
                self._takes(who, spec, place.node, piece)
        self._need(len(set(slices)) == len(slices), "no slice is given twice", who)
        for piece in slices:
            owner = self._owner.get(piece)
            self._need(owner is None, "no device over its capacity", f"{piece} for {who} and {owner}")
            self._owner[piece] = who
        kinds = {self.device_of[piece].kind for piece in slices} or {""}  # one without devices is of none
        self._need(len(kinds) == 1, "a gang is of one kind of device", f"{who}: {kinds}")
        self._ranks |= {(who, place.rank): place.slices for place in event.places}
        nodes = Counter(place.node for place in event.places for _ in place.slices or ("",))
        ranks_by_node = Counter(place.node for place in event.places)
        held = Held(event.attempt, self._now_ns, slices, nodes, ranks_by_node, kinds.pop())
        job.live, job.attempts = held, event.attempt
        job.placed_ns.append(self._now_ns)
        self._spares_stay(who, job, nodes)
        self._wishes(who, spec, [place.node for place in event.places])
        if spec.requests.cpus or spec.requests.memory_bytes:  # others may have taken more than is left
            self._hosts(ranks_by_node)
        kept = self.promised.pop(event.job, None)
        self._started.append((event.job, self.capacity(held.kind), kept))

    def _takes(self, who: str, spec: JobSpec, node: str, piece: str) -> None:
        device = self.device_of.get(piece)
        self._need(device is not None, "only slices of the fleet are placed", f"{who}: {piece}")
        if device is None:
            return
        self._need(device.node == node, "a rank's devices are on its node", f"{who}: {piece} on {node}")
        self._need(self.healthy(device), "nothing is placed on what is down", f"{who}: {piece}")
        others = self.taken.get(node)
        used = others is not None and device.id in others.devices
        self._need(not used, "nothing is placed on what others use", f"{who}: {piece}")
        wanted = {"gpu": ("gpu",), "cpu": ("cpu",)}.get(spec.device, ("gpu", "cpu"))
        self._need(device.kind in wanted, "a gang gets the kind that it asked for", f"{who}: {piece}")
        if spec.where.uuids.include:
            fits = device.uuid in spec.where.uuids.include
            self._need(fits, "only devices that were named", f"{who}: {piece}")
        if device.uuid and device.uuid in spec.where.uuids.exclude:
            self._need(False, "no device that was excluded", f"{who}: {piece}")

    def _goes_on(self, who: str, spec: JobSpec, node: str) -> None:
        """Also what takes no device goes on a node that is up and may be used."""
        there = self.nodes[node]
        self._need(node not in self.down, "nothing is placed on what is down", f"{who}: {node}")
        self._need(set(there.taints) <= set(spec.where.tolerate), "taints keep jobs off", f"{who}: {node}")
        has = all(there.labels.get(key) == value for key, value in spec.where.labels.items())
        self._need(has, "a node has the labels that were asked for", f"{who}: {node}")

    def _wishes(self, who: str, spec: JobSpec, nodes: list[str]) -> None:
        """Hard wishes: the gang within a tier of the kind, each parallel group too."""
        if spec.topology is None:
            return
        if spec.topology.require is not None:
            self._together(who, "the gang", nodes, spec.topology.require)
        layout = spec.layout
        for group, kind in spec.topology.groups.items():
            if layout is None:
                continue
            members: dict[tuple[int, int], list[str]] = {}
            for rank, node in enumerate(nodes):
                tensor, data = rank % layout.tp, rank // layout.tp % layout.dp
                pipe = rank // (layout.tp * layout.dp)
                index = {"tp": (data, pipe), "dp": (tensor, pipe), "pp": (tensor, data)}[group]
                members.setdefault(index, []).append(node)
            for index, some in members.items():
                self._together(who, f"{group} group {index}", some, kind)

    def _together(self, who: str, what: str, nodes: list[str], kind: str) -> None:
        if len(set(nodes)) == 1:
            return
        common = set.intersection(*(set(self._above[node]) for node in nodes))
        fits = kind != "node" and any(self._kind_of[tier] == kind for tier in common)
        self._need(fits, "hard wishes hold", f"{who}: {what} on {nodes} in one {kind}")

    def _hosts(self, touched: Counter[str]) -> None:
        """CPU and memory that ranks requested of a node are not more than it has."""
        for name in touched:
            others = self.taken.get(name)
            cpus, memory = (0.0, 0.0) if others is None else (others.cpus, float(others.memory_bytes))
            for job in self.jobs.values():
                if job.live is not None:
                    ranks = job.live.ranks_by_node[name]
                    cpus += ranks * job.spec.requests.cpus
                    memory += ranks * job.spec.requests.memory_bytes
            node = self.nodes[name]
            self._need(not node.cpus or cpus <= node.cpus + 1e-9, "no node over its CPU", name)
            self._need(not node.memory_bytes or memory <= node.memory_bytes, "no node over its memory", name)

    # -- spares --------------------------------------------------------------------------------------

    def _spares_stay(self, who: str, job: Known, nodes: Counter[str]) -> None:
        """A job that may not be stopped at once, and lost nothing to a fault, leaves as many spares as there were."""
        guard = self.fleet.guard
        if not self._leaves_spares(job):
            return
        named = set(guard.spare_nodes).intersection(nodes)
        self._need(not named, "spares are for who comes back, and filler", f"{who}: {sorted(named)}")
        for alike in self._alike() if guard.spares else ():
            after = sum(self._is_clean(node) for node in alike)
            before = after + sum(node in nodes and self._is_clean(node, besides=job) for node in alike)
            text = f"{who} leaves {after} of {before}"
            self._need(after >= min(guard.spares, before), "so many nodes are kept as spares", text)

    def _leaves_spares(self, job: Known) -> bool:
        entitled = job.spec.gives_way or (job.back and job.spec.preemption != "low")
        return self.fleet.guard.keeps_spares and not entitled

    def _alike(self) -> list[list[str]]:
        """Names of nodes with devices of the same kinds and models."""
        found: dict[frozenset[tuple[str, str, str]], list[str]] = {}
        for node in self.fleet.nodes:
            kinds = frozenset((d.kind, d.vendor, d.model) for d in node.devices)
            found.setdefault(kinds, []).append(node.id)
        return list(found.values())

    def _is_clean(self, node: str, besides: Known | None = None) -> bool:
        """Usable whole, with nobody there, nor to come, who may not be stopped at once."""
        if not all(self.healthy(device) for device in self.nodes[node].devices):
            return False
        if any(
            node in kept.devices and not self.jobs[to].spec.gives_way for to, kept in self.promised.items()
        ):
            return False
        return not any(
            job is not besides
            and job.live is not None
            and node in job.live.by_node
            and not job.spec.gives_way
            for job in self.jobs.values()
        )

    # -- quota ---------------------------------------------------------------------------------------

    def _quota(self, name: str, capacity: int) -> None:
        spec, held = self.jobs[name].spec, self.jobs[name].live
        if not self.queues or held is None or _gives_way(held):
            return
        kind = held.kind
        windows = any(queue.windows for queue in self.queues.values())
        path = self.path(spec.queue)
        self._need(bool(path), "only jobs of known queues start", name)
        for queue in path:
            limit = queue.limit.get(kind)
            if limit is not None and not windows:
                used = self.used(queue.name, kind)
                self._need(
                    used <= limit, "quota held", f"{queue.name} uses {used} {kind} of {limit} for {name}"
                )
        own = any(self.used(queue.name, kind) <= queue.guarantee.get(kind, 0) for queue in path)
        if windows or own:  # what is guaranteed to it, it may have in any case
            return
        roots = [queue.name for queue in self.queues.values() if queue.parent is None]
        used = sum(self.used(root, kind) for root in roots)
        unmet = sum(self._unmet(root, kind) for root in roots)
        text = f"{used} {kind} used and {unmet} guaranteed to others of {capacity}, with {name}"
        self._need(not unmet or used + unmet <= capacity, "guarantee held", text)

    def _unmet(self, queue: str, kind: str) -> float:
        """What is guaranteed to a queue, or to queues below it, and not used."""
        below = [child.name for child in self.queues.values() if child.parent == queue]
        inner = sum(self._unmet(child, kind) for child in below)
        return max(self.queues[queue].guarantee.get(kind, 0) - self.used(queue, kind), inner)

    # -- preemption ----------------------------------------------------------------------------------

    def _stop_asked(self, event: ev.StopAsked) -> None:
        job = self.jobs[event.job]
        who = f"{event.job} attempt {event.attempt}"
        held = job.live
        live = held is not None and held.number == event.attempt
        self._need(live, "only what runs is stopped", who)
        if held is None:
            return
        if held.stop is None or event.for_job is None:
            held.stop = event
        if event.for_job is None:
            return
        waiter = self.jobs.get(event.for_job)
        waits = waiter is not None and waiter.live is None and waiter.over is None and not waiter.cancelled
        self._need(waits, "jobs are stopped only for one that waits", f"{who} for {event.for_job}")
        if waiter is None:
            return
        self._need(job.spec.preemption == "low", "only low jobs are preempted", who)
        ran_ns = self._now_ns - held.since_ns
        least_ns = int(job.spec.min_runtime_s * S)
        self._need(ran_ns >= least_ns, "minimum runtime kept", f"{who} ran {ran_ns} ns")
        same = job.spec.queue == waiter.spec.queue
        rank = {"low": 0, "medium": 1, "high": 2}[waiter.spec.preemption]
        fills = waiter.back and rank and job.spec.gives_way and self.fleet.guard.keeps_spares
        allowed = not same or rank == 2 or fills
        self._need(allowed, "within a queue only high jobs preempt", f"{who} for {event.for_job}")
        pair = (event.job, event.for_job, waiter.undone + self._voided)
        self._need(pair not in self._pairs, "no job is stopped twice for the same preemptor", str(pair))
        self._pairs.add(pair)
        self.stops.append((event.job, event.attempt, event.for_job, self._now_ns))

    def _promised(self, event: ev.Promised) -> None:
        job = self.jobs[event.job]
        total = sum(event.devices.values())
        self._need(
            total == job.spec.devices, "all of a gang is kept for it, or nothing", f"{event.job}: {total}"
        )
        self._need(event.expires_ns > self._now_ns, "a promise ends in the future", event.job)
        if job.over is None and job.live is None:
            self.promised[event.job] = Promise(event.kind, dict(event.devices), event.expires_ns)

    def _nothing_promised_is_taken(self, who: str, kept: Promise | None) -> None:
        """Freed quota reaches the preemptor: nobody else gets devices that others were stopped for.

        Devices count, not which: one that is free now may be taken where another one is to be free.
        """
        held = self.jobs[who].live
        if held is None or _gives_way(held):
            return
        for node in held.by_node:
            promised = sum(
                promise.devices.get(node, 0)
                for promise in self.promised.values()
                if promise.kind == held.kind and promise.expires_ns > self._now_ns
            )
            if not promised or (kept is not None and kept.devices.get(node, 0) >= held.by_node[node]):
                continue
            coming = sum(
                device.kind == held.kind and self.healthy(device) and self._is_coming(piece)
                for piece, device in self.device_of.items()
                if device.node == node
            )
            text = f"{who} took of {node}, where {promised} are kept for others and {coming} are left"
            self._need(coming >= promised, "freed quota reaches the preemptor", text)

    def _is_coming(self, piece: str) -> bool:
        """The slice is free, or its holder gives way."""
        owner = self._owner.get(piece)
        if owner is None:
            return True
        held = self.jobs[owner.rpartition(" attempt ")[0]].live
        return held is not None and _gives_way(held)

    # -- ends ----------------------------------------------------------------------------------------

    def _after(self, event: ev.AttemptEnded | ev.RetryPlanned | ev.JobEnded) -> None:
        job = self.jobs[event.job]
        if isinstance(event, ev.AttemptEnded):
            held = job.live
            self._need(held is not None and held.number == event.attempt, "an attempt ends once", event.job)
            for piece in held.slices if held is not None else ():
                del self._owner[piece]
            job.live = None
            job.undone += event.outcome in ("failed", "preempted")
            why = held.stop.why if held is not None and held.stop is not None else None
            if why not in ("service_stopped", "moved"):
                failed = event.outcome == "failed" and why in (None, "rank_failed")
                job.back = failed or why in ("hung", "node_sick")
        elif isinstance(event, ev.RetryPlanned):
            job.not_before_ns = event.not_before_ns
        else:
            self._need(job.over is None, "a job ends once", event.job)
            job.over = event.state
            self.promised.pop(event.job, None)

    def _need(self, holds: bool, invariant: str, detail: object) -> None:
        if not holds:
            raise Violation(f"{invariant}: {detail} (event {self.seen}, at {self._now_ns / S:.3f} s)")


def _gives_way(held: Held) -> bool:
    return held.stop is not None and held.stop.why == "preempted"
