"""Jobs and their attempts, according to the log."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from unidle.events.types import Outcome, PodPhase, StacksTaken, StopAsked
from unidle.jobs import TERMINAL, JobSpec, JobState, RankPlace, Reason
from unidle.view.checkpoints import BadCheckpoint
from unidle.view.host_clocks import AttemptClock
from unidle.view.ranks import RankView
from unidle.view.records import IdleNotice, Prediction, RankLanding, UseView, VerdictView
from unidle.view.waiting import Shape

_TRUSTED: Final = 2  # a predicted run time counts where it is at most so many times as long


class AttemptView(msgspec.Struct, array_like=True):
    number: int
    placed_ns: int
    places: tuple[RankPlace, ...]
    because: Reason
    ranks: list[RankView]
    stop: StopAsked | None = None
    stop_ns: int | None = None
    ended_ns: int | None = None
    outcome: Outcome | None = None
    why: Reason | None = None
    then: Reason | None = None  # why another attempt follows
    use: UseView = UseView()
    notices: list[IdleNotice] = []
    verdicts: list[VerdictView] = []
    bad: list[BadCheckpoint] = []  # checkpoints that it could not go on from
    checked_ns: int | None = None  # when its nodes had been checked before it starts
    stacks: StacksTaken | None = None  # where its ranks stood when it was last found to hang
    stacks_ns: int | None = None
    disrupted: Reason | None = None  # others ended it
    disrupted_ns: int | None = None
    landings: list[RankLanding] = []  # ranks that got other slices than were placed
    since: dict[str, int] = {}  # these slices, each with when the attempt got it
    clocks: dict[str, AttemptClock] = {}  # of nodes with a clock of their own
    checked: Reason | None = None  # what the check of its nodes found
    pod_phases: dict[str, list[tuple[int, PodPhase]]] = {}  # by node, since when its pod is how far
    yielded_ns: int | None = None  # when the devices of a filler were given to another job

    @property
    def verdict(self) -> VerdictView | None:
        """What is wrong with it now, as far as that is known: the latest that is not over."""
        return next((verdict for verdict in reversed(self.verdicts) if verdict.over_ns is None), None)

    @property
    def live(self) -> bool:
        return self.ended_ns is None

    @property
    def released_ns(self) -> int | None:
        """When its devices were its own no more: at its end, or before that for a filler that made room."""
        return self.ended_ns if self.yielded_ns is None else self.yielded_ns

    @property
    def notice(self) -> IdleNotice | None:
        """The notice to an idle holder that stands."""
        return self.notices[-1] if self.notices and self.notices[-1].over_ns is None else None

    @property
    def silent(self) -> list[int]:
        """Ranks that have not ended, as far as is known, and do not answer."""
        return [k for k, rank in enumerate(self.ranks) if rank.silent_ns is not None and not rank.ended]

    @property
    def all_spawned(self) -> bool:
        # mostly the last one says no: a generator would take longer
        for rank in reversed(self.ranks):  # noqa: SIM110
            if rank.spawn_ns is None:
                return False
        return True

    @property
    def all_ended(self) -> bool:
        for rank in reversed(self.ranks):  # noqa: SIM110
            if rank.end_ns is None:
                return False
        return True

    @property
    def left_places(self) -> bool:
        """Whether its places may be free still: it failed, was moved, or the service was stopped."""
        stop = self.stop
        return self.outcome == "failed" or (
            stop is not None and stop.why in ("service_stopped", "moved", "node_sick")
        )

    @property
    def culprit(self) -> int | None:
        """The rank that the log names as the one that failed first; None where it names none."""
        named = self.why.figures.get("rank") if self.why is not None and self.outcome == "failed" else None
        if isinstance(named, int) and 0 <= named < len(self.ranks):
            return named
        return self.stop.culprit if self.stop is not None else None

    @property
    def failure_kind(self) -> str:
        """The kind of failure that ended it, by the log (``unidle.jobs.FailureKind``); empty where none did."""
        if self.stop is not None and self.stop.why == "node_sick":
            return "machine"
        if self.why is None or self.outcome != "failed":
            return ""
        return str(self.why.figures.get("kind", "unknown" if self.why.code == "rank_failed" else ""))

    @property
    def begun_ns(self) -> int | None:
        """When it began its first step (reported, else when that was complete); None before that was seen."""
        told = next((r for r in self.ranks if r.ready_ns is not None or r.step_ns), None)
        if told is None:
            return None
        return told.ready_ns if told.ready_ns is not None else told.step_ns[0]

    @property
    def saved_ns(self) -> int | None:
        """When it last saved its state; None before it did."""
        return max((r.saves[-1][0] for r in self.ranks if r.saves), default=None)

    @property
    def watched_ns(self) -> int | None:
        """When a step of any rank was first seen from outside; None before that."""
        return min((r.watched_ns for r in self.ranks if r.watched_ns is not None), default=None)

    def last_step(self) -> int | None:
        """The highest step that any rank reported."""
        return max([r.step_n[-1] for r in self.ranks if r.step_n], default=None)

    def overdue_ns(self, now_ns: int) -> int:
        """How long no step came, in ns, if that is more than 5 s and 4 times the longest of the latest gaps; else 0."""
        times = max((r.step_ns for r in self.ranks if r.step_ns), key=lambda ns: ns[-1], default=None)
        if times is None:
            return 0
        waited_ns = now_ns - times[-1]
        usual_ns = max((b - a for a, b in pairwise(times[-20:])), default=0)
        return waited_ns if waited_ns > max(5_000_000_000, 4 * usual_ns) else 0

    @property
    def restored_step(self) -> int | None:
        """The step after which it resumed, if the script reported it."""
        return next((r.restored for r in self.ranks if r.restored is not None), None)

    def first_step(self) -> int | None:
        return min((r.step_n[0] for r in self.ranks if r.step_n), default=None)


class JobView(msgspec.Struct, array_like=True):
    id: str
    spec: JobSpec
    order: int  # position in the order of submission
    submitted_ns: int
    state: JobState = "queued"
    attempts: list[AttemptView] = []
    waiting_since_ns: int = 0
    not_before_ns: int = 0
    verdict: Reason | None = None  # why it waits
    retry: Reason | None = None
    retries: int = 0
    policy_uses: dict[int, int] = {}  # of restart policies, by their place in the list
    resized: Reason | None = None  # why it has as many ranks as it has
    cancel_by: str | None = None
    ended_ns: int | None = None
    because: Reason | None = None
    predictions: list[Prediction] = []
    submitted_by: str = ""  # whose job it is, is ``spec.user``
    made_room: list[tuple[int, str]] = []  # jobs that were stopped or moved for it, each with when
    source: str = ""  # where it was submitted, if not in this store
    identity: str = ""  # its own name there

    @property
    def live(self) -> AttemptView | None:
        """The attempt that holds slices now, if any."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].live else None

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def shape(self) -> Shape:
        return Shape.of(self.spec)

    def steps(self) -> int:
        """The highest step that any attempt reported; 0 where none was seen."""
        return max([s for a in self.attempts if (s := a.last_step()) is not None], default=0)

    @property
    def run_time_ns(self) -> int | None:
        """How long an attempt runs: the job's estimate, else what was predicted with confidence; None if neither.

        A prediction whose bounds are wide would keep room for jobs at times at which it is not needed.
        """
        if self.given_ns is not None:
            return self.given_ns
        said = self._run_time
        if said is None or said.high_ns > _TRUSTED * said.value_ns:
            return None
        return said.value_ns

    @property
    def given_ns(self) -> int | None:
        """The run time that the job's owner gives; None where none is."""
        return None if self.spec.estimate_s is None else int(self.spec.estimate_s * 1_000_000_000)

    @property
    def guessed_ns(self) -> int | None:
        """The run time that is given or was predicted, however little is known of it; None where nothing is."""
        said = self._run_time
        return self.given_ns if said is None or self.given_ns is not None else said.value_ns

    @property
    def _run_time(self) -> Prediction | None:
        return next((said for said in reversed(self.predictions) if said.what == "run_time"), None)

    def devices_of(self, attempt: AttemptView) -> int:
        """Devices of an attempt: an elastic job's differ in size."""
        return len(attempt.places) * self.spec.devices_per_rank

    def run_ns(self, now_ns: int) -> int:
        """Time under attempts so far."""
        return sum((a.ended_ns if a.ended_ns is not None else now_ns) - a.placed_ns for a in self.attempts)


def in_full(job: JobView) -> str:
    """The job with whose it is: ``job big-1 of user ann (queue nlp, priority 0)``."""
    spec = job.spec
    return f"job {job.id} of user {spec.user or 'unknown'} (queue {spec.queue}, priority {spec.priority})"
