"""Events of jobs and their attempts: from the submission to the end, and what is expected of them."""

from __future__ import annotations

from typing import Literal

from unidle.events import Base
from unidle.events.marks import Mark
from unidle.jobs import JobSpec, Reason
from unidle.jobs.state import RankPlace
from unidle.jobs.state import StopWhy as StopWhy
from unidle.share.idle import Evidence

Outcome = Literal["succeeded", "failed", "cancelled", "preempted"]
EndState = Literal["succeeded", "failed", "cancelled"]
Use = Literal["busy", "quiet", "unknown"]
PredictedWhat = Literal["start", "run_time", "step_time", "cost"]
"""A moment; a duration, all attempts together; of one attempt, the mean; money, all attempts together."""


class JobSubmitted(Base, frozen=True, omit_defaults=True):
    """``submitted_by``: the submitter, as far as the store can tell; ``spec.user`` is whose job it is.

    ``identity`` is the job's own name where it was submitted, if not in this store, unique in that ``source``.
    """

    job: str
    spec: JobSpec
    submitted_by: str = ""
    source: str = ""
    identity: str = ""


class CancelAsked(Base, frozen=True, omit_defaults=True):
    job: str
    by: str


class JobJudged(Base, frozen=True, omit_defaults=True):
    """The placement policy evaluated a waiting job and could not place it."""

    job: str
    because: Reason


class AttemptPlaced(Base, frozen=True, omit_defaults=True):
    """A gang was given its slices; ``places`` in rank order."""

    job: str
    attempt: int
    places: tuple[RankPlace, ...]
    because: Reason


class RankSaw(Base, frozen=True, omit_defaults=True, gc=False):
    """Marks ``first``, ``first + 1``, ... of one rank."""

    job: str
    attempt: int
    rank: int
    first: int
    marks: tuple[Mark, ...]


class StopAsked(Base, frozen=True, omit_defaults=True):
    """An attempt is to be stopped; ``culprit`` is the rank that failed first, where one did.

    ``for_job`` is the waiting job that it makes room for, where that is why; ``requeue``: an idle job waits again
    after its release.
    """

    job: str
    attempt: int
    why: StopWhy
    grace_ns: int
    because: Reason
    culprit: int | None = None
    for_job: str | None = None
    requeue: bool = False


class UtilisationSeen(Base, frozen=True, omit_defaults=True):
    """An attempt whose devices are watched turned busy or quiet, or cannot be measured (``text``: why).

    ``since_ns``: since when every measurement has agreed. Measurements without a change are not logged.
    """

    job: str
    attempt: int
    use: Use
    since_ns: int
    text: str = ""


class IdleTold(Base, frozen=True, omit_defaults=True):
    """An attempt that has shown no work since ``since_ns`` was given notice.

    After ``notice_ns`` more without work it is released; 0: it is not released.
    """

    job: str
    attempt: int
    since_ns: int
    evidence: Evidence
    notice_ns: int
    because: Reason


class IdleOver(Base, frozen=True, omit_defaults=True):
    """The notice is void: the attempt works again, or the policy leaves it alone now."""

    job: str
    attempt: int
    because: Reason


class AttemptEnded(Base, frozen=True, omit_defaults=True):
    """No rank of the attempt is left; its slices are free."""

    job: str
    attempt: int
    outcome: Outcome
    because: Reason


class RetryPlanned(Base, frozen=True, omit_defaults=True):
    """Another attempt follows; ``policy``: the restart policy of the job that applies, which has a separate
    count.
    """

    job: str
    not_before_ns: int
    because: Reason
    policy: int | None = None


class Requeued(Base, frozen=True, omit_defaults=True):
    """The job waits again without a failure, or by its restart policy ``policy``."""

    job: str
    because: Reason
    policy: int | None = None


class Resized(Base, frozen=True, omit_defaults=True):
    """An elastic job that waits will start with so many ranks."""

    job: str
    ranks: int
    because: Reason


class Promised(Base, frozen=True, omit_defaults=True):
    """Devices of one kind, by node, are kept for a waiting job until ``expires_ns``."""

    job: str
    kind: str
    devices: dict[str, int]
    expires_ns: int
    because: Reason


class JobEnded(Base, frozen=True, omit_defaults=True):
    job: str
    state: EndState
    because: Reason


class JobsRemoved(Base, frozen=True, omit_defaults=True):
    """Jobs that have ended leave lists and commands, and their files go. Their time stays in the ledger."""

    jobs: tuple[str, ...]
    by: str
    why: str = (
        ""  # the limit of the fleet's retention that they were beyond; empty where a person removed them
    )


class KeepSet(Base, frozen=True, omit_defaults=True):
    """Retention leaves these jobs alone (``keep``), or does so no longer."""

    jobs: tuple[str, ...]
    keep: bool
    by: str


class Predicted(Base, frozen=True, omit_defaults=True):
    """A prediction for a job; the true value is derived from the log.

    ``low_ns`` and ``high_ns`` bound the truth with probability ``level_ppm`` (0: none is claimed); ``by`` names
    the basis of the prediction. A cost is in millionths of the fleet's currency, and the times are 0. ``model``
    and ``attempt``: the devices and the attempt of the prediction, where that matters.
    """

    job: str
    what: PredictedWhat
    value_ns: int
    low_ns: int
    high_ns: int
    level_ppm: int
    by: str
    model: str = ""
    attempt: int = 0
    value_micro: int = 0
    low_micro: int = 0
    high_micro: int = 0
