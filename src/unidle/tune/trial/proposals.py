"""Changes that a model proposes: each is judged as built-in ones are, by cheat rules, by what is computed, and by pairs of runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from unidle.tune.edits import Edit, apply_edits
from unidle.tune.endpoint.client import EndpointFailed
from unidle.tune.endpoint.talk import HotLine, JudgedEdits, TriedEdits, talk
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.judging import TrialBench, with_kept
from unidle.tune.trial.results import AGENT, ModelRounds, TriedChange, TuneRun
from unidle.tune.trial.sampled import SampledProfile
from unidle.tune.trial.workshop import Workshop

LEAST_PCT: Final = 3.0
"""Of the time of the main thread: lines with less are not shown."""
_MOST_LINES: Final = 12


class _NoTime(Exception):
    """The budget is spent."""


@dataclass(slots=True)
class ProposalJudge:
    """Judges proposals for ``bench.shop.tree``, a copy to which kept changes are applied. ``share``: seconds for each."""

    bench: TrialBench
    share: float
    tried: list[TriedChange] = field(default_factory=list)
    lines: list[HotLine] | None = None

    def hot(self) -> list[HotLine]:
        """Where the program as it is now spends its time. Errors: _NoTime."""
        shop = self.bench.shop
        if time.monotonic() > shop.end:
            raise _NoTime
        if self.lines is None:
            self.lines = hot_lines(self.bench.profile(shop.copy(())))
        return self.lines

    def judge(self, edits: tuple[Edit, ...]) -> JudgedEdits:
        """Measured next to the program with all that is kept so far."""
        one = self.bench.alone(_change(edits), self.share)
        self.tried.append(one)
        if one.verdict == "kept":
            apply_edits(self.bench.shop.tree, edits)
            self.bench.race.plain = self.bench.shop.copy(())
            self.lines = None
        speed = f" ({one.speedup.ratio:.2f}x)" if one.speedup else ""
        return JudgedEdits(one.verdict, f"{one.why}{speed}")


def with_model(bench: TrialBench, found: TuneRun, model: ModelRounds) -> TuneRun:
    """The run with what the model proposes on top of the stack. All together is measured next to the unchanged program."""
    tried, base = proposed(bench, found.stack, model)
    found = replace(found, tried=(*found.tried, *tried))
    kept = tuple(one.change for one in tried if one.verdict == "kept")
    return with_kept(bench, found, base, kept) if kept else found


def proposed(
    bench: TrialBench, stack: Sequence[TuneChange], model: ModelRounds
) -> tuple[list[TriedChange], Path]:
    """What became of the proposals, and a copy with the stack and all that is kept. ``bench`` has the unchanged program."""
    shop = bench.shop
    base = shop.copy(stack)
    scratch = shop.scratch / "model"
    scratch.mkdir()
    words = tuple(one.replace(str(shop.tree), str(base)) for one in shop.command)
    # The traces are those of the unchanged program, so each proposal is compared with that. Runs are forked from the same servers.
    inner = Workshop(
        base, words, scratch, shop.end, shop.limit_s, shop.last_step, traces=shop.traces, plan=shop.plan, servers=shop.servers
    )  # fmt: skip
    race = replace(bench.race, shop=inner, plain=inner.copy(()))
    judge = ProposalJudge(replace(bench, shop=inner, race=race), shop.left_s / (model.rounds + 2))
    patience = replace(
        model.client.patience,
        total_s=max(1.0, min(model.client.patience.total_s, shop.end - time.monotonic())),
    )
    try:
        tries = talk(
            replace(model.client, patience=patience), base, judge.hot, judge.judge, rounds=model.rounds
        )
    except _NoTime:
        bench.progress("there was no time for further rounds with the model")
    except EndpointFailed as error:
        bench.progress(str(error))
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


def hot_lines(profile: SampledProfile) -> list[HotLine]:
    """The lines of the tree with the largest shares of time, from a run that was sampled; none if it failed."""
    return [
        HotLine(line.file, line.line, 100 * share, profile.source(line.file, line.line)[:120])
        for line, share in profile.lines()[:_MOST_LINES]
        if line.file.endswith(".py") and 100 * share >= LEAST_PCT
    ]
