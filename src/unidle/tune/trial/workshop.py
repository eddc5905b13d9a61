"""Copies of a tree in which one command is tried: plainly, observed, or up to a step."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from unidle.tune.edits import apply_edits
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.child import INJECT, TrialRun, run_child
from unidle.tune.trial.evidence import ComputedTrace, read_trace
from unidle.tune.trial.forks import ForkPlan, ForkServer, ForkUnsafe, start_server
from unidle.tune.trial.marks import StepWatch
from unidle.tune.trial.tree_copy import copy_tree

SAME: Final = "same"
"""The server of runs whose results are compared, and of profiles."""
AGAIN: Final = "again"
"""That of runs which show the program's own noise: with another seed of hashes, and at other addresses."""
ROUND: Final = "round"
"""That of one round of a race."""
_LONGEST_PLACE: Final = 72
"""Sockets below a temporary directory have names of at most 107 bytes."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A way to observe a program: its name, its options in the environment, and the server of its runs."""

    name: str
    options: dict[str, str]
    server: str = SAME


@dataclass(slots=True)
class Workshop:
    """``end`` is of ``time.monotonic``. ``last_step``: where each run stops; 0 for its own end. ``plan``: None if each run is a new Python."""

    tree: Path
    command: tuple[str, ...]
    scratch: Path
    end: float
    limit_s: float = 3600.0
    last_step: int = 0
    count: int = 0
    traces: dict[tuple[str, int], ComputedTrace] = field(default_factory=dict)
    plan: ForkPlan | None = None
    why_new: str = ""
    """Why runs are new processes from here on, although there was a plan."""
    servers: dict[str, ForkServer] = field(default_factory=dict)
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
        self,
        folder: Path,
        more: dict[str, str] | None = None,
        watch: StepWatch | None = None,
        server: str = "",
    ) -> TrialRun:
        """The command in a copy; paths of the tree in it become those of the copy. Forked from this server, if it was started."""
        words = self._words(folder)
        limit = max(1.0, min(self.limit_s, self.left_s))
        if (forks := self.servers.get(server)) is not None and self.plan is not None:
            try:
                return forks.run(words, folder, self.scratch, limit, more or {}, watch)
            except ForkUnsafe as why:
                self.plan, self.why_new = None, str(why)
                watch = StepWatch(watch.scratch, watch.at, watch.stop) if watch is not None else None
        return run_child(words, folder, self.scratch, limit, {**self._paths(), **(more or {})}, watch)

    def _words(self, folder: Path) -> list[str]:
        return [one.replace(str(self.tree), str(folder)) for one in self.command]

    def _paths(self) -> dict[str, str]:
        """Where Python finds the hooks, and a place for temporary files, which goes with the copies."""
        paths = [str(INJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        found = {"PYTHONPATH": os.pathsep.join(paths)}
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:  # PyTorch makes it when it is imported
            found["TORCHINDUCTOR_CACHE_DIR"] = str(self.scratch / "inductor")
        if len(str(self.scratch)) <= _LONGEST_PLACE:
            (self.scratch / "tmp").mkdir(exist_ok=True)
            found["TMPDIR"] = str(self.scratch / "tmp")
        return found

    def serve(self, *names: str) -> None:
        """Start servers that are not there yet. Without a plan, or if they cannot be, each run is a new Python."""
        started = [name for name in names if name not in self.servers and self.plan is not None]
        for name in started:
            self.servers[name] = self._start(name)
        for name in started:
            try:
                self.servers[name].ready(self.limit_s)
            except ForkUnsafe as why:
                self.plan, self.why_new = None, str(why)

    def _start(self, name: str) -> ForkServer:
        assert self.plan is not None
        folder = self.copy(())
        plan = self.plan if name == ROUND else self.plan.torch_only
        return start_server(plan, self._words(folder), folder, self.scratch, self.limit_s, self._paths())

    @contextlib.contextmanager
    def serving(self, name: str) -> Iterator[None]:
        """A server for this block only; none if there is no name."""
        try:
            self.serve(*filter(None, [name]))
            yield
        finally:
            if (server := self.servers.pop(name, None)) is not None:
                server.close()

    def close(self) -> None:
        """End all servers."""
        while self.servers:
            self.servers.popitem()[1].close()

    def observed(
        self, changes: Sequence[TuneChange], options: dict[str, str], steps: int, server: str = SAME
    ) -> tuple[ComputedTrace, TrialRun]:
        """What a changed program computes, up to a step, or with 0 to its end."""
        folder = self.copy(changes)
        trace = folder.parent / "trace"
        more = {"TUNE_TRIAL_TRACE": str(trace), "TUNE_TRIAL_STOP": str(steps), **options}
        done = self.run(folder, more, server=server)
        return read_trace(trace), done

    def references(self, wanted: Sequence[WatchedRun], steps: int) -> list[ComputedTrace]:
        """What the unchanged program computes; each name is run once."""
        missing = [one for one in wanted if (one.name, steps) not in self.traces]
        found = together([
            lambda one=one: self.observed((), one.options, steps, one.server)[0] for one in missing  # type: ignore[misc]
        ])  # fmt: skip
        self.traces |= {(one.name, steps): trace for one, trace in zip(missing, found, strict=True)}
        return [self.traces[one.name, steps] for one in wanted]


def together(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """The results of calls, as many at once as there are CPUs, and at most four; one at a time next to an accelerator."""
    cpus = 1 if any(Path("/dev").glob("nvidia[0-9]*")) else min(4, len(os.sched_getaffinity(0)))
    if cpus == 1 or len(calls) == 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(cpus) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]
