"""What a finding costs: the place that a rule found, times the share of the time that was measured there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.check import is_left_out, linked_sources
from unidle.tune.files import SourceText
from unidle.tune.registry import CodeFinding, findings, places, rules
from unidle.tune.settings import TuneSettings
from unidle.tune.trial.sampled import PARTS, SampledProfile, SampledStack, StackLine
from unidle.tune.trial.serving import is_cold, served_times

LEAST_SHARE: Final = 0.03
"""What has a smaller share of the time is not shown."""
_MOST_SHARE: Final = 0.999
_MOST_LINES: Final = 10
_PARTS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("UDL101", "UDL102", "UDL104", "UDL107", "UDL109"), ("data",)),
    "UDL303": ("forward", "backward"), "UDL306": ("forward", "backward", "optimizer"),
    **dict.fromkeys(("UDL501", "UDL504"), ("optimizer",)), "UDL410": ("forward", "backward", "optimizer"),
    **dict.fromkeys(("UDL601", "UDL605", "UDL606"), ("communication", "backward")),
}  # fmt: skip
"""Rules whose place is not where the time goes: a setting of a loader, of an optimizer, of the graph."""


@dataclass(frozen=True, slots=True)
class CostedFinding:
    """``code`` is empty for a line without a rule; ``share`` is of the time of a step, from 0 to 1."""

    code: str
    file: str
    line: int
    share: float
    message: str
    prefill: float | None = None
    """Of the time to the first token of requests; None if the program has none."""
    decode: float | None = None
    """Of the time of further tokens."""

    @property
    def bound(self) -> float:
        """How many times faster a step can become at most, if this costs nothing any more (Amdahl's law)."""
        return 1 / (1 - min(self.share, _MOST_SHARE))

    def document(self) -> dict[str, str | int | float | None]:
        """As the commands give it with ``--json``."""
        served = (
            {"ttft_pct": _pct(self.prefill), "tpot_pct": _pct(self.decode)}
            if self.prefill is not None
            else {}
        )
        return {
            "code": self.code or None, "file": self.file, "line": self.line, "share_pct": round(100 * self.share, 1),
            "bound_x": round(self.bound, 2), "message": self.message, **served,
        }  # fmt: skip


def costed(
    root: Path | None, paths: Sequence[str], settings: TuneSettings, profile: SampledProfile
) -> list[CostedFinding]:
    """Findings and lines with at least 3 % of the time, most first. Names of files are those of the profile, relative to ``root``, or whole."""
    found: list[CostedFinding] = []
    explained: list[tuple[str, int, int]] = []
    parts = profile.parts()
    for one in _placed(root, paths, settings, profile):
        share = sum(parts[name] for name in one.parts) if one.parts else profile.share(one.file, one.first, one.last)  # fmt: skip
        of_requests = _of_requests(profile, one.file, one.first, one.last)
        if max(share, *(part or 0.0 for part in of_requests)) >= LEAST_SHARE:
            found.append(CostedFinding(one.code, one.file, one.line, share, one.message, *of_requests))
            explained.append((one.file, one.first, one.last))
    found += [*_cold(profile), *_unknown(profile, explained)]
    return sorted(found, key=lambda one: (-round(one.share, 3), one.file, one.line, one.code))


def seconds_by_code(
    root: Path | None, paths: Sequence[str], settings: TuneSettings, profile: SampledProfile
) -> dict[tuple[str, str], float]:
    """All seconds of a profile by part of a step and code, each once; the code is empty where no finding has 3 % of the time.

    Of several findings, the one whose lines are innermost in the stack counts, then the shortest one. Findings about a part of a step as a
    whole, such as a setting of an optimizer, take what others leave of it.
    """
    placed = [*_placed(root, paths, settings, profile)]
    kept = _each_once(placed, profile)
    of_code: dict[str, float] = {}
    for (_, code), seconds in kept.items():
        of_code[code] = of_code.get(code, 0.0) + seconds
    small = {code for code, seconds in of_code.items() if seconds < LEAST_SHARE * profile.total}
    found: dict[tuple[str, str], float] = {}
    for (part, code), seconds in kept.items():
        key = part, "" if code in small else code
        found[key] = found.get(key, 0.0) + seconds
    return found


def _each_once(placed: Sequence[_Placed], profile: SampledProfile) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for stack in profile.stacks:
        part = stack.part if stack.part in PARTS else "python"
        ranked = [(one.depth(stack, part), one.first - one.last, one.code) for one in placed]
        depth, _, code = max(ranked, default=(-1, 0, ""))
        key = part, code if depth >= 0 else ""
        found[key] = found.get(key, 0.0) + stack.seconds
    return found


@dataclass(frozen=True, slots=True)
class _Placed:
    """A finding in code that was run. ``parts``: what its time is, if that is not in its lines ``first`` to ``last``."""

    code: str
    file: str
    line: int
    message: str
    first: int
    last: int
    parts: tuple[str, ...]

    def depth(self, stack: SampledStack, part: str) -> int:
        """How far inside a stack it is, from 1; 0 for a part of a step; -1 if it is not in it."""
        if self.parts:
            return 0 if part in self.parts else -1
        return max(
            (at for at, frame in enumerate(stack.frames, 1) if frame.file == self.file and self.first <= frame.line <= self.last),
            default=-1,
        )  # fmt: skip


def _placed(root: Path | None, paths: Sequence[str], settings: TuneSettings, profile: SampledProfile) -> Iterator[_Placed]:  # fmt: skip
    """The findings in files that were run."""
    for source, facts in linked_sources(paths, settings)[0]:
        file = _below(root, source.file)
        if file not in profile.sources:
            continue
        for one, node in _found_in(source, facts, settings):
            first, last = node.lineno, getattr(node, "end_lineno", None) or node.lineno  # type: ignore[attr-defined]
            yield _Placed(one.code, file, one.line, one.message, first, last, _PARTS.get(one.code, ()))


def _found_in(source: SourceText, facts: SourceFacts, settings: TuneSettings) -> Iterator[tuple[CodeFinding, ast.AST]]:  # fmt: skip
    chosen = [rules()[code] for code in settings.chosen(rules())]
    for one, (_, node) in zip(findings(facts, chosen), places(facts, chosen), strict=True):
        if hasattr(node, "lineno") and not is_left_out(one, source, facts, settings):
            yield one, node


def _of_requests(
    profile: SampledProfile, file: str, first: int, last: int
) -> tuple[float | None, float | None]:
    """The shares of lines in the time to the first token, and in that of further ones."""
    if not profile.requests:
        return None, None
    return profile.share_of("prefill", file, first, last), profile.share_of("decode", file, first, last)


def _cold(profile: SampledProfile) -> Iterator[CostedFinding]:
    """A first request that waits far longer for its first token than others do."""
    times = served_times(profile.requests)
    if times is None or not is_cold(times):
        return
    first = profile.requests[0]
    more = (times.first_ttft_ms - times.ttft_ms) / 1000
    message = (
        f"the first request waits {times.first_ttft_ms:.0f} ms for its first token, others {times.ttft_ms:.0f} ms; "
        "run the model once on an input of the usual size when the server starts"
    )
    share = min(1.0, more / (profile.total or 1))
    yield CostedFinding("UDL713", first.file, first.line, share, message, min(1.0, more / sum(one.first_s for one in profile.requests)), 0.0)  # fmt: skip


def _pct(share: float | None) -> float | None:
    return round(100 * share, 1) if share is not None else None


def _unknown(profile: SampledProfile, explained: Sequence[tuple[str, int, int]]) -> Iterator[CostedFinding]:
    """Lines with a share of their own that no finding covers."""

    def is_explained(line: StackLine) -> bool:
        return any(line.file == file and first <= line.line <= last for file, first, last in explained)

    for line, share in profile.lines()[:_MOST_LINES]:
        if share >= LEAST_SHARE and not is_explained(line):
            text = profile.source(line.file, line.line)[:120]
            of_requests = _of_requests(profile, line.file, line.line, line.line)
            yield CostedFinding("", line.file, line.line, share, text or f"in {line.function}", *of_requests)


def _below(root: Path | None, path: str) -> str:
    if root is None:
        return Path(path).absolute().as_posix()
    return Path(path).resolve().relative_to(root.resolve()).as_posix()
