"""The job file as a type: its fields are a contract, and its JSON Schema is made from it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.job_place import HardwarePart, RequestsPart, SelectPart, SharePart, TopologyPart
from unidle.files.job_retry import RestartPart
from unidle.files.values import (
    END,
    MEMORY_LIMIT_BYTES,
    MEMORY_SAYS,
    MemoryText,
    Name,
    number,
)

RESERVED_ENV: Final = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
)
RESERVED_ENV_PREFIXES: Final = ("TORCHELASTIC_", "UNIDLE_")
PATTERN_LENGTH: Final = 1000

_RESERVED = rf"(?!(?:{'|'.join(RESERVED_ENV)}){END})(?!{'|'.join(RESERVED_ENV_PREFIXES)})"
_RANGES: Final = rf"^[0-9]{{1,6}}(-[0-9]{{1,6}})?(,[0-9]{{1,6}}(-[0-9]{{1,6}})?)*{END}"
_YEARS_S = 10 * 365 * 86400


def is_reserved_env(name: str) -> bool:
    """Whether unidle itself sets this variable for each rank."""
    return name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIXES)


Argument = Annotated[str, Meta(max_length=131_071, extra={"says": "text"})]
PathText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4095,
        pattern=r"^[^~]",
        extra={"says": "a path", "remedy": "~ is not expanded: write the path in full"},
    ),
]
EnvName = Annotated[
    str,
    Meta(
        pattern=f"^{_RESERVED}[A-Za-z_][A-Za-z0-9_]*{END}",
        extra={
            "says": "letters, digits and '_', not first a digit, and not one of those that unidle sets",
            "remedy": "use another name",
        },
    ),
]
EnvValue = Annotated[str, Meta(max_length=131_071, extra={"says": "text", "remedy": "put it in quotes"})]


class LayoutPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of the parallel groups. ``tp * dp * pp`` must equal ``ranks``."""

    tp: Annotated[int, number(1, 100_000, "Tensor-parallel size.")] = 1
    dp: Annotated[int, number(1, 100_000, "Data-parallel size.")] = 1
    pp: Annotated[int, number(1, 100_000, "Pipeline-parallel size.")] = 1


class CheckpointPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the job keeps its checkpoints."""

    path: Annotated[
        PathText,
        Meta(
            description="Directory (or file) that the job saves checkpoints to; relative to workdir. "
            "It need not exist yet.",
            examples=["checkpoints"],
        ),
    ]
    memory: Annotated[
        bool,
        Meta(
            description="Keep a process on each node of the gang that holds copies of what "
            "`unidle.rank.checkpoint` saves to `path`, until the job ends."
        ),
    ] = False
    quarantine_bad: Annotated[
        bool,
        Meta(
            description="Move a newest checkpoint that is torn or damaged aside before a restart, so that the script "
            "finds the one before it."
        ),
    ] = False


class ProgressPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How steps are read from the job's output."""

    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=PATTERN_LENGTH,
            description="A Python regular expression, searched in each line of output. The group named "
            "step, else the first group, is the step's number; without a group each match is one step. "
            "Groups named epoch and total (steps of an epoch) are read too.",
            examples=["step=(?P<step>[0-9]+)"],
        ),
    ]


class RanksPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many ranks an elastic job may have."""

    min: Annotated[int, number(1, 100_000, "Ranks at least.", examples=[2])]
    max: Annotated[int, number(1, 100_000, "Ranks at most.", examples=[4])]


class LimitsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds for each rank, kept by cgroups where the machine has them."""

    memory: Annotated[
        Annotated[int, Meta(ge=2**20, le=MEMORY_LIMIT_BYTES, description="Bytes.")] | MemoryText | None,
        Meta(
            description="Memory at most, at least 1 MiB.",
            examples=["512MiB", "2GB"],
            extra={"says": f"{MEMORY_SAYS}, from 1 MiB to 1 PiB"},
        ),
    ] = None
    cpus: Annotated[
        Annotated[float, Meta(ge=0.01, le=100_000)] | None,
        Meta(description="CPU cores at most; a fraction is a share of one core.", examples=[1.5]),
    ] = None
    pids: Annotated[
        Annotated[int, Meta(ge=1, le=4_194_304)] | None,
        Meta(description="Processes and threads at most.", examples=[512]),
    ] = None


class JobFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One job: a gang of equal processes that are placed, started and restarted together."""

    command: Annotated[
        tuple[Argument, ...],
        Meta(
            min_length=1,
            max_length=10_000,
            description="Program and arguments of every rank. No shell reads it.",
            examples=[["python", "train.py", "--lr", "3e-4"]],
            extra={"remedy": "write it as a list, for instance [python, train.py]"},
        ),
    ]
    name: Annotated[
        Name | None,
        Meta(description="The job's name. Default: made from the command.", examples=["gpt-small"]),
    ] = None
    workdir: Annotated[
        PathText,
        Meta(description="Directory that every rank starts in; relative to the job file's own directory."),
    ] = "."
    env: Annotated[
        dict[EnvName, EnvValue],
        Meta(
            max_length=10_000,
            description="Environment variables of every rank, added to those of unidle itself.",
            examples=[{"OMP_NUM_THREADS": "1"}],
        ),
    ] = {}
    ranks: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | RanksPart,
        Meta(
            description="Processes in the gang. With min and max it starts with as many as fit, and goes on with fewer "
            "when some cannot be had any more.",
            examples=[4, {"min": 2, "max": 4}],
        ),
    ] = 1
    roles: Annotated[
        dict[
            Name,
            Annotated[str, Meta(pattern=_RANGES, max_length=1000, extra={"says": "ranks such as 0-2,5"})],
        ],
        Meta(
            max_length=100,
            description="Roles of ranks, for restart.policies; ranks receive it as ROLE_NAME.",
            examples=[{"trainer": "0-2", "logger": "3"}],
        ),
    ] = {}
    devices_per_rank: Annotated[
        int,
        number(
            0,
            1024,
            "Devices that each rank gets for itself. 0: none; it takes only the cores and memory of requests.",
        ),
    ] = 1
    device: Annotated[
        Literal["gpu", "cpu", "any"],
        Meta(
            description="Kind of device; any takes what the fleet has. cpu takes cores of the nodes where the fleet has "
            "no CPU devices."
        ),
    ] = "any"
    queue: Annotated[Name, Meta(description="Queue that the job waits in.")] = "default"
    priority: Annotated[int, number(-(10**9), 10**9, "Jobs of a higher priority are placed first.")] = 0
    preemption: Annotated[
        Literal["low", "medium", "high"],
        Meta(
            description="high may stop low jobs of its queue and is never stopped for another; medium neither stops "
            "nor is stopped; low may be stopped, and waits again."
        ),
    ] = "medium"
    min_runtime_s: Annotated[
        float, number(0, _YEARS_S, "Seconds that an attempt runs before it may be stopped for another job.")
    ] = 0.0
    estimate_s: Annotated[
        Annotated[float, Meta(gt=0, le=_YEARS_S)] | None,
        Meta(description="Seconds that the job is expected to run, for planned starts.", examples=[7200]),
    ] = None
    user: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^[^\s\x00-\x1f\x7f-\x9f]+" + END,
                min_length=1,
                max_length=128,
                extra={"says": "1 to 128 characters without blanks"},
            ),
        ]
        | None,
        Meta(description="Who the job is accounted to. Default: the login name.", examples=["ada"]),
    ] = None
    layout: Annotated[
        LayoutPart | None,
        Meta(description="Parallel layout of the ranks, where it is known.", examples=[{"tp": 2, "dp": 2}]),
    ] = None
    rendezvous: Annotated[
        Literal["none", "torchrun"] | None,
        Meta(
            description="torchrun: every rank gets the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, "
            "MASTER_PORT, ...). none: no rank has them, also not inherited ones. Default: none for one rank without a "
            "layout, else torchrun.",
            examples=["torchrun"],
        ),
    ] = None
    checkpoint: Annotated[
        CheckpointPart | None,
        Meta(
            description="Where checkpoints appear. Steps after the last durable one are lost by a failure.",
            examples=[{"path": "checkpoints"}],
        ),
    ] = None
    progress: Annotated[
        ProgressPart | None,
        Meta(
            description="Without it, the built-in patterns of the usual training frameworks apply.",
            examples=[{"pattern": "step=([0-9]+)"}],
        ),
    ] = None
    restart: Annotated[RestartPart, Meta(description="Restart policy.", examples=[{"max": 3}])] = (
        RestartPart()
    )
    limits: Annotated[
        LimitsPart, Meta(description="Bounds for each rank.", examples=[{"memory": "2GB", "cpus": 1}])
    ] = LimitsPart()
    requests: Annotated[
        RequestsPart,
        Meta(description="What each rank needs besides devices.", examples=[{"cpus": 8, "memory": "64GiB"}]),
    ] = RequestsPart()
    models: Annotated[
        SelectPart,
        Meta(description="Device models, as in the fleet.", examples=[{"include": ["H100", "H200"]}]),
    ] = SelectPart()
    uuids: Annotated[
        SelectPart,
        Meta(description="Single devices, by their identity.", examples=[{"exclude": ["GPU-6b1e"]}]),
    ] = SelectPart()
    node_labels: Annotated[
        dict[Argument, Argument],
        Meta(max_length=256, description="Labels that a node must have.", examples=[{"zone": "a"}]),
    ] = {}
    tolerate: Annotated[
        tuple[Argument, ...],
        Meta(
            max_length=256,
            description="Taints that do not keep this job off a node.",
            examples=[["maintenance"]],
        ),
    ] = ()
    topology: Annotated[
        TopologyPart | None,
        Meta(description="How close the ranks must or should be.", examples=[{"require": "leaf"}]),
    ] = None
    hardware: Annotated[
        HardwarePart,
        Meta(description="Which models of GPU are tried first.", examples=[{"prefer": "cost"}]),
    ] = HardwarePart()
    steps: Annotated[
        Annotated[int, Meta(ge=1, le=10**12)] | None,
        Meta(
            description="Steps of the whole run, to predict its time and cost. Without it, those of earlier runs.",
            examples=[10000],
        ),
    ] = None
    share: Annotated[
        SharePart | None,
        Meta(description="A part of one device for each rank.", examples=[{"fraction": 0.25}]),
    ] = None
    idle_ok: Annotated[
        bool,
        Meta(
            description="Whether the job may hold idle devices; used in queues where the fleet file allows it."
        ),
    ] = False
    kernels: Annotated[
        bool,
        Meta(
            description="Whether the times of GPU kernels are recorded, for `unidle profile`; needs unidle_scope."
        ),
    ] = False
    timeout_s: Annotated[
        Annotated[float, Meta(gt=0, le=_YEARS_S)] | None,
        Meta(description="Seconds that the job may run in all, restarts included.", examples=[86400]),
    ] = None
    queue_timeout_s: Annotated[
        Annotated[float, Meta(gt=0, le=_YEARS_S)] | None,
        Meta(description="Seconds that the job may wait for its first start.", examples=[3600]),
    ] = None
    grace_s: Annotated[
        float, number(0, 86_400, "Seconds between SIGTERM and SIGKILL when the job is stopped.")
    ] = 10.0
    price_per_device_hour: Annotated[
        Annotated[float, Meta(ge=0, le=1_000_000)] | None,
        Meta(description="Price of one device for an hour, instead of the fleet's.", examples=[2.5]),
    ] = None
