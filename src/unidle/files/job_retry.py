"""The job file's ``restart`` as a type (see ``unidle.files.job_file``)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.values import END, Name, number

# Signals that end a process which does not handle them.
DEADLY_SIGNALS: Final = "HUP|INT|QUIT|ILL|TRAP|ABRT|BUS|FPE|KILL|USR1|SEGV|USR2|PIPE|ALRM|TERM|STKFLT|XCPU|XFSZ|VTALRM|PROF|IO|PWR|SYS"

RetryOn = (
    Annotated[
        str,
        Meta(pattern=f"^(any|signal|exit|lost|hang|SIG({DEADLY_SIGNALS})){END}"),
    ]
    | Annotated[int, Meta(ge=1, le=255)]
)


class PolicyPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Action for one kind of event."""

    event: Annotated[
        Literal["fail", "hang", "evict", "pending", "timeout"],
        Meta(
            description="fail: a rank did not exit with 0. hang: the gang makes no progress. evict: the job was stopped "
            "to make room for another job. pending: it waited longer than queue_timeout_s. timeout: it ran "
            "longer than timeout_s.",
            examples=["fail"],
        ),
    ]
    action: Annotated[
        Literal["restart", "abort", "requeue", "ignore"],
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
