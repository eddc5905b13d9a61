"""Why a gang is not placed: now, or ever, in words that say what it needs, what is free and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unidle.jobs import JobSpec, Reason
from unidle.place.constraint import Barrier, Blocked, gang_of
from unidle.place.ground import Ground, RankClass
from unidle.place.pools import Option, candidates
from unidle.place.queued import noun
from unidle.words import are, plural


class Refused(NamedTuple):
    """Why a gang cannot be placed, and each thing in the way."""

    because: Reason
    barriers: tuple[Barrier, ...] = ()


def never_fits(ground: Ground, spec: JobSpec) -> Refused | None:
    """Why no state of this fleet holds the gang; None where one does."""
    gang = gang_of(spec)
    reasons: list[Refused] = []
    for option, rank_class in candidates(ground, spec):
        verdict = rank_class.never(gang)
        if verdict is None:
            return None
        reasons.append(_too_large(spec, option, rank_class, verdict))
    return best(reasons)


def _too_large(spec: JobSpec, option: Option, rank_class: RankClass, verdict: Blocked) -> Refused:
    needs, total = spec.devices, rank_class.devices
    text = f"needs {needs} {_wanted(spec, rank_class.kind)}, and the fleet has {total} that it may use"
    text = (verdict.what if needs <= total else text) + option.on
    figures = {**verdict.because.figures, "needs": needs, "devices": total}
    because = Reason("never_fits", f"{text}: it can never start here", figures)
    return Refused(because, tuple(b.of_empty_fleet() for b in verdict.barriers if b.constraint is not None))


def _wanted(spec: JobSpec, kind: str) -> str:
    """What each rank takes, in words: ``GPUs``, ``parts of a GPU with at least 25 % of it``."""
    share = spec.share
    if share is None:
        return noun(kind, spec.devices)
    least = [f"{share.compute_ppm / 10_000:g} % of it"] if share.compute_ppm else []
    least += [f"{share.memory_bytes / 2**30:g} GiB"] if share.memory_bytes else []
    return f"{plural(spec.devices, 'part')} of a {noun(kind, 1)} (slices_ppm in the fleet file) with at least {' and '.join(least)}"


def waits(spec: JobSpec, rank_class: RankClass, blocked: Blocked) -> Refused:
    """A gang waits on this class of ranks."""
    needs, free = spec.devices, int(rank_class.rooms.room.sum()) * spec.devices_per_rank
    figures = {**blocked.because.figures, "needs": needs, "free": free, "devices": rank_class.devices}
    if blocked.because.code == "no_room":
        text = f"needs {needs} {_wanted(spec, rank_class.kind)}, {free} of {rank_class.devices} {are(free)} free for it"
        return Refused(Reason("no_fit", text, figures), blocked.barriers)
    return Refused(Reason("no_fit", blocked.because.text, figures), blocked.barriers)


def with_models(refused: Refused, models: Sequence[str]) -> Refused:
    """Of several models, how much of each is free: a gang is on one of them."""
    if len(models) < 2:
        return refused
    because = refused.because
    text = f"{because.text}; a gang is on one model: {', '.join(models)}"
    return Refused(Reason(because.code, text, because.figures), refused.barriers)


def best(refused: Sequence[Refused]) -> Refused:
    """Of the kinds that would do, the one with the most devices says why; the last where none has any."""
    return max(reversed(refused), key=lambda one: int(one.because.figures.get("devices", 0)))
