"""Clients, controllers and faults by seed, then every acknowledged operation against the final log.

    python bench/history.py --seed 1 --rounds 20 --store sqlite

The rules and what a fault may legitimately destroy are in tests/histories/check.py. Exits with 1 on a violation. Needs
root with --store sqlite (a small tmpfs), and the PostgreSQL server with --store postgres.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

# Next to the tests, which run one round of each store; mypy looks at src and bench only.
run: Any = importlib.import_module("histories.run")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each round has the next one")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--faults", type=int, default=8, help="in each round")
    parser.add_argument("--only", nargs="*", default=[], metavar="FAULT", help="only these faults")
    parser.add_argument("--delete-wal", action="store_true", help="also delete SQLite's write-ahead log")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the files of rounds with a violation")
    given = parser.parse_args()
    ops: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    violations = 0
    for seed in range(given.seed, given.seed + given.rounds):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="unidle-history-") as scratch:
            place = Path(scratch) / "round"
            result = run.run(
                given.store, place, seed, faults=given.faults, deletes_wal=given.delete_wal, only=tuple(given.only)
            )
            if given.keep is not None and result.violations:
                shutil.copytree(place, given.keep / f"{given.store}-{seed}", dirs_exist_ok=True)
        ops += result.ops
        faults += result.faults
        violations += len(result.violations)
        counts = f"{len(result.history.ops)} operations, {result.events} events, {len(result.violations)} violations"
        print(f"seed {seed}: {counts}, {time.monotonic() - began:.0f} s", flush=True)
        for violation in result.violations:
            print(f"  {violation}", flush=True)
    for what, counter in (("operations", ops), ("faults", faults)):
        print(f"\n{what}")
        for name, count in sorted(counter.items()):
            print(f"  {name:40} {count:6}")
    print(f"\nviolations {violations}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
