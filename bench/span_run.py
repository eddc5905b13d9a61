"""A real run over four sites, compared with its model, gloo with 1F1B on the same links, and one process. Needs root.

Each site is a network namespace; links are limited by htb, latency comes from a relay in user space. Four ranks share
the machine's cores: devices are paced, so that each takes the stated time for an operation, as a GPU of its own would. The computation is
real and has to be done within that time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from _table import Row, main

SITES = ("oregon", "ohio", "virginia", "london")
WIDTH, LENGTH = 64, 64
LINEAR = f"""
import torch
from torch import nn


def build(layers=4):
    return nn.Sequential(*(nn.Linear({WIDTH}, {WIDTH}) for _ in range(layers)))


def batch(_step, _index, size, seed):
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(size, {LENGTH}, {WIDTH}, generator=chance)
    return x, x.flip(2)


def loss(output, target):
    return nn.functional.mse_loss(output, target)
"""


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="unidle-bench-span-") as place:
        if arguments.only in (None, "step"):
            yield from _step(Path(place), arguments)
        if arguments.only in (None, "links"):
            yield from _bound_by_links(Path(place), arguments)
        if arguments.only in (None, "gradients"):
            yield from _gradients(Path(place))
        if arguments.only in (None, "shares"):
            yield from _shares(Path(place), arguments)


def _step(place: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    """The example: a GPT, 8 microbatches, bound by computation and latency."""
    told = _run(_example(), place, "example", "--steps", str(arguments.steps), "--compare", "gloo,single")
    took, modelled = told["step_ns"]["measured"], told["step_ns"]["modelled"]
    how = f"measured here, median of {told['steps']} steps"
    yield Row(
        "4 sites, GPT, 20 ms, 50 Mbit/s: step, compared with its simulation", "ms", took / 1e6, modelled / 1e6, "simulated",
        modelled / took, "within 10 %", abs(took / modelled - 1) <= 0.1, how,
    )  # fmt: skip
    peer = told["compare"]["gloo"]["step_ns"]
    yield Row(
        "the same, compared with gloo send/recv with 1F1B", "ms", took / 1e6, peer / 1e6, "gloo, 1F1B", peer / took,
        "faster", peer > took, f"{how}; the peer's receives are posted ahead, its sends do not block",
    )  # fmt: skip
    single = told["compare"]["single"]
    yield Row(
        "the same in one process, float32: largest difference of the loss", "", single["loss_difference"],
        goal="at most 1e-5", holds=single["loss_difference"] <= 1e-5, how=f"measured here, {single['steps']} steps",
    )  # fmt: skip


def _bound_by_links(place: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    """Little to compute, 192 microbatches: the step is as long as the wire needs."""
    (place / "linear.py").write_text(LINEAR)
    size = 8 * LENGTH * WIDTH * 4
    file = _file(
        place / "linear.py", {"forward": 3, "backward": 3, "weight": 3}, 192, 5, size, "float32", 0.02
    )
    told = _run(file, place, "links", "--steps", str(arguments.link_steps))
    use = max(told["link_use"].values())
    took, modelled = told["step_ns"]["measured"], told["step_ns"]["modelled"]
    how = f"measured here, median of {told['steps']} steps; step {took / 1e6:.0f} ms, simulated {modelled / 1e6:.0f} ms"
    yield Row(
        "4 sites, bound by links of 20 Mbit/s, 5 ms: of what the busiest link can carry over the whole step", "%",
        100 * use, goal="at least 90", holds=use >= 0.9, how=how,
    )  # fmt: skip


def _gradients(place: Path) -> Iterator[Row]:
    """One step of plain SGD with rate 1 in float64: what parameters differ by is what gradients differ by."""
    (place / "linear.py").write_text(LINEAR)
    file = _file(
        place / "linear.py",
        {"forward": 5, "backward": 5, "weight": 5},
        8,
        5,
        8 * LENGTH * WIDTH * 8,
        "float64",
    )
    told = _run(file, place, "gradients", "--steps", "1", "--compare", "single")
    found = told["compare"]["single"]["parameter_difference"]
    yield Row(
        "largest difference of a gradient to one process, float64", "", found, goal="0", holds=found == 0,
        how=f"measured here, {told['compare']['single']['parameters']:,} parameters after one step of SGD with rate 1",
    )  # fmt: skip


def _shares(place: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    """Two pipelines, the devices of one half as fast: microbatches by speed, compared with as many for each."""
    (place / "linear.py").write_text(LINEAR)
    size = 8 * LENGTH * WIDTH * 8
    file = _file(place / "linear.py", {"forward": 20, "backward": 20, "weight": 20}, 8, 5, size, "float64")
    file |= {"pipelines": 2, "pipeline_speeds": [1, 0.5], "stages": 2}
    file |= {"sites": file["sites"][:2], "links": file["links"][:1]}
    file["train"]["optimizer"]["arguments"]["lr"] = 0.1
    words = ("--steps", str(arguments.share_steps))
    even = _run(file | {"microbatches": [8, 8]}, place, "even", *words)["step_ns"]["measured"]
    told = _run(file, place, "by-speed", *words, "--compare", "single")
    took, modelled = told["step_ns"]["measured"], told["step_ns"]["modelled"]
    counts = " and ".join(map(str, told["shares"][-1]["microbatches"]))
    how = f"measured here, median of {told['steps']} steps"
    yield Row(
        f"2 sites, 2 pipelines, one half as fast: step with {counts} microbatches, compared with 8 and 8", "ms", took / 1e6,
        even / 1e6, "as many each", even / took, "faster", took < even, how,
    )  # fmt: skip
    yield Row(
        "the same, compared with its simulation", "ms", took / 1e6, modelled / 1e6, "simulated", modelled / took, "within 10 %",
        abs(took / modelled - 1) <= 0.1, how,
    )  # fmt: skip
    found = told["compare"]["single"]["parameter_difference"]
    yield Row(
        "the same, largest difference of a parameter to one process, float64", "", found, goal="0", holds=found == 0,
        how=f"measured here, after {arguments.share_steps} steps",
    )  # fmt: skip


def _file(
    model: Path, ms: dict[str, int], count: int, latency_ms: float, size: int, dtype: str, gbps: float = 0.05
) -> dict[str, Any]:
    functions = {name: f"{model}:{name}" for name in ("build", "batch", "loss")}
    return {
        "stage_ns": {name: value * 1_000_000 for name, value in ms.items()}, "activation_bytes": size, "stages": len(SITES),
        "microbatches": count, "sites": [{"name": name, "stages": 1} for name in SITES],
        "links": [{"from": a, "to": b, "latency_ms": latency_ms, "capacity_gbps": gbps} for a, b in pairwise(SITES)],
        "train": {
            "model": {"build": functions["build"], "dtype": dtype}, "data": functions["batch"], "loss": functions["loss"],
            "microbatch": 8, "steps": 1, "optimizer": {"name": "sgd", "arguments": {"lr": 1.0}}, "pace": True,
            "checkpoint": {"directory": str(model.parent / f"kept-{dtype}"), "every": 1000},
        },
    }  # fmt: skip


def _example() -> dict[str, Any]:
    import yaml

    place = Path(__file__).resolve().parents[1] / "examples" / "span"
    file: dict[str, Any] = yaml.safe_load((place / "train.yaml").read_text())
    train = file["train"]
    train["model"]["build"] = f"{place}/{train['model']['build']}"
    for name in ("data", "loss"):
        train[name] = f"{place}/{train[name]}"
    return file


def _run(file: dict[str, Any], place: Path, name: str, *words: str) -> dict[str, Any]:
    path = place / f"{name}.json"
    path.write_text(json.dumps(file))
    command = [
        sys.executable,
        "-m",
        "unidle",
        "span",
        "run",
        str(path),
        "--namespaces",
        "--json",
        "--fresh",
        "--replan",
        "0",
    ]
    done = subprocess.run(
        [*command, "--store", str(place / f"{name}.db"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(f"bench/span_run.py: {name}: {done.stderr.strip() or done.stdout.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", choices=("step", "links", "gradients", "shares"), help="one of the four parts"
    )
    parser.add_argument("--steps", type=int, default=15, help="of the example")
    parser.add_argument("--share-steps", type=int, default=6, help="of each run of unequal pipelines")
    parser.add_argument("--link-steps", type=int, default=4, help="of the run that is bound by its links")


if __name__ == "__main__":
    main("span_run", rows, options)
