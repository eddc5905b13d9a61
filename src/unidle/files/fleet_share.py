"""The fleet file's field on devices that are cut on demand."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from unidle.files.document import Document, Path
from unidle.fleet import PART_MODES, WHOLE_PPM, CutMode, PartMode, Sharing

_Factor = Annotated[float, Meta(ge=1, le=16)]
ByKind = Literal["gpu", "cpu"]


class OversubscribePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much of a device may be allocated, as a multiple of what it has. MIG does not oversubscribe."""

    compute: Annotated[_Factor, Meta(description="Multiple of its compute.", examples=[1.5])] = 1.0
    memory: Annotated[_Factor, Meta(description="Multiple of its memory.", examples=[1.0])] = 1.0


class SharingPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a device may be divided for jobs that request a part of it."""

    modes: Annotated[
        tuple[PartMode, ...] | None,
        Meta(
            description="Methods to divide it: mig, mps and time for an NVIDIA GPU, time for other GPUs, quota for a CPU "
            "device. Default: all of them.",
            examples=[["mig", "mps", "time"]],
        ),
    ] = None
    oversubscribe: Annotated[
        OversubscribePart,
        Meta(
            description="How much may be allocated, as a multiple of the device.", examples=[{"compute": 1.5}]
        ),
    ] = OversubscribePart()


def check_sharing(
    document: Document, part: SharingPart, kind: ByKind, vendor: str, shares: tuple[int, ...], path: Path, *,
    model: str | None = "", memory_bytes: int = 0,
) -> None:  # fmt: skip
    """:class:`BadInput` where the device cannot be cut so; ``path`` is that of the field ``share``.

    ``model`` None: whether MIG can cut it is found later.
    """
    allowed = _all_modes(kind, vendor)
    whose = "a CPU device" if kind == "cpu" else "a GPU" if vendor == "nvidia" else f"a GPU of {vendor}"
    for k, mode in enumerate(part.modes or ()):
        if mode not in allowed:
            raise document.error(
                (*path, "modes", k), f"{whose} cannot be cut so", value=mode,
                remedy="use " + ", ".join(allowed),
            )  # fmt: skip
        if mode == "mig" and model is not None:
            _check_mig(document, model, memory_bytes, (*path, "modes", k))
    if part.modes == ():
        raise document.error(
            (*path, "modes"), "names no way to cut the device", value=[], remedy="use " + ", ".join(allowed)
        )
    if len(shares) > 1:
        raise document.error(
            path, "the device is cut by slices_ppm already", value=list(shares),
            remedy="remove slices_ppm, or share",
        )  # fmt: skip


def _check_mig(document: Document, model: str, memory_bytes: int, path: Path) -> None:
    from unidle.share.mig_models import mig_models, model_of, named_so

    if model_of(model, memory_bytes) is not None:
        return
    known = ", ".join(one.name for one in mig_models())
    if not model:
        raise document.error(
            path, "MIG cuts GPUs of known models only", value="mig", remedy=f"state the model: {known}"
        )
    if not named_so(model):
        raise document.error(
            path, f"MIG cannot cut a {model}", value="mig", remedy=f"leave mig out; it cuts {known}"
        )
    alike = ", ".join(one.name for one in named_so(model))
    raise document.error(
        path, f"its name and memory fit several models of {model}", value="mig",
        remedy=f"state its memory as one of {alike} has it",
    )  # fmt: skip


def _all_modes(kind: ByKind, vendor: str) -> tuple[PartMode, ...]:
    return PART_MODES[vendor if kind == "gpu" else kind]


def sharing_of(part: SharingPart, kind: ByKind, vendor: str) -> Sharing:
    """The sharing that the field declares."""
    over = part.oversubscribe
    known = get_args(CutMode)
    modes = tuple(sorted(set(part.modes or _all_modes(kind, vendor)), key=known.index))
    return Sharing(modes, round(over.compute * WHOLE_PPM), round(over.memory * WHOLE_PPM))


def sharing_fields(sharing: Sharing, kind: ByKind, vendor: str) -> dict[str, object]:
    """The field that declares the sharing."""
    fields: dict[str, object] = {}
    if sharing.modes != _all_modes(kind, vendor):
        fields["modes"] = list(sharing.modes)
    factors = {"compute": sharing.compute_ppm, "memory": sharing.memory_ppm}
    if over := {name: ppm / WHOLE_PPM for name, ppm in factors.items() if ppm != WHOLE_PPM}:
        fields["oversubscribe"] = over
    return fields
