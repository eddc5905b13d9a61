"""MIG on this machine, through NVML (NVML API reference, "Multi Instance GPU Management").

What the GPU reports is the truth: which profiles it has, where they may stand, which instances exist. Where
they go is decided by ``unidle.share.mig``. Instances that others made are used when they stand idle, and
never destroyed; MIG mode itself is never switched, since that resets the GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from unidle.engine.local.ranks import rundir
from unidle.errors import CannotRun
from unidle.fleet import Device
from unidle.jobs import Reason, Share
from unidle.nvml import load
from unidle.share.mig import Reconfiguration, reconfigure
from unidle.share.mig_models import Instance, MigModel, MigProfile, model_of
from unidle.share.modes import profile_for
from unidle.share.refusal import PartRefused, refused

OURS: Final = "mig.json"


class MigUse(NamedTuple):
    """A MIG device that a rank uses: its UUID, and the GPU that it is part of."""

    uuid: str
    gpu: str


class MigState(NamedTuple):
    """MIG mode of a GPU; ``pending`` differs while a reset is awaited."""

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """A profile as a GPU reports it."""

    profile_id: int
    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MigDevice:
    """An instance as a GPU reports it; ``uuid`` is empty while it has no compute instance."""

    instance_id: int
    profile_id: int
    start: int
    uuid: str
    processes: int


class MigDriver(Protocol):
    """What is asked of NVML. Errors: :class:`CannotRun`."""

    def mode(self, gpu: str) -> MigState: ...

    def placements(self, gpu: str) -> Sequence[MigPlacement]:
        """The profiles that the GPU supports, and where each can be placed."""

    def devices(self, gpu: str) -> Sequence[MigDevice]:
        """The instances that exist."""

    def create(self, gpu: str, profile_id: int, start: int, size: int) -> MigDevice:
        """Make an instance with one compute instance that fills it."""

    def destroy(self, gpu: str, instance_id: int) -> None:
        """Destroy an instance and what is in it."""


class MigHands:
    """Gives MIG instances to ranks. ``run_root`` keeps a list of the instances that unidle made."""

    def __init__(self, run_root: str, driver: MigDriver) -> None:
        self._ours = os.path.join(run_root, OURS)
        self._driver = driver

    def is_on(self, gpu: str) -> bool:
        """Whether the GPU is in MIG mode."""
        try:
            return self._driver.mode(gpu).current
        except CannotRun:
            return False

    def why_not(self, device: Device) -> str | None:
        """Why the GPU cannot give MIG instances now; None when it can."""
        try:
            self._check_mode(device)
            self._check_places(device, self._model(device))
        except CannotRun as error:
            return f"{error.problem}; {error.remedy}"
        return None

    def grant(self, device: Device, share: Share, in_use: frozenset[str], start: int = -1) -> MigUse:
        """An instance for the share: an idle one, else a new one, made where it leaves the most room.

        ``in_use`` are UUIDs of MIG devices that are taken. With ``start`` the instance begins at that memory
        slice, as was decided. Errors: :class:`CannotRun`.
        """
        model = self._model(device)
        self._check_mode(device)
        self._check_places(device, model)
        name = profile_for(share, model)
        if isinstance(name, PartRefused):
            raise _cannot(name.because.text, share, "ask for a profile that the GPU has")
        found = {self._instance(device, model, d): d for d in self._driver.devices(device.uuid)}
        ours = set(self._made())
        # one without a compute instance is being made, or was left so by others
        taken = [i for i, d in found.items() if d.processes or d.uuid in in_use or not d.uuid]
        idle = [i for i in found if i not in taken]
        foreign = [i for i in idle if found[i].uuid not in ours]
        if start >= 0:
            plan = _plan_at(model, Instance(name, start), taken, idle, foreign)
        else:
            plan = self._plan(model, name, taken, idle, foreign)
        if isinstance(plan, PartRefused):
            raise _cannot(plan.because.text, share, "wait, or ask for a smaller profile")
        for instance in plan.destroy:
            self._driver.destroy(device.uuid, found[instance].instance_id)
            self._remember(ours - {found[instance].uuid})
        served = plan.serve[0]
        if not plan.create:
            return MigUse(found[served].uuid, device.uuid)
        profile = model.profile(name)
        made = self._driver.create(device.uuid, profile.id, served.start, profile.memory)
        self._remember({*self._made(), made.uuid})
        return MigUse(made.uuid, device.uuid)

    def _plan(
        self,
        model: MigModel,
        name: str,
        taken: Sequence[Instance],
        idle: Sequence[Instance],
        foreign: Sequence[Instance],
    ) -> Reconfiguration | PartRefused:
        """An idle one of the very profile, else a plan that destroys only what unidle made."""
        ready = next((i for i in idle if i.profile == name), None)
        if ready is not None:
            own = [i for i in idle if i not in foreign]
            others = [i for i in (*taken, *foreign) if i != ready]
            plan = reconfigure(model, (), others, [*(i for i in own if i != ready)])
            assert isinstance(plan, Reconfiguration)  # nothing is asked for
            return replace(plan, serve=(ready,))
        return reconfigure(model, (name,), [*taken, *foreign], [i for i in idle if i not in foreign])

    def _model(self, device: Device) -> MigModel:
        model = model_of(device.model, device.memory_bytes)
        if model is None or not device.uuid:
            raise _cannot(
                f"{device.id} ({device.model or 'model unknown'}) is no GPU that MIG is known to cut", device.model,
                "use mode: mps or time",
            )  # fmt: skip
        return model

    def _check_mode(self, device: Device) -> None:
        state = self._driver.mode(device.uuid)
        if state.current:
            return
        if state.pending:
            raise _cannot(
                f"MIG mode of {device.id} awaits a reset of the GPU",
                "pending",
                f"nvidia-smi --gpu-reset -i {device.index}",
            )
        raise _cannot(
            f"MIG mode of {device.id} is off, and switching it on resets the GPU", "off",
            f"nvidia-smi -i {device.index} -mig 1, while the GPU is not in use",
        )  # fmt: skip

    def _check_places(self, device: Device, model: MigModel) -> None:
        """The table must agree with the GPU before anything is created by it."""
        told = {p.profile_id: p for p in self._driver.placements(device.uuid)}
        for profile in model.profiles:
            seen = told.get(profile.id)
            if seen is not None and (seen.size, set(seen.starts)) != (profile.memory, set(profile.starts)):
                raise _cannot(
                    f"{device.id} reports other places for {profile.name} than unidle's table: "
                    f"{sorted(seen.starts)}:{seen.size}", f"{sorted(profile.starts)}:{profile.memory}",
                    "correct share/mig.toml and report it",
                )  # fmt: skip

    def _instance(self, device: Device, model: MigModel, found: MigDevice) -> Instance:
        profile = _by_id(model, found.profile_id)
        if profile is None:
            raise _cannot(
                f"{device.id} has an instance of a profile that unidle's table lacks", found.profile_id,
                "destroy it (nvidia-smi mig -dci, -dgi), or correct share/mig.toml",
            )  # fmt: skip
        return Instance(profile.name, found.start)

    def _made(self) -> list[str]:
        content = rundir.read_json(self._ours) or {}
        uuids = content.get("uuids")
        return [str(u) for u in uuids] if isinstance(uuids, list) else []

    def _remember(self, uuids: set[str]) -> None:
        os.makedirs(os.path.dirname(self._ours), exist_ok=True)
        rundir.write_json(self._ours, {"uuids": sorted(uuids)})


class NvmlMig:
    """MIG through pynvml, or what answers like it (``nvml``: the module; loaded at the first question)."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml

    def mode(self, gpu: str) -> MigState:
        with self._asking() as nvml:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu)
            current, pending = nvml.nvmlDeviceGetMigMode(handle)
            return MigState(bool(current), bool(pending))

    def placements(self, gpu: str) -> list[MigPlacement]:
        with self._asking() as nvml:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu)
            return [self._placement(nvml, handle, info) for info in self._profiles(nvml, handle)]

    def devices(self, gpu: str) -> list[MigDevice]:
        with self._asking() as nvml:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu)
            named = self._mig_handles(nvml, handle)
            found = []
            for info in self._profiles(nvml, handle):
                for instance in _filled(
                    nvml.c_nvmlGpuInstance_t, info.instanceCount,
                    lambda array, count, i=info: nvml.nvmlDeviceGetGpuInstances(handle, i.id, array, count),
                ):  # fmt: skip
                    told = nvml.nvmlGpuInstanceGetInfo(instance)
                    found.append(self._device(nvml, told, named.get(told.id)))
            return found

    def create(self, gpu: str, profile_id: int, start: int, size: int) -> MigDevice:
        with self._asking() as nvml:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu)
            place = nvml.c_nvmlGpuInstancePlacement_t(start, size)
            instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, ctypes.byref(place))
            try:
                nvml.nvmlGpuInstanceCreateComputeInstance(
                    instance, self._full_compute(nvml, instance, handle, profile_id)
                )
                told = nvml.nvmlGpuInstanceGetInfo(instance)
                return self._device(nvml, told, self._mig_handles(nvml, handle).get(told.id))
            except nvml.NVMLError:
                nvml.nvmlGpuInstanceDestroy(instance)  # without a compute instance it would be lost room
                raise

    def destroy(self, gpu: str, instance_id: int) -> None:
        with self._asking() as nvml:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu)
            instance = nvml.nvmlDeviceGetGpuInstanceById(handle, instance_id)
            for profile in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
                try:
                    info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                        instance, profile, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                    )
                except nvml.NVMLError:
                    continue  # the instance has no such profile
                for compute in _filled(
                    nvml.c_nvmlComputeInstance_t, info.instanceCount,
                    lambda array, count, i=info: nvml.nvmlGpuInstanceGetComputeInstances(instance, i.id, array, count),
                ):  # fmt: skip
                    nvml.nvmlComputeInstanceDestroy(compute)
            nvml.nvmlGpuInstanceDestroy(instance)

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """NVML, initialised; its errors become CannotRun."""
        nvml = self._loaded()
        try:
            nvml.nvmlInit()
            try:
                yield nvml
            finally:
                nvml.nvmlShutdown()
        except nvml.NVMLError as error:
            raise _cannot(f"NVML: {error}", None, _remedy(nvml, error)) from error

    def _loaded(self) -> Any:
        if self._nvml is None:
            try:
                self._nvml = load()
            except (OSError, ImportError) as error:
                raise _cannot(
                    f"this machine has no NVIDIA driver ({error})", None, "use CPU devices"
                ) from error
        return self._nvml

    def _profiles(self, nvml: Any, handle: Any) -> list[Any]:
        found = []
        for profile in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                found.append(nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile))
            except nvml.NVMLError:
                continue  # the GPU has no such profile
        return found

    def _placement(self, nvml: Any, handle: Any, info: Any) -> MigPlacement:
        places = _filled(
            nvml.c_nvmlGpuInstancePlacement_t, 32,
            lambda array, count: nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id, array, count),
        )  # fmt: skip
        return MigPlacement(info.id, places[0].size if places else 0, tuple(p.start for p in places))

    def _mig_handles(self, nvml: Any, handle: Any) -> dict[int, Any]:
        """Handles of MIG devices by the id of their GPU instance."""
        found = {}
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except nvml.NVMLError:
                continue  # no MIG device of this index
            found[nvml.nvmlDeviceGetGpuInstanceId(mig)] = mig
        return found

    def _device(self, nvml: Any, told: Any, mig: Any) -> MigDevice:
        if mig is None:
            return MigDevice(told.id, told.profileId, told.placement.start, "", 0)
        uuid = str(nvml.nvmlDeviceGetUUID(mig))
        processes = len(nvml.nvmlDeviceGetComputeRunningProcesses(mig))
        return MigDevice(told.id, told.profileId, told.placement.start, uuid, processes)

    def _full_compute(self, nvml: Any, instance: Any, handle: Any, profile_id: int) -> int:
        """The id of the compute profile that fills an instance."""
        slices = next(i.sliceCount for i in self._profiles(nvml, handle) if i.id == profile_id)
        for profile in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, profile, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )
            except nvml.NVMLError:
                continue
            if info.sliceCount == slices:
                return int(info.id)
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)


def _filled(kind: Any, most: int, ask: Any) -> list[Any]:
    """What NVML writes into an array of at most ``most`` entries, whose number it returns in a counter."""
    array, count = (kind * most)(), ctypes.c_uint(most)
    ask(array, ctypes.byref(count))
    return list(array[: count.value])


def _plan_at(
    model: MigModel,
    wanted: Instance,
    taken: Sequence[Instance],
    idle: Sequence[Instance],
    foreign: Sequence[Instance],
) -> Reconfiguration | PartRefused:
    """The instance at its place. Instances there that unidle made and that are idle are destroyed for it."""
    if wanted in idle:
        return Reconfiguration((), (), (wanted,), Reason("mig_placed", f"{wanted.profile} stands idle there"))
    bits = model.mask(wanted)
    if there := [i for i in (*taken, *foreign) if model.mask(i) & bits]:
        found = ", ".join(f"{i.profile} at {i.start}" for i in there)
        return refused("mig_no_room", f"{wanted.profile} cannot stand at {wanted.start}: others made {found}")
    media = model.profile(wanted.profile).media
    gone = tuple(
        i
        for i in idle
        if i not in foreign and (model.mask(i) & bits or (media and model.profile(i.profile).media))
    )
    because = Reason("mig_placed", f"{wanted.profile} at {wanted.start}, {len(gone)} destroyed for it")
    return Reconfiguration(gone, (wanted,), (wanted,), because)


def _by_id(model: MigModel, profile_id: int) -> MigProfile | None:
    return next((p for p in model.profiles if p.id == profile_id), None)


def _remedy(nvml: Any, error: Any) -> str:
    known = {
        nvml.NVML_ERROR_NOT_SUPPORTED: "the GPU or its driver has no MIG: use mode: mps or time",
        nvml.NVML_ERROR_NO_PERMISSION: "run unidle as a user who may set up MIG (root, or the mig/config capability)",
        nvml.NVML_ERROR_IN_USE: "wait until the instance is not in use",
        nvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "list the instances again (nvidia-smi mig -lgi)",
    }
    return known.get(error.value, "check `nvidia-smi` and `dmesg`")


def _cannot(problem: str, value: object, remedy: str) -> CannotRun:
    return CannotRun(problem, field="share", value=value, remedy=remedy)
