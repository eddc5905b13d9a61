"""More that must hold of a log, where devices are in parts: charges in thousandths, what each part is large enough for.

As in ``loopcheck``, all is counted anew from the events and the files; of the code under test only the tree of
queues is used, which says what the files' amounts come to (``place.queue.tree``, which has tests of its own).
"""

from __future__ import annotations

from collections import Counter

from loopcheck import Checker, Held, Known, Promise, _gives_way
from unidle.events import types as ev
from unidle.fleet import WHOLE_PPM, CutPart, Fleet
from unidle.jobs import JobSpec
from unidle.place.admission import tree_of_queues
from unidle.place.queue.tree import QueueQuota
from unidle.share.mig_models import Instance, model_of

MILLI = 1_000
NEVER = "never start here"


class WideChecker(Checker):
    """The same books, in thousandths of devices by resource."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[str, tuple[str, CutPart]] = {}  # by slice: the cut's mode and the part
        self._begun: list[tuple[str, QueueQuota]] = []  # now, with what queues may use
        self._never: dict[str, str] = {}  # who was told that it never starts, with the words
        self._lines: dict[str, list[str]] = {}  # jobs that are alike, as they came
        self.tree = tree_of_queues(Fleet())

    # -- the fleet -----------------------------------------------------------------------------------

    def _fleet(self, fleet: Fleet) -> None:
        super()._fleet(fleet)
        self.tree = tree_of_queues(fleet)

    def see(self, event: ev.Event, time_ns: int) -> None:
        if self.tree.window_of(self._now_ns) != self.tree.window_of(time_ns):
            self._voided += 1  # other amounts hold: whom a job was stopped for may have to wait again
        super().see(event, time_ns)
        if isinstance(event, ev.JobJudged) and NEVER in event.because.text:
            self._never[event.job] = event.because.text
        if isinstance(event, ev.JobSubmitted):
            self._lines.setdefault(repr(event.spec), []).append(event.job)

    def _cut(self, event: ev.DeviceCut) -> None:
        super()._cut(event)
        device = next(d for d in self.fleet.devices() if d.id == event.device)
        sharing, cut = device.sharing, event.cut
        assert sharing is not None
        for name in [name for name in self._parts if name.partition("#")[0] == device.id]:
            del self._parts[name]
        used = [part for part in cut.parts if part.job]
        if not used:
            return
        for part in cut.parts:
            self._parts[f"{device.id}#{part.name}"] = (cut.mode, part)
        self._need(cut.mode in sharing.modes, "a device is cut as it may be", f"{device.id}: {cut.mode}")
        compute, memory = sum(p.compute_ppm for p in used), sum(p.memory_bytes for p in used)
        most = WHOLE_PPM if cut.mode == "mig" else sharing.compute_ppm
        self._need(compute <= most, "no more compute is promised than may be", device.id)
        fits = memory * WHOLE_PPM <= sharing.memory_ppm * device.memory_bytes
        self._need(fits, "no more memory is promised than may be", device.id)
        if cut.mode == "mig":
            model, taken = model_of(device.model, device.memory_bytes), 0
            assert model is not None
            for part in used:
                self._need(
                    part.start in model.profile(part.profile).starts,
                    "instances stand where they may",
                    device.id,
                )
                mask = model.mask(Instance(part.profile, part.start))
                self._need(not taken & mask, "no two instances in one place", device.id)
                taken |= mask

    # -- what a job gets -----------------------------------------------------------------------------

    def _takes(self, who: str, spec: JobSpec, node: str, piece: str) -> None:
        super()._takes(who, spec, node, piece)
        device, where, hardware = self.device_of[piece], spec.where, spec.hardware
        model = device.model
        self._need(
            not where.models.include or model in where.models.include, "only models that were named", who
        )
        self._need(model not in where.models.exclude, "no model that was excluded", who)
        if device.kind == "gpu" and hardware.vendor != "any":
            self._need(device.vendor == hardware.vendor, "GPUs of the vendor that was named", who)
        mode, part = self._parts.get(piece, ("", None))
        if spec.share is None:
            self._need(
                part is None,
                "a part that was cut on demand is for those who asked for one",
                f"{who}: {piece}",
            )
            some_whole = any(d.kind == device.kind and len(d.slices_ppm) == 1 for d in self.fleet.devices())
            whole = self._ppm[piece] == WHOLE_PPM
            self._need(whole or not some_whole, "whole devices where there are some", f"{who}: {piece}")
            return
        share, ppm = spec.share, self._ppm[piece]
        if part is None:
            enough = ppm >= share.compute_ppm and device.memory_bytes * ppm // WHOLE_PPM >= share.memory_bytes
            self._need(len(device.slices_ppm) > 1, "who asks for a part gets a part", f"{who}: {piece}")
            if share.profile:
                of = model_of(device.model, device.memory_bytes)
                enough = of is not None and ppm >= of.compute_ppm(of.profile(share.profile))
            ways = (
                ()
                if device.kind == "cpu"
                else ("mig", "mps", "time")
                if device.vendor == "nvidia"
                else ("time",)
            )
            self._need(
                share.mode in ("any", *ways), "a slice is kept apart as was asked for", f"{who}: {piece}"
            )
            self._need(enough, "a declared slice is large enough", f"{who}: {piece}")
            return
        self._need(part.job == who.partition(" ")[0], "a part is for whom it was made", f"{who}: {piece}")
        self._need(part.compute_ppm >= share.compute_ppm, "a part has the compute that was asked for", who)
        self._need(part.memory_bytes >= share.memory_bytes, "a part has the memory that was asked for", who)
        self._need(
            not share.profile or part.profile == share.profile, "the MIG profile that was asked for", who
        )
        self._need(share.mode in ("any", mode), "a part is kept apart as was asked for", f"{who}: {mode}")

    def _placed(self, event: ev.AttemptPlaced) -> None:
        spec = self.jobs[event.job].spec
        windows = any(queue.windows for queue in self.queues.values())
        if event.job in self._never and not windows:
            self._need(False, "who was told never never starts", f"{event.job}: {self._never[event.job]}")
        if event.attempt == 1:
            for other in self._lines[repr(spec)]:
                if other == event.job:
                    break
                known = self.jobs[other]
                waits = not (known.attempts or known.over or known.cancelled)
                kept = event.job in self.promised
                self._need(
                    not waits or kept,
                    "of jobs that are alike the first starts first",
                    f"{event.job} before {other}",
                )
        super()._placed(event)
        devices = [self.device_of[piece] for place in event.places for piece in place.slices]
        if not devices:
            return
        models = {(device.vendor, device.model) for device in devices}
        if not spec.hardware.mix and devices[0].kind == "gpu" and len(models) > 1:
            one = [model for model in models if self._could_hold(model, self.jobs[event.job])]
            self._need(not one, "a gang is of one model where one could hold it", f"{event.job}: {one}")
        vendors = {device.vendor for device in devices if device.kind == "gpu"}
        self._need(len(vendors) <= 1, "a gang is of one vendor", f"{event.job}: {vendors}")
        self._begun.append((event.job, self._quota_now()))

    def _could_hold(self, model: tuple[str, str], job: Known) -> bool:
        """Whether the devices of one model alone are enough for a gang without other wishes."""
        plain, spec = JobSpec(("x",)), job.spec
        if (spec.share, spec.topology, spec.requests, spec.where) != (
            None,
            None,
            plain.requests,
            plain.where,
        ):
            return False
        guard, leaves_spares = self.fleet.guard, self._leaves_spares(job)
        if leaves_spares and guard.spares:
            return False  # some of them are kept from it, whichever
        nodes = [
            n for n in self.fleet.nodes if not n.taints and not (leaves_spares and n.id in guard.spare_nodes)
        ]
        each = [
            sum((d.vendor, d.model) == model and len(d.slices_ppm) == 1 for d in node.devices)
            for node in nodes
        ]
        return sum(count // spec.devices_per_rank for count in each) >= spec.ranks

    # -- quota ---------------------------------------------------------------------------------------

    def _quota_now(self) -> QueueQuota:
        healthy = [device for device in self.fleet.devices() if self.healthy(device)]
        sums = Counter[str]()
        for device in healthy:
            sums[device.kind] += MILLI
            sums[f"{device.kind}:{device.model}"] += MILLI
        return self.tree.quota(tuple(sums[r] for r in self.tree.resources), self._now_ns)

    def charge(self, name: str) -> dict[str, int]:
        """What the job's queue is charged now, in thousandths by resource."""
        job = self.jobs[name]
        if job.live is not None:
            if _gives_way(job.live):
                return {}
            milli = sum(max(self._ppm[piece] // 1_000, 1) for piece in job.live.slices)
            kind = job.live.kind
        elif name in self.promised and job.spec.share is None and self._whole_kind(self.promised[name].kind):
            if self.promised[name].expires_ns <= self._now_ns:
                return {}
            milli, kind = job.spec.devices * MILLI, self.promised[name].kind
        else:
            return {}
        models = job.spec.where.models.include
        return {kind: milli} | ({f"{kind}:{models[0]}": milli} if len(models) == 1 else {})

    def _whole_kind(self, kind: str) -> bool:
        return all(len(d.slices_ppm) == 1 for d in self.fleet.devices() if d.kind == kind)

    def used_milli(self) -> list[list[int]]:
        """By queue of the tree and resource."""
        tree = self.tree
        used = [[0] * len(tree.resources) for _ in range(len(tree))]
        for name, job in self.jobs.items():
            if job.spec.queue not in tree.index:
                continue
            for resource, milli in self.charge(name).items():
                if resource in tree.resources:
                    for queue in tree.path(tree.index[job.spec.queue]):
                        used[queue][tree.resources.index(resource)] += milli
        return used

    def settled(self, time_ns: int) -> None:
        begun, self._begun = self._begun, []
        started, self._started = self._started, []  # quotas are counted here otherwise
        super().settled(time_ns)
        if self._whole:
            for name, _, kept in started:
                self._nothing_promised_is_taken(name, kept)
        if self.queues:
            used = self.used_milli() if begun else []
            for name, quota in begun:
                held = self.jobs[name].live
                if held is not None and not _gives_way(held):
                    self._keeps(name, held, quota, used)

    @property
    def _whole(self) -> bool:
        """Whether no device of the fleet is ever in parts: then promises count devices by node."""
        return not any(d.sharing is not None or len(d.slices_ppm) > 1 for d in self.fleet.devices())

    def _keeps(self, name: str, held: Held, quota: QueueQuota, used: list[list[int]]) -> None:
        """The start of a job kept all bounds, and left what is kept for others."""
        tree, spec = self.tree, self.jobs[name].spec
        mine = self.charge(name)
        path = tree.path(tree.index[spec.queue])
        for r, resource in enumerate(tree.resources):
            if not mine.get(resource):
                continue
            own = any(used[queue][r] <= quota.kept[queue][r] for queue in path)
            for queue in path:
                bound, what = quota.bound[queue][r], f"{tree.name(queue) or 'all'} {resource}"
                text = f"{what}: {used[queue][r]} of {bound} with {name} ({mine[resource]})"
                if queue:
                    self._need(used[queue][r] <= bound, "quota held", text)
                unmet = sum(self._owed(child, r, quota, used) for child in tree.children[queue])
                text += f", {unmet} kept for others"
                if not own:
                    self._need(not unmet or used[queue][r] + unmet <= bound, "guarantee held", text)

    def _owed(self, queue: int, r: int, quota: QueueQuota, used: list[list[int]]) -> int:
        below = sum(self._owed(child, r, quota, used) for child in self.tree.children[queue])
        return max(quota.kept[queue][r] - used[queue][r], below)

    # -- preemption ----------------------------------------------------------------------------------

    def _stop_asked(self, event: ev.StopAsked) -> None:
        """One that is moved can save its work, and is of a level that may be."""
        if event.why != "moved":
            super()._stop_asked(event)
            return
        job, migration = self.jobs[event.job], self.fleet.migration
        held, spec = job.live, job.spec
        self._need(migration is not None, "jobs are moved only where the fleet says so", event.job)
        if held is None or migration is None:
            return
        held.stop = event
        self._need(spec.preemption in migration.levels, "only these levels are moved", event.job)
        self._need(spec.checkpoint_path is not None, "only who saves is moved", event.job)
        ran_ns = self._now_ns - held.since_ns
        self._need(ran_ns >= spec.min_runtime_s * 1e9, "minimum runtime kept", f"{event.job} is moved")

    def _is_coming(self, piece: str) -> bool:
        owner = self._owner.get(piece)
        if owner is not None:
            held = self.jobs[owner.rpartition(" attempt ")[0]].live
            if held is not None and held.stop is not None and held.stop.why == "moved":
                return True
        return super()._is_coming(piece)

    def _promised(self, event: ev.Promised) -> None:
        job = self.jobs[event.job]
        if self._whole:
            super()._promised(event)
            return
        self._need(event.expires_ns > self._now_ns, "a promise ends in the future", event.job)
        if job.over is None and job.live is None:
            self.promised[event.job] = Promise(event.kind, dict(event.devices), event.expires_ns)
