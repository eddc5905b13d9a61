"""Plans across data centres: equal to brute force, against ATLAS's greedy, seconds for many GPUs.

All iteration times are modelled. Greedy is ATLAS's choice of sites, reconstructed: the paper published no code. Small
cases are those of the tests, simulated with zb-h1, which does not search, so that brute force ends.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _table import Row, main
from unidle.errors import BadInput
from unidle.files.document import Document
from unidle.span.files.plan import load_plan, wanted_of
from unidle.span.plan.offer import PlanRequest
from unidle.span.plan.search import Objective, brute, greedy, plan

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
# The cases that the tests prove; mypy looks at src and bench only.
from span.plans import small_case  # type: ignore[import-not-found]  # noqa: E402

SECONDS, ATLAS_SECONDS = 1.0, 100.0


def wide(sites: int, gpus: int, batch: int) -> PlanRequest:
    """So many sites in a full mesh, 30 ms and 5 Gbit/s apart, the last one with a tenth of the devices."""
    names = [f"s{k}" for k in range(sites)]
    file: dict[str, Any] = {
        "model": {"layers": 60, "hidden": 8192, "sequence": 4096}, "batch": batch, "device_tflops": 400,
        "memory_cap_bytes": "80GB", "local_gbps": 100,
        "sites": [{"name": name, "gpus": gpus, "price_per_gpu_hour": 2 + k / 10} for k, name in enumerate(names)],
        "links": [
            {"from": a, "to": b, "latency_ms": 30, "capacity_gbps": 5, "egress_per_gb": 0.02}
            for a in names for b in names if a < b
        ],
    }  # fmt: skip
    return wanted_of(Document(file, "span"))


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    wanted: dict[str, Callable[[], Iterator[Row]]] = {
        "brute": lambda: _brute(arguments.cases), "wan": _wan, "speed": _speed,
    }  # fmt: skip
    for part in arguments.parts or wanted:
        yield from wanted[part]()


def _brute(cases: int) -> Iterator[Row]:
    equal = possible = tried = every = seed = 0
    ratios = list[float]()
    while possible < cases:
        case = small_case(seed)
        objective: Objective = "cost" if seed % 2 else "time"
        seed += 1
        try:
            best = brute(case, objective, "zb-h1")
        except BadInput:
            continue
        ours = plan(case, objective, "zb-h1", work_most=None)
        possible += 1
        equal += ours.value == best.value
        tried, every = tried + ours.simulated, every + best.simulated
        if ours.greedy is not None and ours.value:
            ratios.append(ours.greedy / ours.value)
    yield Row(
        f"plans equal to brute force, of {cases} random small cases", "cases", equal, cases, "brute force", 1.0,
        f"all {cases}", equal == cases,
        f"modelled; {tried:,} simulations instead of {every:,}; by time and by cost in turn; {seed - possible} more hold no layout",
    )  # fmt: skip
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    yield Row(
        f"greedy over ours, geometric mean of {len(ratios)} of them", "times", mean, 1.0, "ATLAS's greedy, reconstructed", mean,
        "never worse", min(ratios) >= 1, f"modelled; {min(ratios):.3f} to {max(ratios):.3f}",
    )  # fmt: skip


def _wan() -> Iterator[Row]:
    case = load_plan(ROOT / "examples" / "span" / "plan-wan.yaml")[0]
    for objective in ("time", "cost"):
        ours = plan(case, objective)
        theirs = greedy(case, objective)
        scale, unit = (1e6, "ms") if objective == "time" else (1.0, "money")
        yield Row(
            f"public WAN matrix, least {objective}: {', '.join(case.offers[k].name for k in ours.layout.order)}", unit,
            ours.value / scale, theirs.value / scale, "ATLAS's greedy, reconstructed", theirs.value / ours.value,
            "never worse", ours.value <= theirs.value,
            f"modelled; within {ours.gap_pct:.2f} % of the bound; {'proved' if ours.proved else 'not proved'}",
        )  # fmt: skip


def _speed() -> Iterator[Row]:
    for sites, gpus, batch in ((5, 600, 128), (5, 600, 512), (5, 600, 600), (10, 10_000, 2048)):
        case = wide(sites, gpus, batch)
        took, busy = list[float](), list[float]()
        for _ in range(3):
            begin, used = time.perf_counter(), time.process_time()
            ours = plan(case)
            took.append(time.perf_counter() - begin)
            busy.append(time.process_time() - used)
        middle = statistics.median(took)
        known = (sites, gpus) == (5, 600)
        yield Row(
            f"{sites} sites x {gpus:,} GPUs, batch {batch}", "s", middle, ATLAS_SECONDS if known else None,
            "ATLAS, 128 GPUs, published by Sailor" if known else None, ATLAS_SECONDS / middle if known else None,
            f"under {SECONDS:g}" if known else None, middle < SECONDS if known else None,
            f"measured here, 3 runs, {min(took):.2f} to {max(took):.2f} s ({statistics.median(busy):.2f} s of one core); {ours.considered:,} layouts, {ours.simulated} simulated;"
            f" within {ours.gap_pct:.1f} % of the bound",
        )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", help="brute, wan, speed; none means all")
    parser.add_argument("--cases", type=int, default=500)


if __name__ == "__main__":
    main("span_plan", rows, add_arguments)
