"""Events of the profiler: time budgets of running ranks, and whether they are profiled."""

from __future__ import annotations

from unidle.events import Base


class BudgetMeasured(Base, frozen=True, omit_defaults=True):
    """Where the time of an attempt's ranks went in ``[start_ns, end_ns)``, as seen from outside.

    ``ranks``: by rank the nanoseconds of each leaf of ``unidle.ledger.profiled_causes.CARVED``; the rest of the window is not
    known to be anything but what it was taken for.
    """

    job: str
    attempt: int
    start_ns: int
    end_ns: int
    ranks: dict[int, dict[str, int]]


class StepsWatched(Base, frozen=True, omit_defaults=True):
    """Steps that were seen from outside in ``[start_ns, end_ns)``: by rank when each was complete, in order.

    A rank with an empty list was observed in the same way as before, and completed none.
    """

    job: str
    attempt: int
    start_ns: int
    end_ns: int
    ranks: dict[int, tuple[int, ...]]


class ProfilerSet(Base, frozen=True, omit_defaults=True):
    """From now on running jobs are profiled, or not (``why_not``)."""

    why_not: str = ""
