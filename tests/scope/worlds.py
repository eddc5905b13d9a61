"""Hand-written profiles: threads with stacks written as in the rules file, and the time of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from unidle.scope.model import Frame, Process, Profile, Quality, Sample, Span, State, Thread
from unidle.scope.rules import frame_of

MS = 1_000_000
TORCH = "/venv/lib/python3.11/site-packages/torch"
STD = "/usr/lib/python3.11"


@dataclass
class World:
    """Collects samples. Each thread's exact times are the sums of its samples unless :meth:`exactly` says otherwise."""

    frames: dict[Frame, int] = field(default_factory=dict)
    stacks: dict[tuple[int, ...], int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    exact: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    names: dict[tuple[int, int], str] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    seconds: float = 10.0

    def process(
        self, pid: int, command: str = "python train.py", parent: int = 1, rank: int | None = None
    ) -> World:
        self.processes.append(Process(pid, command, parent, "3.11", rank))
        return self

    def sees(
        self,
        pid: int,
        state: State,
        ms: int,
        *stack: str | Frame,
        tid: int | None = None,
        name: str = "python",
    ) -> World:
        tid = pid if tid is None else tid
        frames = [one if isinstance(one, Frame) else frame_of(one) for one in stack]
        numbers = tuple(self.frames.setdefault(one, len(self.frames)) for one in frames)
        number = self.stacks.setdefault(numbers, len(self.stacks))
        self.samples.append(Sample(pid, tid, number, state, max(ms // 10, 1), ms * MS))
        self.names.setdefault((pid, tid), name)
        return self

    def exactly(self, pid: int, on_ms: int, off_ms: int, runq_ms: int, tid: int | None = None) -> World:
        self.exact[pid, pid if tid is None else tid] = on_ms * MS, off_ms * MS, runq_ms * MS
        self.names.setdefault((pid, pid if tid is None else tid), "python")
        return self

    def profile(self) -> Profile:
        times = {key: [0, 0, 0] for key in self.names}
        for s in self.samples:
            times[s.pid, s.tid][("on", "off", "runq").index(s.state)] += s.ns
        times.update({key: list(exact) for key, exact in self.exact.items()})
        end = round(self.seconds * 1e9)
        threads = tuple(Thread(*key, self.names[key], *times[key], 0, end) for key in times)
        pids = {one.pid for one in self.processes}
        known = [
            Process(pid, "python train.py", 1, "3.11") for pid in sorted({key[0] for key in times} - pids)
        ]
        return Profile(
            "T0", 0, end, tuple(self.frames), tuple(self.stacks), tuple(self.samples), threads,
            tuple(self.processes + known), spans=tuple(self.spans), quality=Quality(samples=len(self.samples)),
        )  # fmt: skip


def at(function: str, line: int, file: str = "/home/me/train.py") -> Frame:
    """A line of the user's own code."""
    return Frame("python", function, file, line)
