"""Why a gang is not placed: now, or ever, in words that say what it needs, what is free and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from unidle.jobs import JobSpec, Reason
from unidle.place.blocked import FREE_DEVICES
from unidle.place.constraint import Barrier, Blocked, gang_of
from unidle.place.ground import Ground
from unidle.place.pools import Option, candidates
from unidle.place.rank_class import RankClass
from unidle.place.reserve import Access
from unidle.place.shortage import narrowed, narrowed_nodes, scattered, wanted
from unidle.words import are, counted

_KEPT: Final = {
    "spare": ("kept_as_spare", "kept as spare"), "probation": ("on_probation", "on probation"),
    "place": ("kept_for_return", "kept for gangs that restart"),
}  # fmt: skip


class Refused(NamedTuple):
    """Why a gang cannot be placed, and each thing in the way."""

    because: Reason
    barriers: tuple[Barrier, ...] = ()


def never_fits(ground: Ground, spec: JobSpec, access: Access | None = None) -> Refused | None:
    """Why no state of this fleet holds the gang; None where one does."""
    gang = gang_of(spec)
    refused: list[tuple[Option, RankClass, Blocked]] = []
    for option, rank_class in candidates(ground, spec, access=access):
        verdict = rank_class.never(gang)
        if verdict is None:
            return None
        refused.append((option, rank_class, verdict))
    # those say why that come nearest to holding it
    nearest = max(refused, key=lambda one: (int(one[2].because.figures.get("largest", 0)), one[1].devices))
    vendors = {option.pool.vendor for option, _, _ in refused if option.pool.vendor}
    return _too_large(ground, spec, *nearest, of_many=len(vendors) > 1)


def _too_large(
    ground: Ground, spec: JobSpec, option: Option, rank_class: RankClass, verdict: Blocked, *, of_many: bool
) -> Refused:
    needs, total, kind = spec.devices, rank_class.devices, rank_class.kind
    if not spec.needs_devices and verdict.barriers[0].constraint is None:
        text = scattered(spec, verdict.barriers[0].largest, kind, "the empty fleet")
        by = narrowed_nodes(ground, spec)
        text += f" ({by})" if by else ""
    elif needs > total:
        text = f"needs {needs} {wanted(spec, kind)}, and the fleet has {total} that it may use"
        text += option.on if total else ""
        by = narrowed(ground, spec, kind) if spec.share is None else ""
        text += f" ({by})" if by else ""
        text += "; a gang is on GPUs of one vendor" if of_many and total else ""
    elif verdict.barriers[0].constraint is None:
        text = scattered(spec, verdict.barriers[0].largest, kind, "the empty fleet") + option.on
    else:
        text = verdict.what + (option.on if verdict.because.code != "unknown_tier" else "")
    figures = {**verdict.because.figures, "needs": needs, "devices": total}
    if kept := rank_class.spares_ever():
        text += f" ({counted(kept, 'device')} {are(kept)} kept as spare)"
        figures["kept_as_spare"] = kept
    because = Reason("never_fits", f"{text}: it can never start here", figures)
    return Refused(because, tuple(b.of_empty_fleet() for b in verdict.barriers if b.constraint is not None))


def waits(spec: JobSpec, rank_class: RankClass, blocked: Blocked) -> Refused:
    """A gang waits on this class of ranks."""
    if not spec.needs_devices:
        return _waits_for_cores(spec, rank_class, blocked)
    needs, room, left = spec.devices, int(rank_class.rooms.room.sum()), int(rank_class.left().sum())
    free = room * spec.devices_per_rank
    figures = {**blocked.because.figures, "needs": needs, "free": free, "devices": rank_class.devices}
    if blocked.because.code != "no_room":
        text = blocked.because.text + kept_back(rank_class, figures)
        return Refused(Reason("no_fit", text, figures), blocked.barriers)
    if left >= needs:
        text = f"{scattered(spec, room, rank_class.kind, 'the fleet now')}; {left} of {rank_class.devices} devices are free"
    else:
        text = f"needs {needs} {wanted(spec, rank_class.kind)}, {left} of {rank_class.devices} {are(left)} free for it"
    text += kept_back(rank_class, figures)
    return Refused(Reason("no_fit", text, figures), blocked.barriers)


def _waits_for_cores(spec: JobSpec, rank_class: RankClass, blocked: Blocked) -> Refused:
    """A gang without devices waits: with a code of its own, since devices are not free for want of it."""
    room = int(rank_class.rooms.room.sum())
    figures = {**blocked.because.figures, "needs": spec.ranks, "free": room, "devices": 0}
    text = _of_cores(blocked.because.text)
    if blocked.because.code == "no_room":
        text = scattered(spec, room, rank_class.kind, "the fleet now")
    barriers = tuple(replace(b, unblock=_of_cores(b.unblock)) for b in blocked.barriers)
    return Refused(Reason("no_cores", text, figures), barriers)


def _of_cores(text: str) -> str:
    return text.replace(FREE_DEVICES, "free the cores and memory of")


def kept_back(rank_class: RankClass, figures: dict[str, int | float | str]) -> str:
    """How many devices are kept from such jobs, and as what; also into the figures. Empty where none is."""
    text = ""
    for why, count in rank_class.kept_back().items():
        name, words = _KEPT[why]
        figures[name] = count
        text += f"; {count} {are(count)} {words}"
    return text


def with_models(refused: Refused, models: Sequence[str]) -> Refused:
    """Of several models, how much of each is free: a gang is on one of them."""
    if len(models) < 2:
        return refused
    because = refused.because
    text = f"{because.text}; a gang is on one model: {', '.join(models)}"
    return Refused(Reason(because.code, text, because.figures), refused.barriers)


def most_devices(refused: Sequence[Refused]) -> Refused:
    """The refusal of the kind with the most devices, among the kinds that the job accepts."""
    return max(refused, key=lambda one: int(one.because.figures["devices"]))
