"""Small stories of one job, each told as marks of its ranks."""

from __future__ import annotations

from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node
from unidle.guard.lifecycle import decide
from unidle.jobs import JobSpec
from unidle.place.policy import FirstFit
from unidle.view.fold import apply
from unidle.view.jobs import JobView
from unidle.view.state import View

S = 1_000_000_000


class Story:
    """One job on one node of eight devices, from its submission on."""

    def __init__(self, **spec: object) -> None:
        self.view = View()
        node = Node("n", "", tuple(Device(f"n/{k}", "n", k, "cpu") for k in range(8)))
        self.tell(0, ev.FleetSeen(Fleet(nodes=(node,))))
        self.tell(0, ev.JobSubmitted("j", JobSpec(**{"command": ("x",), "ranks": 3, **spec})))  # type: ignore[arg-type]

    @property
    def job(self) -> JobView:
        return self.view.jobs["j"]

    def tell(self, at_s: float, event: ev.Event) -> None:
        apply(self.view, event, self.view.seq + 1, 1 + int(at_s * S))

    def place(self, at_s: float = 0) -> Story:
        place = FirstFit().decide(self.view, 1 + int(at_s * S)).places[0]
        self.tell(at_s, ev.AttemptPlaced("j", len(self.job.attempts) + 1, place.places, place.because))
        return self

    def mark(self, at_s: float, rank: int, kind: str, **more: object) -> Story:
        first = self.job.attempts[-1].ranks[rank].count
        mark = Mark(kind, 1 + int(at_s * S), **more)  # type: ignore[arg-type]
        self.tell(at_s, ev.RankSaw("j", len(self.job.attempts), rank, first, (mark,)))
        return self

    def start(self, at_s: float = 0) -> Story:
        self.place(at_s)
        for rank in range(self.job.spec.ranks):
            self.mark(at_s, rank, "spawn", pid=10 + rank)
        return self

    def end(self, at_s: float, *codes: int | None) -> Story:
        """Ranks end one after the other; None is a rank that was lost."""
        for rank, code in enumerate(codes):
            kind = "lost" if code is None else "exit"
            self.mark(at_s + rank / 1000, rank, kind, code=code)
        return self

    def decide(self, at_s: float) -> list[ev.Event]:
        events = decide(self.job, 1 + int(at_s * S))
        for event in events:
            self.tell(at_s, event)
        return events


def kinds(events: list[ev.Event]) -> list[str]:
    return [type(event).__name__ for event in events]
