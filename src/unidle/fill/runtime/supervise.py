"""Fillers next to all ranks of a gang: started, watched, switched by the trial, ended; and the records of that."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from unidle.engine.local.ranks.cgroups import group_paths
from unidle.engine.local.ranks.process_tree import is_live, ticks_of
from unidle.errors import CannotRun
from unidle.fill.runtime.kernel import FillGroup
from unidle.fill.runtime.process import FillerOrder, FillerProcess, leave_s
from unidle.fill.runtime.ranks import FilledRank
from unidle.fill.runtime.sample_steps import SampleSteps
from unidle.fill.runtime.trial import Trial
from unidle.predict.block_pairs import slow_down

_TURN_S: Final = 0.02
_FROZEN_TURN_S: Final = 0.001  # while one is let in and out by freezing
_PIECE_SUMS: Final = (
    "pieces",
    "units",
    "filled_ns",
    "discarded_ns",
    "waited_ns",
    "skipped",
    "late_ns",
    "delayed_ns",
)
_FORECAST_SUMS: Final = ("waits", "early", "early_ns", "unused_ns")


@dataclass(frozen=True, slots=True)
class FillSummary:
    """Sums over all fillers. ``filled_ns`` and ``discarded_ns``: of ``waited_ns``, the waits in which pieces could begin."""

    sums: dict[str, int]
    forecast: dict[str, int]
    fillers: int
    failed: tuple[str, ...]
    endings: tuple[str, ...]
    ended: str

    @property
    def filled(self) -> float | None:
        """Part of the waits with useful work; None without waits."""
        waited = self.sums["waited_ns"]
        return self.sums["filled_ns"] / waited if waited else None


@dataclass(slots=True)
class FillSupervisor:
    """``order`` next to each of ``ranks``. ``directory``: for logs; ``records``: lines of JSON are appended to it.

    ``idle``: as for :class:`unidle.fill.runtime.kernel.FillGroup`. ``trial``: blocks with and without fillers until the slow-down is known; None lets them in always.
    """

    order: FillerOrder
    ranks: Sequence[FilledRank]
    directory: Path
    records: Path
    trial: Trial | None
    tell: Callable[[str], None]
    idle: bool = True
    fillers: list[FillerProcess] = field(default_factory=list)
    _groups: FillGroup | None = None
    _reaper: subprocess.Popen[bytes] | None = None
    _steps: int = 0
    _ticks: dict[int, int | None] = field(default_factory=dict)
    _samples: SampleSteps = field(default_factory=SampleSteps)

    def run(self, interrupted: Callable[[], bool]) -> FillSummary:
        """Until all fillers ended, training ended, or ``interrupted``. Nothing of them is left then. Errors: CannotRun."""
        name = f"unidle-fill-{os.getpid()}-{hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:8]}"
        self._groups = FillGroup(name, idle=self.idle)
        self._ticks = {rank.pid: ticks_of(rank.pid) for rank in self.ranks}
        why = "failed"
        try:
            self._start()
            why = self._loop(interrupted)
        except (CannotRun, OSError, ValueError):
            if self._trains():
                raise
            why = "training ended"  # while fillers were started
        finally:
            self._stop()
        summary = self._summary(why)
        for filler in self.fillers:
            filler.release()
        for sample in self._samples.records():
            self._note("step", **sample)
        self._note("end", why=why, **summary.sums, forecast=summary.forecast, endings=list(summary.endings))
        return summary

    def _start(self) -> None:
        assert self._groups is not None
        count = len(self.ranks)
        paths = [group_paths(self._groups.parents, self._groups.name, str(k)) for k in range(count)]
        texts = [",".join(f"{use}={path}" for use, path in each.items()) for each in paths]
        self._reaper = subprocess.Popen(
            [sys.executable, "-P", "-m", "unidle.fill.runtime.reaper", *texts], stdin=subprocess.PIPE, start_new_session=True
        )  # fmt: skip
        for k, rank in enumerate(self.ranks):
            log = self.directory / f"filler-{rank.number}.log"
            filler = FillerProcess(self.order, rank, self._groups, k, count, log)
            self.fillers.append(filler)
            filler.counters["open"] = self.trial.open if self.trial is not None else 1
            filler.start()
        self._note(
            "begin", filler=self.order.filler, ranks=[rank.number for rank in self.ranks], piece_ns=self.order.piece_ns, paced=self.order.paced
        )  # fmt: skip

    def _loop(self, interrupted: Callable[[], bool]) -> str:
        told: dict[int, int] = {}
        while True:
            if interrupted():
                return "interrupted"
            if not self._trains():
                return "training ended"
            for k, filler in enumerate(self.fillers):
                filler.turn()
                for reason in filler.endings[told.get(k, 0) :]:
                    again = "it is started again" if filler.running else "it is not started again"
                    self.tell(f"filler of rank {filler.rank.number} was ended: {reason}; {again}")
                told[k] = len(filler.endings)
            if not any(filler.running for filler in self.fillers):
                return self._why_none_runs()
            self._see_steps()
            frozen = any(filler.frozen_when_busy and filler.running for filler in self.fillers)
            time.sleep(_FROZEN_TURN_S if frozen else _TURN_S)

    def _why_none_runs(self) -> str:
        """A filler that stopped saw its rank go; the rank's process may take a moment more to end."""
        until = time.monotonic() + leave_s()
        while (trains := self._trains()) and any(each.ended == "stopped" for each in self.fillers):
            if time.monotonic() > until:
                break
            time.sleep(_TURN_S)
        return "all fillers ended" if trains else "training ended"

    def _trains(self) -> bool:
        """Whether any rank lives: the same process, and not merely not reaped."""
        return any(is_live(pid) and ticks_of(pid) == ticks for pid, ticks in self._ticks.items())

    def _see_steps(self) -> None:
        """At the end of each step of the first rank that shows its steps: keep samples of them, and switch fillers by the trial."""
        board = next((each.board for each in self.fillers if each.board is not None), None)
        if board is None:
            return
        count = board.steps
        ended = board.steps_from(self._steps)
        missed = bool(count - self._steps > len(ended) and self._steps)
        self._steps = count
        if missed:
            self._samples.missed()
        for number, end_ns in ended:
            self._samples.step(number, end_ns, self.fillers)
        if self.trial is not None:
            self._try(self.trial, [end_ns for _, end_ns in ended], missed=missed)

    def _try(self, trial: Trial, ends_ns: list[int], *, missed: bool) -> None:
        if missed or not all(filler.running and filler.counters["state"] for filler in self.fillers):
            trial.missed()
            return
        for end_ns in ends_ns:
            pair = trial.step(end_ns)
            if pair is not None:
                self._note("pair", **pair._asdict())
        if trial.over:
            found = slow_down(trial.pairs)
            self.tell(
                f"slow-down of training {found.mean_pct:.2f} % ({found.low_pct:.2f} to {found.high_pct:.2f}),"
                f" from {found.pairs} pairs of blocks"
            )
            self.trial = None
        for filler in self.fillers:
            filler.counters["open"] = 1 if self.trial is None else int(trial.open)

    def _stop(self) -> None:
        for filler in self.fillers:
            filler.stop()
        until = time.monotonic() + leave_s()
        while any(filler.running for filler in self.fillers) and time.monotonic() < until:
            for filler in self.fillers:
                filler.turn()
            time.sleep(_TURN_S)
        for filler in self.fillers:
            filler.close()
        if self._groups is not None:
            self._groups.close()
        if self._reaper is not None:
            assert self._reaper.stdin is not None
            self._reaper.stdin.close()
            self._reaper.wait()

    def _summary(self, why: str) -> FillSummary:
        sums = {word: sum(filler.counters[word] for filler in self.fillers) for word in _PIECE_SUMS}
        forecast = {word: sum(filler.counters[word] for filler in self.fillers) for word in _FORECAST_SUMS}
        failed = tuple(f"rank {each.rank.number}: {each.ended}" for each in self.fillers if each.failed)
        endings = tuple(f"rank {each.rank.number}: {text}" for each in self.fillers for text in each.endings)
        return FillSummary(sums, forecast, len(self.fillers), failed, endings, why)

    def _note(self, kind: str, **fields: Any) -> None:
        with self.records.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "time_ns": time.time_ns(), **fields}) + "\n")
