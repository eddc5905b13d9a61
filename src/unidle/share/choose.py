"""Which GPU a request for a part of a GPU gets, and how that GPU is cut; with the figures behind the choice.

Every GPU and mode that the job, the hardware and those already there allow is priced in parts per million of
a GPU's progress, and the cheapest is taken:

    price = what the newcomer loses by sharing + what those already there lose by it
            + what is opened: the part of an empty GPU that the newcomer does not use, times ``opening_ppm``

No one may be slowed down beyond ``slowdown_limit_ppm``. Progress lost is 1 - 1/slow-down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.fleet import WHOLE_PPM
from unidle.jobs import Reason
from unidle.share.interference import Interference
from unidle.share.mig import Reconfiguration
from unidle.share.modes import GUARANTEES, Mode
from unidle.share.offers import Gpu, PartOption, SharePolicy, Wish, offers_of
from unidle.share.refusal import PartRefused, gib_of, in_the_way, refused, times_of
from unidle.share.select import may_use, may_use_any
from unidle.words import counted

_ORDER: Final = tuple(GUARANTEES)
_SHOWN: Final = 3  # other ways that a reason names


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


def choose(
    wish: Wish, gpus: Sequence[Gpu], table: Interference, policy: SharePolicy | None = None
) -> Choice | PartRefused:
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
        self._found: dict[str, list[PartOption | PartRefused]] = {}
        self._best: tuple[tuple[int, int, int], PartOption] | None = None
        self._against: Counter[str] = Counter()
        self._examples: dict[str, Reason] = {}

    def price(self, gpu: Gpu) -> None:
        found = self._found[gpu.alike] = offers_of(self._wish, gpu, self._table, self._rules)
        for offer in found:
            if isinstance(offer, PartOption):
                rank = (offer.price_ppm, _ORDER.index(offer.mode), len(self._found))
                if self._best is None or rank < self._best[0]:
                    self._best = (rank, offer)

    def refuse(self, why: PartRefused, times: int) -> None:
        self._against[why.because.code] += times
        self._examples.setdefault(why.because.code, why.because)

    def answer(self, gpus: int, times: Mapping[str, int]) -> Choice | PartRefused:
        ways, others = 0, list[tuple[tuple[int, int, int], PartOption]]()
        for nth, (alike, found) in enumerate(self._found.items(), 1):
            for offer in found:
                if isinstance(offer, PartRefused):
                    self.refuse(offer, times[alike])
                else:
                    ways += times[alike]
                    others.append(((offer.price_ppm, _ORDER.index(offer.mode), nth), offer))
        if self._best is None:
            return _none(gpus, self._against, self._examples)
        rest = [offer for _, offer in sorted(others, key=lambda o: o[0]) if offer is not self._best[1]]
        return _choice(self._best[1], ways, self._against, rest[:_SHOWN])


def _choice(offer: PartOption, offers: int, against: Counter[str], instead: Sequence[PartOption]) -> Choice:
    gpu, beside = offer.gpu, len(offer.gpu.residents)
    what = "GPU" if gpu.device.kind == "gpu" else "CPU device"
    others = f"next to {counted(beside, 'other')}" if beside else f"on an empty {what}"
    slowed = (
        f", {'the other' if beside == 1 else 'the others'} up to {times_of(offer.worst_other_ppm)}"
        if beside
        else ""
    )
    memory = f", {gib_of(offer.memory_bytes)} of memory" if offer.memory_bytes else ""
    text = (
        f"{offer.mode} on {gpu.device.id}, {others}: {offer.compute_ppm / 10_000:.1f} % of compute{memory}; "
        f"takes {times_of(offer.slowdown_ppm)} as long as alone ({offer.how}){slowed}; "
        f"{'the only way' if offers == 1 else f'the cheapest of {offers} ways'}: it costs {_cost(offer)} of a {what}"
    )
    if instead:
        text += "; instead " + ", ".join(f"{o.mode} on {o.gpu.device.id} {_cost(o)}" for o in instead)
    if against:
        text += f"; ruled out: {in_the_way(against, _SHOWN)}"
    return Choice(
        gpu.device.id,
        offer.mode,
        offer.compute_ppm,
        offer.memory_bytes,
        offer.price_ppm,
        offer.slowdown_ppm,
        offer.worst_other_ppm,
        offer.plan,
        Reason(f"share_{offer.mode}", text, _figures(offer, offers, against, instead)),
    )


def _figures(
    offer: PartOption, offers: int, against: Counter[str], instead: Sequence[PartOption]
) -> dict[str, int | float | str]:
    figures: dict[str, int | float | str] = {
        "price_ppm": offer.price_ppm,
        "slowdown_ppm": offer.slowdown_ppm,
        "others_ppm": offer.worst_other_ppm,
        "compute_ppm": offer.compute_ppm,
        "memory_bytes": offer.memory_bytes,
        "beside": len(offer.gpu.residents),
        "ways": offers,
        "refused": sum(against.values()),
        "how": offer.how,
    }
    return figures | {f"instead_{o.mode}_{o.gpu.device.id}_ppm": o.price_ppm for o in instead}


def _none(gpus: int, against: Counter[str], examples: Mapping[str, Reason]) -> PartRefused:
    if not gpus:
        return refused("no_gpu", "no device can be shared")
    first = examples[against.most_common(1)[0][0]]
    figures: dict[str, int | float | str] = {"gpus": gpus, **against}
    return PartRefused(
        Reason(
            "no_share",
            f"none of {counted(gpus, 'device')} has a part for it ({in_the_way(against)}); for example: {first.text}",
            figures,
        )
    )


def _cost(offer: PartOption) -> str:
    return f"{offer.price_ppm / WHOLE_PPM:.2f}"
