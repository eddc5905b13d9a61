"""Simulated disk faults under real processes: ``python -m disk --seeds 1000 --from 0 --workers 2``. Exit code 1 when one is wrong."""

from __future__ import annotations

import argparse
import sys
import time

from disk.faults import of_seed
from disk.run import run_seeds, table


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulated disk faults, one for each seed")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="", help="only seeds whose fault begins so, such as 'up write'")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    since, results = time.monotonic(), []
    seeds = range(given.first, given.first + given.seeds)
    chosen = [seed for seed in seeds if of_seed(seed).words().startswith(given.only)]
    for result in run_seeds(chosen, given.workers):
        results.append(result)
        if result.faults_found or given.verbose:
            print(f"{result.line()} [{result.seconds:.1f} s]", flush=True)
        if result.faults_found:
            print(result.output, flush=True)
    happened = sum(r.happened for r in results)
    wrong = [r.seed for r in results if r.faults_found]
    print(table(results))
    print(f"{len(results)} seeds, {happened} faults, {len(wrong)} wrong, {time.monotonic() - since:.0f} s")
    if wrong:
        print(f"repeat one with: python -m disk --seeds 1 --from {wrong[0]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
