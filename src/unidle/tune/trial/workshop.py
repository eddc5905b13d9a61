"""Copies of a tree in which one command is tried: plainly, observed, or up to a step."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from unidle.tune.edits import apply_edits
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.child import TrialRun, run_child
from unidle.tune.trial.evidence import ComputedTrace, read_trace
from unidle.tune.trial.marks import StepWatch
from unidle.tune.trial.tree_copy import copy_tree

INJECT: Final = Path(__file__).with_name("inject")
_T = TypeVar("_T")


@dataclass(slots=True)
class Workshop:
    """``end`` is of ``time.monotonic``. ``last_step``: where each run stops; 0 for its own end."""

    tree: Path
    command: tuple[str, ...]
    scratch: Path
    end: float
    limit_s: float = 3600.0
    last_step: int = 0
    count: int = 0
    traces: dict[tuple[str, int], ComputedTrace] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left_s(self) -> float:
        """Seconds of the budget."""
        return max(0.0, self.end - time.monotonic())

    def copy(self, changes: Sequence[TuneChange]) -> Path:
        """A new copy with these changes, each planned in the unchanged tree. Errors: EditRefused."""
        with self.lock:
            self.count += 1
            to = self.scratch / f"t{self.count}" / "tree"
            to.parent.mkdir()
        copy_tree(self.tree, to)
        edits = [edit for one in changes for edit in one.edits]
        if edits:
            apply_edits(to, edits)
        return to

    def run(
        self, folder: Path, more: dict[str, str] | None = None, watch: StepWatch | None = None
    ) -> TrialRun:
        """The command in a copy; paths of the tree in it become those of the copy."""
        words = [one.replace(str(self.tree), str(folder)) for one in self.command]
        limit = max(1.0, min(self.limit_s, self.left_s))
        paths = [str(INJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        found = {"PYTHONPATH": os.pathsep.join(paths), **(more or {})}
        return run_child(words, folder, self.scratch, limit, found, watch)

    def observed(
        self, changes: Sequence[TuneChange], options: dict[str, str], steps: int
    ) -> tuple[ComputedTrace, TrialRun]:
        """What a changed program computes, up to a step, or with 0 to its end."""
        folder = self.copy(changes)
        trace = folder.parent / "trace"
        more = {"TUNE_TRIAL_TRACE": str(trace), "TUNE_TRIAL_STOP": str(steps), **options}
        done = self.run(folder, more)
        return read_trace(trace), done

    def references(self, wanted: Sequence[tuple[str, dict[str, str]]], steps: int) -> list[ComputedTrace]:
        """What the unchanged program computes; each name is run once."""
        missing = [one for one in dict(wanted).items() if (one[0], steps) not in self.traces]
        found = together([lambda one=one: self.observed((), one[1], steps)[0] for one in missing])  # type: ignore[misc]
        self.traces |= {(name, steps): trace for (name, _), trace in zip(missing, found, strict=True)}
        return [self.traces[name, steps] for name, _ in wanted]


def together(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """The results of calls, as many at once as there are CPUs, and at most four; one at a time next to an accelerator."""
    cpus = 1 if any(Path("/dev").glob("nvidia[0-9]*")) else min(4, len(os.sched_getaffinity(0)))
    if cpus == 1 or len(calls) == 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(cpus) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]
