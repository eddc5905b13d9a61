"""The job file as a type: its fields are a contract, and its JSON Schema is made from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypedDict

from msgspec import Meta, Struct

from unidle.files.job_parts import (
    CheckpointPart,
    FlopsPart,
    HardwarePart,
    LayoutPart,
    LimitsPart,
    PathText,
    ProgressPart,
    RanksPart,
    RequestsPart,
    RestartPart,
    SelectPart,
    ServicePart,
    SharePart,
    TopologyPart,
)
from unidle.files.job_pod import PodPart
from unidle.files.values import (
    END,
    Name,
    number,
)
from unidle.jobs import DeviceWish, JobKind, Preemption, Rendezvous, WorkClass

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

_RESERVED = rf"(?!(?:{'|'.join(RESERVED_ENV)}){END})(?!{'|'.join(RESERVED_ENV_PREFIXES)})"
_RANGES: Final = rf"^[0-9]{{1,6}}(-[0-9]{{1,6}})?(,[0-9]{{1,6}}(-[0-9]{{1,6}})?)*{END}"
_YEARS_S = 10 * 365 * 86400


def is_reserved_env(name: str) -> bool:
    """Whether unidle itself sets this variable for each rank."""
    return name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIXES)


Argument = Annotated[str, Meta(max_length=131_071, extra={"says": "text"})]
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


class JobFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"job_class": "class"}):
    """One job: a gang of processes that are placed, started and restarted together."""

    command: Annotated[
        tuple[Argument, ...],
        Meta(
            min_length=1,
            max_length=10_000,
            description="Program and arguments of each rank, as a list. It is run without a shell.",
            examples=[["python", "train.py", "--lr", "3e-4"]],
            extra={"remedy": "write it as a list, for instance [python, train.py]"},
        ),
    ]
    name: Annotated[
        Name | None,
        Meta(description="Name of the job. Default: derived from the command.", examples=["gpt-small"]),
    ] = None
    workdir: Annotated[
        PathText,
        Meta(
            description="Working directory of each rank. A relative path starts at the directory of the job file."
        ),
    ] = "."
    env: Annotated[
        dict[EnvName, EnvValue],
        Meta(
            max_length=10_000,
            description="Environment variables of each rank, in addition to those of unidle's own environment.",
            examples=[{"OMP_NUM_THREADS": "1"}],
        ),
    ] = {}
    ranks: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | RanksPart,
        Meta(
            description="Number of processes in the gang. With min and max it starts with as many ranks as fit, and "
            "continues with fewer if devices are lost.",
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
            description="Roles of ranks, for restart.policies. Each rank receives its role in ROLE_NAME.",
            examples=[{"trainer": "0-2", "logger": "3"}],
        ),
    ] = {}
    devices_per_rank: Annotated[
        int,
        number(
            0,
            1024,
            "Number of devices for the exclusive use of each rank. With 0 a rank uses only the cores and "
            "memory of requests.",
        ),
    ] = 1
    device: Annotated[
        DeviceWish,
        Meta(
            description="Kind of device. any: the kind that the fleet has. cpu: CPU devices, or cores of the nodes if the "
            "fleet has no CPU devices."
        ),
    ] = "any"
    queue: Annotated[Name, Meta(description="Queue that the job waits in.")] = "default"
    priority: Annotated[int, number(-(10**9), 10**9, "Jobs of a higher priority are placed first.")] = 0
    kind: Annotated[
        JobKind,
        Meta(
            description="job: ends when its work is done. service: serves until it is cancelled, and is always restarted.",
        ),
    ] = "job"
    service: Annotated[
        ServicePart,
        Meta(
            description="Replicas of a service (kind: service), and how they show that they are ready.",
            examples=[{"replicas": 2, "ready": "/health"}],
        ),
    ] = ServicePart()
    job_class: Annotated[
        WorkClass,
        Meta(
            description="normal: waits for its turn in a queue. filler: runs on devices that no other job uses now, makes "
            "room at once when one is needed, and continues from its last checkpoint. It counts in no quota, and delays no job.",
        ),
    ] = "normal"
    preemption: Annotated[
        Preemption,
        Meta(
            description="high: may preempt low jobs of its queue and is never preempted. medium: neither preempts nor is "
            "preempted. low: may be preempted, and then waits again."
        ),
    ] = "medium"
    min_runtime_s: Annotated[
        float, number(0, _YEARS_S, "Seconds for which an attempt cannot be preempted after its start.")
    ] = 0.0
    estimate_s: Annotated[
        Annotated[float, Meta(gt=0, le=_YEARS_S)] | None,
        Meta(
            description="Expected run time in seconds, for planned starts. Default: predicted from earlier jobs of the "
            "same user and name.",
            examples=[7200],
        ),
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
        Meta(description="User that the job is accounted to. Default: the login name.", examples=["ada"]),
    ] = None
    layout: Annotated[
        LayoutPart | None,
        Meta(
            description="Sizes of the parallel groups of ranks. Default: unknown.",
            examples=[{"tp": 2, "dp": 2}],
        ),
    ] = None
    rendezvous: Annotated[
        Rendezvous | None,
        Meta(
            description="torchrun: each rank receives the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, "
            "MASTER_ADDR, MASTER_PORT, ...). none: the variables are unset, even if inherited. Default: none "
            "for one rank without a layout, otherwise torchrun.",
            examples=["torchrun"],
        ),
    ] = None
    checkpoint: Annotated[
        CheckpointPart | None,
        Meta(
            description="Checkpoints of the job. A failure loses the steps after the last durable checkpoint.",
            examples=[{"path": "checkpoints"}],
        ),
    ] = None
    progress: Annotated[
        ProgressPart | None,
        Meta(
            description="How steps are read from the job's output. Default: built-in patterns of common training "
            "frameworks.",
            examples=[{"pattern": "step=([0-9]+)"}],
        ),
    ] = None
    restart: Annotated[RestartPart, Meta(description="Restart policy.", examples=[{"max": 3}])] = (
        RestartPart()
    )
    limits: Annotated[
        LimitsPart,
        Meta(
            description="Resource limits of each rank. Default: none.",
            examples=[{"memory": "2GB", "cpus": 1}],
        ),
    ] = LimitsPart()
    requests: Annotated[
        RequestsPart,
        Meta(
            description="Cores and host memory that each rank needs in addition to devices.",
            examples=[{"cpus": 8, "memory": "64GiB"}],
        ),
    ] = RequestsPart()
    models: Annotated[
        SelectPart,
        Meta(
            description="Device models that may be used, with the names of the fleet file.",
            examples=[{"include": ["H100", "H200"]}],
        ),
    ] = SelectPart()
    uuids: Annotated[
        SelectPart,
        Meta(description="Devices that may be used, by UUID.", examples=[{"exclude": ["GPU-6b1e"]}]),
    ] = SelectPart()
    node_labels: Annotated[
        dict[Argument, Argument],
        Meta(
            max_length=256,
            description="Labels, with their values, that a node must have.",
            examples=[{"zone": "a"}],
        ),
    ] = {}
    tolerate: Annotated[
        tuple[Argument, ...],
        Meta(
            max_length=256,
            description="Taints of nodes that the job tolerates.",
            examples=[["maintenance"]],
        ),
    ] = ()
    topology: Annotated[
        TopologyPart | None,
        Meta(
            description="Required and preferred placement of the ranks in the network. Default: no constraint.",
            examples=[{"require": "leaf"}],
        ),
    ] = None
    hardware: Annotated[
        HardwarePart,
        Meta(description="Preference among GPU models.", examples=[{"prefer": "cost"}]),
    ] = HardwarePart()
    steps: Annotated[
        Annotated[int, Meta(ge=1, le=10**12)] | None,
        Meta(
            description="Number of steps of the whole run, to predict its time and cost. Default: that of earlier runs.",
            examples=[10000],
        ),
    ] = None
    flops: Annotated[
        FlopsPart | Literal["counted"] | None,
        Meta(
            description="Floating-point operations of one step of all ranks, for the MFU that `unidle list`, `show` and `ledger` print. "
            "`counted`: PyTorch counts the operations of the second step of each rank that calls `unidle.rank.step()`. Default: not known.",
            examples=[{"parameters": 7e9, "tokens": 524288}],
        ),
    ] = None
    share: Annotated[
        SharePart | None,
        Meta(
            description="Part of one device for each rank. Default: whole devices.",
            examples=[{"fraction": 0.25}],
        ),
    ] = None
    idle_ok: Annotated[
        bool,
        Meta(
            description="Whether the job may hold idle devices. Only for queues that are listed in idle.idle_ok of the "
            "fleet file."
        ),
    ] = False
    keep: Annotated[
        bool,
        Meta(
            description="Whether the job is kept when the fleet's retention would remove it. See also `unidle keep`."
        ),
    ] = False
    kernels: Annotated[
        bool,
        Meta(
            description="Whether to record the times of GPU kernels, for `unidle profile`. Requires unidle_scope."
        ),
    ] = False
    timeout_s: Annotated[
        Annotated[float, Meta(gt=0, le=_YEARS_S)] | None,
        Meta(
            description="Time limit of the job in seconds, including restarts. Default: none.",
            examples=[86400],
        ),
    ] = None
    queue_timeout_s: Annotated[
        Annotated[float, Meta(gt=0, le=_YEARS_S)] | None,
        Meta(
            description="Time limit in seconds of the wait for the first start. Default: none.",
            examples=[3600],
        ),
    ] = None
    grace_s: Annotated[
        float, number(0, 86_400, "Seconds between SIGTERM and SIGKILL when the job is stopped.")
    ] = 10.0
    pod: Annotated[
        PodPart | None,
        Meta(
            description="The pods of the job on a Kubernetes cluster (`unidle up --kubeconfig`): image, volumes, secrets. "
            "Elsewhere it has no effect. Default: the cluster's default image, and nothing else.",
            examples=[{"image": "ghcr.io/example/train:1.4"}],
        ),
    ] = None
    price_per_device_hour: Annotated[
        Annotated[float, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="Price of one device for an hour. Default: the price in the fleet file.",
            examples=[2.5],
        ),
    ] = None


class JobFields(TypedDict, total=False):
    """The fields of :class:`JobFile` except ``command``, as keyword arguments of the Python interface. None: not given."""

    name: str | None
    workdir: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    ranks: int | Mapping[str, int] | None
    roles: Mapping[str, str] | None
    devices_per_rank: int | None
    device: str | None
    queue: str | None
    priority: int | None
    kind: str | None
    service: Mapping[str, Any] | None
    job_class: str | None
    preemption: str | None
    min_runtime_s: float | None
    estimate_s: float | None
    user: str | None
    layout: Mapping[str, int] | None
    checkpoint: Mapping[str, Any] | None
    progress: Mapping[str, str] | None
    rendezvous: str | None
    restart: Mapping[str, Any] | None
    limits: Mapping[str, Any] | None
    requests: Mapping[str, Any] | None
    models: Mapping[str, Sequence[str]] | None
    uuids: Mapping[str, Sequence[str]] | None
    node_labels: Mapping[str, str] | None
    tolerate: Sequence[str] | None
    topology: Mapping[str, Any] | None
    hardware: Mapping[str, Any] | None
    steps: int | None
    flops: Mapping[str, float] | str | None
    share: Mapping[str, Any] | None
    idle_ok: bool | None
    keep: bool | None
    kernels: bool | None
    timeout_s: float | None
    queue_timeout_s: float | None
    grace_s: float | None
    pod: Mapping[str, Any] | None
    price_per_device_hour: float | None
