"""Events with a start and an end, held in columns (about 40 bytes each), and what follows of them: stacks, spans, sums.

Calls of a thread nest, so that a sweep in order of their starts gives each its stack and its own time. What a device
did is tied by its correlation number to the call that launched it, and so gets that call's stack.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from unidle.errors import BadInput
from unidle.scope.device_use import BUSY, IDLE
from unidle.scope.model import Frame, Span
from unidle.scope.tiers.foreign.builder import SPANS, Builder, Tally
from unidle.scope.tiers.foreign.device_idle import OwnTime, busy_times, idle_times, waited_for

EVENTS: Final = 16_000_000

# What is counted as a call, what is drawn on the time line, and what is only a frame.
FRAME: Final = "frame"
STEP: Final = "step"
DRAWN: Final = frozenset({STEP, "kernel", "copy", "collective", "sync"})


@dataclass(slots=True)
class Timeline:
    """Columns of events. ``lane`` is a thread, or a device's stream (then ``device`` of that lane is not None)."""

    name: str
    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    frame: array[int] = field(default_factory=lambda: array("i"))
    lane: array[int] = field(default_factory=lambda: array("i"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    link: array[int] = field(default_factory=lambda: array("q"))
    n_bytes: dict[int, int] = field(default_factory=dict)
    lanes: dict[tuple[int, int, int | None], int] = field(default_factory=dict)  # pid, tid or stream, device
    kinds: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        lane: tuple[int, int, int | None],
        frame: int,
        kind: str,
        start_ns: int,
        end_ns: int,
        *,
        link: int = -1,
        n_bytes: int = 0,
    ) -> None:
        """One event. ``link`` is the number that a launch and what it launched have in common."""
        row = len(self.start)
        if row >= EVENTS:
            raise BadInput(
                f"holds more than {EVENTS:,} events",
                field=self.name,
                remedy="trace fewer steps (a schedule with active=3 is enough)",
            )
        try:
            self.start.append(start_ns)
            self.end.append(max(start_ns, end_ns))
            self.link.append(link)
        except OverflowError:
            raise BadInput("a time or a number is out of range", field=self.name, value=start_ns) from None
        self.frame.append(frame)
        self.lane.append(self.lanes.setdefault(lane, len(self.lanes)))
        self.kind.append(self.kinds.setdefault(kind, len(self.kinds)))
        if n_bytes:
            self.n_bytes[row] = n_bytes

    def fill(self, to: Builder, base_ns: int = 0, within: tuple[int, int] | None = None) -> None:
        """Puts all into ``to``: times are moved by ``base_ns``; of devices only what lies in ``within`` is taken."""
        if not self.start:
            return
        columns = _Columns(self, to, base_ns)
        nodes = columns.nest()
        columns.count()
        columns.devices(nodes, within)


class _Columns:
    """The same as arrays, and the steps of :meth:`Timeline.fill`."""

    def __init__(self, told: Timeline, to: Builder, base_ns: int) -> None:
        self.told, self.to = told, to
        self.start = np.frombuffer(told.start, np.int64)
        self.end = np.frombuffer(told.end, np.int64)
        if int(self.end.max()) + base_ns >= 2**63 or int(self.start.min()) + base_ns <= -(2**63):
            raise BadInput("its times are out of range", field=told.name, value=int(self.end.max()))
        self.start, self.end = self.start + base_ns, self.end + base_ns
        self.frame = np.frombuffer(told.frame, np.int32)
        self.lane = np.frombuffer(told.lane, np.int32)
        self.kind = np.frombuffer(told.kind, np.int8)
        self.link = np.frombuffer(told.link, np.int64)
        self.lanes = list(told.lanes)
        self.kinds = list(told.kinds)
        self.frames = list(to.stacks.frames)
        self.on_device = np.array([device is not None for *_, device in self.lanes])[self.lane]
        self.tids = self._device_tids()
        self.own: dict[int, OwnTime] = {}  # by lane, where there are devices that may wait for a thread

    def _device_tids(self) -> list[int]:
        """The tid of each lane: streams are numbered -1, -2, ... since their own numbers may be a thread's."""
        streams = sorted(lane for lane in self.lanes if lane[2] is not None)
        numbers = {lane: -1 - n for n, lane in enumerate(streams)}
        for pid, stream, device in streams:
            self.to.names[pid, numbers[pid, stream, device]] = f"cuda:{device} stream {stream}"
        return [numbers.get(lane, lane[1]) for lane in self.lanes]

    def nest(self) -> npt.NDArray[np.int32]:
        """The stack of each event of a thread; samples of its own time."""
        nodes = np.full(len(self.start), -1, np.int32)
        rows = np.flatnonzero(~self.on_device)
        # By thread, then by start; of two with one start the longer one is outside.
        order = rows[np.lexsort((-self.end[rows], self.start[rows], self.lane[rows]))]
        lanes = self.lane[order]
        bounds = np.flatnonzero(np.diff(lanes)) + 1
        for part in np.split(order, bounds):
            if len(part):
                self._nest_one(part, nodes)
        return nodes

    def _nest_one(self, part: npt.NDArray[np.int64], nodes: npt.NDArray[np.int32]) -> None:
        lane = int(self.lane[part[0]])
        pid, tid, _ = self.lanes[lane]
        told = self.own.setdefault(lane, OwnTime()) if self.on_device.any() else None
        push = self.to.stacks.push
        open_ends: list[int] = []
        open_nodes: list[int] = []
        own: list[int] = []
        visits: dict[int, Tally] = {}
        found = []

        def passes(until: int) -> None:
            if told is not None:
                told.passes(until, open_nodes)

        def close() -> None:
            passes(open_ends.pop())
            tally = visits.setdefault(open_nodes.pop(), Tally())
            tally.add(own.pop())

        starts, ends = self.start[part].tolist(), self.end[part].tolist()
        for start, end, frame in zip(starts, ends, self.frame[part].tolist(), strict=True):
            while open_ends and open_ends[-1] <= start:
                close()
            if open_ends:
                # Rounded times let a call end some nanoseconds after its caller.
                end = min(end, open_ends[-1])
                own[-1] -= end - start
            passes(start)
            node = push(open_nodes[-1] if open_nodes else -1, frame)
            found.append(node)
            open_ends.append(end)
            open_nodes.append(node)
            own.append(end - start)
        while open_ends:
            close()
        nodes[part] = found
        self._visited(pid, tid, visits)
        self.to.lasted(pid, tid, starts[0], max(ends))

    def _visited(self, pid: int, tid: int, visits: dict[int, Tally]) -> None:
        for node, tally in visits.items():
            self.to.sample(pid, tid, node, tally.ns, count=tally.count)

    def count(self) -> None:
        """Sums of the calls of threads, by name."""
        counted = [name not in {FRAME, STEP} for name in self.kinds]
        rows = np.flatnonzero(~self.on_device & np.array(counted)[self.kind])
        if not len(rows):
            return
        keys = np.stack([self.lane[rows], self.frame[rows], self.kind[rows].astype(np.int32)])
        unique, where = np.unique(keys, axis=1, return_inverse=True)
        where = where.reshape(-1)
        counts = np.bincount(where)
        n_bytes = self._bytes(rows)
        took = np.zeros(len(counts), np.int64)
        moved = np.zeros(len(counts), np.int64)
        np.add.at(took, where, self.end[rows] - self.start[rows])
        np.add.at(moved, where, n_bytes)
        for (lane, frame, kind), n, ns, b in zip(
            unique.T.tolist(), counts.tolist(), took.tolist(), moved.tolist(), strict=True
        ):
            pid = self.lanes[lane][0]
            key = (pid, self.tids[lane], self.frames[frame].function, self.kinds[kind])
            self.to.calls[key].add(ns, b, n)

    def _bytes(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        told = self.told.n_bytes
        if not told:
            return np.zeros(len(rows), np.int64)
        return np.fromiter((told.get(row, 0) for row in rows.tolist()), np.int64, len(rows))

    def devices(self, nodes: npt.NDArray[np.int32], within: tuple[int, int] | None) -> None:
        """Samples and spans of what devices did, and the spans of threads that are drawn."""
        rows = np.flatnonzero(self.on_device)
        if len(rows):
            first, last = int(self.start[rows].min()), int(self.end[rows].max())
            self.to.covers(first, last)
            if within is not None:
                rows = rows[(self.end[rows] >= within[0]) & (self.start[rows] <= within[1])]
            self._device_samples(rows, self._launchers(rows, nodes), within)
            if within is None:
                self._device_use(rows)
        drawn = np.array([name in DRAWN for name in self.kinds])[self.kind] & ~self.on_device
        self._spans(np.concatenate([rows, np.flatnonzero(drawn)]))

    def _launchers(self, rows: npt.NDArray[np.int64], nodes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """For each event of a device the stack of the call that launched it, -1 where none is known."""
        pids = np.array([pid for pid, *_ in self.lanes], np.int64)[self.lane]
        calls = np.flatnonzero(~self.on_device & (self.link >= 0))
        found = np.full(len(rows), -1, np.int32)
        if not len(calls):
            return found
        calls = calls[np.lexsort((self.link[calls], pids[calls]))]
        _, places = np.unique(pids, return_inverse=True)
        key = places.reshape(-1).astype(np.int64) * 2**33 + self.link.clip(0, 2**33 - 1)
        at = np.searchsorted(key[calls], key[rows]).clip(max=len(calls) - 1)
        same = (key[calls[at]] == key[rows]) & (self.link[rows] >= 0)
        found[same] = nodes[calls[at[same]]]
        self._below_main(found, calls[at], same)
        return found

    def _below_main(
        self, found: npt.NDArray[np.int32], calls: npt.NDArray[np.int64], known: npt.NDArray[np.bool_]
    ) -> None:
        """Launches of a thread without Python, such as autograd's, get the stack of the main thread below their own:
        that is in the line that they work for."""
        steps = np.flatnonzero(self.kind == self.kinds.index(STEP)) if STEP in self.kinds else calls
        main = self._main_lane(steps)
        own = self.own.get(main)
        if own is None or not len(own.start):
            return
        starts, ends = np.frombuffer(own.start, np.int64), np.frombuffer(own.end, np.int64)
        python = {n for frame, n in self.to.stacks.frames.items() if frame.kind == "python"}
        parents = list(self.to.stacks.nodes)
        joined: dict[tuple[int, int], int] = {}
        for row in np.flatnonzero(known & (self.lane[calls] != main)).tolist():
            at_ns = int(self.start[calls[row]])
            k = int(np.searchsorted(ends, at_ns, "right"))
            if k < len(starts) and starts[k] <= at_ns:
                key = own.node[k], int(found[row])
                if key not in joined:
                    joined[key] = self._joined(*key, parents, python)
                found[row] = joined[key]

    def _joined(self, below: int, node: int, parents: list[tuple[int, int]], python: set[int]) -> int:
        """The frames of ``node`` on top of the stack ``below``; ``node`` where it has Python of its own."""
        frames, at = [], node
        while at >= 0:
            at, frame = parents[at]
            frames.append(frame)
        if python.intersection(frames):
            return node
        for frame in reversed(frames):
            below = self.to.stacks.push(below, frame)
        return below

    def _device_samples(
        self,
        rows: npt.NDArray[np.int64],
        launchers: npt.NDArray[np.int32],
        within: tuple[int, int] | None,
    ) -> None:
        starts, ends = self.start[rows], self.end[rows]
        if within is not None:
            starts, ends = starts.clip(*within), ends.clip(*within)
        moved = self._bytes(rows)
        lanes, frames, kinds = self.lane[rows].tolist(), self.frame[rows].tolist(), self.kind[rows].tolist()
        for lane, frame, kind, launcher, start, end, n_bytes in zip(
            lanes, frames, kinds, launchers.tolist(), starts.tolist(), ends.tolist(), moved.tolist(),
            strict=True,
        ):  # fmt: skip
            pid, tid = self.lanes[lane][0], self.tids[lane]
            self.to.sample(pid, tid, self.to.stacks.push(launcher, frame), end - start)
            self.to.lasted(pid, tid, start, end)
            self.to.calls[pid, tid, self.frames[frame].function, self.kinds[kind]].add(end - start, n_bytes)

    def _device_use(self, rows: npt.NDArray[np.int64]) -> None:
        """How long each device was at work, and what it waited for, while steps went on: as calls of two kinds."""
        steps = np.flatnonzero(self.kind == self.kinds.index(STEP)) if STEP in self.kinds else rows
        window = int(self.start[steps].min()), int(self.end[steps].max())
        main = self._main_lane(steps)
        for pid, device in sorted({(pid, device) for pid, _, device in self.lanes if device is not None}):
            lanes = [k for k, lane in enumerate(self.lanes) if (lane[0], lane[2]) == (pid, device)]
            mine = rows[np.isin(self.lane[rows], lanes)]
            busy = busy_times(self.start[mine].clip(*window), self.end[mine].clip(*window))
            tid, calls = self.tids[lanes[0]], self.to.calls
            calls[pid, tid, f"cuda:{device}", BUSY].add(sum(b - a for a, b in busy))
            idle = idle_times(busy, window)
            waited = waited_for(idle, self.own.get(main, OwnTime()), self.to.stacks)
            for name, ns in waited.items():
                if ns > 0:
                    calls[pid, tid, name, IDLE].add(ns)

    def _main_lane(self, steps: npt.NDArray[np.int64]) -> int:
        """The thread whose steps these are; without steps, the one that launched most."""
        of_steps = self.lane[steps][~self.on_device[steps]]
        launched = self.lane[~self.on_device & (self.link >= 0)]
        lanes = of_steps if len(of_steps) else launched if len(launched) else self.lane[~self.on_device]
        return int(np.bincount(lanes).argmax()) if len(lanes) else -1

    def _spans(self, rows: npt.NDArray[np.int64]) -> None:
        left = SPANS - len(self.to.spans)
        if len(rows) > left:
            self.to.spans_dropped += len(rows) - left
            took = self.end[rows] - self.start[rows]
            rows = rows[np.argpartition(took, len(rows) - left)[len(rows) - left :]]
        for row in rows.tolist():
            lane = int(self.lane[row])
            self.to.spans.append(
                Span(
                    self.lanes[lane][0],
                    self.tids[lane],
                    self.frames[int(self.frame[row])].function,
                    self.kinds[int(self.kind[row])],
                    int(self.start[row]),
                    int(self.end[row]),
                    self.told.n_bytes.get(row, 0),
                )
            )


def call_kind(name: str) -> str:
    """The group of a CUDA (HIP) runtime or driver call, by its name."""
    low = name.lower().removeprefix("cuda").removeprefix("hip").removeprefix("cu")
    groups = (
        ("sync", ("synchronize", "streamwait", "eventquery", "streamquery")),
        ("launch", ("launch",)),
        ("copy", ("memcpy", "memset")),
        ("free", ("free", "memrelease", "memunmap")),
        ("alloc", ("malloc", "memalloc", "hostalloc", "memcreate", "memmap")),
    )
    return next((kind for kind, parts in groups if any(part in low for part in parts)), "driver")


def device_kind(name: str) -> str:
    """``collective`` for the kernels of NCCL and RCCL, else ``kernel``."""
    return "collective" if name.startswith(("nccl", "rccl", "void nccl")) or "ncclDev" in name else "kernel"


def device_frame(name: str) -> Frame:
    """A frame of device code."""
    return Frame("device", name)
