"""Jobs that wait, by what they need, and which of them have a known reason. An index of the view, never stored.

Filler jobs are not among them (:mod:`unidle.view.fillers`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import KeysView
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from unidle.jobs import JobSpec, Reason

if TYPE_CHECKING:
    from unidle.view.job_table import JobTable
    from unidle.view.jobs import JobView


class Shape(NamedTuple):
    """What a waiting gang needs; gangs of one shape are equivalent for a placement policy."""

    device: str
    ranks: int
    devices_per_rank: int
    wish: str = ""
    ranked: bool = False  # its level or its run time counts, not only its place in the queue

    @classmethod
    def of(cls, spec: JobSpec) -> Shape:
        ranked = spec.preemption != "medium" or spec.estimate_s is not None
        return cls(spec.device, spec.ranks, spec.devices_per_rank, spec.wish, ranked)


class Waiting:
    """Jobs that wait. The reasons are counted from the start; the lines are made when they are first asked for."""

    __slots__ = ("_ages", "_lines", "_shapes", "_since_ns", "_table", "_verdicts", "unjudged")

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._lines: dict[Shape, list[tuple[int, int, str]]] | None = None
        self._verdicts = dict(Counter(rest.code for rest in table.resting.values()))  # how many jobs by code
        self.unjudged: set[str] = set()  # those for which no reason to wait was recorded yet
        self._shapes: dict[str, Shape] = {}  # by job
        self._since_ns: dict[str, int] = {}  # by job
        self._ages: list[tuple[int, str]] | None = (
            None  # the same, the longest first; kept once it is asked for
        )
        if self._verdicts.pop("", 0):
            self.unjudged.update(name for name, rest in table.resting.items() if not rest.code)
        for job in table.open.awake():
            if _waits(job):
                self._reckon(job)

    @property
    def lines(self) -> dict[Shape, list[tuple[int, int, str]]]:
        """Waiting jobs by shape, each list in queue order: (-priority, order of submission, job)."""
        if self._lines is None:
            self._lines = self._made()
        return self._lines

    def _made(self) -> dict[Shape, list[tuple[int, int, str]]]:
        found = [(job.id, job.shape, job.spec.priority, job.order, job.waiting_since_ns)
                 for job in self._table.open.awake() if _waits(job)]  # fmt: skip
        found += [(name, r.shape, r.priority, r.order, r.since_ns) for name, r in self._table.resting.items()]
        found.sort(key=_ORDER)  # shapes, too, are in the order in which jobs of them came
        lines: dict[Shape, list[tuple[int, int, str]]] = {}
        for name, shape, priority, order, since_ns in found:
            self._shapes[name], self._since_ns[name] = shape, since_ns
            lines.setdefault(shape, []).append((-priority, order, name))
        for line in lines.values():
            line.sort()
        return lines

    def codes(self) -> KeysView[str]:
        """The codes of why jobs wait."""
        return self._verdicts.keys()

    def since_ns(self, after_ns: int = -1) -> int | None:
        """Since when the job waits that waits the longest, of those that wait since a time beyond ``after_ns``."""
        if self._ages is None:
            _ = self.lines
            self._ages = sorted((at_ns, job) for job, at_ns in self._since_ns.items())
        at = bisect_left(self._ages, (after_ns + 1, ""))
        return self._ages[at][0] if at < len(self._ages) else None

    def add(self, job: JobView) -> None:
        """The job enters the queue."""
        if job.spec.is_filler:
            return
        self._reckon(job)
        if self._lines is None:
            return  # the lines are made of the table, which has it
        shape = self._shapes[job.id] = job.shape
        insort(self._lines.setdefault(shape, []), (-job.spec.priority, job.order, job.id))
        self._since_ns[job.id] = job.waiting_since_ns
        if self._ages is not None:
            insort(self._ages, (job.waiting_since_ns, job.id))

    def _reckon(self, job: JobView) -> None:
        if job.verdict is None:
            self.unjudged.add(job.id)
        else:
            self._count(job.verdict.code, +1)

    def remove(self, job: JobView) -> None:
        """The job leaves the queue."""
        if job.spec.is_filler:
            return
        shape = self._shapes.pop(job.id, None)
        if shape is not None and self._lines is not None:
            line = self._lines[shape]
            del line[bisect_left(line, (-job.spec.priority, job.order, job.id))]
            if not line:
                del self._lines[shape]
            since_ns = self._since_ns.pop(job.id)
            if self._ages is not None:
                del self._ages[bisect_left(self._ages, (since_ns, job.id))]
        self._no_longer_unjudged(job.id)
        if job.verdict is not None:
            self._count(job.verdict.code, -1)

    def judge(self, job: JobView, verdict: Reason) -> None:
        """Why a job waits."""
        if job.spec.is_filler:
            job.verdict = verdict
            return
        waits = job.id in self.unjudged or job.verdict is not None
        if job.verdict is not None:
            self._count(job.verdict.code, -1)
        job.verdict = verdict
        self._no_longer_unjudged(job.id)
        if waits:
            self._count(verdict.code, +1)

    def doubt(self, job: JobView) -> None:
        """Forget why a job waits, so that the next decision records it."""
        if job.id in self.unjudged or job.verdict is None or job.spec.is_filler:
            return
        self._count(job.verdict.code, -1)
        job.verdict = None
        self.unjudged.add(job.id)

    def _count(self, code: str, step: int) -> None:
        count = self._verdicts.get(code, 0) + step
        if count > 0:
            self._verdicts[code] = count
        else:
            self._verdicts.pop(code, None)

    def _no_longer_unjudged(self, job: str) -> None:
        self.unjudged.discard(job)
        if not self.unjudged:
            self.unjudged = set()  # one that was large once takes long to walk through


_ORDER: Final = itemgetter(3)


def _waits(job: JobView) -> bool:
    return job.state in ("queued", "restarting") and not job.spec.is_filler
