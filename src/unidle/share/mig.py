"""Where MIG instances are placed on one GPU: next to those in use, which never move.

*Dynamic* reconfiguration adds instances while others run; *static* reconfiguration sets all instances of an
unused GPU. In both, idle instances may be used again or destroyed. The rules of placement are NVIDIA's (see
``unidle.share.mig_models``). Of the layouts that follow them, the one that destroys the fewest instances is
taken, then the one that leaves the most compute slices to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final

from unidle.errors import BadInput
from unidle.jobs import Reason
from unidle.share.mig_models import Instance, MigModel, MigProfile
from unidle.share.refusal import PartRefused, refused
from unidle.words import are, counted

NO_ROOM: Final = "mig_no_room"


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """What to do, in this order: destroy, create. ``serve`` are the requested instances, in requested order.

    Those of ``serve`` that are not in ``create`` exist already and were idle.
    """

    destroy: tuple[Instance, ...]
    create: tuple[Instance, ...]
    serve: tuple[Instance, ...]
    because: Reason


def reconfigure(
    model: MigModel,
    wanted: Sequence[str],
    in_use: Sequence[Instance] = (),
    idle: Sequence[Instance] = (),
    *,
    dynamic: bool = True,
) -> Reconfiguration | PartRefused:
    """How the GPU gets an instance of each profile of ``wanted``, or why it cannot.

    Dynamic: next to those in use, and idle ones stay where they are not in the way. Static: ``wanted`` is
    all that there shall be, and the GPU must not be in use. Errors: :class:`BadInput` when ``in_use`` and
    ``idle`` cannot stand on one GPU.
    """
    occupied = _occupied(model, [*in_use, *idle])
    if (barred := _barred(model, wanted, in_use, dynamic=dynamic)) is not None:
        return barred
    used = _mask(model, in_use)
    best = _best(model, wanted, used, in_use, idle, keep_idle=dynamic)
    if best is None:
        return _no_room(model, wanted, in_use)
    layout, destroy = best
    create = tuple((Counter(layout) - Counter(idle)).elements())
    kept = tuple((Counter(idle) - Counter(destroy)).elements())
    free = model.memory - (used | _mask(model, layout) | _mask(model, kept)).bit_count()
    reused = len(layout) - len(create)
    text = (
        f"{_list(layout)} on {model.name}: {len(create)} created, {reused} used again, {len(destroy)} destroyed, "
        f"{len(in_use)} in use left alone; {free} of {model.memory} memory slices free"
    )
    figures: dict[str, int | float | str] = {
        "created": len(create), "reused": reused, "destroyed": len(destroy), "in_use": len(in_use),
        "free_slices": free, "occupied_before": occupied.bit_count(),
    }  # fmt: skip
    return Reconfiguration(destroy, create, layout, Reason("mig_placed", text, figures))


def _barred(
    model: MigModel, wanted: Sequence[str], in_use: Sequence[Instance], *, dynamic: bool
) -> PartRefused | None:
    unknown = [name for name in wanted if not model.knows(name)]
    if unknown:
        known = ", ".join(p.name for p in model.profiles)
        return refused("mig_no_profile", f"{model.name} has no profile {unknown[0]}; it has {known}")
    if not dynamic and in_use:
        return refused(
            "mig_in_use",
            f"the layout of the GPU changes only while it is unused, and {counted(len(in_use), 'instance')} {are(len(in_use))} in use",
            in_use=len(in_use),
        )
    return None


def layouts(
    model: MigModel, wanted: Sequence[str], used: int = 0, *, media: bool = True
) -> Iterator[tuple[Instance, ...]]:
    """Every way to place an instance of each profile of ``wanted`` on the memory slices not in ``used``.

    Instances are in the order of ``wanted``; those of one profile in the order of their starts, so that no
    layout comes twice. ``media`` is whether the media engines are free.
    """
    order = sorted(range(len(wanted)), key=lambda k: (len(model.profile(wanted[k]).starts), wanted[k], k))
    profiles = [model.profile(wanted[k]) for k in order]
    if sum(p.media for p in profiles) > int(media):
        return
    chosen = [0] * len(wanted)

    def fill(at: int, mask: int) -> Iterator[tuple[Instance, ...]]:
        if at == len(order):
            yield tuple(Instance(name, start) for name, start in zip(wanted, chosen, strict=True))
            return
        profile = profiles[at]
        again = at > 0 and profiles[at - 1] is profile
        for start in profile.starts:
            bits = profile.mask(start)
            if bits & mask or (again and start <= chosen[order[at - 1]]):
                continue
            chosen[order[at]] = start
            yield from fill(at + 1, mask | bits)

    yield from fill(0, used)


def fits(model: MigModel, wanted: Sequence[str], in_use: Sequence[Instance] = ()) -> bool:
    """Whether the GPU can have these next to those in use, whatever stands idle on it."""
    media = not any(model.profile(i.profile).media for i in in_use)
    return next(layouts(model, wanted, _mask(model, in_use), media=media), None) is not None


@lru_cache(maxsize=64)
def room(model: MigModel) -> tuple[tuple[int, ...], ...]:
    """``room(model)[mask][p]``: how many instances of profile ``p`` still fit when ``mask`` is occupied."""
    return tuple(tuple(_how_many(p, mask) for p in model.profiles) for mask in range(1 << model.memory))


@lru_cache(maxsize=64)
def openness(model: MigModel) -> tuple[int, ...]:
    """By occupied mask: compute slices that could still be given out, summed over the profiles.

    A measure of how many wishes stay possible: an instance is best put where it lowers this least.
    """
    computes = [p.compute for p in model.profiles]
    return tuple(sum(n * c for n, c in zip(row, computes, strict=True)) for row in room(model))


@lru_cache(maxsize=64)
def potential(model: MigModel, names: frozenset[str] | None = None) -> tuple[int, ...]:
    """By occupied mask: the most compute slices that instances of profiles ``names`` (all: None) could still take.

    What a placement lowers it by beyond what it gives is wasted: compute slices that no instance can reach.
    """
    profiles = [p for p in model.profiles if not p.media and (names is None or p.name in names)]
    best = [0] * (1 << model.memory)
    for mask in reversed(range(1 << model.memory)):
        for profile in profiles:
            for start in profile.starts:
                bits = profile.mask(start)
                if not bits & mask:
                    best[mask] = max(best[mask], profile.compute + best[mask | bits])
    return tuple(best)


def _how_many(profile: MigProfile, mask: int) -> int:
    """All instances of a profile are of one size, so taking the first free start again and again is best."""
    count = 0
    for start in profile.starts:
        bits = profile.mask(start)
        if count < profile.most and not bits & mask:
            mask |= bits
            count += 1
    return count


def _best(
    model: MigModel,
    wanted: Sequence[str],
    used: int,
    in_use: Sequence[Instance],
    idle: Sequence[Instance],
    *,
    keep_idle: bool,
) -> tuple[tuple[Instance, ...], tuple[Instance, ...]] | None:
    """The layout with its victims that destroys least, then leaves the most room."""
    media_free = not any(model.profile(i.profile).media for i in in_use)
    still, open_at = potential(model), openness(model)
    best: tuple[tuple[int, int, int, tuple[Instance, ...]], tuple[Instance, ...]] | None = None
    for layout in layouts(model, wanted, used, media=media_free):
        taken = _mask(model, layout)
        takes_media = any(model.profile(i.profile).media for i in layout)
        unused = tuple((Counter(idle) - Counter(layout)).elements())
        destroy = tuple(
            i
            for i in unused
            if not keep_idle or model.mask(i) & taken or (takes_media and model.profile(i.profile).media)
        )
        # idle instances that stay count as room: they can make way for what comes next
        rank = (len(destroy), -still[used | taken], -open_at[used | taken], layout)
        if best is None or rank < best[0]:
            best = (rank, destroy)
    return None if best is None else (best[0][-1], best[1])


def _no_room(model: MigModel, wanted: Sequence[str], in_use: Sequence[Instance]) -> PartRefused:
    needs = sum(model.profile(name).memory for name in wanted)
    free = model.memory - _mask(model, in_use).bit_count()
    figures: dict[str, int | float | str] = {
        "needs_slices": needs,
        "free_slices": free,
        "in_use": len(in_use),
    }
    names = _names(wanted)
    if not fits(model, wanted):
        text = f"{names}: {model.name} cannot hold these together, even when it is empty"
        return PartRefused(Reason("mig_never_fits", text, figures))
    leave = _who_must_leave(model, wanted, in_use)
    figures["would_help"] = _list(leave)
    text = (
        f"{names} need {needs} memory slices at places where they may stand; {free} of {model.memory} {are(free)} free "
        f"and instances in use do not move; it fits once {_list(leave)} ended"
    )
    return PartRefused(Reason(NO_ROOM, text, figures))


def _who_must_leave(
    model: MigModel, wanted: Sequence[str], in_use: Sequence[Instance]
) -> tuple[Instance, ...]:
    """The fewest instances in use without which the wish fits."""
    for count in range(1, len(in_use) + 1):
        for gone in combinations(sorted(in_use, key=lambda i: i.start), count):
            if fits(model, wanted, [i for i in in_use if i not in gone]):
                return gone
    return tuple(in_use)


def _occupied(model: MigModel, instances: Sequence[Instance]) -> int:
    """The mask of instances that stand on one GPU; BadInput when they cannot."""
    mask = 0
    for instance in instances:
        profile = model.profile(instance.profile)
        if instance.start not in profile.starts or mask & profile.mask(instance.start):
            raise BadInput(
                f"{model.name} cannot have this instance next to the others",
                field="instance",
                value=f"{instance.profile} at {instance.start}",
                remedy="list the instances again (nvidia-smi mig -lgi)",
            )
        mask |= profile.mask(instance.start)
    return mask


def _mask(model: MigModel, instances: Sequence[Instance]) -> int:
    mask = 0
    for instance in instances:
        mask |= model.mask(instance)
    return mask


def _names(wanted: Sequence[str]) -> str:
    return " + ".join(wanted) if wanted else "nothing"


def _list(instances: Sequence[Instance]) -> str:
    return " + ".join(f"{i.profile} at {i.start}" for i in instances) if instances else "nothing"
