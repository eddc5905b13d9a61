"""``unidle tune run``: each change verified, then measured, then the best ones together."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from unidle.errors import UnidleError
from unidle.tune.cheats import cheats
from unidle.tune.edits import EditRefused, apply_edits, differences, patch, planned
from unidle.tune.fixes.changes import TuneChange, planned_changes
from unidle.tune.settings import TuneSettings
from unidle.tune.trial.child import TrialRun, run_child
from unidle.tune.trial.evidence import NATIVE, SHADOW, ComputedTrace, compare, read_trace
from unidle.tune.trial.measure import SpeedUp, measured
from unidle.tune.trial.tree_copy import copy_tree, tree_hash
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.tune.endpoint.client import ModelClient

Verdict = Literal["kept", "rejected", "inconclusive"]
INJECT: Final = Path(__file__).with_name("inject")


class ProgramFails(UnidleError):
    """The unchanged program does not run to its end with exit code 0."""


@dataclass(frozen=True, slots=True)
class TriedChange:
    """A change with its verdict; ``speedup`` is None where it was not measured."""

    change: TuneChange
    patch: str
    verdict: Verdict
    why: str
    speedup: SpeedUp | None = None


@dataclass(frozen=True, slots=True)
class TuneRun:
    """``control`` is the ratio of two equal programs. ``stack`` has the changes that are kept together; ``model`` proposed those of the code ``agent``."""

    baseline: TrialRun
    steps: int
    control: SpeedUp | None
    tried: tuple[TriedChange, ...]
    stack: tuple[TuneChange, ...]
    speedup: SpeedUp | None
    patch: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class ModelRounds:
    """The model that proposes changes, and in how many rounds at most."""

    client: ModelClient
    rounds: int

    @property
    def name(self) -> str:
        """Of the model."""
        return self.client.endpoint.model


@dataclass(slots=True)
class Workshop:
    """Copies of a tree for trials of one command. ``end`` is of ``time.monotonic``."""

    tree: Path
    command: tuple[str, ...]
    scratch: Path
    end: float
    limit_s: float = 3600.0
    count: int = 0
    traces: dict[str, ComputedTrace] = field(default_factory=dict)

    def copy(self, changes: Sequence[TuneChange]) -> Path:
        """A new copy with these changes, each planned in the unchanged tree. Errors: EditRefused."""
        self.count += 1
        to = self.scratch / f"t{self.count}" / "tree"
        to.parent.mkdir()
        copy_tree(self.tree, to)
        edits = [edit for one in changes for edit in one.edits]
        if edits:
            apply_edits(to, edits)
        return to

    def run(self, folder: Path, more: dict[str, str] | None = None) -> TrialRun:
        """The command in a copy; paths of the tree in it become those of the copy."""
        words = [one.replace(str(self.tree), str(folder)) for one in self.command]
        limit = max(1.0, min(self.limit_s, self.end - time.monotonic()))
        return run_child(words, folder, self.scratch, limit, more)

    def observed(
        self, changes: Sequence[TuneChange], options: dict[str, str]
    ) -> tuple[ComputedTrace, TrialRun]:
        """What a changed program computes."""
        folder = self.copy(changes)
        trace = self.scratch / f"t{self.count}" / "trace"
        more = {"PYTHONPATH": f"{INJECT}", "TUNE_TRIAL_TRACE": str(trace), **options}
        done = self.run(folder, more)
        found = read_trace(trace)
        return found, done


SHADOWS: Final = (
    ("in float64", {"TUNE_TRIAL_FLOAT64": "1"}),
    ("in float64 with another seed and batch size", {"TUNE_TRIAL_FLOAT64": "1", "TUNE_TRIAL_SEED": "7919", "TUNE_TRIAL_MORE_BATCH": "1"}),
)  # fmt: skip


def refusal(shop: Workshop, changes: Sequence[TuneChange]) -> str:
    """Why a change is refused as a cheat, with place and rule; empty if it is not. Errors: EditRefused."""
    found = cheats(planned(shop.tree, [edit for one in changes for edit in one.edits]))
    return "; ".join(one.text() for one in found[:3])


def verify(shop: Workshop, changes: Sequence[TuneChange]) -> tuple[Verdict, str]:
    """Whether a changed program computes the same. ``kept`` means that nothing speaks against it.

    In float64 with the program's seeds, then with others, all that is observed is equal to 1e-9; then in the native precision
    within the program's own noise. What cannot be shown is ``inconclusive``.
    """
    for what, options in SHADOWS:
        before = _reference(shop, what, options)
        if not before.shows:
            return "inconclusive", f"the unchanged program cannot be observed {what}"
        if (again := _reference(shop, f"{what}, again", options)) and compare(before, again, SHADOW).where:
            return "inconclusive", f"the unchanged program differs from itself {what}"
        verdict = _against(shop, changes, before, what, options, SHADOW)
        if verdict is not None:
            return verdict
    native: dict[str, str] = {}
    before, again = (_reference(shop, what, native) for what in ("natively", "natively, again"))
    noise = compare(before, again, math.inf)
    if noise.where or not before.shows:
        return "inconclusive", "the unchanged program differs from itself"
    verdict = _against(shop, changes, before, "natively", native, max(NATIVE, 3 * noise.size))
    return verdict or ("kept", "")


def _reference(shop: Workshop, what: str, options: dict[str, str]) -> ComputedTrace:
    if what not in shop.traces:
        shop.traces[what] = shop.observed((), options)[0]
    return shop.traces[what]


def _against(
    shop: Workshop,
    changes: Sequence[TuneChange],
    before: ComputedTrace,
    what: str,
    options: dict[str, str],
    most: float,
) -> tuple[Verdict, str] | None:
    after, done = shop.observed(changes, options)
    if done.timed_out:
        return "inconclusive", f"there was no time to verify it {what}"
    if done.failed:
        return "rejected", f"the changed program {done.failed}"
    if not after.shows:
        return "inconclusive", f"the changed program cannot be observed {what}"
    apart = compare(before, after, most)
    return ("rejected", f"{what}, {apart.where}") if apart.where else None


def tune_run(
    tree: Path, command: Sequence[str], minutes: float, settings: TuneSettings, *, unsafe: bool,
    progress: Callable[[str], None] = lambda _text: None, model: ModelRounds | None = None,
) -> TuneRun:  # fmt: skip
    """Try all edits of a program below ``tree``. The tree is not changed. Errors: ProgramFails, BadInput, CannotRun, OSError."""
    before = tree_hash(tree)
    with tempfile.TemporaryDirectory(prefix="unidle-tune-") as scratch:
        shop = Workshop(tree.resolve(), tuple(command), Path(scratch), time.monotonic() + minutes * 60)
        found = _tried(shop, settings, unsafe, progress, model)
    if tree_hash(tree) != before:
        raise ProgramFails(
            "changed files of the tree while it ran in a copy", field="command", remedy="write below the current directory"
        )  # fmt: skip
    return found


def _tried(
    shop: Workshop, settings: TuneSettings, unsafe: bool, progress: Callable[[str], None], model: ModelRounds | None
) -> TuneRun:  # fmt: skip
    progress("the program as it is")
    plain = shop.copy(())
    baseline = shop.run(plain)
    if baseline.failed:
        raise ProgramFails(
            f"the program {baseline.failed}",
            field="command",
            remedy="it has to run to its end, without input",
        )
    shop.limit_s = 20 * baseline.wall_s + 60
    changes = [
        one for one in planned_changes(shop.tree, [str(shop.tree)], settings).changes
        if (one.is_safe or unsafe) and one.kind != "order"
    ]  # fmt: skip
    if not changes and model is None:
        return TuneRun(baseline, 0, None, (), (), None, "")
    share = max(0.0, shop.end - time.monotonic()) / (len(changes) + 2 + (model.rounds if model else 0))
    progress("two equal programs, as a control")
    control = _speed(shop, plain, shop.copy(()), share)
    tried = [tried_change(shop, plain, control, one, share, progress) for one in changes]
    kept = [one for one in tried if one.verdict == "kept"]
    kept.sort(key=lambda one: -(one.speedup.ratio if one.speedup else 1))
    together = shop.end if model is None else min(shop.end, time.monotonic() + 2 * share)
    stack, total = _stacked(shop, plain, control, kept, progress, together)
    text = patch(planned(shop.tree, [edit for one in stack for edit in one.edits])) if stack else ""
    found = TuneRun(baseline, 0, control, tuple(tried), stack, total, text, model.name if model else "")
    if model is not None:
        found = _with_model(shop, plain, found, share, model, progress)
    return replace(found, steps=next((trace.steps for trace in shop.traces.values()), 0))


def _with_model(
    shop: Workshop, plain: Path, found: TuneRun, share: float, model: ModelRounds, progress: Callable[[str], None]
) -> TuneRun:  # fmt: skip
    """The run with what the model proposes on top of the stack. All together is measured next to the unchanged program."""
    from unidle.tune.trial.proposals import proposed

    tried, base = proposed(shop, found.stack, found.control, share, model, progress)
    kept = tuple(one.change for one in tried if one.verdict == "kept")
    if not kept or found.control is None:
        return replace(found, tried=(*found.tried, *tried))
    progress("all changes together")
    speed = _speed(shop, plain, base, max(share, shop.end - time.monotonic()))
    if speed is None or not speed.is_real(found.control):
        why = "all changes together could not be shown to be faster in the time that was left"
        tried = [
            replace(one, verdict="inconclusive", why=why) if one.verdict == "kept" else one for one in tried
        ]
        return replace(found, tried=(*found.tried, *tried))
    text = patch(
        differences(shop.tree, base, {edit.file for one in (*found.stack, *kept) for edit in one.edits})
    )
    return replace(
        found, tried=(*found.tried, *tried), stack=(*found.stack, *kept), speedup=speed, patch=text
    )


def _speed(shop: Workshop, plain: Path, changed: Path, share: float) -> SpeedUp | None:
    end = min(shop.end, time.monotonic() + share)
    return measured(lambda: shop.run(plain).wall_s, lambda: shop.run(changed).wall_s, end)


def tried_change(
    shop: Workshop, plain: Path, control: SpeedUp | None, change: TuneChange, share: float, progress: Callable[[str], None]
) -> TriedChange:  # fmt: skip
    """Whether a change is no cheat, computes the same, and is faster; ``share``: seconds for it. Errors: EditRefused."""
    text = patch(planned(shop.tree, change.edits))
    name = f"{change.code} {change.file}{f':{change.line}' if change.line else ''}"
    if time.monotonic() > shop.end:
        return TriedChange(change, text, "inconclusive", "there was no time left")
    if why := refusal(shop, [change]):
        return TriedChange(change, text, "rejected", f"refused: {why}")
    progress(f"{name}: does it compute the same?")
    begin = time.monotonic()
    verdict, why = verify(shop, [change])
    if verdict != "kept":
        return TriedChange(change, text, verdict, why)
    progress(f"{name}: is it faster?")
    left = share - (time.monotonic() - begin)
    speed = _speed(shop, plain, shop.copy([change]), max(left, share / 2))
    return _judged(change, text, speed, control)


def _judged(change: TuneChange, text: str, speed: SpeedUp | None, control: SpeedUp | None) -> TriedChange:
    if speed is None or control is None:
        return TriedChange(
            change, text, "inconclusive", "the time was too short for five pairs of runs", speed
        )
    if not speed.is_real(control):
        return TriedChange(change, text, "rejected", "it is not faster by more than the noise", speed)
    return TriedChange(change, text, "kept", change.why, speed)


def _stacked(
    shop: Workshop, plain: Path, control: SpeedUp | None, kept: Sequence[TriedChange], progress: Callable[[str], None],
    end: float,
) -> tuple[tuple[TuneChange, ...], SpeedUp | None]:  # fmt: skip
    """The best change first; each further one stays if all together still compute the same."""
    if not kept or control is None:
        return (), None
    if len(kept) == 1:
        return (kept[0].change,), kept[0].speedup
    stack = [kept[0].change]
    for one in kept[1:]:
        try:
            planned(shop.tree, [edit for each in (*stack, one.change) for edit in each.edits])
        except EditRefused:
            continue  # two edits of the same lines
        stack.append(one.change)
    while len(stack) > 1:
        progress(f"{counted(len(stack), 'change')} together")
        speed = None
        if not refusal(shop, stack) and verify(shop, stack)[0] == "kept":
            speed = _speed(shop, plain, shop.copy(stack), max(0.0, end - time.monotonic()))
        if speed is not None and speed.is_real(control):
            return tuple(stack), speed
        stack.pop()
    return (kept[0].change,), kept[0].speedup
