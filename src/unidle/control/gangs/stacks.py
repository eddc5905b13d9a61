"""Reads the stacks of all ranks of a gang that hangs once before it is stopped: elsewhere, within a bounded time.

The loop has them read, continues, and takes the result at a later turn; only the order to stop that gang waits for it.
Where that costs time to begin, it is prepared when a gang has been silent for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from unidle.events import types as ev
from unidle.guard.stacks import in_words, odd_ranks
from unidle.jobs import Reason
from unidle.scope.stack_process import within
from unidle.view.jobs import AttemptView

PATIENT_NS: Final = 5_000_000_000  # where nothing does
AT_ONCE: Final = 4
LOOKS_PER_ATTEMPT: Final = 8
KEPT_BYTES: Final = 48 << 10  # of one look in the log
_LATE: Final = "the snapshot did not end in time"

_Key = tuple[str, int]


class StackReading(Protocol):
    """The stacks of one attempt, while they are read."""

    @property
    def stacks(self) -> Sequence[ev.RankStack]:
        """As far as they are known by now."""

    def ended(self) -> bool:
        """Take what came; True at its end."""

    def end(self) -> None:
        """Read no more."""


class StackSource(Protocol):
    """Where the stacks of ranks can be read. ``limit_ns``: for so long a stop may wait."""

    @property
    def limit_ns(self) -> int: ...

    def prepare(self, now_ns: int, nodes: Collection[str]) -> None:
        """The stacks of a gang on these nodes may soon be needed. Called again while that is so."""

    def begin(self, job: str, attempt: AttemptView) -> StackReading:
        """Begin to read. Errors: OSError."""

    def tidy(self, now_ns: int) -> None:
        """Let go of what is not needed any more."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Look:
    ranks: int
    begun_ns: int
    waited: bool = False  # a stop waits for it
    reading: StackReading | None = None
    why_not: str = ""


class GangStacks:
    """Has the stacks of gangs read by ``source``, not too many at once, and not too often."""

    def __init__(self, source: StackSource) -> None:
        self._source = source
        self._looks: dict[_Key, _Look] = {}
        self._counts: dict[_Key, int] = {}

    def prepare(self, attempt: AttemptView, now_ns: int) -> None:
        """The gang may turn out to hang."""
        self._source.prepare(now_ns, {place.node for place in attempt.places})

    @property
    def pending(self) -> bool:
        """Whether :meth:`take` has to be called again soon."""
        return bool(self._looks)

    def begin(self, job: str, attempt: AttemptView, now_ns: int) -> None:
        """Look at the attempt now, unless that is under way or was done often enough."""
        key = (job, attempt.number)
        if key in self._looks or self._counts.get(key, 0) >= LOOKS_PER_ATTEMPT:
            return
        self._counts[key] = self._counts.get(key, 0) + 1
        self._looks[key] = look = _Look(len(attempt.ranks), now_ns)
        if sum(one.reading is not None for one in self._looks.values()) >= AT_ONCE:
            look.why_not = "too many other gangs hung in the same second"
            return
        try:
            look.reading = self._source.begin(job, attempt)
        except OSError as error:
            look.why_not = f"the snapshot could not be started: {error.strerror or error}"

    def holds(self, job: str, attempt: AttemptView, now_ns: int) -> bool:
        """Whether the order to stop this attempt has to wait for the look at it; it begins one where there was none."""
        key = (job, attempt.number)
        if attempt.stacks is None and key not in self._counts:
            self.begin(job, attempt, now_ns)
        if key in self._looks:
            self._looks[key].waited = True
        return key in self._looks

    def take(self, now_ns: int) -> Iterator[ev.StacksTaken]:
        """The looks that have ended or whose time is over."""
        self._source.tidy(now_ns)
        for key, look in list(self._looks.items()):
            ended = look.reading is None or look.reading.ended()
            limit_ns = self._source.limit_ns if look.waited else PATIENT_NS
            if ended or not 0 <= now_ns - look.begun_ns < limit_ns:
                del self._looks[key]
                stacks = () if look.reading is None else look.reading.stacks
                if look.reading is not None:
                    look.reading.end()
                yield found(*key, look.ranks, stacks, look.why_not or ("" if ended else _LATE))

    def close(self) -> None:
        """End what is still read."""
        for look in self._looks.values():
            if look.reading is not None:
                look.reading.end()
        self._looks.clear()
        self._source.close()


def found(job: str, attempt: int, ranks: int, stacks: Sequence[ev.RankStack], why_not: str) -> ev.StacksTaken:
    """The event of what a look found. ``why_not``: why there may be nothing."""
    if not stacks:
        text = f"the stacks of the gang's ranks could not be taken: {why_not or 'the snapshot ended without a result'}"
        return ev.StacksTaken(job, attempt, Reason("stacks", text))
    known = {rank for stack in stacks for rank in stack.ranks}
    if missing := tuple(sorted(set(range(ranks)) - known)):
        stacks = (*stacks, ev.RankStack(missing, "unknown", why_not=why_not or "it was not found"))
    odd = odd_ranks(stacks)
    whys = {stack.why_not for stack in stacks if stack.why_not}
    text = in_words(stacks, odd) + (f"; no Python lines: {'; '.join(sorted(whys)[:2])}" if whys else "")
    return ev.StacksTaken(job, attempt, Reason("stacks", text[:2000]), within(stacks, KEPT_BYTES), odd)
