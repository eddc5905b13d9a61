"""Whether a gang still makes progress, judged from outside: stopped ranks, cut links, silence.

The gang's own collective timeouts play no part. The activity of each rank is sampled many times a second
(``unidle.jobs.vitals``); if the job shows steps, they give its usual pace. Pure: a judge receives looks in order and
returns its findings.

What is *not* a hang: a gang of which some rank computes, reads or writes, sleeps until a time that is near,
or reports (``unidle.rank``) that it evaluates, saves, restores or compiles. Such a rank is given more time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from unidle.guard.fault_location import at_fault
from unidle.jobs.vitals import Doing, GangVitals, Pair, RankVitals
from unidle.words import are, does

FindingKind = Literal["hang", "cut"]

_S: Final = 1_000_000_000
STOPPED_NS: Final = 2 * _S  # debuggers and profilers stop a process for a moment
CUT_NS: Final = 2 * _S
SILENT_NS: Final = 3 * _S
SILENT_BEFORE_STEPS_NS: Final = 120 * _S
SILENT_WATCHED_NS: Final = (
    20 * _S
)  # steps are seen now and then only: not all of a job's usual pauses are known
BLIND_LOOKS: Final = 3  # so many looks in a row that see no step, where looks saw some
SPAN_NS: Final = 600 * _S  # what says that it saves or evaluates is believed for so long
BUSY_NS: Final = 300 * _S  # a gang that computes without a step, as evaluation or compilation would
BUSY_TIMES: Final = 20  # and so many times its longest step
POLL_NS: Final = 120 * _S  # a rank that sleeps again and again, as one that polls a file that never comes
INPUT_NS: Final = 30 * _S  # a rank that waits for what may come from outside: data, a child, a server
GAP_TIMES: Final = 4  # a silent gang, of its longest usual time between steps
DISK_NS: Final = 60 * _S
_IDLE_CPU_PPM: Final = 20_000  # of one core: what threads of a runtime use that wait
_IDLE_BYTES: Final = 64 * 1024  # a second
_GAPS: Final = 64
_INPUT: Final = ("network", "pipe", "child")


@dataclass(frozen=True, slots=True)
class GangFinding:
    """What is wrong with a gang. ``rank`` is the one it is attributed to, None where that cannot be determined.

    ``onset_ns`` is since when, ``signal_ns`` when the first sign of it was seen; ``certain``: long
    enough to act on. ``pairs``: ranks between which nothing gets through.
    """

    kind: FindingKind
    rank: int | None
    onset_ns: int
    signal_ns: int
    certain: bool
    text: str
    pairs: tuple[Pair, ...] = ()


class StepWindow(NamedTuple):
    """A window in which steps were watched from outside, and when those were complete that were seen."""

    start_ns: int
    end_ns: int
    steps_ns: Sequence[int]


@dataclass(frozen=True, slots=True)
class GangProgress:
    """What the job shows of itself. ``steps_ns``: when its latest steps were complete, in order.

    ``begun_ns``: when its ranks were all there. ``span``: what some rank reports that it does now instead of steps
    (``eval``, ``save``, ...), since ``span_ns``. ``watched``: for a job that shows no steps, the short windows that were
    watched for them; steps between two windows are unknown.
    """

    begun_ns: int
    steps_ns: Sequence[int] = ()
    span: str = ""
    span_ns: int = 0
    watched: Sequence[StepWindow] = ()

    @property
    def known_ns(self) -> list[int]:
        """The steps that are known, from the job or from outside."""
        return list(self.steps_ns) or [t for window in self.watched for t in window.steps_ns]


@dataclass(slots=True)
class GangJudge:
    """Judges one attempt. :meth:`judge` takes looks in order of time. ``nodes``: where each rank is."""

    nodes: Sequence[str] = ()
    _last_step_ns: int = 0
    _gaps: deque[int] = field(default_factory=lambda: deque(maxlen=_GAPS))
    _silent_ns: int | None = None  # since when no rank moved
    _first_wakes_ns: dict[int, int] = field(default_factory=dict)  # of the ranks that slept since then
    _silences: deque[int] = field(default_factory=lambda: deque(maxlen=_GAPS))  # that were over by themselves
    _watched_ns: int = 0  # until then steps were watched from outside; 0 where the job shows its own
    _blind: int = 0  # looks in a row that saw no step
    _steps_quietly: bool = False  # steps were seen from outside while no rank moved
    _signals: dict[tuple[str, int], int] = field(default_factory=dict)

    def judge(self, seen: GangVitals, progress: GangProgress) -> GangFinding | None:
        """What the gang suffers from as of this look; None when nothing is seen."""
        self._learn(progress)
        quiet = all(_is_quiet(rank, seen) for rank in seen.ranks)
        stepped = self._last_step_ns > seen.from_ns
        if not quiet or stepped:
            if self._silent_ns is not None:
                self._silences.append(seen.from_ns - self._silent_ns)
            self._silent_ns = None
            self._first_wakes_ns.clear()
        elif self._silent_ns is None:
            self._silent_ns = seen.from_ns
        found = (
            self._stopped(seen)
            or self._cut(seen)
            or self._silent(seen, progress)
            or self._busy(seen, progress)
        )
        self._forget_others(found)
        return found

    @property
    def silent_ns(self) -> int | None:
        """Since when no rank moves; None while one does."""
        return self._silent_ns

    # -- what can be found -----------------------------------------------------------------------

    def _stopped(self, seen: GangVitals) -> GangFinding | None:
        """A rank, or a process of one, that was stopped by a signal."""
        stopped = [r for r in seen.ranks if r.doing == "stopped"]
        if stopped:
            first = min(stopped, key=lambda r: (r.since_ns, r.rank))
            every = len(stopped) == len(seen.ranks) and len(stopped) > 1
            who = (
                "every rank is"
                if every
                else _ranks(stopped) + " is" * (len(stopped) == 1) + " are" * (len(stopped) > 1)
            )
            certain = seen.at_ns - first.since_ns >= STOPPED_NS
            return self._find(
                "hang",
                first.rank,
                first.since_ns,
                seen,
                certain,
                f"{who} stopped (SIGSTOP, a debugger or a freezer)",
            )
        halted = [r for r in seen.ranks if r.halted]
        if not halted or self._silent_ns is None:
            return None
        first = halted[0]
        certain = seen.at_ns - self._silent_ns >= SILENT_NS
        text = f"{first.halted} {'process' if first.halted == 1 else 'processes'} of rank {first.rank} stopped, and no rank makes progress"
        return self._find("hang", first.rank, self._silent_ns, seen, certain, text)

    def _cut(self, seen: GangVitals) -> GangFinding | None:
        """Connections between ranks on which nothing is acknowledged any more."""
        stuck = [r for r in seen.ranks if r.stuck]
        if not stuck or self._last_step_ns > min(r.stuck_ns for r in stuck):
            return None
        pairs = sorted({(min(r.rank, p), max(r.rank, p)) for r in stuck for p in r.stuck if p >= 0})
        since_ns = min(r.stuck_ns for r in stuck)
        rank = at_fault(seen.unreached or pairs, seen.reached, self.nodes)
        text = "no packets are acknowledged between ranks " + ", ".join(f"{a}-{b}" for a, b in pairs[:8])
        if not pairs:
            rank = stuck[0].rank
            text = f"rank {rank} receives no answer from an address outside the gang"
        if seen.unreached:
            text += f"; {_links(seen.unreached, self.nodes)} not reach each other"
        certain = seen.at_ns - since_ns >= CUT_NS
        return self._find("cut", rank, since_ns, seen, certain, text, seen.unreached or tuple(pairs))

    def _silent(self, seen: GangVitals, progress: GangProgress) -> GangFinding | None:
        """No rank computes, reads or writes, and none reports a reason."""
        if self._silent_ns is None or self._is_excused(seen, progress):
            return None
        if self._watched_ns and self._steps_quietly and self._blind < BLIND_LOOKS:
            return None
        usual_ns = max(self._gaps, default=0)
        need_ns = self._silence_needed_ns(usual_ns)
        since_ns = max(self._silent_ns, self._last_step_ns)
        waited_ns = seen.at_ns - since_ns
        rank, why = _odd_one_out(seen.ranks)
        blamed = seen.ranks if rank is None else [r for r in seen.ranks if r.rank == rank]
        if any(r.disk for r in seen.ranks):
            need_ns = max(need_ns, DISK_NS)
        if any(r.doing in _INPUT for r in blamed):
            need_ns = max(need_ns, INPUT_NS)
        if waited_ns < SILENT_NS or seen.at_ns - self._last_step_ns < 2 * usual_ns:
            return None
        text = f"no rank computes, reads or writes for {waited_ns / _S:.1f} s: {why}"
        return self._find("hang", rank, since_ns, seen, waited_ns >= need_ns, text)

    def _busy(self, seen: GangVitals, progress: GangProgress) -> GangFinding | None:
        """Some rank computes on and on, and the gang's steps do not come."""
        if not self._gaps or self._is_excused(seen, progress):
            return None
        if self._watched_ns and self._blind < BLIND_LOOKS:
            return None
        waited_ns = (self._watched_ns or seen.at_ns) - self._last_step_ns
        need_ns = max(BUSY_NS, BUSY_TIMES * max(self._gaps))
        if waited_ns < need_ns:
            return None
        rank, why = _odd_one_out(seen.ranks)
        text = f"no step for {waited_ns / _S:.0f} s, where {max(self._gaps) / _S:.1f} s was the longest before: {why}"
        return self._find("hang", rank, self._last_step_ns, seen, True, text)

    # -- helpers ---------------------------------------------------------------------------------

    def _silence_needed_ns(self, usual_ns: int) -> int:
        """How long nothing may move."""
        if not self._last_step_ns:
            return SILENT_BEFORE_STEPS_NS
        if self._watched_ns:
            usual_ns = max([usual_ns, *self._silences])
            return max(SILENT_WATCHED_NS, min(GAP_TIMES * usual_ns, BUSY_NS))
        return max(SILENT_NS, min(GAP_TIMES * usual_ns, BUSY_NS))

    def _learn(self, progress: GangProgress) -> None:
        if progress.steps_ns:
            before_ns, self._watched_ns = 0 if self._watched_ns else self._last_step_ns, 0
            self._take(progress.steps_ns, before_ns)
            return
        for window in progress.watched:
            if window.end_ns <= self._watched_ns:
                continue
            self._watched_ns = window.end_ns
            self._blind = 0 if window.steps_ns else self._blind + 1
            self._take(window.steps_ns, 0)
            if self._silent_ns is not None and self._last_step_ns > self._silent_ns + SILENT_NS:
                self._steps_quietly = True

    def _take(self, steps_ns: Sequence[int], before_ns: int) -> None:
        """Steps, of which the first follows the one at ``before_ns`` (0: it is not known which)."""
        for at_ns in steps_ns:
            if at_ns > self._last_step_ns:
                if before_ns:
                    self._gaps.append(at_ns - before_ns)
                self._last_step_ns = before_ns = at_ns

    def _is_excused(self, seen: GangVitals, progress: GangProgress) -> bool:
        if progress.span and seen.at_ns - progress.span_ns < SPAN_NS:
            return True
        if self._silent_ns is not None and seen.at_ns - self._silent_ns >= BUSY_NS:
            return False
        asleep = [(r.rank, r.wakes_ns) for r in seen.ranks if r.doing == "sleep" and r.wakes_ns is not None]
        return any(
            seen.at_ns - _S <= wakes_ns <= seen.at_ns + BUSY_NS
            and wakes_ns <= self._first_wakes_ns.setdefault(rank, wakes_ns) + POLL_NS
            for rank, wakes_ns in asleep
        )

    def _find(
        self, kind: FindingKind, rank: int | None, onset_ns: int, seen: GangVitals, certain: bool, text: str,
        pairs: tuple[Pair, ...] = (),
    ) -> GangFinding:  # fmt: skip
        key = (kind, -1 if rank is None else rank)
        signal_ns = self._signals.setdefault(key, seen.at_ns)
        return GangFinding(kind, rank, onset_ns, min(signal_ns, seen.at_ns), certain, text, pairs)

    def _forget_others(self, found: GangFinding | None) -> None:
        kept = () if found is None else ((found.kind, -1 if found.rank is None else found.rank),)
        for key in self._signals.keys() - set(kept):
            del self._signals[key]


def _is_quiet(rank: RankVitals, seen: GangVitals) -> bool:
    window_ns = max(seen.at_ns - seen.from_ns, 1)
    if rank.doing == "running" and rank.since_ns <= seen.from_ns:
        return False  # it wants a CPU, and may not have got one
    computes = rank.cpu_ns * 1_000_000 > _IDLE_CPU_PPM * window_ns
    moves = rank.io_bytes * _S > _IDLE_BYTES * window_ns
    return not computes and not moves


def _odd_one_out(ranks: Sequence[RankVitals]) -> tuple[int | None, str]:
    """The rank that does something else than most: they wait for it. None where no single one stands out."""
    by: dict[tuple[Doing, bool], list[int]] = {}
    for rank in ranks:
        by.setdefault((rank.doing, rank.timed), []).append(rank.rank)
    groups = sorted(by.items(), key=lambda item: (-len(item[1]), item[0]))
    if len(ranks) == 1:
        return None, f"its rank {_does(1, ranks[0].doing)}"
    if len(groups) < 2:
        return (
            None,
            f"all ranks wait in the same way ({_WORDS[groups[0][0][0]]})" if groups else "no rank is left",
        )
    (rest, most), (odd, few) = groups[0], groups[-1]
    if len(few) != 1 or len(most) == 1:
        return None, "; ".join(
            f"{_numbers(found)} {_does(len(found), doing)}" for (doing, _), found in groups
        )
    many = f"{_numbers(most)} {_does(len(most), rest[0])}"
    return few[0], f"rank {few[0]} {_does(1, odd[0])}, while {many}"


def _does(ranks: int, doing: Doing) -> str:
    """``waits for the network`` of one rank, ``wait for the network`` of several."""
    verb, _, rest = _WORDS[doing].partition(" ")
    verb = are(ranks) if verb == "are" else does(ranks, verb)
    return f"{verb} {rest}".rstrip()


_WORDS: Final[dict[Doing, str]] = {
    "running": "compute", "network": "wait for the network", "lock": "wait for a lock or thread", "pipe": "wait for a pipe",
    "child": "wait for a child process", "sleep": "sleep", "disk": "wait for a disk", "stopped": "are stopped", "gone": "are gone",
}  # fmt: skip


def _links(pairs: Sequence[Pair], nodes: Sequence[str]) -> str:
    named = [f"{nodes[a]} and {nodes[b]}" for a, b in pairs[:8]]
    return f"{', '.join(named)}{', ...' if len(pairs) > 8 else ''} do"


def _ranks(ranks: Sequence[RankVitals]) -> str:
    return _numbers([rank.rank for rank in ranks])


def _numbers(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
