"""What a sampled run showed: stacks of lines with their time, and what a line, a function or a part of a step costs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from unidle.tune.trial.child import TrialRun
from unidle.tune.trial.marks import StepWatch
from unidle.tune.trial.race import TimedSteps
from unidle.tune.trial.serving import RequestTimes, mark_requests
from unidle.tune.trial.workshop import SAME, Workshop

PARTS: Final = (
    "data",
    "forward",
    "backward",
    "optimizer",
    "checkpoint",
    "communication",
    "prefill",
    "decode",
    "python",
)
"""Parts of a step, or of a request: until its first token, and after it. ``python`` is the program's own code, with what it calls outside of the others."""


class StackLine(NamedTuple):
    """A frame: a line of the tree, or with an empty file a function of a library."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class SampledStack:
    """Frames, outermost first, with their seconds."""

    part: str
    frames: tuple[StackLine, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class SampledProfile:
    """``seconds`` in ``steps``; ``steps`` is 0 where no optimizer made one."""

    steps: int = 0
    seconds: float = 0.0
    stacks: tuple[SampledStack, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Lines of the files that were run."""
    requests: tuple[RequestTimes, ...] = ()
    """Of a program that serves a model."""

    @property
    def total(self) -> float:
        """Seconds of all samples."""
        return sum(one.seconds for one in self.stacks)

    @property
    def step_ms(self) -> float | None:
        """The time of a step; None without steps."""
        return 1000 * self.seconds / self.steps if self.steps else None

    def parts(self) -> dict[str, float]:
        """The share of each part, in the order of :data:`PARTS`."""
        found = defaultdict[str, float](float)
        for one in self.stacks:
            found[one.part if one.part in PARTS else "python"] += one.seconds
        return {name: found[name] / (self.total or 1) for name in PARTS}

    def lines(self) -> list[tuple[StackLine, float]]:
        """The share of each line of the tree that is the innermost of a stack, largest first."""
        found = defaultdict[StackLine, float](float)
        for one in self.stacks:
            own = next((frame for frame in reversed(one.frames) if frame.file), None)
            if own is not None:
                found[own] += one.seconds
        return [
            (line, seconds / (self.total or 1))
            for line, seconds in sorted(found.items(), key=lambda item: -item[1])
        ]

    def share(self, file: str, first: int, last: int) -> float:
        """The share of the time that these lines and what they call are in."""
        return self._inside(file, first, last) / (self.total or 1)

    def share_of(self, part: str, file: str, first: int, last: int) -> float:
        """The same, of one part."""
        whole = sum(one.seconds for one in self.stacks if one.part == part)
        return self._inside(file, first, last, part) / (whole or 1)

    def _inside(self, file: str, first: int, last: int, part: str = "") -> float:
        return sum(
            one.seconds for one in self.stacks
            if part in ("", one.part) and any(frame.file == file and first <= frame.line <= last for frame in one.frames)
        )  # fmt: skip

    def source(self, file: str, line: int) -> str:
        """A line of code, without indent; empty if there is none."""
        lines = self.sources.get(file, ())
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def read_samples(path: Path, tree: Path) -> SampledProfile:
    """What the sampler wrote; an empty profile if it wrote nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return SampledProfile()
    stacks = tuple(
        SampledStack(part, tuple(StackLine(*frame) for frame in frames), seconds)
        for part, frames, seconds in found["rows"]
    )
    files = {frame.file for one in stacks for frame in one.frames if frame.file}
    sources = {name: _lines(tree / name) for name in files}
    requests = tuple(
        RequestTimes(name, line, first - begin, last - first, tokens)
        for name, line, begin, first, last, tokens in found.get("requests", ())
    )
    return SampledProfile(found["step"] - found["first"], found["seconds"], stacks, sources, requests)


def _lines(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").split("\n"))
    except (OSError, ValueError):
        return ()


def sampled(shop: Workshop, folder: Path, window: TimedSteps) -> SampledProfile:
    """Sample one run of a copy, in the steps of a window."""
    file = folder.parent / "samples"
    watch = StepWatch(shop.scratch, (window.first, window.last), stop=True) if window.last else None
    shop.serve(SAME)
    shop.run(folder, {"TUNE_TRIAL_PROFILE": str(file)}, watch, SAME)
    return read_samples(file, folder)


def sampled_whole(shop: Workshop) -> tuple[SampledProfile, TrialRun]:
    """Sample the unchanged program until it ends or the budget is spent, with the steps up to the last power of two."""
    folder = shop.copy(())
    file = folder.parent / "samples"
    requests = {"TUNE_TRIAL_REQUESTS": "1"} if mark_requests(folder) else {}
    run = shop.run(folder, {"TUNE_TRIAL_PROFILE": str(file), **requests}, StepWatch(shop.scratch))
    return read_samples(file, shop.tree), run
