"""How many late ranks are named: gloo ranks in step, one of them 10 ms late in each step, or none.

Drawn by --seed for each job: how many ranks (2 to 4), which one is late, busy or blocked, and how long a step is (25 to 60 ms). Ranks compute
while they sleep (as with a GPU), so that two cores carry them. A job counts when exactly the late rank is named; one without a late
rank when nobody is. A rank that other work on the machine makes late (its first cause is that it got no CPU) is late too, though not by this
benchmark: such a rank is reported in the row and does not count against it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _process import environment, started, until
from _profiled import JOBS, START_LIMIT_S, answer
from _table import Row, main

STEPS_MS = (15, 50)  # of what stands for the device; the rest of a step takes some 10 ms
QUICK = 3
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Gang:
    """One job: rank ``late`` is so each step; -1 where none is."""

    ranks: int
    late: int
    how: str
    device_ms: int


@dataclass(frozen=True, slots=True)
class Told:
    """Which ranks were named, how late the first of them is said to be, and how many others got too little CPU."""

    named: list[int]
    late_ms: float | None
    starved: int


def rows(given: argparse.Namespace) -> Iterator[Row]:
    chance = random.Random(given.seed)
    trials, even = (QUICK, 1) if given.quick else (given.trials, given.even)
    looks = [_looked(given, _gang(chance, late=True)) for _ in range(trials)]
    right = [told for gang, told in looks if told.named == [gang.late]]
    starved = sum(told.starved for _, told in looks)
    least = 100 * (1 - CONFIDENCE) ** (
        1 / trials
    )  # where all are right: with less, so many in a row are unlikely
    how = f"measured here, {trials} jobs of 2 to 4 ranks drawn by seed {given.seed}, {given.seconds:g} s each, {given.late_ms:g} ms late in steps of 25 to 60 ms"
    if starved:
        how += f"; {starved} ranks were late for want of a CPU and set aside"
    bound = f"; at least {least:.0f} % with 95 % confidence" if len(right) == trials else ""
    yield Row(f"late ranks named, of {trials}", "ranks", len(right), goal="all", holds=len(right) == trials, how=how + bound)  # fmt: skip
    off = [abs(told.late_ms - given.late_ms) for told in right if told.late_ms is not None]
    if off:
        yield Row("how late it is said to be: median error", "ms", round(statistics.median(off), 2), how=f"{how}; worst {max(off):.2f} ms")  # fmt: skip
    wrong = sum(bool(_looked(given, _gang(chance, late=False))[1].named) for _ in range(even))
    yield Row(f"even gangs that blame a rank, of {even}", "jobs", wrong, goal="0", holds=wrong == 0, how="measured here")  # fmt: skip


def _gang(chance: random.Random, *, late: bool) -> Gang:
    ranks = chance.randint(2, 4)
    which, how, device_ms = chance.randrange(ranks), chance.choice(("busy", "blocked")), chance.randint(*STEPS_MS)  # fmt: skip
    return Gang(ranks, which if late else -1, how, device_ms)


def _looked(given: argparse.Namespace, gang: Gang) -> tuple[Gang, Told]:
    options = ["--ranks", str(gang.ranks), "--late", str(gang.late), "--how", gang.how, "--late-ms", str(given.late_ms), "--device-ms", str(gang.device_ms)]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="unidle-late-") as place:
        command = (sys.executable, str(JOBS / "late.py"), *options)
        with started(command, Path(place), environment(OMP_NUM_THREADS="1")) as process:
            if not until(lambda: b"warm" in (Path(place) / "out").read_bytes(), START_LIMIT_S):
                sys.exit(f"the ranks did not start: {(Path(place) / 'err').read_text()[-500:]}")
            told, _ = answer(process.pid, given.seconds)
    late = sorted((r for r in told["ranks"] if r.get("late")), key=lambda r: -(r.get("late_ms") or 0))
    named = [r for r in late if r["rank"] == gang.late or not _starved(r)]
    found = Told([r["rank"] for r in named], named[0].get("late_ms") if named else None, len(late) - len(named))  # fmt: skip
    if found.named != [gang.late][: gang.late >= 0]:
        print(f"{gang}: {found}", file=sys.stderr)
    return gang, found


def _starved(rank: dict[str, Any]) -> bool:
    return any(cause["what"] == "cpu_contention" for cause in rank.get("causes", [])[:1])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--even", type=int, default=4, help="jobs without a late rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--late-ms", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} jobs and one without a late rank")


if __name__ == "__main__":
    main("profile_straggler", rows, add_arguments)
