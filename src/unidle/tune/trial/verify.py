"""Whether a changed program computes the same: what it computes is compared with that of the unchanged one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

from unidle.tune.cheats import cheats
from unidle.tune.edits import planned
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.evidence import NATIVE, SHADOW, compare
from unidle.tune.trial.workshop import AGAIN, SAME, WatchedRun, Workshop, together

Verdict = Literal["kept", "rejected", "inconclusive"]
_FLOAT64: Final = {"TUNE_TRIAL_FLOAT64": "1"}
_KINDS: Final = (
    WatchedRun("in float64", _FLOAT64),
    WatchedRun("in float64 with another seed and batch size", {**_FLOAT64, "TUNE_TRIAL_SEED": "7919", "TUNE_TRIAL_MORE_BATCH": "1"}),
    WatchedRun("natively", {}),
)  # fmt: skip
_AGAIN: Final = (
    WatchedRun("in float64, again", _FLOAT64, AGAIN),
    WatchedRun("natively, again", {}, AGAIN),
)


def refusal(shop: Workshop, changes: Sequence[TuneChange]) -> str:
    """Why a change is refused as a cheat, with place and rule; empty if it is not. Errors: EditRefused."""
    found = cheats(planned(shop.tree, [edit for one in changes for edit in one.edits]))
    return "; ".join(one.text() for one in found[:3])


def verify(shop: Workshop, changes: Sequence[TuneChange], steps: int = 0) -> tuple[Verdict, str]:
    """Whether a changed program computes the same up to a step, or with 0 to its end. ``kept`` means that nothing speaks against it.

    In float64 with the program's seeds, then with others, all that is observed is equal to 1e-9; then in the native precision
    within the program's own noise. What cannot be shown is ``inconclusive``.
    """
    while True:
        plan = shop.plan
        shop.serve(SAME, AGAIN)
        if shop.plan is plan:
            found = _verified(shop, changes, steps)
        if shop.plan is plan:
            return found
        shop.traces.clear()  # runs of one kind are compared: all are new processes from here on


def _verified(shop: Workshop, changes: Sequence[TuneChange], steps: int) -> tuple[Verdict, str]:
    before = shop.references([*_KINDS, *_AGAIN], steps)
    tolerances = [SHADOW, SHADOW, 0.0]
    for kind, trace in zip(_KINDS, before, strict=False):
        if not trace.shows:
            return "inconclusive", f"the unchanged program cannot be observed {kind.name}"
    if compare(before[0], before[3], SHADOW).where:
        return "inconclusive", "the unchanged program differs from itself in float64"
    noise = compare(before[2], before[4], math.inf)
    if noise.where:
        return "inconclusive", "the unchanged program differs from itself"
    tolerances[2] = max(NATIVE, 3 * noise.size)
    runs = together([
        lambda kind=kind: shop.observed(changes, kind.options, steps) for kind in _KINDS  # type: ignore[misc]
    ])  # fmt: skip
    for kind, reference, (after, done), most in zip(_KINDS, before, runs, tolerances, strict=False):
        if done.timed_out:
            return "inconclusive", f"there was no time to verify it {kind.name}"
        if done.failed:
            return "rejected", f"the changed program {done.failed}"
        if not after.shows:
            return "inconclusive", f"the changed program cannot be observed {kind.name}"
        if (apart := compare(reference, after, most)).where:
            return "rejected", f"{kind.name}, {apart.where}"
    return "kept", ""
