"""The vocabulary of the log. State is a fold over these (``unidle.view``); those of guard are in ``unidle.events.guard``,
those of the profiler in ``unidle.events.scope``."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from unidle.errors import StoreDamaged
from unidle.events import Base
from unidle.events.guard import CheckpointBad as CheckpointBad
from unidle.events.guard import CordonSet as CordonSet
from unidle.events.guard import FaultSeen as FaultSeen
from unidle.events.guard import MaintenanceSet as MaintenanceSet
from unidle.events.guard import NodeChecked as NodeChecked
from unidle.events.guard import PreflightEnded as PreflightEnded
from unidle.events.guard import RankStack as RankStack
from unidle.events.guard import RemedySet as RemedySet
from unidle.events.guard import SparesSet as SparesSet
from unidle.events.guard import StacksTaken as StacksTaken
from unidle.events.guard import VerdictOver as VerdictOver
from unidle.events.guard import VerdictReached as VerdictReached
from unidle.events.guard import WatchSet as WatchSet
from unidle.events.marks import Mark
from unidle.events.scope import BudgetMeasured as BudgetMeasured
from unidle.events.scope import ProfilerSet as ProfilerSet
from unidle.events.scope import StepsWatched as StepsWatched
from unidle.fleet import Cut, Fleet, Health
from unidle.jobs import JobSpec, Reason
from unidle.jobs.state import RankPlace
from unidle.share.idle import Evidence

Outcome = Literal["succeeded", "failed", "cancelled", "preempted"]
StopWhy = Literal[
    "rank_failed",
    "cancelled",
    "timeout",
    "service_stopped",
    "preempted",
    "moved",
    "idle",
    "hung",
    "node_sick",
]
EndState = Literal["succeeded", "failed", "cancelled"]
Use = Literal["busy", "quiet", "unknown"]
PredictedWhat = Literal["start", "run_time", "step_time", "cost"]
"""A moment; a duration, all attempts together; of one attempt, the mean; money, all attempts together."""


class ControllerStarted(Base, frozen=True, omit_defaults=True):
    """A writer opened the store (``purpose``: its command).

    Each of its sightings covers the ``covers_ns`` after it: it promises another one before they end.
    ``clock_offset_ns`` turns the boot-time clock of boot ``boot`` into the log's time. ``modelled``: its engine
    is a simulation. ``policy``: the placement policy, empty for the default one.
    """

    purpose: str
    pid: int
    covers_ns: int
    boot: str = ""
    clock_offset_ns: int = 0
    modelled: bool = False
    policy: str = ""


class ControllerStopped(Base, frozen=True, omit_defaults=True):
    """The writer left cleanly."""

    why: str


class Sighted(Base, frozen=True, omit_defaults=True):
    """The controller is present, and the fleet is unchanged."""


class FleetSeen(Base, frozen=True, omit_defaults=True):
    """The fleet as it is from now on."""

    fleet: Fleet


class HealthSet(Base, frozen=True, omit_defaults=True):
    """A node or device changed health (``target``: a node or device id)."""

    target: str
    health: Health
    because: Reason


class DeviceCut(Base, frozen=True, omit_defaults=True):
    """A device is cut again: parts in use stay as they are, the others are new slices.

    A part without a job that is all of the device means that it is whole again.
    """

    device: str
    cut: Cut
    because: Reason


class JobSubmitted(Base, frozen=True, omit_defaults=True):
    """``submitted_by``: the submitter, as far as the store can tell; ``spec.user`` is whose job it is."""

    job: str
    spec: JobSpec
    submitted_by: str = ""


class CancelAsked(Base, frozen=True, omit_defaults=True):
    job: str
    by: str


class EventsLost(Base, frozen=True, omit_defaults=True):
    """In the place of an event that was damaged or missing when the store was repaired.

    Events ``first`` to ``last`` are lost, between ``since_ns`` and ``until_ns``, the times of the events around them.
    From the first later event that contradicts what is left until ``unsure_ns``, what is free is unknown, too.
    ``kind`` and ``job`` are of this event, as far as they could be read.
    """

    first: int
    last: int
    since_ns: int
    until_ns: int
    unsure_ns: int
    kind: str = ""
    job: str = ""


class RequestRefused(Base, frozen=True, omit_defaults=True):
    """A request in the inbox could not be read: it was moved away."""

    request: str  # its kind
    because: Reason


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


Event: TypeAlias = (
    ControllerStarted
    | ControllerStopped
    | Sighted
    | FleetSeen
    | HealthSet
    | DeviceCut
    | JobSubmitted
    | CancelAsked
    | EventsLost
    | RequestRefused
    | JobJudged
    | AttemptPlaced
    | RankSaw
    | StopAsked
    | VerdictReached
    | VerdictOver
    | StacksTaken
    | FaultSeen
    | WatchSet
    | CheckpointBad
    | RemedySet
    | CordonSet
    | SparesSet
    | MaintenanceSet
    | NodeChecked
    | PreflightEnded
    | UtilisationSeen
    | IdleTold
    | IdleOver
    | AttemptEnded
    | RetryPlanned
    | Requeued
    | Resized
    | Promised
    | JobEnded
    | JobsRemoved
    | KeepSet
    | Predicted
    | BudgetMeasured
    | StepsWatched
    | ProfilerSet
)

KINDS: Final[dict[str, type[Event]]] = {
    "controller_started": ControllerStarted,
    "controller_stopped": ControllerStopped,
    "sighted": Sighted,
    "fleet_seen": FleetSeen,
    "health_set": HealthSet,
    "device_cut": DeviceCut,
    "job_submitted": JobSubmitted,
    "cancel_asked": CancelAsked,
    "events_lost": EventsLost,
    "request_refused": RequestRefused,
    "job_judged": JobJudged,
    "attempt_placed": AttemptPlaced,
    "rank_saw": RankSaw,
    "stop_asked": StopAsked,
    "verdict_reached": VerdictReached,
    "verdict_over": VerdictOver,
    "stacks_taken": StacksTaken,
    "fault_seen": FaultSeen,
    "watch_set": WatchSet,
    "checkpoint_bad": CheckpointBad,
    "remedy_set": RemedySet,
    "cordon_set": CordonSet,
    "spares_set": SparesSet,
    "maintenance_set": MaintenanceSet,
    "node_checked": NodeChecked,
    "preflight_ended": PreflightEnded,
    "utilisation_seen": UtilisationSeen,
    "idle_told": IdleTold,
    "idle_over": IdleOver,
    "attempt_ended": AttemptEnded,
    "retry_planned": RetryPlanned,
    "requeued": Requeued,
    "resized": Resized,
    "promised": Promised,
    "job_ended": JobEnded,
    "jobs_removed": JobsRemoved,
    "keep_set": KeepSet,
    "predicted": Predicted,
    "budget_measured": BudgetMeasured,
    "steps_watched": StepsWatched,
    "profiler_set": ProfilerSet,
}
KIND_OF: Final[dict[type, str]] = {cls: kind for kind, cls in KINDS.items()}

_ENCODER = msgspec.json.Encoder()
_DECODERS: dict[str, msgspec.json.Decoder[Event]] = {}


def encode(event: Event) -> tuple[str, bytes]:
    """The event's kind and its body as JSON."""
    return KIND_OF[type(event)], _ENCODER.encode(event)


def decode(kind: str, body: bytes, seq: int = 0) -> Event:
    """The event of one log row; :class:`StoreDamaged` when it cannot be one."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        if kind not in KINDS:
            raise StoreDamaged(
                "an event of an unknown kind",
                field=f"event {seq}",
                value=kind,
                remedy="upgrade unidle if a newer version wrote the store, or run `unidle store check`",
            )
        decoder = _DECODERS[kind] = msgspec.json.Decoder(KINDS[kind])
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise StoreDamaged(
            f"a body of kind {kind} that cannot be read: {error}",
            field=f"event {seq}",
            remedy="run `unidle store check`",
        ) from error
