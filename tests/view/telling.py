"""Views told event by event."""

from __future__ import annotations

from sim.worlds import S, fleet_of
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.fleet import Fleet
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.ledger.columns import from_entries, in_order, rows
from unidle.ledger.current import check, net
from unidle.ledger.tables import SliceInfo
from unidle.view.accounts import entries
from unidle.view.fold import apply
from unidle.view.jobs import JobView
from unidle.view.state import View

WHY = Reason("test", "because")


class Telling:
    """A view, and short words for what happens to it. Times are in seconds."""

    def __init__(self, *devices: int, covers_s: float = 10**6) -> None:
        self.view = View()
        self.at_s = 0.0
        self.tell(ev.ControllerStarted("test", 1, int(covers_s * S)))
        self.tell(ev.FleetSeen(fleet_of(*devices)))

    def at(self, at_s: float) -> Telling:
        self.at_s = at_s
        return self

    def tell(self, event: ev.Event) -> Telling:
        apply(self.view, event, self.view.seq + 1, _ns(self.at_s))
        return self

    def fleet(self, fleet: Fleet) -> Telling:
        return self.tell(ev.FleetSeen(fleet))

    def health(self, target: str, health: str) -> Telling:
        return self.tell(ev.HealthSet(target, health, WHY))  # type: ignore[arg-type]

    def submit(self, job: str, **spec: object) -> Telling:
        return self.tell(ev.JobSubmitted(job, JobSpec(("train",), **spec)))  # type: ignore[arg-type]

    def place(self, job: str, *slices: str) -> Telling:
        """One rank per slice; its processes begin at once."""
        number = len(self.view.jobs[job].attempts) + 1
        places = tuple(RankPlace(k, s.split("/")[0], (s,)) for k, s in enumerate(slices))
        self.tell(ev.AttemptPlaced(job, number, places, WHY))
        for rank in range(len(slices)):
            self.mark(job, rank, "spawn", pid=1)
        return self

    def mark(self, job: str, rank: int, kind: str, **more: object) -> Telling:
        attempt = self.view.jobs[job].attempts[-1]
        mark = Mark(kind, _ns(self.at_s), **more)  # type: ignore[arg-type]
        return self.tell(ev.RankSaw(job, attempt.number, rank, attempt.ranks[rank].count, (mark,)))

    def steps(self, job: str, first: int, last: int, each_s: float = 1.0) -> Telling:
        """Steps ``first`` to ``last`` of rank 0, each after another ``each_s``."""
        for n in range(first, last + 1):
            self.at(self.at_s + each_s).mark(job, 0, "step", n=n)
        return self

    def end(self, job: str, code: int, outcome: str) -> Telling:
        """All ranks exit, and the attempt ends."""
        attempt = self.view.jobs[job].attempts[-1]
        for rank in range(len(attempt.ranks)):
            self.mark(job, rank, "exit", code=code)
        return self.tell(ev.AttemptEnded(job, attempt.number, outcome, WHY))  # type: ignore[arg-type]

    def retry(self, job: str, wait_s: float = 0) -> Telling:
        return self.tell(ev.RetryPlanned(job, _ns(self.at_s + wait_s), WHY))

    def done(self, job: str, state: str) -> Telling:
        return self.tell(ev.JobEnded(job, state, WHY))  # type: ignore[arg-type]

    def job(self, job: str) -> JobView:
        return self.view.jobs[job]

    def ledger(self, slice_id: str) -> list[tuple[float, float, str]]:
        """(from, until, leaf) of one slice as of now; neighbours of one leaf are one."""
        self.tell(ev.Sighted())
        view, now = self.view, self.view.time_ns
        table = [
            SliceInfo(
                r.id, r.device, r.node, r.share_ppm, r.first_ns, now if r.gone_ns is None else r.gone_ns
            )
            for r in view.book.slices
        ]
        columns = from_entries(entries(view, now), table)
        assert check(columns) == []
        told: list[tuple[float, float, str]] = []
        for row in rows(in_order(net(columns))):
            if row.slice == slice_id:
                start, end = (row.start_ns - 1) / S, (row.end_ns - 1) / S
                if told and told[-1][2] == row.leaf:
                    start = told.pop()[0]
                told.append((start, end, row.leaf))
        return told


def _ns(at_s: float) -> int:
    return 1 + int(at_s * S)
