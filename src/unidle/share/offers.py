"""What one GPU offers to a request for a part: for each way to cut it the room, the slow-downs and the price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from unidle.fleet import WHOLE_PPM, Device
from unidle.jobs import Share, Where
from unidle.share.interference import Interference, Load, Tenant
from unidle.share.mig import Reconfiguration, reconfigure
from unidle.share.mig_models import Instance, MigModel
from unidle.share.modes import (
    BOUNDED,
    EXACT,
    GPU_MODES,
    GUARANTEES,
    MPS_CLIENTS,
    Guarantee,
    Mode,
    Oversubscription,
    needs_of,
    profile_for,
)
from unidle.share.parts import PartPromise, mig_model, share_of
from unidle.share.refusal import PartRefused, gib_of, refused, times_of


@dataclass(frozen=True, slots=True)
class Resident:
    """One who has a part of a GPU already."""

    job: str
    load: Load
    compute_ppm: int
    memory_bytes: int
    instance: Instance | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the chooser sees it.

    ``mode`` is how it is cut now (None: it is empty). ``modes`` are those that the machine allows; ``why_not``
    has the reason for each of the others. ``idle`` are unused MIG instances.
    """

    device: Device
    mode: Mode | None = None
    residents: tuple[Resident, ...] = ()
    modes: frozenset[Mode] = frozenset({"whole", "time"})
    mig: MigModel | None = None
    idle: tuple[Instance, ...] = ()
    why_not: Mapping[Mode, str] = field(default_factory=dict)
    alike: str = field(init=False, compare=False, repr=False)  # the same for GPUs that offer the same

    def __post_init__(self) -> None:
        device = self.device
        there = [(r.load, r.compute_ppm, r.memory_bytes, r.instance) for r in self.residents]
        mig = self.mig and self.mig.name
        what = (
            device.kind,
            device.model,
            device.memory_bytes,
            self.mode,
            sorted(self.modes),
            mig,
            self.idle,
            there,
        )
        object.__setattr__(self, "alike", repr(what))


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. ``needs`` are guarantees that the mode must give.

    ``most_ppm``: parts that would count more of their device are not for it.
    """

    share: Share
    load: Load
    where: Where = field(default_factory=Where)
    needs: frozenset[Guarantee] = frozenset()
    slowdown_limit_ppm: int = 1_500_000
    most_ppm: int = WHOLE_PPM


@dataclass(frozen=True, slots=True)
class SharePolicy:
    """``over``: how much may be promised. ``opening_ppm``: what an unused part of a newly cut GPU costs.

    ``whole_instead``: give a whole GPU to a request for a part, if no part suits it.
    """

    over: Oversubscription = EXACT
    opening_ppm: int = 250_000
    whole_instead: bool = False


class PartOption(NamedTuple):
    """A GPU and mode that would do, before it is put into words."""

    price_ppm: int
    mode: Mode
    gpu: Gpu
    compute_ppm: int
    memory_bytes: int
    slowdown_ppm: int
    worst_other_ppm: int
    how: str
    plan: Reconfiguration | None


def offers_of(
    wish: Wish, gpu: Gpu, table: Interference, rules: SharePolicy
) -> list[PartOption | PartRefused]:
    """What one GPU that may be used offers: one entry for each mode that was thought of."""
    modes = _asked(wish.share)
    if gpu.device.kind != "gpu":
        if "quota" not in gpu.modes or modes != GPU_MODES:
            return [
                refused("not_a_gpu", f"{gpu.device.id} is a CPU device: it is cut by the shares of its CPUs")
            ]
        modes = ("quota",)
    if gpu.mode is not None:
        if gpu.mode not in modes:
            return [
                refused("cut_otherwise", f"{gpu.device.id} is cut by {gpu.mode} as long as others use it")
            ]
        modes = (gpu.mode,)
    found = [_offer(wish, gpu, mode, table, rules) for mode in modes]
    if rules.whole_instead and gpu.mode is None:
        found.append(_whole(wish, gpu, rules))
    return found


def _asked(share: Share) -> tuple[Mode, ...]:
    """The ways to cut a GPU that the share allows."""
    if share.profile:
        return ("mig",)
    return GPU_MODES if share.mode == "any" else (share.mode,)


def _offer(
    wish: Wish, gpu: Gpu, mode: Mode, table: Interference, rules: SharePolicy
) -> PartOption | PartRefused:
    if mode not in gpu.modes:
        return refused(f"no_{mode}", f"{gpu.device.id} cannot be cut by {mode}: {_why_not(gpu, mode)}")
    lacking = wish.needs - GUARANTEES[mode]
    if lacking:
        return refused("no_guarantee", f"{mode} does not isolate {' and '.join(sorted(lacking))}")
    room = _mig_room(wish, gpu) if mode == "mig" else _bounded_room(wish, gpu, mode, rules.over)
    if isinstance(room, PartRefused):
        return room
    compute, memory, memory_ppm, plan = room
    instance = plan.serve[0] if plan is not None else None
    counts = share_of(gpu.device, PartPromise("", mode, compute, memory, instance))
    if (why := _unfit(wish, gpu, mode, counts, memory)) is not None:
        return why
    newcomer = Tenant(wish.load, compute, memory_ppm)
    return _priced(wish, gpu, mode, newcomer, memory, plan, table, rules)


def _unfit(wish: Wish, gpu: Gpu, mode: Mode, counts: int, memory: int) -> PartRefused | None:
    """Why a part that counts so much (ppm) and has so much memory (bytes; 0: not known) is none for the wish."""
    if counts > wish.most_ppm:
        return refused(
            "counts_for_more",
            f"{gpu.device.id} by {mode}: the part counts as {counts / 10_000:.1f} % of the device, "
            f"{wish.most_ppm / 10_000:.1f} % may be charged",
            counts_ppm=counts, most_ppm=wish.most_ppm,
        )  # fmt: skip
    if wish.load.memory_bytes > memory > 0:
        return refused(
            "load_too_large",
            f"{wish.load.name} needs {gib_of(wish.load.memory_bytes)}, and the part would have {gib_of(memory)}",
            needs_bytes=wish.load.memory_bytes, part_bytes=memory,
        )  # fmt: skip
    return None


def _why_not(gpu: Gpu, mode: Mode) -> str:
    """Why a mode is none of the GPU's: the machine lacks it, its vendor has none, or the fleet file leaves it out."""
    if mode in gpu.why_not:
        return gpu.why_not[mode]
    if mode in ("mig", "mps") and gpu.device.vendor != "nvidia":
        return "only GPUs of NVIDIA can"
    left = ", ".join(sorted(gpu.modes - {"whole"}))
    return f"the fleet file allows {left} only" if left else "no way to cut it is left"


def _priced(
    wish: Wish,
    gpu: Gpu,
    mode: Mode,
    newcomer: Tenant,
    memory: int,
    plan: Reconfiguration | None,
    table: Interference,
    rules: SharePolicy,
) -> PartOption | PartRefused:
    there = [_tenant(resident, gpu) for resident in gpu.residents]
    own = table.slowdown(mode, newcomer, there)
    price = _lost(own.ppm)
    worst = WHOLE_PPM
    if mode != "mig":  # instances do not feel each other
        for k, tenant in enumerate(there):
            others = there[:k] + there[k + 1 :]
            after = table.slowdown(mode, tenant, [*others, newcomer]).ppm
            worst = max(worst, after)
            price += max(0, _lost(after) - _lost(table.slowdown(mode, tenant, others).ppm))
    if max(own.ppm, worst) > wish.slowdown_limit_ppm:
        return refused(
            "too_slow",
            f"{gpu.device.id} by {mode}: {wish.load.name} would take {times_of(own.ppm)} as long, others up to "
            f"{times_of(worst)}; at most {times_of(wish.slowdown_limit_ppm)} is allowed",
            slowdown_ppm=own.ppm, others_ppm=worst, limit_ppm=wish.slowdown_limit_ppm,
        )  # fmt: skip
    if not gpu.residents:
        price += (WHOLE_PPM - min(WHOLE_PPM, newcomer.compute_ppm)) * rules.opening_ppm // WHOLE_PPM
    return PartOption(price, mode, gpu, newcomer.compute_ppm, memory, own.ppm, worst, own.how, plan)


def _bounded_room(
    wish: Wish, gpu: Gpu, mode: Mode, over: Oversubscription
) -> tuple[int, int, int, Reconfiguration | None] | PartRefused:
    """Compute, memory and the memory's share that MPS or time slices can give."""
    need = needs_of(wish.share, gpu.device)
    if isinstance(need, PartRefused):
        return need
    compute, memory = need
    if mode == "mps" and len(gpu.residents) >= MPS_CLIENTS:
        return refused("mps_clients", f"{gpu.device.id} has all {MPS_CLIENTS} clients that MPS serves")
    promised = compute + sum(r.compute_ppm for r in gpu.residents)
    if promised > over.compute_ppm:
        return refused(
            "compute_full",
            f"{gpu.device.id}: {times_of(promised)} of its compute would be promised, {times_of(over.compute_ppm)} may be",
            promised_ppm=promised, limit_ppm=over.compute_ppm,
        )  # fmt: skip
    whole = gpu.device.memory_bytes
    held = memory + sum(r.memory_bytes for r in gpu.residents)
    if whole and held * WHOLE_PPM > over.memory_ppm * whole:
        return refused(
            "memory_full",
            f"{gpu.device.id}: {gib_of(held)} of its {gib_of(whole)} would be promised",
            promised_bytes=held, device_bytes=whole,
        )  # fmt: skip
    return compute, memory, memory * WHOLE_PPM // whole if whole else WHOLE_PPM, None


def _mig_room(wish: Wish, gpu: Gpu) -> tuple[int, int, int, Reconfiguration | None] | PartRefused:
    mig = gpu.mig
    if mig is None:
        return refused(
            "no_mig", f"{gpu.device.id} ({gpu.device.model or 'model unknown'}): MIG cannot cut it"
        )
    name = profile_for(wish.share, mig)
    if isinstance(name, PartRefused):
        return name
    in_use = [r.instance for r in gpu.residents if r.instance is not None]
    plan = reconfigure(mig, (name,), in_use, gpu.idle)
    if isinstance(plan, PartRefused):
        return plan
    profile = mig.profile(name)
    return mig.compute_ppm(profile), mig.bytes_of(profile), profile.memory * WHOLE_PPM // mig.memory, plan


def _whole(wish: Wish, gpu: Gpu, rules: SharePolicy) -> PartOption | PartRefused:
    """A whole GPU for one who asked for a part: what it leaves unused counts in full."""
    need = None if wish.share.profile else needs_of(wish.share, gpu.device)
    if isinstance(need, PartRefused):
        return need
    if (why := _unfit(wish, gpu, "whole", WHOLE_PPM, gpu.device.memory_bytes)) is not None:
        return why
    price = WHOLE_PPM + rules.opening_ppm
    return PartOption(
        price, "whole", gpu, WHOLE_PPM, gpu.device.memory_bytes, WHOLE_PPM, WHOLE_PPM, "modelled", None
    )


def _tenant(resident: Resident, gpu: Gpu) -> Tenant:
    whole = gpu.device.memory_bytes
    memory_ppm = resident.memory_bytes * WHOLE_PPM // whole if whole else WHOLE_PPM
    return Tenant(resident.load, resident.compute_ppm, memory_ppm)


def _lost(slowdown_ppm: int) -> int:
    """Progress lost, in ppm of a GPU: nothing at 1,000,000, half at 2,000,000."""
    return WHOLE_PPM - WHOLE_PPM * WHOLE_PPM // slowdown_ppm


def bounded_modes(share: Share) -> frozenset[Mode]:
    """The modes in which the share would be a bounded part, and no instance."""
    if share.profile:
        return frozenset()
    return BOUNDED if share.mode == "any" else BOUNDED & {share.mode}


def promises(device: Device, share: Share) -> Iterator[PartPromise]:
    """What the share would be on this device, by the ways in which it may be cut: as an instance, and by bounds."""
    model = mig_model(device)
    if model is not None and share.mode in ("any", "mig"):
        name = profile_for(share, model)
        if not isinstance(name, PartRefused):
            profile = model.profile(name)
            yield PartPromise(
                "", "mig", model.compute_ppm(profile), model.bytes_of(profile), Instance(name, 0)
            )
    if device.sharing is not None and bounded_modes(share) & {*device.sharing.modes}:
        need = needs_of(share, device)
        if not isinstance(need, PartRefused):
            yield PartPromise("", "time", *need)
