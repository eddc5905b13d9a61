"""Parts of devices that are cut on demand: who gets which part of which device, decided within a round.

The chooser (``share.choose``) prices every way to give one rank a part; here it is asked for each rank of a
gang in turn, over the devices that the job may use: those that others have a part of already, with who they
are, and those that stand empty. All ranks or none. A gang without a hard wish goes into the lowest tier that holds it, as
gangs of whole devices do. What a round decides becomes one cut for each device that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, get_args

from unidle.fleet import WHOLE_PPM, Device, Node, Vendor, device_of, slices_of
from unidle.jobs import JobSpec, RankPlace, Reason, Requests, Share
from unidle.jobs.spec import ShareMode
from unidle.place.ground import Ground
from unidle.place.plan import Recut
from unidle.place.queue.round import PARTS_WAIT
from unidle.place.queued import KINDS, noun
from unidle.place.sharing_stock import Stock
from unidle.place.tree import NODE
from unidle.share.choose import Choice, Gpu, Resident, SharePolicy, Wish, choose
from unidle.share.loads import Interference, Seen, known_loads
from unidle.share.mig_models import Instance
from unidle.share.modes import Oversubscription, needs_of, profile_for
from unidle.share.parts import Promise, mig_model, share_of, used_parts, with_part
from unidle.share.refusal import CUT_REFUSED, Refused, refused
from unidle.share.select import may_use, may_use_any
from unidle.view.state import JobView, View
from unidle.words import counted

MayOpen = Callable[[Device, int], bool]
"""``may_open(device, n)``: whether this empty device may be taken for parts, as the ``n``-th of its node."""


@dataclass(frozen=True, slots=True)
class Given:
    """Parts for a gang, not yet taken. ``devices`` are as they will be; ``opened`` counts by node those that were empty."""

    job: str
    places: tuple[RankPlace, ...]
    devices: dict[str, Device]
    opened: dict[str, int]
    because: Reason


@dataclass(slots=True)
class Memo:
    """What a device offers, kept as long as the device is the same, and what never fits."""

    stock: Stock
    gpus: dict[str, tuple[Device, Gpu]] = field(default_factory=dict)
    never: dict[str, Refused | None] = field(default_factory=dict)


class SharingRound:
    """Parts given out in one round, on top of a view that is only read."""

    def __init__(self, ground: Ground, view: View, table: Interference | None = None) -> None:
        self.ground, self.view = ground, view
        self.table = table or _table(view)
        self._memo = ground.sharing if isinstance(ground.sharing, Memo) else Memo(Stock.of(view.fleet))
        ground.sharing = self._memo
        self.most_ppm = WHOLE_PPM  # of the search under way
        self._changed: dict[str, Device] = {}
        self._why: dict[str, Reason] = {}

    def find(
        self, job: str, spec: JobSpec, may_open: MayOpen | None = None, *, every: bool = False,
        most_ppm: int = WHOLE_PPM,
    ) -> Given | Refused:  # fmt: skip
        """A part for each rank of the gang, or why there is none; nothing is taken yet.

        ``every``: look at every device, also where others are alike, so that a reason counts them all.
        Parts that would count more than ``most_ppm`` of a device are not given.
        """
        assert spec.share is not None
        self.most_ppm = most_ppm
        if spec.topology is not None and (spec.topology.groups or spec.topology.fabric):
            return refused("no_share", "parallel groups and fabrics are chosen for whole devices only")
        answers = [
            self._of_kind(job, one, spec.share, kind, may_open, every)
            for kind in KINDS[spec.device]
            for one in self._by_vendor(spec, kind)
        ]
        found = next((a for a in answers if isinstance(a, Given)), None)
        if found is not None:
            return found
        why = max((a for a in answers if isinstance(a, Refused)), key=_devices_looked_at)
        return _with_refusals(why, self.view.jobs.open.get(job))

    def _by_vendor(self, spec: JobSpec, kind: str) -> list[JobSpec]:
        """The job for GPUs of one vendor at a time: a gang never mixes those."""
        vendors = {vendor for vendor, _ in self.ground.pools.count}
        if kind != "gpu" or spec.hardware.vendor != "any" or len(vendors) < 2:
            return [spec]
        every: tuple[Vendor, ...] = get_args(Vendor)
        return [replace(spec, hardware=replace(spec.hardware, vendor=v)) for v in every if v in vendors]

    def take(self, given: Given) -> tuple[RankPlace, ...]:
        """Give the gang its parts."""
        places = {p.node: 0 for p in given.places}
        for place in given.places:
            places[place.node] += 1
        for device_id, device in given.devices.items():
            before = self.now(device_id)
            assert before is not None
            if before.cut is None:
                kind, order, bit = self.view.occupancy.where(slices_of(before)[0].id)
                self.ground.take(kind, self.ground.positions[kind][order], 1 << bit, _NO_REQUESTS, 0)
            self._changed[device_id] = device
            self._why[device_id] = given.because
        requests = self.view.jobs[given.job].spec.requests if given.job in self.view.jobs else None
        for node, ranks in places.items():
            if requests is not None:
                kind = next(d.kind for d in given.devices.values())
                self.ground.take(kind, self.ground.place[node], 0, requests, ranks)
        return given.places

    def recuts(self) -> tuple[Recut, ...]:
        """The cuts that the parts of this round need, one for each device."""
        return tuple(
            Recut(name, device.cut, self._why[name])
            for name, device in self._changed.items()
            if device.cut is not None
        )

    def never(self, spec: JobSpec) -> Refused | None:
        """Why not even the whole fleet, empty and healthy, has a part for each rank; None where it has."""
        key = repr(
            (
                spec.share,
                spec.ranks,
                spec.where,
                spec.requests,
                spec.topology,
                spec.device,
                spec.name,
                spec.hardware,
            )
        )
        if key not in self._memo.never:
            if len(self._memo.never) > 256:
                self._memo.never.clear()
            empty = _Empty(self.ground, self.view, self.table)
            answer = empty.find("", spec)
            self._memo.never[key] = answer if isinstance(answer, Refused) else None
        return self._memo.never[key]

    def share_ppm(self, spec: JobSpec) -> list[int]:
        """What a part of this job may count, in ppm of a device, by the devices and modes that there are."""
        if spec.share is None:
            return []
        kinds = KINDS[spec.device]
        samples = [replace(g.sample, cut=None) for g in self._memo.stock.groups if g.sample.kind in kinds]
        return [share_of(device, p) for device in samples for p in _promises(device, spec.share)]

    # -- devices ---------------------------------------------------------------------------------

    def now(self, device_id: str) -> Device | None:
        return self._changed.get(device_id) or self.view.cuttable(device_id)

    def _is_free(self, device: Device) -> bool:
        """Whether the whole of a device that is not cut may be given away now."""
        return self.ground.is_free(slices_of(device)[0].id)

    def gpu(self, device: Device) -> Gpu:
        """The device as the chooser sees it."""
        known = self._memo.gpus.get(device.id)
        if known is not None and known[0] is device:
            return known[1]
        made = self._made(device)
        self._memo.gpus[device.id] = (device, made)
        return made

    def _made(self, device: Device) -> Gpu:
        sharing = device.sharing
        assert sharing is not None
        residents = tuple(self._resident(device, k) for k in range(len(used_parts(device))))
        mode = device.cut.mode if device.cut is not None and residents else None
        return Gpu(
            device, mode, residents, frozenset(sharing.modes), mig_model(device), (),
            dict(sharing.why_not),
        )  # fmt: skip

    def _resident(self, device: Device, number: int) -> Resident:
        part = used_parts(device)[number]
        job = self.view.jobs.open.get(part.job)
        name = job.spec.name if job is not None else ""
        instance = Instance(part.profile, part.start) if part.profile else None
        load = self.table.load_of_part(name, part.compute_ppm)
        return Resident(part.job, load, part.compute_ppm, part.memory_bytes, instance)

    # -- search ----------------------------------------------------------------------------------

    def _of_kind(
        self, job: str, spec: JobSpec, share: Share, kind: str, may_open: MayOpen | None, every: bool
    ) -> Given | Refused:
        hard = spec.topology.require if spec.topology is not None else None
        if not every and hard is None:  # of devices that are alike as many as there are ranks, or some more
            found = self._among(
                job, spec, share, self._candidates(job, spec, kind, spec.ranks + _SPARE), may_open
            )
            if spec.ranks == 1 or isinstance(found, Given):
                return found or self._none(kind)
        return self._among(job, spec, share, self._candidates(job, spec, kind, None), may_open) or self._none(
            kind
        )

    def _among(
        self, job: str, spec: JobSpec, share: Share, devices: Sequence[Gpu], may_open: MayOpen | None
    ) -> Given | Refused | None:
        """Parts of these devices; None where there are none."""
        if not devices:
            return None
        search = _Gang(self, job, spec, share, may_open or _ALWAYS)
        answer = search.over(devices)
        if isinstance(answer, Refused) and spec.ranks > 1 and share.mode == "any" and not share.profile:
            for mode in _GANG_MODES:  # instances are coarse: where they do not suffice, bounds may
                search = _Gang(self, job, spec, replace(share, mode=mode), may_open or _ALWAYS)
                other = search.over(devices)
                if isinstance(other, Given):
                    answer = other
                    break
        hard = spec.topology.require if spec.topology is not None else None
        if isinstance(answer, Refused) or (spec.ranks == 1 and hard is None):
            return answer
        for name, domain in self._domains(devices, hard):
            closer = search.over(domain)
            if isinstance(closer, Given):
                text = f"{closer.because.text}; all {counted(spec.ranks, 'part')} in {name}"
                return replace(closer, because=replace(closer.because, text=text))
        if hard is not None:
            return refused("no_share", f"no single {hard} has {counted(spec.ranks, 'part')} for it")
        return answer

    def _candidates(self, job: str, spec: JobSpec, kind: str, most: int | None) -> list[Gpu]:
        """Devices that may have a part for one rank: those that others share, and of empty ones ``most`` of a group."""
        view, nodes = self.view, self.view.fleet.nodes
        tried = _refused_before(view.jobs.open.get(job))
        known: dict[str, bool] = {}

        def usable(node: Node) -> bool:
            if node.id not in known:
                known[node.id] = (
                    node.id not in view.health
                    and _may_use_node(node, spec)
                    and self.host_room(node, spec) >= 1
                )
            return known[node.id]

        def is_free(device: Device) -> bool:
            if device.cut is not None or device.id in self._changed or device.id in tried:
                return False
            if not _is_wanted(device, spec):
                return False
            barred = may_use(device, spec.where) if not may_use_any(spec.where) else None
            return device.id not in view.health and self._is_free(device) and (barred is None or most is None)

        found = []
        shared = dict(view.in_parts())
        for name in self._changed:
            device = view.cuttable(name)
            if device is not None and name not in shared:
                shared[name] = (view.cuttable_nodes()[name], device.index)
        for name, (order, _) in sorted(shared.items(), key=_by_place):
            now = self.now(name)
            if now is None or now.sharing is None or now.kind != kind or name in tried or name in view.health:
                continue
            if _is_wanted(now, spec) and usable(nodes[order]):
                found.append(self.gpu(now))
        empty = self._memo.stock.empty(kind, nodes, view.occupancy, usable, is_free, most)
        return found + [self.gpu(device) for device in empty]

    def host_room(self, node: Node, spec: JobSpec) -> int:
        """How many ranks the node's CPU and memory hold."""
        asked, most = spec.requests, spec.ranks
        if not (asked.cpus or asked.memory_bytes):
            return most
        cpu, memory = self.ground.hosts[:, self.ground.place[node.id]].tolist()
        if asked.cpu_milli:
            most = min(most, cpu // asked.cpu_milli)
        if asked.memory_bytes:
            most = min(most, memory // asked.memory_bytes)
        return most

    def _domains(self, every: Sequence[Gpu], hard: str | None) -> Iterator[tuple[str, list[Gpu]]]:
        """Single nodes, then tiers from the lowest; with a hard wish only those of its kind."""
        ground, tree = self.ground, self.ground.tree
        at = [ground.place[gpu.device.node] for gpu in every]
        if hard is None or hard == NODE:
            for position in sorted(set(at)):
                yield tree.nodes[position], [g for g, p in zip(every, at, strict=True) if p == position]
        if hard == NODE:
            return
        kind = None if hard is None else tree.kind_code(hard)
        heights = sorted(range(1, len(tree.tiers)), key=lambda v: (int(tree.height[v]), v))
        for vertex in heights:
            if hard is None or int(tree.kind[vertex]) == kind:
                lo, hi = int(tree.lo[vertex]), int(tree.hi[vertex])
                inside = [g for g, p in zip(every, at, strict=True) if lo <= p < hi]
                if inside:
                    yield tree.tiers[vertex], inside

    def _none(self, kind: str) -> Refused:
        may = self._memo.stock.of_kind(kind)
        if not may:
            return refused("no_gpu", f"no {noun(kind, 1)} may be cut on demand (share in the fleet file)")
        return refused(
            "no_share",
            f"none of {may} {noun(kind, may)} that may be cut is open to it: each is held whole, is not healthy, or its "
            f"node is not one that the job may use or has no CPU or memory left",
            devices=may,
        )


class _Empty(SharingRound):
    """The same fleet with nobody on it, and healthy."""

    def _is_free(self, device: Device) -> bool:  # noqa: ARG002
        return True

    def _candidates(self, job: str, spec: JobSpec, kind: str, most: int | None) -> list[Gpu]:  # noqa: ARG002
        def usable(node: Node) -> bool:
            return _may_use_node(node, spec) and self.host_room(node, spec) >= 1

        def may(device: Device) -> bool:
            return _is_wanted(device, spec) and (may_use(device, spec.where) is None or most is None)

        found = self._memo.stock.empty(kind, self.view.fleet.nodes, None, usable, may, most)
        return [self._made(replace(device, cut=None)) for device in found]

    def host_room(self, node: Node, spec: JobSpec) -> int:
        asked = spec.requests
        cpu = round(node.cpus * 1000) // asked.cpu_milli if asked.cpu_milli and node.cpus else spec.ranks
        memory = (
            node.memory_bytes // asked.memory_bytes
            if asked.memory_bytes and node.memory_bytes
            else spec.ranks
        )
        return min(cpu, memory, spec.ranks)


class _Gang:
    """One part after the other for the ranks of a gang."""

    def __init__(
        self, round_: SharingRound, job: str, spec: JobSpec, share: Share, may_open: MayOpen
    ) -> None:
        self._round, self._spec, self._share = round_, spec, share
        self._job = job or _SOMEONE
        self._may_open = may_open

    def over(self, devices: Sequence[Gpu]) -> Given | Refused:
        """A part of these devices for each rank."""
        open_ = {gpu.device.id: gpu for gpu in devices}
        ranks: dict[str, int] = {}
        opened: dict[str, int] = {}
        changed: dict[str, Device] = {}
        names: list[tuple[str, str]] = []
        because: Reason | None = None
        while len(names) < self._spec.ranks:
            usable = [
                g
                for g in open_.values()
                if g.residents or self._may_open(g.device, opened.get(g.device.node, 0) + 1)
            ]
            chosen = self._one(usable)
            if isinstance(chosen, Refused):
                return chosen
            choice, device = chosen
            node = device.node
            if self._host_full(node, ranks.get(node, 0) + 1):
                open_ = {name: gpu for name, gpu in open_.items() if gpu.device.node != node}
                continue
            base = self._round.now(device.id) or device
            instance = choice.plan.serve[0] if choice.plan is not None else None
            promise = Promise(self._job, choice.mode, choice.compute_ppm, choice.memory_bytes, instance)
            made = with_part(device, promise, base.generation + 1)
            # its shares are given away though more could be promised, or it would count for too much
            if made is None or made[1].share_ppm > self._round.most_ppm:
                del open_[device.id]
                continue
            if not used_parts(device):
                opened[node] = opened.get(node, 0) + 1
            changed[device.id], part = made
            open_[device.id] = self._round.gpu(made[0])
            ranks[node] = ranks.get(node, 0) + 1
            names.append((node, f"{device.id}#{part.name}"))
            because = because or choice.because
        assert because is not None
        if len(names) > 1:
            text = f"{counted(len(names), 'part')} of {counted(len(changed), 'device')}; the first: {because.text}"
            because = Reason(
                because.code, text, {**because.figures, "parts": len(names), "devices": len(changed)}
            )
        places = tuple(RankPlace(rank, node, (name,)) for rank, (node, name) in enumerate(names))
        return Given(self._job, places, changed, opened, because)

    def _host_full(self, node: str, ranks: int) -> bool:
        found = self._round.ground.nodes[self._round.ground.place[node]]
        return self._round.host_room(found, self._spec) < ranks

    def _one(self, devices: Sequence[Gpu]) -> tuple[Choice, Device] | Refused:
        """The cheapest part for one rank. Devices may be promised by different factors: of each the best is compared."""
        best: tuple[Choice, Device] | None = None
        answer: Refused | None = None
        asked = _asked_ppm(devices, self._share)
        wish = Wish(self._share, self._round.table.load_of_part(self._spec.name, asked), self._spec.where)
        for over, some in _by_factor(devices).items():
            found = choose(wish, some, self._round.table, SharePolicy(Oversubscription(*over)))
            if isinstance(found, Refused):
                answer = answer or found
            elif best is None or found.price_ppm < best[0].price_ppm:
                best = (found, next(g.device for g in some if g.device.id == found.device))
        return best or answer or Refused(PARTS_WAIT)


def _table(view: View) -> Interference:
    """The table that unidle ships, with what the log saw of pairs."""
    known = known_loads()
    if not view.pairs:
        return known
    seen = {pair: Seen(total // times, times) for pair, (total, times) in view.pairs.items()}
    return Interference(known.loads, {**known.seen, **seen})


def _by_factor(devices: Sequence[Gpu]) -> dict[tuple[int, int], list[Gpu]]:
    found: dict[tuple[int, int], list[Gpu]] = {}
    for gpu in devices:
        sharing = gpu.device.sharing
        assert sharing is not None
        found.setdefault((sharing.compute_ppm, sharing.memory_ppm), []).append(gpu)
    return found


def _by_place(item: tuple[str, tuple[int, int]]) -> tuple[int, int]:
    return item[1]


def _asked_ppm(devices: Sequence[Gpu], share: Share) -> int:
    """What the share means in compute on the first of the devices on which it means anything."""
    if share.compute_ppm:
        return share.compute_ppm
    means = (p.compute_ppm for gpu in devices for p in _promises(gpu.device, share))
    return next(means, WHOLE_PPM)


def _promises(device: Device, share: Share) -> Iterator[Promise]:
    """What the share would be on this device, by the ways in which it may be cut."""
    model = mig_model(device)
    if model is not None and share.mode in ("any", "mig"):
        name = profile_for(share, model)
        if not isinstance(name, Refused):
            profile = model.profile(name)
            yield Promise("", "mig", model.compute_ppm(profile), model.bytes_of(profile), Instance(name, 0))
    bounded = {"quota", "mps", "time"} if share.mode == "any" else {share.mode} - {"mig"}
    if not share.profile and device.sharing is not None and bounded & {*device.sharing.modes}:
        need = needs_of(share, device)
        if not isinstance(need, Refused):
            yield Promise("", "time", *need)


def _is_wanted(device: Device, spec: JobSpec) -> bool:
    """Whether a GPU is of the vendor that the job's program runs on."""
    return device.kind != "gpu" or spec.hardware.vendor in ("any", device.vendor)


def _may_use_node(node: Node, spec: JobSpec) -> bool:
    where = spec.where
    labels = all(node.labels.get(key) == value for key, value in where.labels.items())
    return labels and set(node.taints) <= set(where.tolerate)


def _refused_before(job: JobView | None) -> dict[str, Reason]:
    """Devices that an earlier attempt of the job was refused, and why: it is not tried there again."""
    return {
        device_of(slice_id): attempt.why
        for attempt in (job.attempts if job is not None else ())
        if attempt.why is not None and attempt.why.code == CUT_REFUSED
        for place in attempt.places
        for slice_id in place.slices
    }


def _with_refusals(why: Refused, job: JobView | None) -> Refused:
    tried = _refused_before(job)
    if not tried:
        return why
    last, because = list(tried.values())[-1], why.because
    text = f"{because.text}; {len(tried)} more would not make the part when it was to start: {last.text}"
    return Refused(Reason(because.code, text, {**because.figures, "refused_at_start": len(tried)}))


def _devices_looked_at(answer: Refused) -> float:
    figures = answer.because.figures
    return -1.0 if answer.because.code == "no_gpu" else float(figures.get("gpus", figures.get("devices", 0)))


def _always(_device: Device, _count: int) -> bool:
    return True


_ALWAYS: Final[MayOpen] = _always
_SPARE: Final = 2  # so that a reason can name another device
_GANG_MODES: Final[tuple[ShareMode, ...]] = ("mps", "time")
_SOMEONE: Final = "?"  # a part without a job would be the rest
_NO_REQUESTS: Final = Requests()
