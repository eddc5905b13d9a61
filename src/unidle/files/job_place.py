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
    Meta(description="Kind of tier, or node.", examples=["leaf"], extra={"says": "a kind of tier, or node"}),
]
_Fabric = Literal["infiniband", "roce", "ethernet"]
_Memory = Annotated[
    Annotated[int, Meta(ge=0, le=MEMORY_LIMIT_BYTES, description="Bytes.")] | MemoryText,
    Meta(extra={"says": f"{MEMORY_SAYS}, at most 1 PiB"}),
]


class RequestsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Resources of the node that each rank needs in addition to devices."""

    cpus: Annotated[float, Meta(ge=0, le=100_000, description="Number of CPU cores.", examples=[8])] = 0.0
    memory: Annotated[_Memory, Meta(description="Host memory.", examples=["64GiB"])] = 0


class SelectPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Names that may be used, and names that must not be used."""

    include: Annotated[
        _Names, Meta(description="Names that may be used. Default: all.", examples=[["H100"]])
    ] = ()
    exclude: Annotated[_Names, Meta(description="Names that must not be used.", examples=[["T4"]])] = ()


class GroupsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """For each kind of parallel group, the kind of tier that contains each group."""

    tp: Annotated[
        _Kind | None, Meta(description="Kind of tier that contains each tensor-parallel group.")
    ] = None
    dp: Annotated[_Kind | None, Meta(description="Kind of tier that contains each data-parallel group.")] = (
        None
    )
    pp: Annotated[
        _Kind | None, Meta(description="Kind of tier that contains each pipeline-parallel group.")
    ] = None


class TopologyPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Required and preferred placement of the ranks in the network. Kinds of tiers are those of the fleet, and
    ``node``.
    """

    require: Annotated[_Kind | None, Meta(description="Kind of tier that must contain the whole gang.")] = (
        None
    )
    prefer: Annotated[
        _Kind | None, Meta(description="Kind of tier that contains the whole gang if possible.")
    ] = None
    groups: Annotated[
        GroupsPart,
        Meta(
            description="Kinds of tiers that must contain the parallel groups.",
            examples=[{"tp": "node", "dp": "leaf"}],
        ),
    ] = GroupsPart()
    prefer_groups: Annotated[
        GroupsPart, Meta(description="Kinds of tiers that contain the parallel groups if possible.")
    ] = GroupsPart()
    fabric: Annotated[_Fabric | None, Meta(description="Fabric that all traffic between nodes must use.")] = (
        None
    )
    prefer_fabric: Annotated[
        _Fabric | None, Meta(description="Fabric for all traffic between nodes if possible.")
    ] = None


class HardwarePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Preference among GPU models."""

    prefer: Annotated[
        Literal["none", "speed", "cost"],
        Meta(
            description="speed: the model with the shortest measured step first. cost: the model with the lowest cost of "
            "a measured step first. Measurements are from jobs of the same user and name. none, or without "
            "measurements: the lowest price first, or without prices the model with the most devices."
        ),
    ] = "none"
    vendor: Annotated[
        Literal["any", "nvidia", "amd", "ascend"],
        Meta(description="Vendors whose GPUs the program supports."),
    ] = "any"
    mix: Annotated[
        bool,
        Meta(
            description="Whether one gang may use different models of one vendor. It then runs at the speed of the "
            "slowest model."
        ),
    ] = False


class SharePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of one device for each rank, instead of whole devices."""

    fraction: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Meta(description="Minimum fraction of the device's compute.", examples=[0.25]),
    ] = None
    memory: Annotated[
        _Memory | None, Meta(description="Minimum memory of the device.", examples=["10GiB"])
    ] = None
    profile: Annotated[
        _Word | None,
        Meta(
            description="MIG profile, by NVIDIA's name, instead of fraction and memory.",
            examples=["1g.10gb"],
        ),
    ] = None
    mode: Annotated[
        Literal["any", "mig", "mps", "time"],
        Meta(
            description="How the part of a GPU is isolated. any: MIG if it is enabled, otherwise MPS, otherwise time "
            "sharing."
        ),
    ] = "any"
