"""Jobs that wait, by what they need, and which of them have a known reason. An index of the view, never stored."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, KeysView
from typing import TYPE_CHECKING, NamedTuple

from unidle.jobs import JobSpec, Reason

if TYPE_CHECKING:
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
    """``lines``: waiting jobs by shape, each list in queue order: (-priority, order of submission, job).

    ``unjudged``: those for which no reason to wait was recorded yet.
    """

    __slots__ = ("_ages", "_shapes", "_since_ns", "_verdicts", "lines", "unjudged")

    def __init__(self, jobs: Iterable[JobView]) -> None:
        self.lines: dict[Shape, list[tuple[int, int, str]]] = {}
        self.unjudged: set[str] = set()
        self._verdicts: dict[str, int] = {}  # how many jobs by code
        self._shapes: dict[str, Shape] = {}  # by job
        self._since_ns: dict[str, int] = {}  # by job
        self._ages: list[tuple[int, str]] | None = (
            None  # the same, the longest first; kept once it is asked for
        )
        for job in jobs:
            if job.state in ("queued", "restarting"):
                self.add(job)

    def codes(self) -> KeysView[str]:
        """The codes of why jobs wait."""
        return self._verdicts.keys()

    def since_ns(self, after_ns: int = -1) -> int | None:
        """Since when the job waits that waits the longest, of those that wait since a time beyond ``after_ns``."""
        if self._ages is None:
            self._ages = sorted((at_ns, job) for job, at_ns in self._since_ns.items())
        at = bisect_left(self._ages, (after_ns + 1, ""))
        return self._ages[at][0] if at < len(self._ages) else None

    def add(self, job: JobView) -> None:
        """The job enters the queue."""
        shape = self._shapes[job.id] = job.shape
        insort(self.lines.setdefault(shape, []), (-job.spec.priority, job.order, job.id))
        self._since_ns[job.id] = job.waiting_since_ns
        if self._ages is not None:
            insort(self._ages, (job.waiting_since_ns, job.id))
        if job.verdict is None:
            self.unjudged.add(job.id)
        else:
            self._count(job.verdict.code, +1)

    def remove(self, job: JobView) -> None:
        """The job leaves the queue."""
        shape = self._shapes.pop(job.id, None)
        if shape is not None:
            line = self.lines[shape]
            del line[bisect_left(line, (-job.spec.priority, job.order, job.id))]
            if not line:
                del self.lines[shape]
            since_ns = self._since_ns.pop(job.id)
            if self._ages is not None:
                del self._ages[bisect_left(self._ages, (since_ns, job.id))]
        self._no_longer_unjudged(job.id)
        if job.verdict is not None:
            self._count(job.verdict.code, -1)

    def judge(self, job: JobView, verdict: Reason) -> None:
        """Why a job waits."""
        waits = job.id in self.unjudged or job.verdict is not None
        if job.verdict is not None:
            self._count(job.verdict.code, -1)
        job.verdict = verdict
        self._no_longer_unjudged(job.id)
        if waits:
            self._count(verdict.code, +1)

    def doubt(self, job: JobView) -> None:
        """Forget why a job waits, so that the next decision records it."""
        if job.id in self.unjudged or job.verdict is None:
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
