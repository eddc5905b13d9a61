"""What both pictures are made from. Times are integer nanoseconds on the controller's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from unidle.errors import UnidleError
from unidle.fleet import WHOLE_PPM
from unidle.ledger.taxonomy import How
from unidle.report.filled import FillStory

EventMark = Literal["", "failure", "kill", "restart", "checkpoint"]


class TimelineBar(NamedTuple):
    """One interval of a track with one leaf; a tuple, because a report may hold millions."""

    start_ns: int
    end_ns: int
    leaf: str
    group: str
    job: str = ""
    attempt: int = 0  # 1 is the first; 0 without a job
    step: int = -1  # -1 where no step is known
    how: How = "measured"
    observer: str = "control"


@dataclass(frozen=True, slots=True)
class LeafTime:
    """Share-weighted device time of one leaf; a leaf known in two ways may come twice."""

    leaf: str
    group: str
    ns: int
    how: How = "measured"
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class RatioLine:
    """A ratio of sums of leaves; ``value`` is None where the denominator is 0."""

    name: str
    value: float | None
    numerator_ns: int
    denominator_ns: int
    definition: str


@dataclass(frozen=True, slots=True)
class CodeLine:
    """What a rule of slow code cost: device time that other codes do not have, and the job with the most of it."""

    code: str
    message: str
    ns: int
    job: str
    jobs: int
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceTrack:
    """One line of the Gantt chart: a device, or one slice of it where it is cut."""

    device: str
    node: str
    model: str
    bars: tuple[TimelineBar, ...]
    slice: str = ""  # "" for a whole device
    share_ppm: int = WHOLE_PPM

    @property
    def label(self) -> str:
        return self.slice or self.device


@dataclass(frozen=True, slots=True)
class JobLine:
    job: str
    name: str
    state: str
    user: str
    queue: str
    ranks: int
    attempts: int
    steps: int | None
    lost_steps: int
    submitted_ns: int
    started_ns: int | None
    ended_ns: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """``devices`` are track labels in rank order; ``exit_codes`` as in :mod:`subprocess`."""

    job: str
    attempt: int
    placed_ns: int
    ended_ns: int | None
    devices: tuple[str, ...]
    outcome: str
    cause: str
    exit_codes: tuple[int | None, ...]
    first_step: int | None
    last_step: int | None
    durable_step: int | None


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event in words; ``mark`` draws it on the Gantt lines of its attempt."""

    time_ns: int
    kind: str
    job: str
    attempt: int | None
    rank: int | None
    text: str
    mark: EventMark = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an attempt failed: one line, and what its rank printed last. ``note``: what is known beyond it, or why there are no lines.

    ``help``: what the user can change; ``next``: a command that shows more. Both may be empty.
    """

    attempt: int
    headline: str
    rank: int | None = None
    lines: tuple[str, ...] = ()
    note: str = ""
    help: str = ""
    next: str = ""


@dataclass(frozen=True, slots=True)
class Hang:
    """Where the ranks of an attempt stood when it hung, and the frames of those that stood apart."""

    attempt: int
    text: str
    frames: tuple[tuple[int, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure of an attempt over time; a value of None is one that is no finite number."""

    attempt: int
    points: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True, slots=True)
class JobStory:
    """What was run and what became of it. Nothing in it is secret: values have been masked."""

    job: str
    start_ns: int
    end_ns: int
    command: str
    facts: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    problem: Problem | None = None
    hang: Hang | None = None
    speed: tuple[Curve, ...] = ()
    loss: tuple[Curve, ...] = ()
    fill: FillStory | None = None


@dataclass(frozen=True, slots=True)
class ReportData:
    """One window of one store. The leaves sum to ``capacity_ns`` exactly, else :class:`UnidleError`.

    ``time_unit`` names device time: ``GPU`` where every device is one, else ``device``.
    """

    title: str
    generated_ns: int
    store: str
    window_start_ns: int
    window_end_ns: int
    capacity_ns: int
    leaves: tuple[LeafTime, ...]
    ratios: tuple[RatioLine, ...] = ()
    currency: str = "USD"
    devices: tuple[DeviceTrack, ...] = ()
    jobs: tuple[JobLine, ...] = ()
    attempts: tuple[AttemptLine, ...] = ()
    events: tuple[EventLine, ...] = ()
    time_unit: Literal["GPU", "device"] = "device"
    stories: tuple[JobStory, ...] = ()
    codes: tuple[CodeLine, ...] = ()

    def __post_init__(self) -> None:
        total = sum(leaf.ns for leaf in self.leaves)
        if total != self.capacity_ns:
            raise UnidleError(
                f"the leaves sum to {total} ns, the capacity is {self.capacity_ns} ns",
                field="leaves",
                remedy="run `unidle store check`; the ledger must conserve time",
            )
