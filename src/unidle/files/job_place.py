"""The job file's fields on where a gang may run: requests, selection, topology."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from unidle.files.values import END, MEMORY_LIMIT_BYTES, MEMORY_SAYS, PRINTABLE_PATTERN, MemoryText

_Word = Annotated[
    str,
    Meta(pattern=r"^[^\s\x00-\x1f\x7f-\x9f]+" + END, max_length=317, extra={"says": "a name without blanks"}),
]
_Text = Annotated[str, Meta(pattern=PRINTABLE_PATTERN, min_length=1, max_length=256)]
_Names = Annotated[tuple[_Text, ...], Meta(max_length=1000)]
_Kind = Annotated[
    _Word,
    Meta(
        description="A kind of tier, or node.", examples=["leaf"], extra={"says": "a kind of tier, or node"}
    ),
]
_Fabric = Literal["infiniband", "roce", "ethernet"]
_Memory = Annotated[
    Annotated[int, Meta(ge=0, le=MEMORY_LIMIT_BYTES, description="Bytes.")] | MemoryText,
    Meta(extra={"says": f"{MEMORY_SAYS}, at most 1 PiB"}),
]


class RequestsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What each rank needs of its node besides devices."""

    cpus: Annotated[float, Meta(ge=0, le=100_000, description="CPU cores.", examples=[8])] = 0.0
    memory: Annotated[_Memory, Meta(description="Memory of the host.", examples=["64GiB"])] = 0


class SelectPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Names that may be used, and names that must not."""

    include: Annotated[
        _Names, Meta(description="Only these; all where it is left out.", examples=[["H100"]])
    ] = ()
    exclude: Annotated[_Names, Meta(description="None of these.", examples=[["T4"]])] = ()


class GroupsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """For each kind of parallel group, the kind of tier that holds one of them together."""

    tp: Annotated[_Kind | None, Meta(description="For each tensor group.")] = None
    dp: Annotated[_Kind | None, Meta(description="For each data group.")] = None
    pp: Annotated[_Kind | None, Meta(description="For each pipeline group.")] = None


class TopologyPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How close the ranks must or should be. Kinds of tiers are those of the fleet, and ``node``."""

    require: Annotated[_Kind | None, Meta(description="The whole gang within one tier of this kind.")] = None
    prefer: Annotated[_Kind | None, Meta(description="The same, where that is possible.")] = None
    groups: Annotated[
        GroupsPart,
        Meta(
            description="Each parallel group within one tier of this kind.",
            examples=[{"tp": "node", "dp": "leaf"}],
        ),
    ] = GroupsPart()
    prefer_groups: Annotated[GroupsPart, Meta(description="The same, where that is possible.")] = GroupsPart()
    fabric: Annotated[_Fabric | None, Meta(description="All traffic between nodes over this fabric.")] = None
    prefer_fabric: Annotated[_Fabric | None, Meta(description="The same, where that is possible.")] = None


class HardwarePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which models of GPU are tried first."""

    prefer: Annotated[
        Literal["none", "speed", "cost"],
        Meta(
            description="speed or cost: by measured steps of jobs of the same user and name (cost: times the price)."
            " none, and where nothing was measured: the cheapest first, or the most plentiful."
        ),
    ] = "none"
    vendor: Annotated[
        Literal["any", "nvidia", "amd", "ascend"],
        Meta(description="Vendors whose GPUs the program supports."),
    ] = "any"
    mix: Annotated[
        bool,
        Meta(
            description="Whether one gang may be on different models of a vendor, at the speed of the slowest."
        ),
    ] = False


class SharePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of one device for each rank, instead of whole devices."""

    fraction: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Meta(description="Part of the device's compute, at least.", examples=[0.25]),
    ] = None
    memory: Annotated[
        _Memory | None, Meta(description="Memory of the device, at least.", examples=["10GiB"])
    ] = None
    profile: Annotated[
        _Word | None,
        Meta(
            description="Instead of an amount: a MIG profile, by NVIDIA's name.",
            examples=["1g.10gb"],
        ),
    ] = None
    mode: Annotated[
        Literal["any", "mig", "mps", "time"],
        Meta(
            description="How the part of a GPU is kept apart; any takes MIG where it is on, else MPS, else turns."
        ),
    ] = "any"
