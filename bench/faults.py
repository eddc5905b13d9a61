"""What a recorded fault trace costs a gang, replayed on the simulated engine by the loop and the policies of real jobs.

The trace is `faults/infinitehbd_fault_trace.json` (400 servers, 349 days, 584 faults; stepfun-ai/InfiniteHBD-Trace, Apache-2.0)
in the directory that UNIDLE_DATA names (default: `../shared/data` next to the checkout). A gang of 128 nodes with 12
spares, a gang of 368 with 32, three seeds of which servers are hit. All figures but the time of a replay are modelled.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from _table import Row, main
from unidle.control.replay.ettr import FaultOutcome
from unidle.control.replay.faults import CapabilityCosts, FaultReplay, ReplayCase, ReplayTerms, variants
from unidle.files.fault_trace import load_fault_trace

DATA = Path(os.environ.get("UNIDLE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
TRACE = DATA / "faults" / "infinitehbd_fault_trace.json"
SERVERS, GANG, SPARES, LARGE = 400, 128, 12, (368, 32)
SEEDS = (1, 2, 3)
FIXED_S = (600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 43_200.0)
ALL = CapabilityCosts(SPARES, peer_copies=True, every_s=None, warm=True, preflight=True)
WORDS = {
    "no_spares": "spares", "no_peer_copies": "copies in peers' memory", "no_interval": "choice of the interval (else 1,800 s)",
    "no_warm_restart": "warm restarts", "no_preflight": "preflight", "none": "all of them",
}  # fmt: skip


def mean(found: list[FaultOutcome], name: str) -> float:
    return sum(float(getattr(one, name)) for one in found) / len(found)


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    if not TRACE.is_file():
        raise SystemExit(
            f"no {TRACE.name} in {TRACE.parent}: set UNIDLE_DATA to the directory that holds faults/"
        )
    seeds = SEEDS[: arguments.seeds]
    replay = FaultReplay(load_fault_trace(TRACE), SERVERS, ReplayTerms())
    how = f"modelled, mean of {len(seeds)} seeds, {GANG} nodes"

    def run(ways: CapabilityCosts) -> list[FaultOutcome]:
        return [replay.run(ReplayCase("", GANG, seed, ways)) for seed in seeds]

    found = {name: run(ways) for name, ways in variants(ALL, 1800.0).items()}
    yield from formula_rows(found, how)
    given = found["as_given"]
    for name, words in WORDS.items():
        worth = 100 * (mean(given, "ettr") - mean(found[name], "ettr"))
        saved = mean(found[name], "wasted") - mean(given, "wasted")
        more = f"; {saved / 1000:,.0f} thousand USD less wasted in 349 days"
        yield Row(f"worth of {words}", "points of ETTR", worth, how=how + more)
    for copies in (False, True):
        yield interval_row(run, copies, how)
    yield time_row(replay)


def formula_rows(found: dict[str, list[FaultOutcome]], how: str) -> Iterator[Row]:
    """The formula leaves waiting for a place out, and asks for many interruptions: other replays are not compared."""
    off = [
        abs(one.ettr_placed / one.formula - 1) * 100
        for outcomes in found.values() for one in outcomes if one.formula and one.holds
    ]  # fmt: skip
    given = found["as_given"]
    yield Row("ETTR with all capabilities", "%", 100 * mean(given, "ettr"), how=how)
    yield Row(
        "ETTR while placed, off Meta's formula: worst replay where its assumptions hold", "%", max(off), goal="at most 5",
        holds=max(off) <= 5, how=f"{how}; {len(off)} replays",
    )  # fmt: skip


def interval_row(run: Callable[[CapabilityCosts], list[FaultOutcome]], copies: bool, how: str) -> Row:
    base = replace(ALL, peer_copies=copies)
    chosen = mean(run(base), "ettr")
    fixed = {every_s: mean(run(replace(base, every_s=every_s)), "ettr") for every_s in FIXED_S}
    best = max(fixed, key=lambda every_s: fixed[every_s])
    with_ = "with" if copies else "without"
    return Row(
        f"ETTR of the chosen interval, {with_} copies in memory", "%", 100 * chosen, 100 * fixed[best],
        f"best fixed of {len(FIXED_S)}: {best:.0f} s", chosen / fixed[best], "beats every fixed one", chosen > fixed[best], how,
    )  # fmt: skip


def time_row(replay: FaultReplay) -> Row:
    gang, spares = LARGE
    begin = time.process_time()
    replay.run(
        ReplayCase(
            "", gang, 1, CapabilityCosts(spares, peer_copies=True, every_s=None, warm=True, preflight=True)
        )
    )
    took_s = time.process_time() - begin
    what = f"the whole trace with all capabilities, {gang} nodes and {spares} spares"
    return Row(what, "s of CPU", took_s, goal="at most 60", holds=took_s <= 60, how="measured here, 1 run")


if __name__ == "__main__":
    main(
        "faults",
        rows,
        lambda parser: parser.add_argument(
            "--seeds", type=int, choices=(1, 2, 3), default=3, help="how many seeds"
        ),
    )
