"""How many late ranks are named: gloo ranks in step, one of them 10 ms late in each step (busy or blocked), or none.

Ranks compute while they sleep (as with a GPU), so that two cores carry them. A trial counts when exactly the late rank is
named; one without a late rank when nobody is. A rank that other work on the machine makes late (its first cause is that it got no
CPU) is late too, though not by this benchmark: it is told on standard error and does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _process import environment, started, until
from _profiled import JOBS, START_LIMIT_S, answer
from _table import Row, main


def rows(given: argparse.Namespace) -> Iterator[Row]:
    named, off = 0, []
    for trial in range(given.trials):
        ranks = (2, 3, 4)[trial % 3]
        late = trial % ranks
        how = ("busy", "blocked")[trial % 2]
        found, late_ms = _trial(given, ranks, late, how)
        named += found == [late]
        if found == [late] and late_ms is not None:
            off.append(late_ms - given.late_ms)
        elif found != [late]:
            print(f"trial {trial}: {ranks} ranks, rank {late} {how}: named {found}", file=sys.stderr)
    how = f"measured here, {given.trials} jobs of 2 to 4 ranks, {given.seconds:g} s each, {given.late_ms:g} ms late in steps of some {given.device_ms + 10:g} ms"
    yield Row(
        f"late ranks named of {given.trials}",
        "ranks",
        named,
        goal="all",
        holds=named == given.trials,
        how=how,
    )
    if off:
        worst = max(map(abs, off))
        yield Row(
            "how late: median error",
            "ms",
            round(statistics.median(map(abs, off)), 2),
            how=f"{how}; worst {worst:.2f} ms",
        )
    wrong = sum(bool(_trial(given, (2, 3)[trial % 2], -1, "busy")[0]) for trial in range(given.even))
    yield Row(
        f"even gangs of {given.even} that blame a rank",
        "jobs",
        wrong,
        goal="0",
        holds=wrong == 0,
        how="measured here",
    )


def _trial(given: argparse.Namespace, ranks: int, late: int, how: str) -> tuple[list[int], float | None]:
    """The ranks that are named, and how late the first of them is said to be."""
    options = ["--ranks", str(ranks), "--late", str(late), "--how", how, "--late-ms", str(given.late_ms), "--device-ms", str(given.device_ms)]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="unidle-late-") as place:
        command = (sys.executable, str(JOBS / "late.py"), *options)
        with started(command, Path(place), environment(OMP_NUM_THREADS="1")) as process:
            if not until(lambda: b"warm" in (Path(place) / "out").read_bytes(), START_LIMIT_S):
                sys.exit(f"the ranks did not start: {(Path(place) / 'err').read_text()[-500:]}")
            told, _ = answer(process.pid, given.seconds, *given.more)
    named = sorted((r for r in told["ranks"] if r.get("late")), key=lambda r: -(r.get("late_ms") or 0))
    found = [r for r in named if r["rank"] == late or not _starved(r)]
    for r in named:
        if r not in found:
            print(f"rank {r['rank']} of {ranks} got less CPU than its peers", file=sys.stderr)
    return [r["rank"] for r in found], found[0].get("late_ms") if found else None


def _starved(rank: dict[str, Any]) -> bool:
    return any(cause["what"] == "cpu_contention" for cause in rank.get("causes", [])[:1])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--even", type=int, default=4, help="jobs without a late rank")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--late-ms", type=float, default=10.0)
    parser.add_argument("--device-ms", type=float, default=30.0)
    parser.add_argument("--more", nargs="*", default=[], help="further options of `unidle profile`")


if __name__ == "__main__":
    main("profile_straggler", rows, add_arguments)
