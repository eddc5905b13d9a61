"""What a rank gets of a device that is cut: MIG, MPS or time slices of a GPU, a quota of CPUs.

The engine requests *grants* before it starts a gang: for each rank, the environment and the limits that enforce
its slices. If this machine cannot provide them, the request fails with :class:`unidle.errors.CannotRun`, and the
gang does not start. Grants are written below the run root (``.slices/``). An engine that adopts the attempt reads
there what is in use. On hosts the agent does all this (:mod:`unidle.agent.cuts`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from unidle.engine.local.devices.mig import MigHands, MigUse, NvmlMig
from unidle.engine.local.devices.mps import MpsControl, MpsHands
from unidle.engine.local.ranks import rundir
from unidle.engine.protocol import PartOf, StartGang
from unidle.errors import CannotRun
from unidle.fleet import WHOLE_PPM, Device, Fleet, Node, declared_ppm, device_of
from unidle.jobs import Limits, RankPlace, Share
from unidle.share.mig_models import model_of
from unidle.share.modes import GpuPart, Mode, cpu_quota, mps_environment, needs_of
from unidle.share.refusal import PartRefused

_N = TypeVar("_N", int, float)


@dataclass(frozen=True, slots=True)
class Grant:
    """What one rank is given in addition to the settings of its job: variables, and bounds that are not None."""

    env: dict[str, str] = field(default_factory=dict)
    cpus: float | None = None
    memory_bytes: int | None = None

    def bound_cpus(self, cpus: float | None) -> float | None:
        """The tighter of the job's own bound and this one."""
        return _tighter(cpus, self.cpus)

    def bound_memory(self, memory_bytes: int | None) -> int | None:
        return _tighter(memory_bytes, self.memory_bytes)

    def bound(self, limits: Limits) -> Limits:
        """The job's own limits, or these bounds where they are tighter."""
        return Limits(self.bound_memory(limits.memory_bytes), self.bound_cpus(limits.cpus), limits.pids)


@dataclass(frozen=True, slots=True)
class SliceWish:
    """What is needed of a gang to make its slices real: ``places`` of ranks, in the order of the grants."""

    job: str
    attempt: int
    places: tuple[RankPlace, ...]
    share: Share | None = None
    parts: Mapping[str, PartOf] = field(default_factory=dict)


def wish_of(command: StartGang) -> SliceWish:
    """What a gang needs of the devices of this machine."""
    return SliceWish(command.job, command.attempt, command.places, command.spec.share, command.parts)


@dataclass(slots=True)
class _Held:
    """What one attempt (``key``) holds of GPUs that are shared."""

    key: tuple[str, int]
    grants: list[Grant]
    mps: tuple[str, ...] = ()  # UUIDs of GPUs whose MPS daemon serves it
    mig: tuple[MigUse, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "ranks": [{"env": g.env, "cpus": g.cpus, "memory_bytes": g.memory_bytes} for g in self.grants],
            "mps": list(self.mps),
            "mig": [list(use) for use in self.mig],
        }

    @classmethod
    def from_json(cls, key: tuple[str, int], content: Mapping[str, Any]) -> _Held:
        grants = [Grant(r["env"], r["cpus"], r["memory_bytes"]) for r in content["ranks"]]
        return cls(key, grants, tuple(content["mps"]), tuple(MigUse(*use) for use in content["mig"]))


class Slicer:
    """Makes slices of devices real for the gangs of one engine, or for those of one host."""

    def __init__(self, run_root: str, fleet: Fleet, mps: MpsHands, mig: MigHands) -> None:
        self._root = run_root
        self._mps, self._mig = mps, mig
        self._fleet = fleet
        self._nodes = {node.id: node for node in fleet.nodes}
        self._held: dict[tuple[str, int], _Held] = {}

    def know(self, node: Node) -> None:
        """The node as it is now."""
        self._nodes[node.id] = node

    def grants(self, wish: SliceWish) -> list[Grant]:
        """One grant for each rank, in rank order; the same ones when asked again.

        Errors: :class:`CannotRun`, and then nothing of the attempt is held.
        """
        key = (wish.job, wish.attempt)
        held = self._held.get(key) or self._recorded(key)
        if held is None or len(held.grants) != len(wish.places):
            held = _Held(key, [], held.mps if held is not None else ())
            self._held[key] = held
            try:
                for place in wish.places:
                    held.grants.append(self._grant(wish, place, held))
            except CannotRun:
                self.release(*key)
                raise
            if any(grant != Grant() for grant in held.grants):
                self._write(held)
        self._held[key] = held
        return held.grants

    def modes(self, device: Device) -> tuple[frozenset[Mode], dict[Mode, str]]:
        """The modes in which the GPU can be cut on this machine, and for each other mode the reason. The chooser calls this."""
        why: dict[Mode, str] = {}
        if device.vendor != "nvidia":
            return frozenset(("whole", "time")), dict.fromkeys(("mig", "mps"), _no_tools(device))
        no_uuid = f"{device.id} has no UUID" if not device.uuid else None
        if reason := no_uuid or self._mig.why_not(device):
            why["mig"] = reason
            if reason := no_uuid or self._mps.why_not():
                why["mps"] = reason
        else:  # a GPU in MIG mode shows programs nothing but instances
            instances_only = f"{device.id} is in MIG mode"
            why |= {"mps": instances_only, "time": instances_only, "whole": instances_only}
        every: tuple[Mode, ...] = ("whole", "mig", "mps", "time")
        return frozenset(mode for mode in every if mode not in why), why

    def adopt(self, job: str, attempt: int) -> None:
        """Apply what an earlier engine granted to an attempt that may still run."""
        held = self._recorded((job, attempt))
        if held is not None:
            self._held[job, attempt] = held

    def adopt_all(self) -> None:
        """Apply what an earlier process granted, whether it still runs or not; :meth:`keep` has the end of it."""
        for key in self._recorded_keys():
            self.adopt(*key)

    def keep(self, attempts: Collection[tuple[str, int]]) -> None:
        """Release what is held for any other attempt, also by the record of an earlier process."""
        for key in {*self._recorded_keys(), *self._held} - {*attempts}:
            self.release(*key)

    def release(self, job: str, attempt: int) -> None:
        """The attempt has ended: daemons that serve no one are ended, MIG instances stand idle."""
        held = self._held.pop((job, attempt), None) or self._recorded((job, attempt))
        still = {uuid for other in self._held.values() for uuid in other.mps}
        for uuid in held.mps if held is not None else ():
            if uuid not in still:
                self._mps.quit(uuid)
        with suppress(FileNotFoundError):
            os.unlink(self._record((job, attempt)))

    def offered(self) -> Fleet:
        """The fleet with, of the ways in which its GPUs may be cut on demand, those that this machine offers."""
        return replace(self._fleet, nodes=tuple(map(self.offer_of, self._fleet.nodes)))

    def offer_of(self, node: Node) -> Node:
        """The node with, of the ways in which its GPUs may be cut on demand, those that this machine offers."""
        return replace(node, devices=tuple(self._offered(device) for device in node.devices))

    def _offered(self, device: Device) -> Device:
        sharing = device.sharing
        if sharing is None or device.kind != "gpu":
            return device
        modes, why = self.modes(device)
        kept = tuple(mode for mode in sharing.modes if mode in modes)
        lacking = tuple((mode, why[mode]) for mode in sharing.modes if mode in why)
        return replace(device, sharing=replace(sharing, modes=kept, why_not=lacking))

    def _grant(self, wish: SliceWish, place: RankPlace, held: _Held) -> Grant:
        node = self._nodes.get(place.node)
        if node is None:
            return Grant()
        if part := next((wish.parts[s] for s in place.slices if s in wish.parts), None):
            return self._of_part(node, place, part, held)
        pieces = list(_pieces(node, place.slices))
        gpus = [(device, ppm) for device, ppm in pieces if device.kind == "gpu"]
        share = wish.share
        if share is None and len(gpus) == 1:
            return self._whole(gpus[0][0], held)
        if share is None or not gpus:
            return _cpu_grant(node, place, pieces)
        if len(gpus) > 1:
            raise CannotRun(
                "a share is of one GPU",
                field="share",
                value=place.slices,
                remedy="ask for one slice per rank",
            )
        device, ppm = gpus[0]
        if device.vendor != "nvidia":
            _check_time_only(share, device)
            return Grant()
        if self._by_mig(share, device):
            says = share.profile or share.compute_ppm or share.memory_bytes
            return self._instance(device, share if says else Share(ppm), held)
        if share.mode == "time" or (share.mode == "any" and self._mps.why_not() is not None):
            return Grant()
        return self._by_mps(share, device, ppm, held)

    def _of_part(self, node: Node, place: RankPlace, given: PartOf, held: _Held) -> Grant:
        """A part that was made on demand, in the way that was decided."""
        part = given.part
        device = next(d for d in node.devices if d.id == given.device)
        if given.mode == "mig":
            return self._instance(device, Share(profile=part.profile), held, part.start)
        if given.mode == "mps":
            share = Share(part.compute_ppm, part.memory_bytes, mode="mps")
            return self._by_mps(share, device, part.share_ppm, held)
        if given.mode != "quota":
            return Grant()
        promised = dict.fromkeys(place.slices, part.compute_ppm)
        cpus = cpu_quota(node, place.slices, float(len(os.sched_getaffinity(0))), promised)
        return Grant({}, cpus, part.memory_bytes or None)

    def _whole(self, device: Device, held: _Held) -> Grant:
        """A whole GPU: one that may be cut by MIG and is in MIG mode shows programs nothing but instances."""
        if device.sharing is None or "mig" not in device.sharing.modes or not self._mig.is_on(device.uuid):
            return Grant()
        model = model_of(device.model, device.memory_bytes)
        if model is None:
            return Grant()
        largest = max((p for p in model.profiles if not p.media), key=lambda p: (p.memory, p.compute))
        return self._instance(device, Share(profile=largest.name), held)

    def _instance(self, device: Device, share: Share, held: _Held, start: int = -1) -> Grant:
        use = self._mig.grant(device, share, self._mig_in_use(), start)
        held.mig = (*held.mig, use)
        return Grant({"CUDA_VISIBLE_DEVICES": use.uuid})

    def _by_mig(self, share: Share, device: Device) -> bool:
        if share.profile or share.mode == "mig":
            return True
        return share.mode == "any" and bool(device.uuid) and self._mig.is_on(device.uuid)

    def _by_mps(self, share: Share, device: Device, ppm: int, held: _Held) -> Grant:
        if why := self._mps.why_not():
            raise CannotRun(
                f"this machine has no MPS: {why}", field="share.mode", value="mps",
                remedy="install NVIDIA's compute utilities, or use mode: time, which bounds nothing",
            )  # fmt: skip
        if not device.uuid:
            raise CannotRun(
                f"{device.id} has no UUID, by which an MPS server is bound to it", field="share.mode", value="mps",
                remedy="let unidle discover the GPUs, or add uuid to the device in the fleet file",
            )  # fmt: skip
        wish = share if share.compute_ppm else Share(ppm, share.memory_bytes, mode="mps")
        need = needs_of(wish, device)
        if isinstance(need, PartRefused):
            raise CannotRun(need.because.text, field="share", value=share, remedy="ask for less")
        if device.uuid not in held.mps:
            held.mps = (*held.mps, device.uuid)
            self._write(held)  # before there is a daemon
        pipes, logs = self._mps.ensure(device.uuid)
        env = mps_environment(GpuPart(ppm, 0, need[0], need[1]), pipes, logs)
        return Grant(env | {"CUDA_VISIBLE_DEVICES": device.uuid})

    def _mig_in_use(self) -> frozenset[str]:
        """UUIDs of MIG devices that attempts of this engine hold."""
        return frozenset(use.uuid for held in self._held.values() for use in held.mig)

    def _write(self, held: _Held) -> None:
        os.makedirs(os.path.join(self._root, rundir.SLICES), 0o700, exist_ok=True)
        rundir.write_json(self._record(held.key), held.as_json())

    def _record(self, key: tuple[str, int]) -> str:
        job, attempt = key
        return os.path.join(self._root, rundir.SLICES, f"{rundir.path_part(job)}.{attempt}.json")

    def _recorded_keys(self) -> Iterator[tuple[str, int]]:
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(os.path.join(self._root, rundir.SLICES))):
                job, _, number = name.removesuffix(".json").rpartition(".")
                if name.endswith(".json") and job and number.isascii() and number.isdigit():
                    yield job, int(number)

    def _recorded(self, key: tuple[str, int]) -> _Held | None:
        content = rundir.read_json(self._record(key))
        try:
            return None if content is None else _Held.from_json(key, content)
        except (LookupError, TypeError, AttributeError):
            return None  # damaged: it is made again, and removed at the end


def local_slicer(run_root: str, fleet: Fleet, owner: str) -> Slicer:
    """With NVIDIA's own tools and NVML; ``owner`` distinguishes the MPS daemons of several engines."""
    return Slicer(run_root, fleet, MpsControl(owner), MigHands(run_root, NvmlMig()))


def _pieces(node: Node, slices: Sequence[str]) -> Iterator[tuple[Device, int]]:
    """Device and share of each slice of a device that is cut as declared."""
    devices = {device.id: device for device in node.devices}
    for name in slices:
        device = devices.get(device_of(name))
        if device is not None:
            yield device, declared_ppm(device, name)


def _check_time_only(share: Share, device: Device) -> None:
    wish = share.profile or (share.mode if share.mode in ("mig", "mps") else None)
    if wish:
        raise CannotRun(
            _no_tools(device), field="share", value=wish, remedy="use mode: time, which bounds nothing"
        )


def _no_tools(device: Device) -> str:
    return f"{device.id} is a GPU of {device.vendor}, and MIG and MPS are NVIDIA's"


def _cpu_grant(node: Node, place: RankPlace, pieces: Sequence[tuple[Device, int]]) -> Grant:
    """The CPUs of a rank's slices of CPU devices, and their memory if all of the devices declare it."""
    cpus = cpu_quota(node, place.slices, float(len(os.sched_getaffinity(0))))
    if cpus is None:
        return Grant()
    memories = [device.memory_bytes * ppm // WHOLE_PPM for device, ppm in pieces if device.kind == "cpu"]
    return Grant({}, cpus, sum(memories) if all(memories) else None)


def _tighter(a: _N | None, b: _N | None) -> _N | None:
    return min((x for x in (a, b) if x is not None), default=None)
