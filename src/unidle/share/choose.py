"""Which GPU, and cut how, for one who asks for a part of a GPU; with the figures behind it.

Every GPU and mode that the job, the hardware and those already there allow is priced in parts per million of
a GPU's progress, and the cheapest is taken:

    price = what the newcomer loses by sharing + what those already there lose by it
            + what is opened: the part of an empty GPU that the newcomer does not use, times ``opening_ppm``

No one may be slowed down beyond ``slowdown_limit_ppm``. Progress lost is 1 - 1/slow-down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from unidle.fleet import WHOLE_PPM, Device
from unidle.jobs import Reason, Share, Where
from unidle.share.loads import Interference, Load, Tenant
from unidle.share.mig import Reconfiguration, reconfigure
from unidle.share.mig_models import Instance, MigModel
from unidle.share.modes import (
    EXACT,
    GUARANTEES,
    MPS_CLIENTS,
    Guarantee,
    Mode,
    Oversubscription,
    needs_of,
    profile_for,
)
from unidle.share.refusal import Refused, refused
from unidle.share.select import may_use, may_use_any
from unidle.words import counted

_ORDER: Final[tuple[Mode, ...]] = (
    "quota",
    "mig",
    "mps",
    "time",
    "whole",
)  # of two that cost the same, the safer one
_SHOWN: Final = 3  # other ways that a reason names
_ASKED: Final[Mapping[str, tuple[Mode, ...]]] = {
    "any": ("mig", "mps", "time"),
    "mig": ("mig",),
    "mps": ("mps",),
    "time": ("time",),
}


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

    ``mode`` is how it is cut now (None: it is empty); ``modes`` are those that the machine allows, and
    ``why_not`` says for the others why not. ``idle`` are MIG instances that no one uses.
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
    """What is asked for. ``needs`` are guarantees that the mode must give."""

    share: Share
    load: Load
    where: Where = field(default_factory=Where)
    needs: frozenset[Guarantee] = frozenset()
    slowdown_limit_ppm: int = 1_500_000


@dataclass(frozen=True, slots=True)
class SharePolicy:
    """``over``: how much may be promised. ``opening_ppm``: what an unused part of a newly cut GPU costs.

    ``whole_instead``: give a whole GPU to one who asks for a part, where no part will do.
    """

    over: Oversubscription = EXACT
    opening_ppm: int = 250_000
    whole_instead: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the newcomer goes. ``plan`` is what MIG has to do first; ``price_ppm`` is that of the module."""

    device: str
    mode: Mode
    compute_ppm: int
    memory_bytes: int
    price_ppm: int
    slowdown_ppm: int
    worst_other_ppm: int
    plan: Reconfiguration | None
    because: Reason


class _Offer(NamedTuple):
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


def choose(
    wish: Wish, gpus: Sequence[Gpu], table: Interference, policy: SharePolicy | None = None
) -> Choice | Refused:
    """The cheapest part of a GPU for the wish, or why there is none: each reason with the number of GPUs."""
    search = _Search(wish, table, policy or SharePolicy())
    free_of_rules = may_use_any(wish.where)
    times: dict[str, int] = {}
    for gpu in gpus:
        barred = None if free_of_rules else may_use(gpu.device, wish.where)
        if barred is not None:
            search.refuse(barred, 1)
        elif gpu.alike in times:
            times[gpu.alike] += 1
        else:
            times[gpu.alike] = 1
            search.price(gpu)
    return search.answer(len(gpus), times)


class _Search:
    """Prices one GPU of each kind, in the order in which kinds come, and keeps the cheapest offer."""

    def __init__(self, wish: Wish, table: Interference, rules: SharePolicy) -> None:
        self._wish, self._table, self._rules = wish, table, rules
        self._found: dict[str, list[_Offer | Refused]] = {}
        self._best: tuple[tuple[int, int, int], _Offer] | None = None
        self._against: Counter[str] = Counter()
        self._examples: dict[str, Reason] = {}

    def price(self, gpu: Gpu) -> None:
        found = self._found[gpu.alike] = _offers(self._wish, gpu, self._table, self._rules)
        for offer in found:
            if isinstance(offer, _Offer):
                rank = (offer.price_ppm, _ORDER.index(offer.mode), len(self._found))
                if self._best is None or rank < self._best[0]:
                    self._best = (rank, offer)

    def refuse(self, why: Refused, times: int) -> None:
        self._against[why.because.code] += times
        self._examples.setdefault(why.because.code, why.because)

    def answer(self, gpus: int, times: Mapping[str, int]) -> Choice | Refused:
        ways, others = 0, list[tuple[tuple[int, int, int], _Offer]]()
        for nth, (alike, found) in enumerate(self._found.items(), 1):
            for offer in found:
                if isinstance(offer, Refused):
                    self.refuse(offer, times[alike])
                else:
                    ways += times[alike]
                    others.append(((offer.price_ppm, _ORDER.index(offer.mode), nth), offer))
        if self._best is None:
            return _none(gpus, self._against, self._examples)
        rest = [offer for _, offer in sorted(others, key=lambda o: o[0]) if offer is not self._best[1]]
        return _choice(self._best[1], ways, self._against, rest[:_SHOWN])


def _offers(wish: Wish, gpu: Gpu, table: Interference, rules: SharePolicy) -> list[_Offer | Refused]:
    """What one GPU that may be used offers: one entry for each mode that was thought of."""
    modes: tuple[Mode, ...] = ("mig",) if wish.share.profile else _ASKED[wish.share.mode]
    if gpu.device.kind != "gpu":
        if "quota" not in gpu.modes or modes != _ASKED["any"]:
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
        found.append(_whole(gpu, rules))
    return found


def _offer(wish: Wish, gpu: Gpu, mode: Mode, table: Interference, rules: SharePolicy) -> _Offer | Refused:
    if mode not in gpu.modes:
        why = gpu.why_not.get(mode, "this machine does not offer it")
        return refused(f"no_{mode}", f"{gpu.device.id} cannot be cut by {mode}: {why}")
    lacking = wish.needs - GUARANTEES[mode]
    if lacking:
        return refused("no_guarantee", f"{mode} does not isolate {' and '.join(sorted(lacking))}")
    room = _mig_room(wish, gpu) if mode == "mig" else _bounded_room(wish, gpu, mode, rules.over)
    if isinstance(room, Refused):
        return room
    compute, memory, memory_ppm, plan = room
    if wish.load.memory_bytes > memory > 0:
        return refused(
            "load_too_large",
            f"{wish.load.name} needs {_gib(wish.load.memory_bytes)}, and the part would have {_gib(memory)}",
            needs_bytes=wish.load.memory_bytes, part_bytes=memory,
        )  # fmt: skip
    newcomer = Tenant(wish.load, compute, memory_ppm)
    return _priced(wish, gpu, mode, newcomer, memory, plan, table, rules)


def _priced(
    wish: Wish,
    gpu: Gpu,
    mode: Mode,
    newcomer: Tenant,
    memory: int,
    plan: Reconfiguration | None,
    table: Interference,
    rules: SharePolicy,
) -> _Offer | Refused:
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
            f"{gpu.device.id} by {mode}: {wish.load.name} would take {_times(own.ppm)} as long, others up to "
            f"{_times(worst)}; at most {_times(wish.slowdown_limit_ppm)} is allowed",
            slowdown_ppm=own.ppm, others_ppm=worst, limit_ppm=wish.slowdown_limit_ppm,
        )  # fmt: skip
    if not gpu.residents:
        price += (WHOLE_PPM - min(WHOLE_PPM, newcomer.compute_ppm)) * rules.opening_ppm // WHOLE_PPM
    return _Offer(price, mode, gpu, newcomer.compute_ppm, memory, own.ppm, worst, own.how, plan)


def _bounded_room(
    wish: Wish, gpu: Gpu, mode: Mode, over: Oversubscription
) -> tuple[int, int, int, Reconfiguration | None] | Refused:
    """Compute, memory and the memory's share that MPS or time slices can give."""
    need = needs_of(wish.share, gpu.device)
    if isinstance(need, Refused):
        return need
    compute, memory = need
    if mode == "mps" and len(gpu.residents) >= MPS_CLIENTS:
        return refused("mps_clients", f"{gpu.device.id} has all {MPS_CLIENTS} clients that MPS serves")
    promised = compute + sum(r.compute_ppm for r in gpu.residents)
    if promised > over.compute_ppm:
        return refused(
            "compute_full",
            f"{gpu.device.id}: {_times(promised)} of its compute would be promised, {_times(over.compute_ppm)} may be",
            promised_ppm=promised, limit_ppm=over.compute_ppm,
        )  # fmt: skip
    whole = gpu.device.memory_bytes
    held = memory + sum(r.memory_bytes for r in gpu.residents)
    if whole and held * WHOLE_PPM > over.memory_ppm * whole:
        return refused(
            "memory_full",
            f"{gpu.device.id}: {_gib(held)} of its {_gib(whole)} would be promised",
            promised_bytes=held, device_bytes=whole,
        )  # fmt: skip
    return compute, memory, memory * WHOLE_PPM // whole if whole else WHOLE_PPM, None


def _mig_room(wish: Wish, gpu: Gpu) -> tuple[int, int, int, Reconfiguration | None] | Refused:
    mig = gpu.mig
    if mig is None:
        return refused(
            "no_mig", f"{gpu.device.id} ({gpu.device.model or 'model unknown'}): MIG cannot cut it"
        )
    name = profile_for(wish.share, mig)
    if isinstance(name, Refused):
        return name
    in_use = [r.instance for r in gpu.residents if r.instance is not None]
    plan = reconfigure(mig, (name,), in_use, gpu.idle)
    if isinstance(plan, Refused):
        return plan
    profile = mig.profile(name)
    return mig.compute_ppm(profile), mig.bytes_of(profile), profile.memory * WHOLE_PPM // mig.memory, plan


def _whole(gpu: Gpu, rules: SharePolicy) -> _Offer:
    """A whole GPU for one who asked for a part: what it leaves unused counts in full."""
    price = WHOLE_PPM + rules.opening_ppm
    return _Offer(
        price, "whole", gpu, WHOLE_PPM, gpu.device.memory_bytes, WHOLE_PPM, WHOLE_PPM, "modelled", None
    )


def _tenant(resident: Resident, gpu: Gpu) -> Tenant:
    whole = gpu.device.memory_bytes
    memory_ppm = resident.memory_bytes * WHOLE_PPM // whole if whole else WHOLE_PPM
    return Tenant(resident.load, resident.compute_ppm, memory_ppm)


def _choice(offer: _Offer, offers: int, against: Counter[str], instead: Sequence[_Offer]) -> Choice:
    gpu, beside = offer.gpu, len(offer.gpu.residents)
    what = "GPU" if gpu.device.kind == "gpu" else "CPU device"
    others = f"beside {counted(beside, 'other')}" if beside else f"on an empty {what}"
    memory = f", {_gib(offer.memory_bytes)} of memory" if offer.memory_bytes else ""
    text = (
        f"{offer.mode} on {gpu.device.id}, {others}: {offer.compute_ppm / 10_000:.1f} % of compute{memory}; "
        f"takes {_times(offer.slowdown_ppm)} as long as alone ({offer.how}), "
        f"the others up to {_times(offer.worst_other_ppm)}; the cheapest of {counted(offers, 'way')}: it costs {_cost(offer)} of a {what}"
    )
    if instead:
        text += "; instead " + ", ".join(f"{o.mode} on {o.gpu.device.id} {_cost(o)}" for o in instead)
    if against:
        text += "; not " + ", ".join(f"{code} {n}" for code, n in against.most_common(_SHOWN))
    figures: dict[str, int | float | str] = {
        "price_ppm": offer.price_ppm,
        "slowdown_ppm": offer.slowdown_ppm,
        "others_ppm": offer.worst_other_ppm,
        "compute_ppm": offer.compute_ppm,
        "memory_bytes": offer.memory_bytes,
        "beside": beside,
        "ways": offers,
        "refused": sum(against.values()),
        "how": offer.how,
    }
    figures |= {f"instead_{o.mode}_{o.gpu.device.id}_ppm": o.price_ppm for o in instead}
    return Choice(
        gpu.device.id,
        offer.mode,
        offer.compute_ppm,
        offer.memory_bytes,
        offer.price_ppm,
        offer.slowdown_ppm,
        offer.worst_other_ppm,
        offer.plan,
        Reason(f"share_{offer.mode}", text, figures),
    )


def _none(gpus: int, against: Counter[str], examples: Mapping[str, Reason]) -> Refused:
    if not gpus:
        return refused("no_gpu", "there is no device that could be shared")
    first = examples[against.most_common(1)[0][0]]
    counts = ", ".join(f"{code} {n}" for code, n in against.most_common())
    figures: dict[str, int | float | str] = {"gpus": gpus, **against}
    return Refused(
        Reason(
            "no_share",
            f"none of {counted(gpus, 'device')} has a part for it ({counts}); for example: {first.text}",
            figures,
        )
    )


def _lost(slowdown_ppm: int) -> int:
    """Progress lost, in ppm of a GPU: nothing at 1,000,000, half at 2,000,000."""
    return WHOLE_PPM - WHOLE_PPM * WHOLE_PPM // slowdown_ppm


def _cost(offer: _Offer) -> str:
    return f"{offer.price_ppm / WHOLE_PPM:.2f}"


def _times(ppm: int) -> str:
    return f"{ppm / WHOLE_PPM:.2f} times"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
