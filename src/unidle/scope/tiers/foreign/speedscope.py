"""speedscope's JSON: sampled and evented profiles over shared frames (https://www.speedscope.app/file-format-schema.json)."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from unidle.errors import BadInput
from unidle.scope.model import Frame
from unidle.scope.tiers.foreign.builder import Builder
from unidle.scope.tiers.foreign.folded import ASSUMED_HZ, frame_of, thread_number, thread_of
from unidle.scope.tiers.foreign.source import Stream, damaged
from unidle.words import counted

_NS: Final = {"seconds": 1e9, "milliseconds": 1e6, "microseconds": 1e3, "nanoseconds": 1.0}
_NAME: Final = re.compile(
    r'(?:Process (\d{1,9}) )?Thread (0x[0-9a-fA-F]{1,15}|\d{1,15})(?: "(.*)")?', re.DOTALL
)


class _Frame(msgspec.Struct):
    name: str
    file: str | None = None
    line: int | None = None


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _Edge(msgspec.Struct):
    type: str
    frame: int
    at: float


class _Profile(msgspec.Struct):
    type: str
    unit: str = "none"
    name: str = ""
    samples: list[list[int]] = []
    weights: list[float] = []
    events: list[_Edge] = []


class _File(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]
    exporter: str | None = None


def read_speedscope(raw: bytes, stream: Stream) -> Builder:
    """All profiles of the file, each as a thread. Raises :class:`BadInput` for profiles of bytes."""
    try:
        told = msgspec.json.decode(raw, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(stream.name, f"is no speedscope file: {error}") from None
    to = Builder(f"speedscope ({told.exporter or 'unknown exporter'})", hz=ASSUMED_HZ)
    frames = [_frame(frame) for frame in told.shared.frames]
    for number, profile in enumerate(told.profiles):
        where = f"{stream.name}: profile {number + 1}"
        if profile.unit == "bytes":
            raise BadInput("counts bytes and not time", field=where, remedy="give a profile of time")
        reader = _Thread(to, frames, [frame.name for frame in told.shared.frames], profile, where, number)
        if profile.type == "sampled":
            reader.sampled()
        elif profile.type == "evented":
            reader.evented()
        else:
            raise BadInput("is of an unknown type", field=where, value=profile.type)
    to.misses += [
        "no clock: the file cannot be aligned with another",
        "samples do not show whether a thread ran or waited",
    ]
    if any(profile.unit not in _NS for profile in told.profiles):
        to.notes.append(
            f"weights without a unit: {ASSUMED_HZ} a second are assumed; shares do not depend on it"
        )
    return to


def _frame(told: _Frame) -> Frame:
    file, line = told.file or "", max(0, min(told.line or 0, 2**31 - 1))
    if file.endswith((".py", ">")):
        return Frame("python", told.name, file, line)
    if not file:
        return frame_of(told.name)
    library = ".so" in file or line == 0
    return Frame(
        "native", told.name, "" if library else file, line, file.rsplit("/", 1)[-1] if library else ""
    )


class _Thread:
    def __init__(
        self, to: Builder, frames: list[Frame], names: list[str], profile: _Profile, where: str, number: int
    ) -> None:
        self.to, self.frames, self.names, self.profile, self.where = to, frames, names, profile, where
        self.factor = _NS.get(profile.unit, 1e9 / ASSUMED_HZ)
        named = _NAME.match(profile.name)
        self.pid = int(named[1] or 0) if named else 0
        # Profiles without a thread's number keep apart by their own.
        self.tid = thread_number(named[2]) if named else number
        to.names[self.pid, self.tid] = (named[3] or "") if named else profile.name

    def add(self, indices: list[int], weight: float) -> None:
        if any(not 0 <= index < len(self.frames) for index in indices):
            raise damaged(self.where, "a stack names a frame that is not there")
        ns = weight * self.factor
        if not 0 <= ns < 2**62:
            raise BadInput("a weight is out of range", field=self.where, value=weight)
        pid, tid, command, name, left = thread_of([self.names[index] for index in indices])
        stack = self.to.stacks.of(self.frames[index] for index in indices[len(indices) - len(left) :])
        pid, tid = pid or self.pid, tid or self.tid
        self.to.sample(pid, tid, stack, round(ns))
        if command:
            self.to.commands[pid] = command
        if name:
            self.to.names[pid, tid] = name

    def sampled(self) -> None:
        samples, weights = self.profile.samples, self.profile.weights
        if len(samples) != len(weights):
            told = f"has {counted(len(samples), 'sample')} and {counted(len(weights), 'weight')}"
            raise damaged(self.where, told)
        for indices, weight in zip(samples, weights, strict=True):
            self.add(indices, weight)

    def evented(self) -> None:
        stack: list[int] = []
        last: Any = None
        for edge in self.profile.events:
            if last is not None and edge.at < last:
                raise damaged(self.where, "its events are not in order")
            if stack and edge.at > last:
                self.add(stack, edge.at - last)
            last = edge.at
            if edge.type == "O":
                stack = [*stack, edge.frame]
            elif stack and stack[-1] == edge.frame:
                stack = stack[:-1]
            else:
                raise damaged(self.where, "an event closes a frame that is not open")
