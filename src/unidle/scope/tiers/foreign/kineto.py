"""Chrome JSON of Kineto and torch.profiler (and of others who write calls as X or B and E events), read as a stream.

``ts`` is in microseconds: since ``baseTimeNanoseconds`` where the file has that (torch from 2.3 on), else since the
epoch (earlier), else since any moment (other writers), which cannot be aligned.
Format: https://github.com/pytorch/kineto, libkineto/src/output_json.cpp.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, Final

import msgspec

from unidle.errors import BadInput
from unidle.scope.model import Frame
from unidle.scope.tiers.foreign.builder import Builder
from unidle.scope.tiers.foreign.json_stream import Event, JsonStream
from unidle.scope.tiers.foreign.source import Stream, damaged
from unidle.scope.tiers.foreign.timeline import FRAME, STEP, Timeline, call_kind, device_frame, device_kind

_PYTHON: Final = re.compile(r"(.+?)\((\d+)\): (.+)", re.DOTALL)
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
# Ranges over other events, and bookkeeping of the profiler itself.
_IGNORED: Final = frozenset({"Trace", "gpu_user_annotation", "overhead", "cuda_sync", "cpu_instant_event"})
_COLLECTIVE: Final = ("nccl:", "gloo:", "c10d::", "mpi:", "ucc:")
_EPOCH_US: Final = 1e15  # of 2001: no uptime is as long
_RANGE_US: Final = 9e15


def read_json(cursor: JsonStream, stream: Stream, within: tuple[int, int] | None = None) -> Builder:
    """An object with ``traceEvents``, or an array of events. ``within`` as in :meth:`Timeline.fill`."""
    reader = _Reader(stream.name)
    if cursor.peek() == b"[":
        reader.events(cursor)
    else:
        for key in cursor.members():
            reader.member(key, cursor)
    return reader.finish(within)


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.timeline = Timeline(name)
        self.to = Builder("a trace of Kineto or torch.profiler")
        self.base: int | None = None
        self.found = False
        self.rank: int | None = None
        self.ignored: Counter[str] = Counter()
        self.opened: dict[tuple[int, int], list[int]] = {}
        self.pids: Counter[int] = Counter()
        self.frames: dict[tuple[str, str], tuple[int, str]] = {}
        self.threads: list[tuple[int, int, str]] = []
        self.devices: list[tuple[Event, dict[str, Any]]] = []

    def member(self, key: str, cursor: JsonStream) -> None:
        if key == "traceEvents":
            self.events(cursor)
        elif key == "baseTimeNanoseconds":
            told = cursor.value()
            if isinstance(told, bool) or not isinstance(told, int) or not 0 <= told < 2**62:
                raise BadInput("is no time", field=f"{self.name}: baseTimeNanoseconds", value=told)
            self.base = told
        elif key == "distributedInfo":
            told = cursor.value()
            rank = told.get("rank") if isinstance(told, dict) else None
            self.rank = rank if isinstance(rank, int) else None
        else:
            cursor.value()

    def events(self, cursor: JsonStream) -> None:
        self.found = True
        for events in cursor.batches():
            for event in events:
                phase = event.ph
                if phase == "X":
                    self.complete(event)
                elif phase in {"B", "E"}:
                    self.edge(event)
                elif phase == "M":
                    self.metadata(event)

    def complete(self, event: Event) -> None:
        category = event.cat if isinstance(event.cat, str) else ""
        if category in _IGNORED:
            return
        start = self.time(event.ts)
        end = start + self.time(event.dur)
        if category in _DEVICE:
            self.device(event, category, start, end)
            return
        pid, tid = event.pid, event.tid
        if not _whole(pid) or not _whole(tid):
            self.ignored[category or "no category"] += 1
            return
        self.pids[pid] += 1
        frame, kind = self.frame(category, str(event.name))
        link = (
            self.arguments(event).get("correlation", -1) if category.endswith(("_runtime", "_driver")) else -1
        )
        self.timeline.add((pid, tid, None), frame, kind, start, end, link=link if _whole(link) else -1)

    def edge(self, event: Event) -> None:
        if not _whole(event.pid) or not _whole(event.tid):
            self.ignored["B and E without a thread"] += 1
            return
        opened = self.opened.setdefault((event.pid, event.tid), [])
        at = self.time(event.ts)
        if event.ph == "B":
            # Its row is made now, so that of calls with the same times the outer one comes first.
            self.pids[event.pid] += 1
            frame, kind = self.frame(str(event.cat), str(event.name), event)
            opened.append(len(self.timeline.start))
            self.timeline.add((event.pid, event.tid, None), frame, kind, at, at)
        elif opened:
            row = opened.pop()
            self.timeline.end[row] = max(at, self.timeline.start[row])

    def device(self, event: Event, category: str, start: int, end: int) -> None:
        told = self.arguments(event)
        device = told.get("device", event.pid)
        stream = told.get("stream", event.tid)
        link = told.get("correlation", -1)
        n_bytes = told.get("bytes", 0)
        name = str(event.name)
        key = (category, name)
        if key not in self.frames:
            number = self.to.stacks.frame(device_frame(name))
            self.frames[key] = (number, device_kind(name) if category == "kernel" else "copy")
        frame, kind = self.frames[key]
        # The process is known only when all is read: lanes of devices get it in finish().
        self.timeline.add(
            (-1, stream if _whole(stream) else 0, device if _whole(device) else 0),
            frame,
            kind,
            start,
            end,
            link=link if _whole(link) else -1,
            n_bytes=n_bytes if _whole(n_bytes) and n_bytes >= 0 else 0,
        )

    def metadata(self, event: Event) -> None:
        if event.name in {"thread_name", "process_name"} and _whole(event.pid):
            name = self.arguments(event).get("name")
            if not isinstance(name, str):
                return
            if event.name == "process_name":
                self.to.commands.setdefault(event.pid, name)
            elif _whole(event.tid):
                self.threads.append((event.pid, event.tid, name))

    def frame(self, category: str, name: str, event: Event | None = None) -> tuple[int, str]:
        key = (category, name)
        known = self.frames.get(key)
        if known is not None and event is None:
            return known
        if category == "python_function":
            made, kind = _python(name), FRAME
        elif category == "user_annotation" and name.startswith("ProfilerStep#"):
            made, kind = Frame("native", "ProfilerStep"), STEP
        elif category.endswith(("_runtime", "_driver")):
            made, kind = Frame("native", name, module="CUDA"), call_kind(name)
        elif name.startswith(_COLLECTIVE):
            made, kind = Frame("native", name, module="torch"), "collective"
        elif category == "cpu_op":
            made, kind = Frame("native", name, module="torch"), "operator"
        elif event is not None and (file := self.arguments(event).get("filename")):
            line = self.arguments(event).get("line", 0)
            made, kind = Frame("python", name, str(file), line if _whole(line) else 0), FRAME
        else:
            made, kind = Frame("native", name), FRAME
        result = (self.to.stacks.frame(made), kind)
        self.frames[key] = result
        return result

    def arguments(self, event: Event) -> dict[str, Any]:
        raw = bytes(event.args)
        if not raw:
            return {}
        try:
            told = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            try:
                told = json.loads(raw)  # takes Infinity, which Kineto wrote as a bandwidth
            except (ValueError, RecursionError):
                return {}
        return told if isinstance(told, dict) else {}

    def time(self, told: Any) -> int:
        """Microseconds, with a fraction, as nanoseconds. The parts are taken apart, as a float has not enough digits."""
        if isinstance(told, bool) or not isinstance(told, int | float) or not math.isfinite(told):
            raise BadInput("an event's ts or dur is no number", field=self.name, value=told)
        if abs(told) > _RANGE_US:
            raise BadInput("an event's ts or dur is out of range", field=self.name, value=told)
        micros = math.floor(told)
        return micros * 1000 + round((told - micros) * 1000)

    def finish(self, within: tuple[int, int] | None) -> Builder:
        if not self.found:
            raise damaged(self.name, "has no traceEvents")
        if not self.timeline.start:
            raise BadInput("holds no calls", field=self.name, remedy="trace at least one step")
        to, timeline = self.to, self.timeline
        pid = self.pids.most_common(1)[0][0] if self.pids else 0
        timeline.lanes = {
            (pid if lane[0] == -1 and lane[2] is not None else lane[0], *lane[1:]): number
            for lane, number in timeline.lanes.items()
        }
        to.clock = self.base is not None or min(timeline.start) > _EPOCH_US * 1000
        if self.rank is not None:
            to.ranks[pid] = self.rank
        for thread_pid, tid, name in self.threads:
            if (thread_pid, tid, None) in timeline.lanes:
                to.names[thread_pid, tid] = name
        has_device = any(device is not None for *_, device in timeline.lanes)
        timeline.fill(to, self.base or 0, within if to.clock else None)
        to.misses += _misses(has_device, stacks=any(cat == "python_function" for cat, _ in self.frames))
        if self.ignored:
            kinds = ", ".join(sorted(self.ignored))
            to.notes.append(f"{self.ignored.total()} events without a thread's number were left out: {kinds}")
        unfinished = sum(map(len, self.opened.values()))
        if unfinished:
            to.notes.append(f"{unfinished} calls had not ended: they count as no time")
        return to


def _misses(has_device: bool, *, stacks: bool) -> list[str]:
    misses = [
        "only calls that the traced program recorded: time between them, native frames and the kernel are not seen",
        "wall time of calls, whether they ran or waited: no off-CPU time, no waiting for a CPU",
    ]
    if not has_device:
        misses.append("no device: the trace holds no GPU activity")
    if not stacks:
        misses.append("no Python stacks: the trace was made without with_stack=True")
    return misses


def _python(name: str) -> Frame:
    told = _PYTHON.fullmatch(name)
    if told is None:
        return Frame("python", name)
    return Frame("python", told[3], told[1], min(int(told[2][:9]), 2**31 - 1))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**62) < value < 2**62
