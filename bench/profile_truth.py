"""Where the time goes, as the budget reports it, compared with in-process timers that no rule has seen.

The workloads of tests/scope_truth, each looked at for a while. Misplaced is the part of the time that is in a wrong category.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

# Next to the tests that gate on the same figures; mypy looks at src and bench only.
compare: Any = importlib.import_module("scope_truth.compare")

MISPLACED_GOAL, EACH_GOAL = 3.0, 2.0


def rows(given: argparse.Namespace) -> Iterator[Row]:
    worst: list[tuple[float, str]] = []
    seconds = 4.0 if given.quick else given.seconds
    for name in given.names or compare.NAMES:
        with tempfile.TemporaryDirectory(prefix="unidle-truth-") as place:
            found = compare.compared(name, Path(place), seconds=seconds, hz=given.hz)
        category = max(found.errors, key=lambda n: abs(found.errors[n]))
        worst.append((abs(found.errors[category]), f"{category} of {name}"))
        how = f"measured here, {seconds:g} s at {given.hz} Hz; by its own timers {found.text().partition(' %: ')[2]}"
        yield Row(f"{name.replace('_', ' ')}: misplaced", "% of wall", round(found.misplaced, 2), goal="<= 3 %", holds=found.misplaced <= MISPLACED_GOAL, how=how)  # fmt: skip
    error, where = max(worst)
    how = f"measured here, {where}, over {len(worst)} workloads"
    yield Row("the worst category", "points", round(error, 2), goal="<= 2", holds=error <= EACH_GOAL, how=how)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(compare.NAMES)}; none means all"
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--hz", type=int, default=499)
    parser.add_argument("--quick", action="store_true", help="looks of 4 s")


if __name__ == "__main__":
    main("profile_truth", rows, add_arguments)
