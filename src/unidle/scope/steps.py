"""Steps seen from outside: how many, and how long each took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from unidle.scope.model import Profile, Span
from unidle.scope.process_roles import Key, ProcessRoles

_KINDS: Final = ("step", "optimizer", "backward", "collective")
_LEAST_SPANS: Final = 3
_LONGEST_PERIOD: Final = 64


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one training thread. ``of``: the event that ends a step; durations are from one end to the next."""

    pid: int
    tid: int
    count: int
    of: str
    durations_ns: tuple[int, ...] = ()
    ends_ns: tuple[int, ...] = ()  # when each was over; one more than durations, or none

    def quantile_ms(self, share: float) -> float | None:
        return None if not self.durations_ns else round(quantile(self.durations_ns, share) / 1e6, 3)


@dataclass(frozen=True, slots=True)
class StepReport:
    """The steps of all ranks. ``why_not``: the reason if there are none."""

    ranks: Mapping[Key, Steps]
    why_not: str = ""

    @property
    def count(self) -> int | None:
        """Steps that the slowest rank ended: the job's own."""
        return min((steps.count for steps in self.ranks.values()), default=None)

    def quantile_ms(self, share: float) -> float | None:
        """Over the steps of all ranks."""
        every = [ns for steps in self.ranks.values() for ns in steps.durations_ns]
        return None if not every else round(quantile(every, share) / 1e6, 3)


def steps_of(profile: Profile, roles: ProcessRoles) -> StepReport:
    """From steps that a profiler marked (``ProfilerStep#``), else from spans of the optimizer, else of backward, else of collectives that repeat; else from calls, which are only counted.

    Samples are added up over a look, so no period can be distinguished from them.
    """
    found: dict[Key, Steps] = {}
    for subject in roles.subjects:
        key = subject.pid, subject.tid
        steps = _from_spans(profile, key) or _from_calls(profile, key)
        if steps is not None:
            found[key] = steps
    why = "" if found else "no call of backward, an optimizer or a collective was seen"
    return StepReport(found, why)


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two nearest values, as NumPy's default does."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _from_spans(profile: Profile, key: Key) -> Steps | None:
    for kind in _KINDS:
        spans = sorted(
            (s for s in profile.spans if s.kind == kind and s.pid == key[0]),
            key=lambda s: (s.end_ns, s.start_ns),
        )
        # The thread's own where there are some: an optimizer's or a collective's may come from a helper.
        spans = [s for s in spans if s.tid == key[1]] or spans
        ends = _ends(spans, kind)
        if kind == "step" and ends:
            whole = tuple(s.end_ns - s.start_ns for s in spans)
            return Steps(*key, len(spans), kind, whole, (spans[0].start_ns, *ends))
        if len(ends) >= _LEAST_SPANS:
            lasted = tuple(b - a for a, b in pairwise(ends))
            return Steps(*key, len(ends), kind, lasted, tuple(ends))
    return None


def _ends(spans: Sequence[Span], kind: str) -> list[int]:
    """When steps ended. Calls inside another are left out; of collectives one in each period of their pattern counts."""
    outer: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.start_ns, -s.end_ns)):
        if not outer or span.start_ns >= outer[-1].end_ns:
            outer.append(span)
    if kind != "collective":
        return [span.end_ns for span in outer]
    period = _period([(span.name, span.n_bytes) for span in outer])
    return [] if period is None else [span.end_ns for span in outer[period - 1 :: period]]


def _period(names: Sequence[object]) -> int | None:
    """The shortest pattern that all of the names repeat, at least three times; None without one."""
    for period in range(1, min(_LONGEST_PERIOD, len(names) // _LEAST_SPANS) + 1):
        if all(a == b for a, b in zip(names, names[period:], strict=False)):
            return period
    return None


def _from_calls(profile: Profile, key: Key) -> Steps | None:
    counts: Counter[str] = Counter()
    for call in profile.calls:
        if call.pid == key[0] and call.kind in ("optimizer", "backward"):
            counts[call.kind] += call.count
    for kind in ("optimizer", "backward"):
        if counts[kind]:
            return Steps(*key, counts[kind], kind)
    return None
