"""Faults of a simulated disk under real processes, one for each seed. Exits with 1 when one has a wrong outcome.

    python bench/disk_faults.py --seeds 1000 --from 0 --workers 2

What is injected and what has to hold is in tests/disk. It needs root and a C compiler.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _table import Row, main

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

# Next to the tests, which run some of the seeds; mypy looks at src and bench only.
of_seed: Any = importlib.import_module("disk.faults").of_seed
runs: Any = importlib.import_module("disk.run")


def rows(given: argparse.Namespace) -> Iterator[Row]:
    seeds = range(given.first, given.first + given.seeds)
    chosen = [seed for seed in seeds if of_seed(seed).words().startswith(given.only)]
    results = []
    with tempfile.TemporaryDirectory() as scratch, runs.programs_in(Path(scratch)) as programs:
        for result in runs.run_seeds(chosen, programs, given.workers):
            results.append(result)
            if result.faults_found or given.verbose:
                print(f"{result.line()} [{result.seconds:.1f} s]", file=sys.stderr, flush=True)
            if result.faults_found:
                print(result.output, file=sys.stderr, flush=True)
    wrong = [r.seed for r in results if r.faults_found]
    how = f"measured here, {len(results)} seeds from {given.first}"
    for what, found in zip(("faults", "outcome"), runs.counts(results), strict=True):
        for name, count in sorted(found.items()):
            yield Row(f"{what}: {name}", "", count, how=how)
    if wrong:
        how += f"; repeat one with --seeds 1 --from {wrong[0]}"
    yield Row("wrong outcomes", "", len(wrong), goal="0", holds=not wrong, how=how)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--workers", type=int, default=2, help="seeds that run at once")
    parser.add_argument("--only", default="", help="only seeds whose fault begins so, such as 'up write'")
    parser.add_argument("--verbose", action="store_true", help="print a line for each seed")


if __name__ == "__main__":
    main("disk_faults", rows, add_arguments)
