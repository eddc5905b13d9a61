"""The interface between decisions and the engine that carries them out.

One protocol serves local processes, Kubernetes and the simulator: commands are idempotent (the key
is job and attempt), what the engine observes is the truth, and observations may arrive late, twice
or out of order: each mark carries its source (a rank) and its ordinal in that source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from unidle.events.marks import Mark
from unidle.events.types import OtherPod, PodPhase, Use
from unidle.fleet import CutMode, CutPart, Fleet, Health, Node
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.jobs.vitals import GangVitals


@dataclass(frozen=True, slots=True)
class PartOf:
    """A part of a device that was cut on demand, and how it is to be made."""

    device: str
    mode: CutMode
    part: CutPart


@dataclass(frozen=True, slots=True)
class StartGang:
    """Start every rank of one attempt. Idempotent.

    ``parts`` are those of its slices that are parts made on demand: the engine makes them real before
    the ranks start. Where it cannot, every rank gets a ``lost`` mark whose ``info`` has ``refused``.
    ``mttf_s`` is the mean time to the gang's next failure, ``restart_s`` that of its restart, as far as they
    are known from the log.
    """

    job: str
    attempt: int  # 1 is the first
    spec: JobSpec
    places: tuple[RankPlace, ...]  # in rank order
    parts: Mapping[str, PartOf] = field(default_factory=dict)
    mttf_s: float | None = None
    restart_s: float | None = None


@dataclass(frozen=True, slots=True)
class StopGang:
    """Stop every rank of one attempt: SIGTERM, ``grace_ns``, SIGKILL; ``grace_ns`` 0 kills at once."""

    job: str
    attempt: int
    ranks: int
    grace_ns: int


@dataclass(frozen=True, slots=True)
class RankMarks:
    """Marks ``first``, ``first + 1``, ... that one rank's supervisor wrote."""

    job: str
    attempt: int
    rank: int
    first: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A node or device (``target``) changed health."""

    target: str
    health: Health
    because: Reason


@dataclass(frozen=True, slots=True)
class WatchGang:
    """Measure from now on whether an attempt's devices are used; ``every_ns`` 0: no longer.

    ``busy_ppm`` is the part of one CPU core, or of a GPU's time, from which on a rank is at work.
    """

    job: str
    attempt: int
    places: tuple[RankPlace, ...]
    every_ns: int
    busy_ppm: int


@dataclass(frozen=True, slots=True)
class Utilised:
    """The devices of a watched attempt are busy or quiet since ``since_ns``, or cannot be measured (``text``)."""

    job: str
    attempt: int
    use: Use
    since_ns: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointLook:
    """The newest checkpoint of a job was found bad before ``attempt`` went on; ``moved_to``: where it is now."""

    job: str
    attempt: int
    path: str
    because: str
    moved_to: str = ""
    step: int | None = None  # that it holds, where its name says so


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """Nodes that came or are otherwise than before (``put``: each as it is now), and ids of those that left (``gone``).

    A node that is put again unchanged, or is gone already, changes nothing. New nodes come last in the fleet's order.
    """

    put: tuple[Node, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Redeclared:
    """All of the fleet but its nodes, as it is from now on. ``fleet`` has no nodes. Reported before nodes of new tiers."""

    fleet: Fleet


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clock since boot ``boot`` of a node plus ``offset_ns`` is the controller's, give or take ``error_ns``.

    It may be reported again and again, also unchanged. Nodes of the controller's own machine have no such report.
    """

    node: str
    boot: str
    offset_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class Silent:
    """These ranks have not answered since ``since_ns`` (clock time); 0: they answer again.

    A silent rank is not dead: it holds its slices until it answers again, or a ``lost`` or ``exit`` mark ends it.
    """

    job: str
    attempt: int
    ranks: tuple[int, ...]
    since_ns: int


@dataclass(frozen=True, slots=True)
class Disrupted:
    """Others end the attempt, by an eviction or because an allocation ended. It is no failure of the job.

    The job waits again and no restart of its budget is used. The engine reports the ends of its ranks as marks, too:
    this observation comes before the last of them.
    """

    job: str
    attempt: int
    because: Reason


@dataclass(frozen=True, slots=True)
class Landed:
    """The host gave a rank these slices (ids), which are as many as were placed, and may be others of the same kind."""

    job: str
    attempt: int
    rank: int
    node: str
    slices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodsReached:
    """Pods of an attempt on these nodes have come to ``phase``. It may be reported again."""

    job: str
    attempt: int
    nodes: tuple[str, ...]
    phase: PodPhase


@dataclass(frozen=True, slots=True)
class Taken:
    """All that others use of a node now: cores, bytes of memory, and whole devices (ids). Zeros: nothing any more.

    It is not offered to jobs. Who holds such a device already keeps it.
    """

    node: str
    cpus: float
    memory_bytes: int
    devices: tuple[str, ...]
    because: Reason
    pods: tuple[OtherPod, ...] = ()


@dataclass(frozen=True, slots=True)
class JobArrived:
    """A job that was submitted outside of the store: ``identity`` is its own name there, unique in its ``source``.

    The same identity again is the same job. ``name`` is its name here, where no other job has that.
    """

    source: str
    identity: str
    name: str
    spec: JobSpec
    by: str = ""


Observation = (
    RankMarks | HealthChange | Utilised | GangVitals | CheckpointLook
    | NodesChanged | Redeclared | HostClock | Silent | Disrupted | Landed | Taken | PodsReached | JobArrived
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """An attempt that has not ended according to the log, and how many marks of each rank are known.

    ``ended``: whether the rank's end is one of them. A rank of which marks are known is never started: if it does not
    run and left no end, it is lost.
    """

    command: StartGang
    marks_known: tuple[int, ...]
    ended: tuple[bool, ...] = ()


class Engine(Protocol):
    """Carries out plans and reports what happened."""

    @property
    def modelled(self) -> bool:
        """Whether a model makes up what it reports: every row of the ledger is then marked as modelled."""

    def fleet(self) -> Fleet:
        """What there is now."""

    def adopt(self, live: Sequence[LiveAttempt]) -> None:
        """Called once before the first poll: adopt the attempts that are alive according to the log."""

    def start(self, command: StartGang) -> None:
        """Begin to start a gang; failures arrive as marks of the rank (kind ``exit`` or ``lost``)."""

    def stop(self, command: StopGang) -> None:
        """Begin to stop a gang; a second call may shorten the grace, never lengthen it.

        A rank that was never started gets a ``lost`` mark, so that every stop comes to an end."""

    def watch(self, command: WatchGang) -> None:
        """Start or stop measuring whether an attempt's devices are used.

        Reports a :class:`Utilised` once it is known, and whenever it changes. A new engine measures nothing until
        this call. If it has since when an attempt is quiet, also before this call, it may omit an initial busy
        report.
        """

    def release(self, job: str, attempt: int) -> None:
        """The attempt has ended and this is logged: no further calls concern it."""

    def finish(self, job: str) -> None:
        """The job has ended and this is logged: what is kept for its next attempt can be removed."""

    def keep(self, jobs: Collection[str]) -> None:
        """Called once after :meth:`adopt`: what is kept for jobs other than these, which are open, can go."""

    def poll(self) -> Sequence[Observation]:
        """What is new since the last poll. Never blocks."""

    def wait(self, until_ns: int | None) -> None:
        """Return when something may have happened, at ``until_ns`` (clock time) at the latest."""

    def close(self) -> None:
        """Release all resources without stopping any rank."""
