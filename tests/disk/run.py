"""Runs of seeds on the simulated disk, and their counts."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from disk import checks
from disk.faults import Fault, of_seed
from disk.machine import Hangs, Machine, build
from disk.warm import Programs
from unidle.errors import UnidleError
from unidle.store.open import open_store


@dataclass(slots=True)
class Result:
    seed: int
    fault: Fault
    happened: bool = False
    cut: bool = False
    outcome: str = ""
    faults_found: list[str] = field(default_factory=list)
    seconds: float = 0.0
    output: str = ""

    def line(self) -> str:
        return f"seed {self.seed} ({self.fault.words()}): {'; '.join(self.faults_found) or self.outcome}"


def run_seed(seed: int, place: Path, programs: Programs) -> Result:
    """One seed in an empty directory. Nothing of it runs when this returns."""
    since, result = time.monotonic(), Result(seed, of_seed(seed))
    machine = Machine(place, programs, seed, result.fault)
    try:
        try:
            _run(machine, result)
        except (Hangs, UnidleError) as error:
            result.faults_found.append(f"{type(error).__name__}: {error}")
        result.output = machine.said()
    finally:
        machine.close()
    result.seconds = time.monotonic() - since
    return result


def _run(machine: Machine, result: Result) -> None:
    machine.break_it()
    result.happened, result.cut = machine.state.happened, machine.cut
    first, said = machine.codes[0] if machine.codes else None, machine.said()
    # SIGTERM is sent when nothing more can come, perhaps before the program has started
    if first not in (None, 0, 4, -signal.SIGKILL, -signal.SIGTERM) or "Traceback" in said:
        result.faults_found.append(f"a program ended with {first} and no clear error")
    before, forbidden = len(checks.starts(machine.notes)), set[checks.Start]()
    if machine.store.exists() and machine.cut and machine.store.stat().st_size:
        store = open_store(str(machine.store), create=True)  # the cut may have come while it was made
        forbidden = checks.begun(checks.view_of(store))
        store.close()
    machine.mend()
    if machine.codes[-1] != 0:
        result.faults_found.append(f"the second `unidle up` ended with {machine.codes[-1]}")
        return
    store = open_store(str(machine.store), create=False, read_only=True)
    try:
        view = checks.view_of(store)
        result.faults_found += checks.unsound(store, view)
        result.faults_found += checks.lost(store, view, machine.notes)
        result.faults_found += checks.doubled(
            machine.notes, cut=machine.cut, before=before, forbidden=forbidden
        )
        result.outcome = _outcome(machine, [job.state for job in view.jobs.values()], view)
    finally:
        store.close()


def _outcome(machine: Machine, states: list[str], view: checks.View) -> str:
    first = machine.codes[0] if len(machine.codes) > 1 else None  # of the first `unidle up`
    how = "power cut" if machine.cut else {0: "absorbed", None: "ended"}.get(first, "controller ended")
    failed = states.count("failed")
    again = sum(max(0, len(job.attempts) - 1) for job in view.jobs.values())
    more = f", {failed} jobs failed" if failed else ", ranks restarted" if again else ""
    return how + more


@contextlib.contextmanager
def programs_in(scratch: Path) -> Iterator[Programs]:
    """What the runs start, built in a directory."""
    programs = Programs(build(scratch))
    try:
        yield programs
    finally:
        programs.close()


def run_seeds(seeds: Sequence[int], programs: Programs, workers: int = 1) -> Iterator[Result]:
    """Each in a directory of its own, which is removed unless something is wrong."""
    scratch = Path(tempfile.mkdtemp(prefix="unidle-disk."))

    def one(seed: int) -> Result:
        place = scratch / str(seed)
        place.mkdir()
        result = run_seed(seed, place, programs)
        if not result.faults_found:
            shutil.rmtree(place)
        return result

    wrong = False
    with ThreadPoolExecutor(workers) as pool:
        for result in pool.map(one, seeds):
            wrong = wrong or bool(result.faults_found)
            yield result
    if not wrong:
        shutil.rmtree(scratch)


def counts(results: Sequence[Result]) -> tuple[Counter[str], Counter[str]]:
    """How many by fault, and of those that happened by outcome."""
    faults = Counter(r.fault.name if r.happened else "did not happen" for r in results)
    return faults, Counter("WRONG" if r.faults_found else r.outcome for r in results if r.happened)
