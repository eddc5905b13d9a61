"""The drill file as a type; its JSON Schema is made from it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.job_file import JobFile
from unidle.files.values import END, MEMORY_SAYS, MemoryText

FaultKind = Literal[
    "kill", "stop", "slow", "cut", "delay", "rate", "disk_full", "disk_slow", "corrupt_checkpoint",
    "kernel_log", "nvml", "controller_kill", "power_cut",
]  # fmt: skip
TARGET_SAYS: Final = "rank:2, node:n1, link:n1-n2, device:n1/0, checkpoint, controller or machine"
_DAY_S: Final = 86_400

Seconds = Annotated[float, Meta(ge=0, le=_DAY_S)]


class FaultPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One fault: its kind, target and start."""

    kind: Annotated[FaultKind, Meta(description="Kind of fault.")]
    target: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^(rank:([0-9]+|any)|node:.+|link:.+-.+|device:.+/[0-9]+|checkpoint|controller|machine)"
                + END,
                max_length=600,
            ),
        ]
        | None,
        Meta(
            description="Target of the fault. rank:any and node:any are chosen at random, by the seed.",
            examples=["rank:2"],
            extra={"says": TARGET_SAYS},
        ),
    ] = None
    at_step: Annotated[
        Annotated[int, Meta(ge=0, le=10**12)] | None,
        Meta(description="Start when the job first completes this step, in any attempt.", examples=[40]),
    ] = None
    at_s: Annotated[
        Seconds | None,
        Meta(description="Start this many seconds after all ranks of the first attempt have started."),
    ] = None
    during: Annotated[
        Literal["recovery"] | None,
        Meta(
            description="Start while the gang recovers from the previous fault: its ranks run, and no step is complete."
        ),
    ] = None
    after: Annotated[
        Literal["recovery"] | None,
        Meta(description="Start when the gang completes its first step after the previous fault."),
    ] = None
    for_s: Annotated[
        Seconds | None,
        Meta(
            description="Seconds until the fault is undone. Default: when unidle has identified it, or after 20 s."
        ),
    ] = None
    factor: Annotated[
        Annotated[float, Meta(gt=1, le=1000)] | None,
        Meta(description="For slow: the factor by which computation is slowed down.", examples=[1.25]),
    ] = None
    mbit_per_s: Annotated[
        Annotated[float, Meta(gt=0, le=1_000_000)] | None,
        Meta(description="For rate: limit in each direction, in Mbit/s.", examples=[2]),
    ] = None
    ms: Annotated[
        Annotated[float, Meta(gt=0, le=10_000)] | None,
        Meta(description="For delay: added latency in each direction, in milliseconds.", examples=[50]),
    ] = None
    bytes_per_s: Annotated[
        Annotated[int, Meta(ge=1024, le=2**50)] | MemoryText | None,
        Meta(
            description="For disk_slow: limit of the write rate, in bytes per second.",
            examples=["1MB"],
            extra={"says": MEMORY_SAYS},
        ),
    ] = None
    how: Annotated[
        Literal["truncate", "flip", "remove"] | None,
        Meta(description="For corrupt_checkpoint: damage to the largest file of the checkpoint."),
    ] = None
    line: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="For kernel_log: the line that appears in the log.",
            examples=["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."],
        ),
    ] = None
    field: Annotated[
        Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*" + END, max_length=64)] | None,
        Meta(description="For nvml: name of the reading.", examples=["dram_errors"]),
    ] = None
    value: Annotated[
        bool | Annotated[float, Meta(ge=-1e18, le=1e18)] | None,
        Meta(description="For nvml: value of the reading.", extra={"says": "a number, true or false"}),
    ] = None


class DrillFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job, and the faults that are injected into it."""

    job: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4095)] | JobFile,
        Meta(
            description="The job: the path of a job file, relative to the drill file, or the fields of a job file.",
            examples=["job.yaml"],
        ),
    ]
    nodes: Annotated[int, Meta(ge=1, le=200, description="Number of nodes. They are named n1, n2, ...")] = 2
    devices: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=1, le=4096)], ...], Meta(max_length=200)],
        Meta(
            description="Number of devices of each node. Default: the devices that the job needs, spread evenly.",
            examples=[[2, 1, 1]],
        ),
    ] = ()
    seed: Annotated[
        int, Meta(ge=0, le=2**63 - 1, description="Seed of random choices, such as rank:any.")
    ] = 0
    faults: Annotated[
        tuple[FaultPart, ...], Meta(min_length=1, max_length=1000, description="Faults to inject.")
    ]
    result: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4095, pattern=r"^[^/~]")] | None,
        Meta(
            description="File that the job writes its final state to, relative to its workdir: .pt, .npz, .json or any "
            "other type. Default: the newest checkpoint.",
            examples=["result.pt"],
        ),
    ] = None
    tolerance: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Maximum difference between float64 numbers of the final state and those of a run without faults. "
            "Other data must be equal bit by bit.",
        ),
    ] = 1e-12
    disk: Annotated[
        Annotated[int, Meta(ge=2**24, le=2**40)] | MemoryText,
        Meta(
            description="Size of the separate disk for checkpoints. Used by disk faults.",
            extra={"says": MEMORY_SAYS},
        ),
    ] = "256MiB"
    timeout_s: Annotated[float, Meta(gt=0, le=_DAY_S, description="Time limit of the job, in seconds.")] = (
        600.0
    )
