"""``unidle tune run``: changes measured next to each other, those that are faster verified, then all together to the end of the program."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.errors import UnidleError
from unidle.tune.edits import EditRefused, differences, patch, planned
from unidle.tune.fixes.changes import TuneChange, planned_changes
from unidle.tune.settings import TuneSettings
from unidle.tune.trial.child import TrialRun
from unidle.tune.trial.marks import StepWatch
from unidle.tune.trial.measure import SpeedUp
from unidle.tune.trial.race import Race, Racer, TimedSteps, checked_steps, window_of
from unidle.tune.trial.sampled import SampledProfile, sampled
from unidle.tune.trial.tree_copy import tree_hash
from unidle.tune.trial.verify import Verdict, refusal, verify
from unidle.tune.trial.workshop import Workshop
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.tune.endpoint.client import ModelClient

_AGAIN_FROM: Final = 1.2
"""The speed-up of the first race after which the other changes are raced again, on top of it."""
AGENT: Final = "agent"
"""The code of changes that a model proposed."""


class ProgramFails(UnidleError):
    """The unchanged program does not run to its end with exit code 0."""


@dataclass(frozen=True, slots=True)
class TriedChange:
    """A change with its verdict; ``speedup`` is None where it was not measured. ``cpu`` is the ratio of CPU times."""

    change: TuneChange
    patch: str
    verdict: Verdict
    why: str
    speedup: SpeedUp | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True)
class TuneRun:
    """``control`` is the ratio of two equal programs. ``stack`` has the changes that are kept together; ``model`` proposed those of the code ``agent``.

    ``before`` and ``after`` are profiles of the program as it is and with the stack.
    """

    baseline: TrialRun
    window: TimedSteps = field(default_factory=TimedSteps)
    control: SpeedUp | None = None
    tried: tuple[TriedChange, ...] = ()
    stack: tuple[TuneChange, ...] = ()
    speedup: SpeedUp | None = None
    patch: str = ""
    model: str = ""
    before: SampledProfile = field(default_factory=SampledProfile)
    after: SampledProfile = field(default_factory=SampledProfile)

    @property
    def steps(self) -> int:
        """Steps of the optimizer in the program."""
        return self.baseline.marks[-1].step if self.baseline.marks else 0


@dataclass(frozen=True, slots=True)
class ModelRounds:
    """The model that proposes changes, and in how many rounds at most."""

    client: ModelClient
    rounds: int

    @property
    def name(self) -> str:
        """Of the model."""
        return self.client.endpoint.model


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What a run may do: minutes, the edits that change results on purpose, and where each run stops (0: at its end)."""

    minutes: float
    unsafe: bool = False
    last_step: int = 0
    model: ModelRounds | None = None


def tune_run(
    tree: Path, command: Sequence[str], settings: TuneSettings, options: TuneOptions, progress: Callable[[str], None] = lambda _text: None
) -> TuneRun:  # fmt: skip
    """Try all edits of a program below ``tree``. The tree is not changed. Errors: ProgramFails, BadInput, CannotRun, OSError."""
    before = tree_hash(tree)
    with tempfile.TemporaryDirectory(prefix="unidle-tune-") as scratch:
        shop = Workshop(
            tree.resolve(), tuple(command), Path(scratch), time.monotonic() + options.minutes * 60
        )
        shop.last_step = options.last_step
        found = _tried(shop, settings, options, progress)
    if tree_hash(tree) != before:
        raise ProgramFails(
            "changed files of the tree while it ran in a copy", field="command", remedy="write below the current directory"
        )  # fmt: skip
    return found


def _tried(
    shop: Workshop, settings: TuneSettings, options: TuneOptions, progress: Callable[[str], None]
) -> TuneRun:
    plain = shop.copy(())
    baseline = _baseline(shop, plain, progress)
    window = window_of(baseline)
    changes = [
        one for one in planned_changes(shop.tree, [str(shop.tree)], settings).changes
        if (one.is_safe or options.unsafe) and one.kind != "order"
    ]  # fmt: skip
    found = TuneRun(baseline, window, model=options.model.name if options.model else "")
    if not changes and options.model is None:
        return found
    progress("where does the program spend its time?")
    found = replace(found, before=sampled(shop, plain, window))
    bench = TrialBench(shop, Race(shop, plain, window), checked_steps(baseline), progress)
    found = bench.built_in(found, by_share(changes, found.before), options.model)
    if options.model is not None:
        from unidle.tune.trial.proposals import with_model

        found = with_model(bench, found, options.model)
    return replace(found, control=bench.race.control)


def _baseline(shop: Workshop, plain: Path, progress: Callable[[str], None]) -> TrialRun:
    """The unchanged program, once. Errors: ProgramFails."""
    progress("the program as it is")
    shop.limit_s = shop.left_s / 2
    stop = shop.last_step
    doubling = [1 << power for power in range(stop.bit_length()) if 1 << power < stop]
    watch = StepWatch(shop.scratch, (*doubling, stop), stop=True) if stop else StepWatch(shop.scratch)
    baseline = shop.run(plain, None, watch)
    if baseline.timed_out:
        raise ProgramFails(
            f"the program did not end in {baseline.wall_s:.0f} s, half of the time that is given",
            field="command",
            remedy="raise --minutes, or use --first-steps N to stop it after N steps",
        )
    if baseline.failed:
        remedy = "it has to run to its end, without input"
        raise ProgramFails(f"the program {baseline.failed}", field="command", remedy=remedy)
    shop.limit_s = 20 * baseline.wall_s + 60
    return baseline


def by_share(changes: Sequence[TuneChange], profile: SampledProfile) -> list[TuneChange]:
    """The changes at the lines with the largest shares first; a change of several places counts with its largest."""
    return sorted(changes, key=lambda one: -profile.share(one.file, one.line, one.line))


@dataclass(slots=True)
class TrialBench:
    """Judges changes of one program: race, verification, and all together. ``checked``: steps of the first verification, 0 for all."""

    shop: Workshop
    race: Race
    checked: int
    progress: Callable[[str], None]

    def built_in(self, found: TuneRun, changes: Sequence[TuneChange], model: ModelRounds | None) -> TuneRun:
        """The run with the verdict of each change, and with those that are kept together."""
        end = time.monotonic() + self.shop.left_s / (1 + (model.rounds if model else 0) / 2)
        tried = self._raced(changes, (), end)
        kept, left = _best_first(tried), _undecided(tried)
        new = kept
        while left and math.prod(one.speedup.ratio for one in new if one.speedup) > _AGAIN_FROM:
            # What costs little next to a large cause may cost much without it.
            again = {one.change: one for one in self._raced(left, kept, end)}
            tried = [again.get(one.change, one) for one in tried]
            new = _best_first([*again.values()])
            kept, left = [*kept, *new], _undecided([*again.values()])
        tried, stack, racer = self._stacked(tried, end)
        found = replace(found, tried=tuple(tried), stack=stack)
        if racer is None:
            return found
        text = patch(planned(self.shop.tree, [edit for one in stack for edit in one.edits]))
        return replace(found, speedup=racer.speed, patch=text, after=self.profile(racer.folder))

    def profile(self, folder: Path) -> SampledProfile:
        """Of a copy, in the steps that are measured."""
        self.progress("where does the changed program spend its time?")
        return sampled(self.shop, folder, self.race.window)

    def _raced(
        self, changes: Sequence[TuneChange], kept: Sequence[TriedChange], end: float
    ) -> list[TriedChange]:
        """Each change next to the program with those that are kept so far, in at most two thirds of the time to ``end``."""
        base = [one.change for one in kept]
        refused, racers = {}, {}
        for one in changes:
            try:
                why = refusal(self.shop, [one])
                racers[one] = Racer(self.shop.copy([*base, one]))
            except EditRefused:
                why = "it edits the same lines as a change that is kept"
            if why:
                refused[one] = why if one not in racers else f"refused: {why}"
                racers.pop(one, None)
        after = f", after {counted(len(base), 'change')}" if base else ""
        self.progress(f"{counted(len(racers), 'edit')}: which are faster{after}?")
        race = self.race if not kept else self._on_top(kept)
        most = time.monotonic() + 0.65 * max(0.0, end - time.monotonic())
        race.run([*racers.values()], most, lambda number: self.progress(f"round {number} is measured"))
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
        why = f"the time was too short: {rounds} of runs do not show whether it is faster"
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
                racer = Racer(self.shop.copy(stack))
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
