"""The parts of a device that is cut on demand: one for each job that uses it, and one rest.

Parts in use never change. The part of a new job is taken from the rest, and returns to it as soon as the job
leaves. The rest then gets a new name, since a name means one share. When the last job leaves, the device is
whole again. The shares of the parts always sum to 1,000,000.

If a device may be oversubscribed, the ledger counts a part as its promise divided by the factor: with 1.5, a
promise of three quarters of the compute counts as half the device. So the shares add up however much is
promised, and do not change when other jobs come. MIG is never oversubscribed; its parts count by their
compute slices.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from unidle.fleet import WHOLE_PPM, Cut, CutMode, CutPart, Device
from unidle.share.mig_models import Instance, MigModel, model_of


@dataclass(frozen=True, slots=True)
class PartPromise:
    """What one rank of ``job`` is to get of a device. ``instance`` is set where MIG makes it."""

    job: str
    mode: CutMode
    compute_ppm: int
    memory_bytes: int
    instance: Instance | None = None


def slice_id(device: Device, part: CutPart) -> str:
    """The slice that a part is."""
    return f"{device.id}#{part.name}"


def used_parts(device: Device) -> tuple[CutPart, ...]:
    """The parts that were made for someone, in the order in which they came."""
    return tuple(part for part in device.cut.parts if part.job) if device.cut is not None else ()


def share_of(device: Device, promise: PartPromise) -> int:
    """What the promised part counts, in ppm of the device; more than the rest has where there is no room."""
    used = used_parts(device)
    left = WHOLE_PPM - sum(part.share_ppm for part in used)
    if promise.mode == "mig" and promise.instance is not None:
        return left if _takes_last_slice(device, used, promise.instance) else promise.compute_ppm
    factor_ppm = device.sharing.compute_ppm if device.sharing is not None else WHOLE_PPM
    return max(1, promise.compute_ppm * WHOLE_PPM // factor_ppm)


def _takes_last_slice(device: Device, used: Collection[CutPart], instance: Instance) -> bool:
    """Whether no compute slice is left. Sevenths do not divide a million, so the rest would be too small to use."""
    model = model_of(device.model, device.memory_bytes)
    if model is None:
        return False
    names = [instance.profile, *(part.profile for part in used)]
    return sum(model.profile(name).compute for name in names) >= model.compute


def with_part(device: Device, promise: PartPromise, generation: int) -> tuple[Device, CutPart] | None:
    """The device with one part more, named by ``generation``; None where its rest is too small."""
    used = used_parts(device)
    share = share_of(device, promise)
    if share + sum(part.share_ppm for part in used) > WHOLE_PPM:
        return None
    taken = {part.name for part in used}
    number = next(k for k in range(len(used) + 1) if f"{generation}.{k}" not in taken)
    instance = promise.instance or Instance("", -1)
    part = CutPart(
        f"{generation}.{number}", share, promise.job, promise.compute_ppm, promise.memory_bytes,
        instance.profile, instance.start,
    )  # fmt: skip
    return _with_parts(device, promise.mode, (*used, part), generation), part


def without_parts(device: Device, gone: Collection[str]) -> Cut:
    """The cut of the next generation, in which the slices ``gone`` (ids) are part of the rest."""
    left = tuple(part for part in used_parts(device) if slice_id(device, part) not in gone)
    mode: CutMode = device.cut.mode if device.cut is not None and left else "whole"
    made = _with_parts(device, mode, left, device.generation + 1)
    assert made.cut is not None
    return made.cut


def _with_parts(device: Device, mode: CutMode, used: tuple[CutPart, ...], generation: int) -> Device:
    rest = WHOLE_PPM - sum(part.share_ppm for part in used)
    taken = {part.name for part in used}
    number = next(k for k in range(len(used) + 1) if f"{generation}.{k}" not in taken)
    parts = (*used, CutPart(f"{generation}.{number}", rest)) if rest else used
    return replace(device, cut=Cut(mode, parts))


def promised(device: Device) -> tuple[int, int]:
    """Compute (ppm) and memory (bytes) that are promised to those who use the device."""
    used = used_parts(device)
    return sum(part.compute_ppm for part in used), sum(part.memory_bytes for part in used)


def mig_model(device: Device) -> MigModel | None:
    """The device's MIG model, where it may be cut by MIG."""
    may = device.sharing is not None and "mig" in device.sharing.modes
    return model_of(device.model, device.memory_bytes) if may else None
