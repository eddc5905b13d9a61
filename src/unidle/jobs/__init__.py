"""Types of work: job specification, gangs, ranks, attempts, states."""

from unidle.jobs.failure import FAILURE_KINDS, Failure, FailureKind
from unidle.jobs.place import RankPlace
from unidle.jobs.reason import NEVER, NEVER_BY_QUEUE, Reason
from unidle.jobs.restart import (
    Elastic,
    Restart,
    RestartAction,
    RestartEvent,
    RestartPolicy,
    Role,
    role_of,
)
from unidle.jobs.spec import (
    DeviceWish,
    Fabric,
    Hardware,
    JobSpec,
    Layout,
    Limits,
    Preemption,
    Rendezvous,
    Requests,
    Select,
    Share,
    ShareMode,
    Topology,
    Where,
)
from unidle.jobs.state import TERMINAL, TRANSITIONS, JobState, transition

__all__ = [
    "FAILURE_KINDS",
    "NEVER",
    "NEVER_BY_QUEUE",
    "TERMINAL",
    "TRANSITIONS",
    "DeviceWish",
    "Elastic",
    "Fabric",
    "Failure",
    "FailureKind",
    "Hardware",
    "JobSpec",
    "JobState",
    "Layout",
    "Limits",
    "Preemption",
    "RankPlace",
    "Reason",
    "Rendezvous",
    "Requests",
    "Restart",
    "RestartAction",
    "RestartEvent",
    "RestartPolicy",
    "Role",
    "Select",
    "Share",
    "ShareMode",
    "Topology",
    "Where",
    "role_of",
    "transition",
]
