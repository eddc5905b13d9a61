"""Which GPUs a process may see, in the variables of each vendor's runtime.

NVIDIA reads CUDA_VISIBLE_DEVICES. AMD's ROCm reads ROCR_VISIBLE_DEVICES first (numbers or UUIDs; empty hides all) and
HIP then counts what that left, in HIP_VISIBLE_DEVICES, or in CUDA_VISIBLE_DEVICES where the former is empty; so both
are set for it. Ascend reads ASCEND_RT_VISIBLE_DEVICES: numbers, ascending, up to the first that there is not. (ROCm:
GPU isolation techniques; CANN: environment variables.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from unidle.errors import CannotRun
from unidle.fleet import Device, Vendor


def visible_devices(mine: Sequence[Device], vendors: Iterable[Vendor]) -> dict[str, str]:
    """The variables that show a rank just its own GPUs, on a fleet with GPUs of these vendors.

    Errors: :class:`CannotRun` for GPUs of two vendors, which no runtime drives together.
    """
    gpus = list({device.id: device for device in mine if device.kind == "gpu"}.values())
    of = sorted({gpu.vendor for gpu in gpus})
    if len(of) > 1:
        raise CannotRun(
            f"a rank's GPUs are of {' and '.join(of)}", field="devices", value=[gpu.id for gpu in gpus],
            remedy="name the models that it may use in the job's models.include",
        )  # fmt: skip
    vendor = of[0] if of else None
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(_name, gpus)) if vendor == "nvidia" else ""}
    if "amd" in vendors:
        own = gpus if vendor == "amd" else []
        env["ROCR_VISIBLE_DEVICES"] = ",".join(map(_name, own))
        env["HIP_VISIBLE_DEVICES"] = ",".join(str(k) for k in range(len(own)))
    if "ascend" in vendors:
        numbers = sorted(map(_number, gpus)) if vendor == "ascend" else [-1]
        env["ASCEND_RT_VISIBLE_DEVICES"] = ",".join(map(str, numbers))
    return env


def is_visible(number: int, uuid: str, visible: str | None) -> bool:
    """Whether such a variable (None: unset) leaves the GPU visible; names may be cut short."""
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",")]
    return any(name == str(number) or (name.startswith("GPU-") and uuid.startswith(name)) for name in names)


def hidden_amd(uuids: Sequence[str], environ: Mapping[str, str]) -> set[int]:
    """The numbers of AMD's GPUs that the variables hide; HIP's counts what ROCR's left."""
    left = [k for k, uuid in enumerate(uuids) if is_visible(k, uuid, environ.get("ROCR_VISIBLE_DEVICES"))]
    hip = environ.get("HIP_VISIBLE_DEVICES") or None
    shown = {k for at, k in enumerate(left) if is_visible(at, uuids[k], hip)}
    return set(range(len(uuids))) - shown


def _name(gpu: Device) -> str:
    return gpu.uuid or str(_number(gpu))


def _number(gpu: Device) -> int:
    return gpu.index if gpu.number is None else gpu.number
