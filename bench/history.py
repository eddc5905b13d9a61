"""Clients, controllers and faults by seed, then every acknowledged operation against the final log.

    python bench/history.py --seed 1 --rounds 20 --store sqlite

The rules, and what a fault may legitimately destroy, are in tests/histories/check.py. Exits with 1 on a violation.
``--store sqlite`` needs root (a small tmpfs), and ``--store postgres`` the PostgreSQL server.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _table import Row, main

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

# Next to the tests, which run one round of each store; mypy looks at src and bench only.
run: Any = importlib.import_module("histories.run")


def rows(given: argparse.Namespace) -> Iterator[Row]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # processes and mounts of the round go
    ops: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    violations = events = 0
    for seed in range(given.seed, given.seed + given.rounds):
        result = _round(given, seed)
        ops += result.ops
        faults += result.faults
        violations += len(result.violations)
        events += result.events
    how = f"measured here, {given.store}, seeds {given.seed} to {given.seed + given.rounds - 1}"
    for name, count in sorted(ops.items()):
        yield Row(f"operations: {name}", "", count, how=how)
    yield Row("events in the logs", "", events, how=how)
    for name, count in sorted(faults.items()):
        yield Row(f"faults: {name}", "", count, how=how)
    yield Row("violations", "", violations, goal="0", holds=violations == 0, how=how)


def _round(given: argparse.Namespace, seed: int) -> Any:
    with tempfile.TemporaryDirectory(prefix="unidle-history-") as scratch:
        place = Path(scratch) / "round"
        result = run.run(
            given.store,
            place,
            seed,
            faults=given.faults,
            deletes_wal=given.delete_wal,
            only=tuple(given.only),
        )
        if given.keep is not None and result.violations:
            shutil.copytree(place, given.keep / f"{given.store}-{seed}", dirs_exist_ok=True)
    counts = f"{len(result.history.ops)} operations, {result.events} events"
    print(f"seed {seed}: {counts}, {len(result.violations)} violations", file=sys.stderr, flush=True)
    for violation in result.violations:
        print(f"  {violation}", file=sys.stderr, flush=True)
    return result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each round has the next one")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--faults", type=int, default=8, help="in each round")
    parser.add_argument("--only", nargs="*", default=[], metavar="FAULT", help="only these faults")
    parser.add_argument("--delete-wal", action="store_true", help="also delete SQLite's write-ahead log")
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="keep the files of rounds with a violation"
    )


if __name__ == "__main__":
    main("history", rows, add_arguments)
