"""Faults of hosts: real controllers, agents, boxes and small gangs in network namespaces. Exits with 1 if a count is not zero.

    python bench/hosts_faults.py --only cable half-open --tries 10 --seed 1

What is done is in tests/host_faults, and what is counted in tests/host_faults/counts.py. Ranks keep a record of their own:
overlaps of attempts are found by locks that the kernel gives. It needs root, iproute2 and a C compiler, and takes about an
hour. ``--lines`` is how many lines are tried of each start; with 0 all of them. Controllers and agents are forked from a process that
has imported all they need, and lines of restarts share gangs: these take 0.3 s each on a quiet machine, and so 15 minutes. Those
of first starts have gangs or hosts of their own, and take hours.
"""

from __future__ import annotations

import argparse
import importlib
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[0] = str(
    Path(__file__).resolve().parent.parent / "tests"
)  # in place of this directory: bench/box.py is not tests/box

# Next to the tests, which run some of them; mypy looks at src and bench only.
run: Any = importlib.import_module("host_faults.run")

COLUMNS = ("fault", "runs", "how it ended", "lost", "twice", "overlaps", "left", "s")


def main() -> int:
    given = _arguments()
    chosen = [one for one in run.FAULTS if not given.only or any(word in one.name for word in given.only)]
    if not chosen:
        sys.exit(
            f"--only {' '.join(given.only)}: no fault has it; faults: {'; '.join(one.name for one in run.FAULTS)}"
        )
    if given.list:
        print(*(one.name for one in chosen), sep="\n")
        return 0
    print(
        f"hosts_faults, seed {given.seed}\n\n| {' | '.join(COLUMNS)} |\n|---|--:|---|--:|--:|--:|--:|--:|",
        flush=True,
    )
    failed = False
    for fault in chosen:
        ended = _ended(fault, given)
        failed = failed or not ended.holds
        print(_line(ended), flush=True)
        for words in (*ended.wrong, *ended.counts.words()):
            print(words, file=sys.stderr, flush=True)
    return int(failed)


def _ended(fault: Any, given: argparse.Namespace) -> Any:
    tries = given.tries or fault.tries
    if isinstance(fault, run.LineKills):
        tries = fault.tries if given.lines is None else given.lines or sys.maxsize
    with tempfile.TemporaryDirectory(prefix="unidle-hosts-faults-") as scratch:
        return run.run_fault(
            fault,
            Path(scratch) / "rig",
            tries,
            random.Random(f"{fault.name} {given.seed}"),
            given.minutes * 60,
        )


def _line(ended: Any) -> str:
    outcomes = [f"{count} {what}" for what, count in ended.outcomes.most_common()]
    outcomes += [f"{len(ended.wrong)} WRONG"] if ended.wrong else []
    runs = ended.note or str(ended.runs)
    cells = (ended.name, runs, "; ".join(outcomes), *ended.counts.numbers, f"{ended.seconds:.0f}")
    return f"| {' | '.join(map(str, cells))} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/hosts_faults.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="faults whose name has one of these"
    )
    parser.add_argument("--tries", type=int, help="of each fault; default: as many as suit it")
    parser.add_argument("--lines", type=int, help="lines that are tried of each start; 0: all of them")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="for the lines of one row; those that it leaves out are not counted",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the names of the faults")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
