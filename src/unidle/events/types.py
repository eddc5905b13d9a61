"""The vocabulary of the log. State is a fold over these (``unidle.view``); those of jobs are in ``unidle.events.jobs``,
those of hosts in ``unidle.events.hosts``, those of guard in ``unidle.events.guard``, and those of the profiler in
``unidle.events.scope``."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from unidle.errors import StoreDamaged
from unidle.events import Base
from unidle.events.guard import CheckpointBad as CheckpointBad
from unidle.events.guard import CordonSet as CordonSet
from unidle.events.guard import FaultSeen as FaultSeen
from unidle.events.guard import LinksChecked as LinksChecked
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
from unidle.events.hosts import AttemptDisrupted as AttemptDisrupted
from unidle.events.hosts import ClockMeasured as ClockMeasured
from unidle.events.hosts import FleetChanged as FleetChanged
from unidle.events.hosts import FleetDeclared as FleetDeclared
from unidle.events.hosts import NodeEdit as NodeEdit
from unidle.events.hosts import NodeTaken as NodeTaken
from unidle.events.hosts import OtherPhase as OtherPhase
from unidle.events.hosts import OtherPod as OtherPod
from unidle.events.hosts import PodPhase as PodPhase
from unidle.events.hosts import PodsSeen as PodsSeen
from unidle.events.hosts import RankLanded as RankLanded
from unidle.events.hosts import RanksSilent as RanksSilent
from unidle.events.jobs import AttemptEnded as AttemptEnded
from unidle.events.jobs import AttemptPlaced as AttemptPlaced
from unidle.events.jobs import CancelAsked as CancelAsked
from unidle.events.jobs import EndState as EndState
from unidle.events.jobs import IdleOver as IdleOver
from unidle.events.jobs import IdleTold as IdleTold
from unidle.events.jobs import JobEnded as JobEnded
from unidle.events.jobs import JobJudged as JobJudged
from unidle.events.jobs import JobsRemoved as JobsRemoved
from unidle.events.jobs import JobSubmitted as JobSubmitted
from unidle.events.jobs import KeepSet as KeepSet
from unidle.events.jobs import Outcome as Outcome
from unidle.events.jobs import Predicted as Predicted
from unidle.events.jobs import PredictedWhat as PredictedWhat
from unidle.events.jobs import Promised as Promised
from unidle.events.jobs import RankSaw as RankSaw
from unidle.events.jobs import Requeued as Requeued
from unidle.events.jobs import Resized as Resized
from unidle.events.jobs import RetryPlanned as RetryPlanned
from unidle.events.jobs import StopAsked as StopAsked
from unidle.events.jobs import StopWhy as StopWhy
from unidle.events.jobs import Use as Use
from unidle.events.jobs import UtilisationSeen as UtilisationSeen
from unidle.events.scope import BudgetMeasured as BudgetMeasured
from unidle.events.scope import ProfilerSet as ProfilerSet
from unidle.events.scope import StepsWatched as StepsWatched
from unidle.fleet import Cut, Fleet, Health
from unidle.jobs import Reason


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


Event: TypeAlias = (
    ControllerStarted
    | ControllerStopped
    | Sighted
    | FleetSeen
    | FleetChanged
    | FleetDeclared
    | ClockMeasured
    | NodeTaken
    | PodsSeen
    | HealthSet
    | DeviceCut
    | JobSubmitted
    | CancelAsked
    | EventsLost
    | RequestRefused
    | JobJudged
    | AttemptPlaced
    | RankSaw
    | RanksSilent
    | RankLanded
    | AttemptDisrupted
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
    | LinksChecked
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
    "fleet_changed": FleetChanged,
    "fleet_declared": FleetDeclared,
    "clock_measured": ClockMeasured,
    "node_taken": NodeTaken,
    "pods_seen": PodsSeen,
    "health_set": HealthSet,
    "device_cut": DeviceCut,
    "job_submitted": JobSubmitted,
    "cancel_asked": CancelAsked,
    "events_lost": EventsLost,
    "request_refused": RequestRefused,
    "job_judged": JobJudged,
    "attempt_placed": AttemptPlaced,
    "rank_saw": RankSaw,
    "ranks_silent": RanksSilent,
    "rank_landed": RankLanded,
    "attempt_disrupted": AttemptDisrupted,
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
    "links_checked": LinksChecked,
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
