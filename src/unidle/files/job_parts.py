"""The nested mappings of the job file as types."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from unidle.files.values import (
    END,
    MEMORY_LIMIT_BYTES,
    MEMORY_SAYS,
    PRINTABLE_PATTERN,
    MemoryText,
    Name,
    number,
)
from unidle.jobs import Fabric, RestartAction, RestartEvent, ShareMode
from unidle.jobs.spec import Prefer, VendorWish

PATTERN_LENGTH: Final = 1000
# Signals that end a process which does not handle them.
DEADLY_SIGNALS: Final = "HUP|INT|QUIT|ILL|TRAP|ABRT|BUS|FPE|KILL|USR1|SEGV|USR2|PIPE|ALRM|TERM|STKFLT|XCPU|XFSZ|VTALRM|PROF|IO|PWR|SYS"

PathText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4095,
        pattern=r"^[^~]",
        extra={"says": "a path", "remedy": "~ is not expanded: write the path in full"},
    ),
]

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
_Memory = Annotated[
    Annotated[int, Meta(ge=0, le=MEMORY_LIMIT_BYTES, description="Bytes.")] | MemoryText,
    Meta(extra={"says": f"{MEMORY_SAYS}, at most 1 PiB"}),
]
RetryOn = (
    Annotated[
        str,
        Meta(pattern=f"^(any|signal|exit|lost|hang|SIG({DEADLY_SIGNALS})){END}"),
    ]
    | Annotated[int, Meta(ge=1, le=255)]
)


class LayoutPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of the parallel groups. ``tp * dp * pp`` must equal ``ranks``."""

    tp: Annotated[int, number(1, 100_000, "Tensor-parallel size.")] = 1
    dp: Annotated[int, number(1, 100_000, "Data-parallel size.")] = 1
    pp: Annotated[int, number(1, 100_000, "Pipeline-parallel size.")] = 1


class FlopsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Floating-point operations of one step: given, or those of a decoder's forward and backward pass, 6 for each parameter and token."""

    per_step: Annotated[
        Annotated[float, Meta(gt=0, le=1e30)] | None,
        Meta(description="Operations of one step of all ranks.", examples=[2.4e15]),
    ] = None
    parameters: Annotated[
        Annotated[float, Meta(gt=0, le=1e18)] | None,
        Meta(description="Parameters of the model that each token uses.", examples=[7e9]),
    ] = None
    tokens: Annotated[
        Annotated[float, Meta(gt=0, le=1e15)] | None,
        Meta(description="Tokens of one step of all ranks.", examples=[524288]),
    ] = None
    layers: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        Meta(
            description="Layers of the model. With width and sequence, attention counts too: 12 x layers x width x sequence for each token."
        ),
    ] = None
    width: Annotated[
        Annotated[int, Meta(ge=1, le=10_000_000)] | None,
        Meta(description="Width of the model's layers (heads x size of a head)."),
    ] = None
    sequence: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000)] | None, Meta(description="Tokens of one sequence.")
    ] = None


class CheckpointPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Checkpoints of the job."""

    path: Annotated[
        PathText,
        Meta(
            description="Directory (or file) that the job saves checkpoints to, relative to workdir. It does not have to "
            "exist yet.",
            examples=["checkpoints"],
        ),
    ]
    memory: Annotated[
        bool,
        Meta(
            description="Whether a process on each node of the gang keeps copies in memory of the checkpoints that "
            "`unidle.rank.checkpoint` saves to `path`, until the job ends."
        ),
    ] = False
    quarantine_bad: Annotated[
        bool,
        Meta(
            description="Whether an incomplete or damaged newest checkpoint is moved away before a restart, so that the "
            "script loads the previous one."
        ),
    ] = False


class ProgressPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How steps are read from the job's output."""

    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=PATTERN_LENGTH,
            description="Python regular expression that is searched in each line of output. The group named step, "
            "otherwise the first group, is the number of the step. Without a group, each match is one step. "
            "Groups named epoch and total (steps of an epoch) are optional.",
            examples=["step=(?P<step>[0-9]+)"],
        ),
    ]


class RanksPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds of the number of ranks of an elastic job."""

    min: Annotated[int, number(1, 100_000, "Minimum number of ranks.", examples=[2])]
    max: Annotated[int, number(1, 100_000, "Maximum number of ranks.", examples=[4])]


class LimitsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Resource limits of each rank, enforced by cgroups if the machine supports them."""

    memory: Annotated[
        Annotated[int, Meta(ge=2**20, le=MEMORY_LIMIT_BYTES, description="Bytes.")] | MemoryText | None,
        Meta(
            description="Maximum memory, at least 1 MiB. Default: unlimited.",
            examples=["512MiB", "2GB"],
            extra={"says": f"{MEMORY_SAYS}, from 1 MiB to 1 PiB"},
        ),
    ] = None
    cpus: Annotated[
        Annotated[float, Meta(ge=0.01, le=100_000)] | None,
        Meta(
            description="Maximum number of CPU cores; 0.5 is half of one core. Default: unlimited.",
            examples=[1.5],
        ),
    ] = None
    pids: Annotated[
        Annotated[int, Meta(ge=1, le=4_194_304)] | None,
        Meta(description="Maximum number of processes and threads. Default: unlimited.", examples=[512]),
    ] = None


class PolicyPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Action for one kind of event."""

    event: Annotated[
        RestartEvent,
        Meta(
            description="fail: a rank did not exit with 0. hang: the gang makes no progress. evict: the job was stopped "
            "to make room for another job. pending: it waited longer than queue_timeout_s. timeout: it ran "
            "longer than timeout_s.",
            examples=["fail"],
        ),
    ]
    action: Annotated[
        RestartAction,
        Meta(
            description="restart: restart after the back-off. requeue: wait in the queue again, without a back-off. "
            "abort: the job fails. ignore: no action; after fail, the other ranks continue.",
            examples=["restart"],
        ),
    ]
    max: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(
            description="Maximum number of times that this policy applies. Default: restart.max; for evict, unlimited."
        ),
    ] = None
    backoff_s: Annotated[
        Annotated[float, Meta(ge=0, le=86_400)] | None,
        Meta(description="Delay in seconds before the first restart. Default: restart.backoff_s."),
    ] = None
    role: Annotated[
        Name | None,
        Meta(description="Role whose ranks the policy applies to, for fail and hang. Default: all ranks."),
    ] = None


class ServicePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A service: how many replicas it has, and how each shows that it is ready."""

    replicas: Annotated[
        int,
        number(
            1, 1000, "Number of replicas. Each is a job of its own, with ranks and devices as in this file."
        ),
    ] = 1
    port: Annotated[
        int,
        number(
            0, 65_535,
            "Port on which rank 0 of each replica answers; it also receives it in PORT. 0: a free one is chosen at each start.",
            examples=[8000],
        ),
    ] = 0  # fmt: skip
    ready: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^/[!-~]*" + END, max_length=1000,
                extra={"says": "a path such as /health", "remedy": "begin it with '/', without blanks"},
            ),
        ]
        | None,
        Meta(
            description="Path of an HTTP request that a replica which is ready answers with a status below 400. Default: "
            "it is ready when it accepts a connection.",
            examples=["/health"],
        ),
    ] = None  # fmt: skip


class RestartPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which failures are retried, how often and how soon. A retry restarts the whole gang."""

    max: Annotated[
        int, number(0, 1000, "Maximum number of restarts; 0: the job is not restarted.", examples=[3])
    ] = 0
    backoff_s: Annotated[
        float,
        number(
            0,
            86_400,
            "Delay in seconds before the first restart. It doubles with each further restart, up to 300.",
        ),
    ] = 1.0
    on: Annotated[
        tuple[
            Annotated[
                RetryOn,
                Meta(
                    extra={
                        "says": "any, signal, exit, lost, hang, the name of a deadly signal such as SIGKILL, "
                        "or an exit code from 1 to 255"
                    }
                ),
            ],
            ...,
        ],
        Meta(
            min_length=1,
            max_length=300,
            description="Failures that are retried: any, signal, exit, lost, hang, the name of a signal, or an exit code. "
            "signal: killed by any signal. exit: any non-zero exit code. lost: the end of a rank was not "
            "observed. hang: the gang makes no progress. Failures that are listed are retried even if the "
            "same error is expected again.",
            examples=[["signal", 75]],
        ),
    ] = ("any",)
    policies: Annotated[
        tuple[PolicyPart, ...],
        Meta(
            max_length=100,
            description="Action for each kind of event. The first policy that matches takes precedence over max and on.",
            examples=[[{"event": "hang", "action": "requeue", "max": 2}]],
        ),
    ] = ()
    warm: Annotated[
        bool,
        Meta(
            description="Whether to keep a Python process ready that has imported PyTorch, for faster restarts. For "
            "commands of the form `python SCRIPT` or `python -m MODULE`."
        ),
    ] = False


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
    fabric: Annotated[Fabric | None, Meta(description="Fabric that all traffic between nodes must use.")] = (
        None
    )
    prefer_fabric: Annotated[
        Fabric | None, Meta(description="Fabric for all traffic between nodes if possible.")
    ] = None


class HardwarePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Preference among GPU models."""

    prefer: Annotated[
        Prefer,
        Meta(
            description="speed: the model with the shortest measured step first. cost: the model with the lowest cost of "
            "a measured step first. Measurements are from jobs of the same user and name. none, or without "
            "measurements: the lowest price first, or without prices the model with the most devices."
        ),
    ] = "none"
    vendor: Annotated[
        VendorWish,
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
        ShareMode,
        Meta(
            description="How the part of a GPU is isolated. any: MIG if it is enabled, otherwise MPS, otherwise time "
            "sharing."
        ),
    ] = "any"
