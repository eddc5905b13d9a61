"""The drill file as a type; its JSON Schema is made from it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.job_file import JobFile
from unidle.files.values import END, MEMORY_SAYS, MemoryText

FaultKind = Literal[
    "kill", "stop", "slow", "cut", "delay", "rate", "disk_full", "disk_slow", "corrupt_checkpoint",
    "kernel_log", "nvml", "controller_kill",
]  # fmt: skip
TARGET_SAYS: Final = "rank:2, node:n1, link:n1-n2, device:n1/0, checkpoint or controller"
_DAY_S: Final = 86_400

Seconds = Annotated[float, Meta(ge=0, le=_DAY_S)]


class FaultPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One fault: what, to whom, when."""

    kind: Annotated[FaultKind, Meta(description="What happens.")]
    target: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^(rank:([0-9]+|any)|node:.+|link:.+-.+|device:.+/[0-9]+|checkpoint|controller)"
                + END,
                max_length=600,
            ),
        ]
        | None,
        Meta(
            description="Target of the fault. rank:any and node:any are chosen by the seed.",
            examples=["rank:2"],
            extra={"says": TARGET_SAYS},
        ),
    ] = None
    at_step: Annotated[
        Annotated[int, Meta(ge=0, le=10**12)] | None,
        Meta(description="When the job first completes this step, in any attempt.", examples=[40]),
    ] = None
    at_s: Annotated[
        Seconds | None, Meta(description="Seconds after the start of all ranks of the first attempt.")
    ] = None
    during: Annotated[
        Literal["recovery"] | None,
        Meta(
            description="While the gang recovers from the previous fault: its ranks run, and no step is completed."
        ),
    ] = None
    after: Annotated[
        Literal["recovery"] | None,
        Meta(description="When the gang has completed a first step again after the previous fault."),
    ] = None
    for_s: Annotated[
        Seconds | None,
        Meta(
            description="Seconds until the fault is undone. Default: when unidle has named it, or after 20 s."
        ),
    ] = None
    factor: Annotated[
        Annotated[float, Meta(gt=1, le=1000)] | None,
        Meta(description="slow: how many times slower it computes.", examples=[1.25]),
    ] = None
    mbit_per_s: Annotated[
        Annotated[float, Meta(gt=0, le=1_000_000)] | None,
        Meta(description="rate: the limit in each direction.", examples=[2]),
    ] = None
    ms: Annotated[
        Annotated[float, Meta(gt=0, le=10_000)] | None,
        Meta(description="delay: the added latency in each direction.", examples=[50]),
    ] = None
    bytes_per_s: Annotated[
        Annotated[int, Meta(ge=1024, le=2**50)] | MemoryText | None,
        Meta(
            description="disk_slow: the limit of the write rate.",
            examples=["1MB"],
            extra={"says": MEMORY_SAYS},
        ),
    ] = None
    how: Annotated[
        Literal["truncate", "flip", "remove"] | None,
        Meta(description="corrupt_checkpoint: the damage to its largest file."),
    ] = None
    line: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="kernel_log: the line.",
            examples=["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."],
        ),
    ] = None
    field: Annotated[
        Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*" + END, max_length=64)] | None,
        Meta(description="nvml: the reading.", examples=["dram_errors"]),
    ] = None
    value: Annotated[
        bool | Annotated[float, Meta(ge=-1e18, le=1e18)] | None,
        Meta(description="nvml: the reading.", extra={"says": "a number, true or false"}),
    ] = None


class DrillFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job, and the faults that are put into it."""

    job: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4095)] | JobFile,
        Meta(
            description="The job: the path of a job file, relative to this one, or its fields.",
            examples=["job.yaml"],
        ),
    ]
    nodes: Annotated[int, Meta(ge=1, le=200, description="Declared nodes n1, n2, ...")] = 2
    devices: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=1, le=4096)], ...], Meta(max_length=200)],
        Meta(
            description="Devices of each node. Default: those that the job needs, spread evenly.",
            examples=[[2, 1, 1]],
        ),
    ] = ()
    seed: Annotated[
        int, Meta(ge=0, le=2**63 - 1, description="Seed of random choices, such as rank:any.")
    ] = 0
    faults: Annotated[tuple[FaultPart, ...], Meta(min_length=1, max_length=1000, description="The faults.")]
    result: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4095, pattern=r"^[^/~]")] | None,
        Meta(
            description="File that the job writes its final state to, relative to its workdir: .pt, .npz, .json or any"
            " other. Without it, its newest checkpoint.",
            examples=["result.pt"],
        ),
    ] = None
    tolerance: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="How far numbers of float64 may be from those of a run without faults, if they are not equal bit by bit.",
        ),
    ] = 1e-12
    disk: Annotated[
        Annotated[int, Meta(ge=2**24, le=2**40)] | MemoryText,
        Meta(
            description="Size of the separate disk for checkpoints, for faults of the disk.",
            extra={"says": MEMORY_SAYS},
        ),
    ] = "256MiB"
    timeout_s: Annotated[float, Meta(gt=0, le=_DAY_S, description="Time limit of the job.")] = 600.0
