"""Changes judged: measured next to each other, those that are faster verified, then all together to the end of the program."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from unidle.tune.edits import EditRefused, differences, patch, planned
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.race import Race, Racer
from unidle.tune.trial.results import AGENT, ModelRounds, TriedChange, TuneRun
from unidle.tune.trial.sampled import SampledProfile, sampled
from unidle.tune.trial.verify import Verdict, refusal, verify
from unidle.tune.trial.workshop import Workshop
from unidle.words import counted

_AGAIN_FROM: Final = 1.2
"""The speed-up of the first race after which the other changes are raced again, on top of it."""
_TOO_SHORT: Final = "the time was too short"


@dataclass(slots=True)
class TrialBench:
    """Judges changes of one program: race, verification, and all together. ``checked``: steps of the first verification, 0 for all.

    ``races``: how many a change, or a stack of some, has been in. ``finish_s``: what a race leaves of the time, but at most half.
    """

    shop: Workshop
    race: Race
    checked: int
    progress: Callable[[str], None]
    races: Counter[tuple[TuneChange, ...]] = field(default_factory=Counter)
    finish_s: float = 30.0

    def built_in(self, found: TuneRun, changes: Sequence[TuneChange], model: ModelRounds | None) -> TuneRun:
        """The run with the verdict of each change, and with those that are kept together."""
        end = time.monotonic() + self.shop.left_s / (1 + (model.rounds if model else 0) / 4)
        raced = self._races_end(end)
        tried = self._raced(changes, (), raced)
        kept, left = _best_first(tried), _undecided(tried)
        new = kept
        while left and math.prod(one.speedup.ratio for one in new if one.speedup) > _AGAIN_FROM:
            # What costs little next to a large cause may cost much without it.
            again = {one.change: one for one in self._raced(left, kept, raced) if one.speedup is not None}
            tried = [again.get(one.change, one) for one in tried]
            new = _best_first([*again.values()])
            kept, left = [*kept, *new], _undecided([*again.values()])
        return self._with_stack(found, tried, end)

    def rest(self, found: TuneRun) -> TuneRun:
        """Spend what is left of the time on changes that were not decided, on top of those that are kept."""
        while (left := _open(found.tried)) and not any(one.code == AGENT for one in found.stack):
            raced = self._races_end(self.shop.end)
            kept = [one for one in _best_first(found.tried) if one.change in found.stack]
            again = {one.change: one for one in self._raced(left, kept, raced) if one.speedup is not None}
            tried = [again.get(one.change, one) for one in found.tried]
            found = replace(found, tried=tuple(tried))
            if not _best_first([*again.values()]):
                return found
            more = self._with_stack(found, tried, self.shop.end)
            if len(more.stack) <= len(found.stack):
                return replace(found, tried=tuple(_as_in_stack(more.tried, found)))
            found = more
        return found

    def _races_end(self, end: float) -> float:
        """When races have to leave the time to verify what they found."""
        left = max(0.0, end - time.monotonic())
        return end - min(self.finish_s, left / 2)

    def _with_stack(self, found: TuneRun, tried: Sequence[TriedChange], end: float) -> TuneRun:
        tried, stack, racer = self._stacked(tried, end)
        found = replace(found, tried=tuple(tried), stack=stack)
        if racer is None:
            return found
        text = patch(planned(self.shop.tree, [edit for one in stack for edit in one.edits]))
        return replace(found, speedup=racer.speed, patch=text, after=self.profile(racer.folder))

    def _racer(self, folder: Path, *changes: TuneChange) -> Racer:
        self.races[changes] += 1
        return Racer(folder, race=self.races[changes] - 1)

    def profile(self, folder: Path) -> SampledProfile:
        """Of a copy, in the steps that are measured."""
        self.progress("where does the changed program spend its time?")
        return sampled(self.shop, folder, self.race.window)

    def _raced(
        self, changes: Sequence[TuneChange], kept: Sequence[TriedChange], end: float
    ) -> list[TriedChange]:
        """Each change next to the program with those that are kept so far."""
        base = [one.change for one in kept]
        refused, racers = {}, {}
        for one in changes:
            try:
                why = refusal(self.shop, [one])
                racers[one] = self._racer(self.shop.copy([*base, one]), one)
            except EditRefused:
                why = "it edits the same lines as a change that is kept"
            if why:
                refused[one] = why if one not in racers else f"refused: {why}"
                racers.pop(one, None)
        after = f", after {counted(len(base), 'change')}" if base else ""
        self.progress(f"{counted(len(racers), 'edit')}: which are faster{after}?")
        race = self.race if not kept else self._on_top(kept)
        race.run([*racers.values()], end, lambda number: self.progress(f"round {number} is measured"))
        return [self._of_race(one, refused.get(one, ""), racers.get(one)) for one in changes]

    def _on_top(self, kept: Sequence[TriedChange]) -> Race:
        """A race next to the program with these changes, over more of its faster steps."""
        ratio = max(one.speedup.ratio for one in kept if one.speedup)
        plain = self.shop.copy([one.change for one in kept])
        return replace(self.race, plain=plain, equal=[], window=self.race.window.longer(ratio))

    def _of_race(self, change: TuneChange, refused: str, racer: Racer | None) -> TriedChange:
        text = patch(planned(self.shop.tree, change.edits))
        if racer is None:
            return TriedChange(change, text, "rejected", refused)
        return self.judged(change, text, racer)

    def judged(self, change: TuneChange, text: str, racer: Racer) -> TriedChange:
        """The verdict of a race alone."""
        speed, cpu = racer.speed, racer.cpu_ratio
        if racer.failed:
            return TriedChange(change, text, "rejected", f"the changed program {racer.failed}", speed, cpu)
        if racer.verdict == "faster":
            return TriedChange(change, text, "kept", change.why, speed, cpu)
        if racer.verdict == "slower":
            why = "it is not faster by more than the noise"
            return TriedChange(change, text, "rejected", why, speed, cpu)
        rounds = counted(len(racer.ratios), "pair")
        why = f"{_TOO_SHORT}: {rounds} of runs do not show whether it is faster"
        return TriedChange(change, text, "inconclusive", why, speed, cpu)

    def _verified(self, one: TriedChange) -> TriedChange:
        if self.shop.left_s <= 0:
            return replace(one, verdict="inconclusive", why="there was no time left to verify it")
        self.progress(f"{name_of(one.change)}: does it compute the same?")
        verdict, why = verify(self.shop, [one.change], self.checked or self.shop.last_step)
        return one if verdict == "kept" else replace(one, verdict=verdict, why=why)

    def alone(self, change: TuneChange, share: float) -> TriedChange:
        """A change that is judged by itself, in about ``share`` seconds: first what it computes, to the end of the program. Errors: EditRefused."""
        text = patch(planned(self.shop.tree, change.edits))
        if self.shop.left_s <= 0:
            return TriedChange(change, text, "inconclusive", "there was no time left")
        if why := refusal(self.shop, [change]):
            return TriedChange(change, text, "rejected", f"refused: {why}")
        end = time.monotonic() + share
        self.progress(f"{name_of(change)}: does it compute the same?")
        verdict, why = verify(self.shop, [change], self.shop.last_step)
        if verdict != "kept":
            return TriedChange(change, text, verdict, why)
        self.progress(f"{name_of(change)}: is it faster?")
        racer = Racer(self.shop.copy([change]))
        self.race.run([racer], max(end, time.monotonic() + share / 2))
        return self.judged(change, text, racer)

    def _stacked(
        self, tried: Sequence[TriedChange], end: float
    ) -> tuple[list[TriedChange], tuple[TuneChange, ...], Racer | None]:
        """All that are faster together, verified to the end of the program and measured.

        If they do not compute the same together, each is verified, and if those that do are not faster together, the least one leaves.
        """
        tried = self._without_overlaps(tried)
        each = False
        while stack := tuple(one.change for one in _best_first(tried)):
            verdict, why = self._same_to_the_end(stack)
            if verdict != "kept" and len(stack) > 1 and not each:
                tried, each = [self._verified(one) if one.verdict == "kept" else one for one in tried], True
                continue
            if verdict == "kept":
                self.progress(f"{counted(len(stack), 'change')} together: how much faster?")
                racer = self._racer(self.shop.copy(stack), *stack)
                self.race.run([racer], max(end, time.monotonic() + self.shop.left_s / 2))
                if racer.verdict == "faster":
                    return tried, stack, racer
                verdict, why = "inconclusive", "it could not be shown that all changes together are faster"
            tried = [
                replace(one, verdict=verdict, why=why) if one.change == stack[-1] else one for one in tried
            ]
        return tried, (), None

    def _without_overlaps(self, tried: Sequence[TriedChange]) -> list[TriedChange]:
        """Of two edits of the same lines, the better one is kept."""
        stack: list[TuneChange] = []
        refused: set[TuneChange] = set()
        for one in _best_first(tried):
            try:
                planned(self.shop.tree, [edit for each in (*stack, one.change) for edit in each.edits])
                stack.append(one.change)
            except EditRefused:
                refused.add(one.change)
        why = "it edits the same lines as a change that is kept"
        return [replace(one, verdict="rejected", why=why) if one.change in refused else one for one in tried]

    def _same_to_the_end(self, stack: Sequence[TuneChange]) -> tuple[Verdict, str]:
        whole = self.shop.last_step
        if self.shop.left_s <= 0:
            return "inconclusive", "there was no time left to verify the whole program"
        if why := refusal(self.shop, stack):
            return "rejected", f"refused: {why}"
        to = f"to step {whole}" if whole else "to the end"
        self.progress(f"{counted(len(stack), 'change')}: does the program compute the same {to}?")
        return verify(self.shop, stack, whole)


def _undecided(tried: Sequence[TriedChange]) -> list[TuneChange]:
    """Those that were measured, and were not faster in this race."""
    return [one.change for one in tried if one.speedup is not None and one.verdict != "kept"]


def _open(tried: Sequence[TriedChange]) -> list[TuneChange]:
    """Those of rules that more pairs of runs could decide on."""
    return [
        one.change for one in tried
        if one.speedup is not None and one.why.startswith(_TOO_SHORT) and one.change.code != AGENT
    ]  # fmt: skip


def _as_in_stack(tried: Sequence[TriedChange], found: TuneRun) -> list[TriedChange]:
    """Verdicts of changes that a later stack failed with, next to those of the stack that stands."""
    before = {one.change: one for one in found.tried}
    return [before[one.change] if one.change in found.stack else one for one in tried]


def _best_first(tried: Sequence[TriedChange]) -> list[TriedChange]:
    """Those that are kept so far, fastest first."""
    kept = [one for one in tried if one.verdict == "kept"]
    return sorted(kept, key=lambda one: -(one.speedup.ratio if one.speedup else 1))


def name_of(change: TuneChange) -> str:
    """Code and place of a change."""
    return f"{change.code} {change.file}{f':{change.line}' if change.line else ''}"


def with_kept(bench: TrialBench, found: TuneRun, base: Path, kept: Sequence[TuneChange]) -> TuneRun:
    """The run with changes that a model proposed, which ``base`` has, measured together with the stack."""
    bench.progress("all changes together")
    racer = Racer(base)
    bench.race.run([racer], bench.shop.end)
    if racer.verdict != "faster":
        why = "all changes together could not be shown to be faster in the time that was left"
        tried = tuple(
            replace(one, verdict="inconclusive", why=why) if one.change in kept else one
            for one in found.tried
        )
        return replace(found, tried=tried)
    files = {edit.file for one in (*found.stack, *kept) for edit in one.edits}
    text = patch(differences(bench.shop.tree, base, files))
    return replace(
        found, stack=(*found.stack, *kept), speedup=racer.speed, patch=text, after=bench.profile(base)
    )
