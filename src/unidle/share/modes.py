"""How one GPU is cut: whole, MIG instances, MPS clients, time slices; and what each part gets.

What each mode guarantees (NVIDIA MIG User Guide, "CUDA Concurrency Mechanisms", and the MPS guide,
https://docs.nvidia.com/deploy/mps/):

- MIG: compute, memory and bandwidth of its own, and a fault stays inside; profiles only.
- MPS: concurrent kernels; a bound on threads and on memory for each client; a fault of one client can end
  the others; at most 48 clients of one GPU.
- time slices: one process at a time; no bound on memory, a fault stays inside.

A CPU device is cut by quota: a control group bounds CPU time, and memory where the device declares any.

Shares are in parts per million of one GPU and sum to 1,000,000, so that a ledger of them adds up; what no
one asked for is a part of its own at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from unidle.fleet import WHOLE_PPM, CutMode, Device, Node, declared_ppm, device_of
from unidle.jobs import Share
from unidle.ledger.apportion import by_weight
from unidle.share.mig import Reconfiguration, reconfigure
from unidle.share.mig_models import MIB, Instance, MigModel
from unidle.share.refusal import PartRefused, gib_of, refused, times_of
from unidle.words import counted, does

Mode = CutMode
Guarantee = Literal["memory", "fault", "bandwidth"]

GUARANTEES: Final[Mapping[Mode, frozenset[Guarantee]]] = {
    "quota": frozenset({"memory", "fault"}),
    "mig": frozenset({"memory", "fault", "bandwidth"}),
    "mps": frozenset({"memory"}),
    "time": frozenset({"fault"}),
    "whole": frozenset({"memory", "fault", "bandwidth"}),
}
"""All modes; of two that cost the same, the first one is chosen."""
GPU_MODES: Final = tuple(mode for mode in GUARANTEES if mode not in ("quota", "whole"))
BOUNDED: Final[frozenset[Mode]] = frozenset(GUARANTEES) - {"mig", "whole"}
"""Parts that are bounds of what is used, and no instances."""
MPS_CLIENTS: Final = 48
_PPM_PER_PERCENT: Final = WHOLE_PPM // 100


@dataclass(frozen=True, slots=True)
class Oversubscription:
    """How much of a GPU may be promised: 1,500,000 is one and a half times. MIG never promises more than all."""

    compute_ppm: int = WHOLE_PPM
    memory_ppm: int = WHOLE_PPM


EXACT: Final = Oversubscription()


@dataclass(frozen=True, slots=True)
class GpuPart:
    """One part of a GPU. ``share_ppm`` is what it counts in the ledger; the parts of a GPU sum to 1,000,000.

    ``compute_ppm`` and ``memory_bytes`` are its bounds: what it was promised, and may not exceed where the
    mode enforces that. ``memory_ppm`` also sums to 1,000,000. ``instance`` is set where it is a MIG
    instance; a part with ``rest`` belongs to no one.
    """

    share_ppm: int
    memory_ppm: int
    compute_ppm: int
    memory_bytes: int
    instance: Instance | None = None
    rest: bool = False


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A GPU and its parts: one for each wish in order, then the rest if it exists.

    ``compute_promised_ppm`` and ``memory_promised_ppm`` above 1,000,000 state by how much the GPU is
    oversubscribed.
    """

    device: str
    mode: Mode
    parts: tuple[GpuPart, ...]
    compute_promised_ppm: int
    memory_promised_ppm: int
    plan: Reconfiguration | None = None

    @property
    def slices_ppm(self) -> tuple[int, ...]:
        """What :class:`unidle.fleet.Device` holds as ``slices_ppm``."""
        return tuple(part.share_ppm for part in self.parts)


def cut(
    device: Device,
    mode: Mode,
    shares: Sequence[Share],
    over: Oversubscription = EXACT,
    mig: MigModel | None = None,
) -> PartPlan | PartRefused:
    """Cut an empty GPU into a part for each share, or say why that cannot be."""
    if mode == "whole":
        if len(shares) > 1:
            return refused(
                "whole_is_for_one", f"{device.id}: a whole GPU is for one job, {len(shares)} ask for it"
            )
        whole = GpuPart(WHOLE_PPM, WHOLE_PPM, WHOLE_PPM, device.memory_bytes)
        return PartPlan(device.id, mode, (whole,), WHOLE_PPM, WHOLE_PPM)
    if mode == "mig":
        return _cut_mig(device, shares, mig)
    if mode == "mps" and len(shares) > MPS_CLIENTS:
        return refused(
            "mps_clients",
            f"{device.id}: MPS serves {MPS_CLIENTS} clients of a GPU, {len(shares)} ask",
            asked=len(shares),
        )
    asked: list[tuple[int, int]] = []
    for share in shares:
        need = needs_of(share, device)
        if isinstance(need, PartRefused):
            return need
        asked.append(need)
    return _cut_by_bounds(device, mode, asked, over)


def needs_of(share: Share, device: Device) -> tuple[int, int] | PartRefused:
    """Compute (ppm) and memory (bytes) that a share means on this device; what is left open follows the other."""
    if share.profile:
        return refused(
            "profile_without_mig", f"{share.profile} is a MIG profile: only a GPU cut by MIG has it"
        )
    if share.memory_bytes and not device.memory_bytes:
        return refused(
            "memory_unknown", f"{device.id}: its memory is unknown, so no part of it can be promised"
        )
    compute, memory = share.compute_ppm, share.memory_bytes
    if not memory:
        memory = device.memory_bytes * compute // WHOLE_PPM
    elif not compute:
        compute = -(-memory * WHOLE_PPM // device.memory_bytes)
    if compute > WHOLE_PPM or memory > device.memory_bytes:
        return refused(
            "larger_than_gpu",
            f"{device.id} has {gib_of(device.memory_bytes)}, and {gib_of(memory)} are asked for",
            memory_bytes=memory,
            device_bytes=device.memory_bytes,
        )
    return max(1, compute), memory


def shares_of(asked_ppm: Sequence[int]) -> tuple[int, ...]:
    """Shares that sum to exactly 1,000,000, one for each wish (each at least 1) and one for the rest, if any.

    Wishes for more than all are scaled down in proportion.
    """
    total = sum(asked_ppm)
    if total == WHOLE_PPM:
        return tuple(asked_ppm)
    if total < WHOLE_PPM:
        return (*asked_ppm, WHOLE_PPM - total)
    spare = WHOLE_PPM - len(asked_ppm)  # each has 1 for sure
    return tuple(1 + part for part in by_weight(spare, asked_ppm))


def mps_environment(part: GpuPart, pipe_directory: str, log_directory: str) -> dict[str, str]:
    """The variables by which a client finds its MPS server and is bounded by it (MPS guide, "Environment Variables").

    The server sees one GPU only, which is device 0 for its clients.
    """
    env = {
        "CUDA_MPS_PIPE_DIRECTORY": pipe_directory,
        "CUDA_MPS_LOG_DIRECTORY": log_directory,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(thread_percent(part.compute_ppm)),
    }
    if part.memory_bytes:
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, part.memory_bytes // MIB)}M"
    return env


def thread_percent(compute_ppm: int) -> int:
    """A whole percentage of threads, 1 to 100, that does not exceed the share."""
    return min(100, max(1, compute_ppm // _PPM_PER_PERCENT))


def cpu_quota(
    node: Node, slices: Sequence[str], machine_cpus: float, promised_ppm: Mapping[str, int] | None = None
) -> float | None:
    """The CPU cores of the slices (ids) of CPU devices on ``node``; None if none of these devices is cut.

    A CPU device has an equal part of the node's cores (of ``machine_cpus`` if the node's are unknown). A slice
    has its share of that, or what it was promised.
    """
    devices = {d.id: d for d in node.devices if d.kind == "cpu"}
    promised, held_ppm, cut = promised_ppm or {}, 0, False
    for slice_id in slices:
        device = devices.get(device_of(slice_id))
        if device is not None:
            held_ppm += promised.get(slice_id, 0) or declared_ppm(device, slice_id)
            cut |= slice_id in promised or len(device.slices_ppm) > 1
    return (node.cpus or machine_cpus) / len(devices) * held_ppm / WHOLE_PPM if cut else None


def _cut_by_bounds(
    device: Device, mode: Mode, asked: Sequence[tuple[int, int]], over: Oversubscription
) -> PartPlan | PartRefused:
    compute = sum(c for c, _ in asked)
    memory = sum(m for _, m in asked)
    memory_ppm = [_ppm_of(m, device.memory_bytes) for _, m in asked]
    for what, promised, limit in (
        ("compute", compute, over.compute_ppm),
        ("memory", _ppm_of(memory, device.memory_bytes), over.memory_ppm),
    ):
        if promised > limit:
            return refused(
                "oversubscribed",
                f"{device.id}: {counted(len(asked), 'part')} {does(len(asked), 'ask')} for {times_of(promised)} of its {what}, "
                f"and {times_of(limit)} may be promised",
                promised_ppm=promised,
                limit_ppm=limit,
            )
    shares = shares_of([c for c, _ in asked])
    memories = _pad(shares_of(memory_ppm), len(asked))
    # a rest of either makes the last part
    count = max(len(shares), len(memories))
    parts = []
    for k in range(count):
        share = shares[k] if k < len(shares) else 0
        taken = asked[k] if k < len(asked) else (0, 0)
        part_memory = memories[k] if k < len(memories) else 0
        parts.append(GpuPart(share, part_memory, taken[0], taken[1], rest=k >= len(asked)))
    return PartPlan(device.id, mode, _drop_empty_rest(parts), compute, _ppm_of(memory, device.memory_bytes))


def _cut_mig(device: Device, shares: Sequence[Share], mig: MigModel | None) -> PartPlan | PartRefused:
    if mig is None:
        return refused(
            "mig_unknown",
            f"{device.id} ({device.model or 'model unknown'}): MIG is not known to cut it",
        )
    names = []
    for share in shares:
        name = profile_for(share, mig)
        if isinstance(name, PartRefused):
            return name
        names.append(name)
    plan = reconfigure(mig, names)
    if isinstance(plan, PartRefused):
        return plan
    profiles = [mig.profile(i.profile) for i in plan.serve]
    compute = shares_of([mig.compute_ppm(p) for p in profiles])
    if len(compute) > len(profiles) and sum(p.compute for p in profiles) == mig.compute:
        compute = (*compute[:-2], compute[-2] + compute[-1])  # sevenths do not divide a million
    memory = _pad(shares_of([p.memory * WHOLE_PPM // mig.memory for p in profiles]), len(profiles))
    parts = [
        GpuPart(compute[k], memory[k], mig.compute_ppm(profile), mig.bytes_of(profile), plan.serve[k])
        for k, profile in enumerate(profiles)
    ]
    count = len(parts)
    if max(len(compute), len(memory)) > count:
        parts.append(GpuPart(sum(compute[count:]), sum(memory[count:]), 0, 0, rest=True))
    promised = sum(p.compute for p in profiles) * WHOLE_PPM // mig.compute
    return PartPlan(device.id, "mig", _drop_empty_rest(parts), promised, sum(memory[:count]), plan)


def profile_for(share: Share, mig: MigModel) -> str | PartRefused:
    """The profile that a share requests: by name, or the smallest that has enough compute and memory."""
    if share.profile:
        if mig.knows(share.profile):
            return share.profile
        known = ", ".join(p.name for p in mig.profiles)
        return refused("mig_no_profile", f"{mig.name} has no profile {share.profile}; it has {known}")
    found = mig.smallest(share.compute_ppm, share.memory_bytes)
    if found is None:
        return refused(
            "larger_than_gpu",
            f"no MIG profile of {mig.name} has {share.compute_ppm / 10_000:g} % of its compute and {gib_of(share.memory_bytes)}",
        )
    return found.name


def _pad(values: tuple[int, ...], least: int) -> tuple[int, ...]:
    return values + (0,) * (least - len(values))


def _drop_empty_rest(parts: Sequence[GpuPart]) -> tuple[GpuPart, ...]:
    """A rest without compute would be a slice of nothing; its memory stays with the last part."""
    if len(parts) < 2 or not parts[-1].rest or parts[-1].share_ppm:
        return tuple(parts)
    last, rest = parts[-2], parts[-1]
    kept = GpuPart(
        last.share_ppm, last.memory_ppm + rest.memory_ppm, last.compute_ppm, last.memory_bytes, last.instance
    )
    return (*parts[:-2], kept)


def _ppm_of(part: int, whole: int) -> int:
    return part * WHOLE_PPM // whole if whole else 0
