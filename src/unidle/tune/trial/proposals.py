"""Changes that a model proposes: each is judged as built-in ones are, by cheat rules, by what is computed, and by pairs of runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from unidle.tune.edits import Edit, apply_edits
from unidle.tune.endpoint.client import EndpointFailed
from unidle.tune.endpoint.talk import HotLine, JudgedEdits, TriedEdits, talk
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.measure import SpeedUp
from unidle.tune.trial.run import INJECT, ModelRounds, TriedChange, Workshop, tried_change

AGENT: Final = "agent"
LEAST_PCT: Final = 3.0
"""Of the CPU time of the main thread: lines with less are not shown."""
_MOST_LINES: Final = 12


class _NoTime(Exception):
    """The budget is spent."""


@dataclass(slots=True)
class ProposalJudge:
    """Judges proposals for ``shop.tree``, a copy to which kept changes are applied. ``share``: seconds for each."""

    shop: Workshop
    control: SpeedUp | None
    share: float
    progress: Callable[[str], None]
    tried: list[TriedChange] = field(default_factory=list)
    lines: list[HotLine] | None = None

    def hot(self) -> list[HotLine]:
        """Where the program as it is now spends its time. Errors: _NoTime."""
        if time.monotonic() > self.shop.end:
            raise _NoTime
        if self.lines is None:
            self.progress("where does the program spend its time?")
            self.lines = hot_lines(self.shop)
        return self.lines

    def judge(self, edits: tuple[Edit, ...]) -> JudgedEdits:
        """Measured next to the program with all that is kept so far."""
        change = _change(edits)
        one = tried_change(self.shop, self.shop.copy(()), self.control, change, self.share, self.progress)
        self.tried.append(one)
        if one.verdict == "kept":
            apply_edits(self.shop.tree, edits)
            self.lines = None
        speed = f" ({one.speedup.ratio:.2f}x)" if one.speedup else ""
        return JudgedEdits(one.verdict, f"{one.why}{speed}")


def proposed(
    shop: Workshop, stack: Sequence[TuneChange], control: SpeedUp | None, share: float, model: ModelRounds, progress: Callable[[str], None]
) -> tuple[list[TriedChange], Path]:  # fmt: skip
    """What became of the proposals, and a copy with the stack and all that is kept. ``shop`` has the unchanged program."""
    base = shop.copy(stack)
    scratch = shop.scratch / "model"
    scratch.mkdir()
    words = tuple(one.replace(str(shop.tree), str(base)) for one in shop.command)
    # The traces are those of the unchanged program, so each proposal is compared with that.
    inner = Workshop(base, words, scratch, shop.end, shop.limit_s, traces=shop.traces)
    judge = ProposalJudge(inner, control, share, progress)
    patience = replace(
        model.client.patience,
        total_s=max(1.0, min(model.client.patience.total_s, shop.end - time.monotonic())),
    )
    try:
        tries = talk(
            replace(model.client, patience=patience), base, judge.hot, judge.judge, rounds=model.rounds
        )
    except _NoTime:
        progress("there was no time for further rounds with the model")
    except EndpointFailed as error:
        progress(str(error))
    else:
        return _in_order(tries, judge.tried), base
    return judge.tried, base


def _in_order(tries: Sequence[TriedEdits], judged: Sequence[TriedChange]) -> list[TriedChange]:
    """All rounds, also those whose answer could not be read or applied."""
    left = list(judged)
    return [
        left.pop(0) if left and left[0].change.edits == one.edits and one.judged.why.startswith(left[0].why)
        else TriedChange(_change(one.edits), "", one.judged.outcome, one.judged.why)
        for one in tries
    ]  # fmt: skip


def _change(edits: tuple[Edit, ...]) -> TuneChange:
    first = edits[0] if edits else Edit("", "", "")
    return TuneChange(AGENT, first.file, 0, "same", first.why or "proposed by the model", edits)


def hot_lines(shop: Workshop) -> list[HotLine]:
    """The lines of the tree with the largest shares of CPU time, from one run that is sampled; none if it fails."""
    folder = shop.copy(())
    file = shop.scratch / f"t{shop.count}" / "samples"
    shop.run(folder, {"PYTHONPATH": str(INJECT), "TUNE_TRIAL_PROFILE": str(file)})
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    every = max(1, sum(count for name, _, count in rows if not name))
    found = []
    for name, line, count in sorted(rows, key=lambda row: -row[2]):
        share = 100 * count / every
        if name.endswith(".py") and share >= LEAST_PCT:
            found.append(HotLine(name, line, share, _text(folder / name, line)))
    return found[:_MOST_LINES]


def _text(path: Path, line: int) -> str:
    try:
        return path.read_text(encoding="utf-8").split("\n")[line - 1].strip()[:120]
    except (OSError, ValueError, IndexError):
        return ""
