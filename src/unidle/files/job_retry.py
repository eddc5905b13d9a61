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
    """What follows from one kind of event."""

    event: Annotated[
        Literal["fail", "hang", "evict", "pending", "timeout"],
        Meta(
            description="fail: a rank ended otherwise than with 0; hang: the gang makes no progress; evict: it made room for "
            "another; pending: it waited longer than queue_timeout_s; timeout: it ran longer than timeout_s.",
            examples=["fail"],
        ),
    ]
    action: Annotated[
        Literal["restart", "abort", "requeue", "ignore"],
        Meta(
            description="restart: again after the back-off; requeue: again at once, in queue order; abort: the job has "
            "failed; ignore: nothing follows (of fail: the other ranks go on).",
            examples=["restart"],
        ),
    ]
    max: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(
            description="How often at most, counted by itself. Without it as often as restart.max; evict without end."
        ),
    ] = None
    backoff_s: Annotated[
        Annotated[float, Meta(ge=0, le=86_400)] | None,
        Meta(description="Seconds before the first restart, as restart.backoff_s."),
    ] = None
    role: Annotated[Name | None, Meta(description="Only ranks of this role (fail and hang).")] = None


class RestartPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which failures are retried, how often and how soon. A retry restarts the whole gang."""

    max: Annotated[int, number(0, 1000, "Restarts at most; 0 never restarts.", examples=[3])] = 0
    backoff_s: Annotated[
        float,
        number(0, 86_400, "Seconds before the first restart; doubled with each further one, at most 300."),
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
            description="Which ends are retried: any; signal (killed by any signal); exit (any non-zero exit "
            "code); lost (the rank's end was not seen); hang (the gang makes no progress); a signal's name; an exit code. "
            "Where it is given, what it names is retried even when the same error is to be expected.",
            examples=[["signal", 75]],
        ),
    ] = ("any",)
    policies: Annotated[
        tuple[PolicyPart, ...],
        Meta(
            max_length=100,
            description="What follows from each kind of event; the first that matches decides, before max and on.",
            examples=[[{"event": "hang", "action": "requeue", "max": 2}]],
        ),
    ] = ()
    warm: Annotated[
        bool,
        Meta(
            description="Keep a Python ready that has imported PyTorch, so that a restart takes no time for that. "
            "For commands of the form `python SCRIPT` or `python -m MODULE`."
        ),
    ] = False
