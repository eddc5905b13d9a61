"""Layers of a real model, measured: together they should take what the model takes uncut, and repeats should agree.

The model is examples/span/profiled_model.py on CPUs. Other programs on the machine widen the intervals.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _table import Row, main

FILE = Path(__file__).parents[1] / "examples" / "span" / "profiled.yaml"
WITHIN, AGREE = 1.1, 1.1


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    one, other = _profile(arguments.repeats), _profile(arguments.repeats)
    whole, uncut = one["sum_ns"] / 1e6, one["step_ns"]["value"] / 1e6
    low, high = one["step_ns"]["low"] / 1e6, one["step_ns"]["high"] / 1e6
    how = f"measured here, medians of {arguments.repeats}"
    yield Row(
        "layers of a small GPT together, measured apart", "ms", whole, uncut, "the model uncut", uncut / whole,
        f"within {100 * (WITHIN - 1):.0f} %", 1 / WITHIN <= uncut / whole <= WITHIN, f"{how}; uncut {low:.1f} to {high:.1f} ms",
    )  # fmt: skip
    worst = max(max(a / b, b / a) for a, b in zip(_sums(one), _sums(other), strict=True))
    yield Row(
        "a layer measured in two runs: the most it differs",
        "times",
        worst,
        goal=f"<= {AGREE}",
        holds=worst <= AGREE,
        how=how,
    )


def _sums(told: dict[str, Any]) -> list[int]:
    return [
        sum(layer[f"{part}_ns"] for part in ("forward", "backward", "weight")) for layer in told["layers"]
    ]


def _profile(repeats: int) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "unidle",
        "span",
        "profile",
        str(FILE),
        "--microbatch",
        "4",
        "--threads",
        "1",
    ]
    done = subprocess.run(
        [*command, "--repeats", str(repeats), "--json"],
        check=True,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=20)


if __name__ == "__main__":
    main("span_profile", rows, add_arguments)
