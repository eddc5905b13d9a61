"""``unidle tune run``: changes measured next to each other, those that are faster verified, then all together to the end of the program."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unidle.errors import UnidleError
from unidle.tune.fixes.changes import TuneChange, planned_changes
from unidle.tune.settings import TuneSettings
from unidle.tune.trial.child import TrialRun
from unidle.tune.trial.forks import fork_plan
from unidle.tune.trial.judging import TrialBench
from unidle.tune.trial.marks import StepWatch
from unidle.tune.trial.race import Race, checked_steps, window_of
from unidle.tune.trial.results import ModelRounds, TuneRun
from unidle.tune.trial.sampled import SampledProfile, sampled
from unidle.tune.trial.tree_copy import tree_hash
from unidle.tune.trial.workshop import Workshop


class ProgramFails(UnidleError):
    """The unchanged program does not run to its end with exit code 0."""


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
        with contextlib.closing(shop):
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
    modules = shop.scratch / "modules"
    baseline = _baseline(shop, plain, modules, progress)
    window = window_of(baseline)
    changes = [
        one for one in planned_changes(shop.tree, [str(shop.tree)], settings).changes
        if (one.is_safe or options.unsafe) and one.kind != "order"
    ]  # fmt: skip
    found = TuneRun(baseline, window, model=options.model.name if options.model else "")
    if not changes and options.model is None:
        return found
    if window.last:
        shop.plan = fork_plan(shop.command, modules, (shop.tree, shop.scratch))
    progress("where does the program spend its time?")
    found = replace(found, before=sampled(shop, plain, window))
    bench = TrialBench(shop, Race(shop, plain, window), checked_steps(baseline), progress)
    bench.finish_s = finish_s(baseline)
    found = bench.built_in(found, by_share(changes, found.before), options.model)
    if options.model is not None:
        from unidle.tune.trial.proposals import with_model

        found = with_model(bench, found, options.model)
    found = bench.rest(found)
    return replace(found, control=bench.race.control, waited=bench.race.queue.share)


def _baseline(shop: Workshop, plain: Path, modules: Path, progress: Callable[[str], None]) -> TrialRun:
    """The unchanged program, once. Errors: ProgramFails."""
    progress("the program as it is")
    shop.limit_s = shop.left_s / 2
    stop = shop.last_step
    doubling = [1 << power for power in range(stop.bit_length()) if 1 << power < stop]
    watch = StepWatch(shop.scratch, (*doubling, stop), stop=True) if stop else StepWatch(shop.scratch)
    baseline = shop.run(plain, {"TUNE_TRIAL_MODULES": str(modules)}, watch)
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


def finish_s(baseline: TrialRun) -> float:
    """About how long it takes to verify changes together, and to measure them once more."""
    return 8 * 1.5 * baseline.wall_s / min(4, len(os.sched_getaffinity(0))) + 30
