"""Between ``unidle profile`` and ``unidle tune``: a profile of processes as sampled stacks, and sampled stacks as a profile for its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from unidle.ledger.select import TimeRange
    from unidle.scope.model import Frame, Profile, Sample
    from unidle.scope.summary import ProfileReport
    from unidle.store.profiles import ProfileShelf
    from unidle.tune.trial.sampled import SampledProfile, StackLine

_CATEGORIES: Final = {"data": "data", "checkpoint_io": "checkpoint", "collective": "communication"}


def sampled_of(report: ProfileReport, source: Callable[[str, int], str | None]) -> SampledProfile:
    """The time of training threads, on a CPU or not, by stacks of the user's own lines."""
    from unidle.tune.trial.sampled import SampledProfile, SampledStack

    profile = report.profile
    stacks = []
    for thread in report.budgets.training:
        for cell in thread.cells:
            frames = profile.stack(cell.stack) if cell.stack is not None else ()
            own, part = _own(frames)
            stacks.append(SampledStack(_CATEGORIES.get(cell.rule.category, part), own, cell.ns / 1e9))
    wanted = {(one.file, one.line) for stack in stacks for one in stack.frames if one.file}
    sources: dict[str, dict[int, str]] = {}
    for file, line in wanted:
        sources.setdefault(file, {})[line] = source(file, line) or ""
    texts = {
        file: tuple(lines.get(number, "") for number in range(1, max(lines) + 1))
        for file, lines in sources.items()
    }
    steps, step_ms = report.steps.count or 0, report.steps.quantile_ms(0.5)
    return SampledProfile(
        steps if step_ms is not None else 0, (step_ms or 0) * steps / 1000, tuple(stacks), texts
    )


def past_profile(shelf: ProfileShelf, job: str, window: TimeRange) -> Profile | None:
    """What `unidle up --profile` kept of a job in a window; None if that is nothing."""
    from unidle.scope.history import WindowQuery, read

    return read(shelf, WindowQuery(job, window.start_ns, window.end_ns)).profile


def of_profile(profile: Profile) -> SampledProfile:
    """The same as of a report; sources are not read."""
    from unidle.scope.rules_file import all_rules
    from unidle.scope.summary import report_of

    return sampled_of(report_of(profile, all_rules()), lambda _file, _line: None)


def files_of(seen: SampledProfile) -> list[str]:
    """The Python files of the stacks that are on this machine."""
    named = {frame.file for one in seen.stacks for frame in one.frames}
    return sorted(file for file in named if file.endswith(".py") and Path(file).is_file())


def _own(frames: tuple[Frame, ...]) -> tuple[tuple[StackLine, ...], str]:
    """The user's own frames, and the part of a step that the outermost code of PyTorch below them is of."""
    from unidle.scope.rules import is_user_file
    from unidle.tune.trial.inject.tune_sampler import PARTS
    from unidle.tune.trial.sampled import StackLine

    own, part = [], ""
    for frame in frames:
        if frame.kind != "python":
            continue
        if is_user_file(frame.file):
            own.append(StackLine(frame.file, frame.line, frame.function))
        part = part or next((name for text, name in PARTS if text in frame.file), "")
    return tuple(own), part or "python"


def as_profile(seen: SampledProfile) -> tuple[Profile, Callable[[Profile, Sample], str]]:
    """Stacks as a profile of one thread, for the flame graph, and the part of each sample."""
    from unidle.scope.model import Frame, Process, Profile, Quality, Sample, Thread
    from unidle.tune.trial.sampled import PARTS

    numbers: dict[Frame, int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    samples = []
    for one in seen.stacks:
        part = one.part if one.part in PARTS else "python"
        frames = [Frame("python", f.function, f.file, f.line) for f in one.frames]
        if one.frames and one.frames[-1].file == "":
            frames[-1] = Frame("native", one.frames[-1].function)
        frames.append(Frame("native", f"[{part}]"))
        key = tuple(numbers.setdefault(frame, len(numbers)) for frame in frames)
        stack = stacks.setdefault(key, len(stacks))
        samples.append(Sample(1, 1, stack, "on", max(1, round(one.seconds / 0.005)), int(one.seconds * 1e9)))
    total = int(seen.total * 1e9)
    profile = Profile(
        "T0", 0, max(1, total), tuple(numbers), tuple(stacks), tuple(samples),
        threads=(Thread(1, 1, "main", total, 0, 0, 0, total),), processes=(Process(1, "program"),),
        quality=Quality(samples=sum(one.count for one in samples)),
    )  # fmt: skip
    return profile, lambda of, sample: of.stack(sample.stack)[-1].function[1:-1]
