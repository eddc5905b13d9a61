"""Rows of the profiler: calls, copies, waits and memory from outside; kernels from a trace of PyTorch's own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

from gputest.common import Failed, Place, Result, last_line

_SECONDS = 8.0
BATCH_BYTES = 512 * 1024 * 4  # of work.py's trainer


def live(place: Place) -> Iterator[Result]:
    """``unidle profile PID --allocations`` of a training that goes on meanwhile."""
    with subprocess.Popen(
        place.work("profiled", str(_SECONDS + 12)),
        stdout=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise Failed("the training did not start")
            text = place.unidle(
                "profile",
                str(process.pid),
                "--seconds",
                str(_SECONDS),
                "--allocations",
                "--json",
                timeout_s=50,
            )
        finally:
            process.kill()
    told = json.loads(text)
    yield Result(
        "profile of a training",
        "ran",
        f"tier {told['tier']}, budget {_top(told['budget'])}",
        told["quality"]["samples"],
        "samples",
    )
    if place.rehearsal:
        return
    if told["tier"] != "T0":
        yield Result(
            "calls and memory of CUDA", "missing", f"tier {told['tier']}: {'; '.join(told['misses'][:2])}"
        )
        return
    yield from _calls(told)
    lines = [row for row in told["memory"] or [] if str(row["device"]).startswith("cuda")]
    if not lines:
        raise Failed("no allocation on the GPU was seen")
    allocated = sum(row["allocated_bytes"] for row in lines) / 2**20
    yield Result("allocations in the GPU's memory", "ran", f"at {len(lines)} lines", allocated, "MiB")


def _calls(told: dict[str, Any]) -> Iterator[Result]:
    """Launches, copies and waits, against what a step of the training makes."""
    calls, steps = told["calls"], told["steps"]["count"]
    notes = "; ".join(told["quality"]["notes"])
    for what, found in (
        ("kernel launches", [one for one in calls if one["kind"] == "launch"]),
        ("copies", [one for one in calls if one["kind"] == "copy"]),
        ("waits for the GPU", [one for one in calls if one["kind"] == "sync"]),
    ):
        count = sum(one["count"] for one in found)
        if not count:
            yield Result(
                what, "missing" if notes else "failed", notes or "none was seen, and each step makes some"
            )
            continue
        yield Result(
            what, "ran", ", ".join(one["name"] for one in found[:3]), count / max(steps, 1), "a step"
        )
        if what == "copies" and steps:
            moved = sum(one["bytes"] for one in found) / steps
            near = 0.8 * BATCH_BYTES < moved < 1.25 * BATCH_BYTES
            says = f"a batch has {BATCH_BYTES / 2**20:g} MiB"
            yield Result("bytes copied", "ran" if near else "failed", says, moved / 2**20, "MiB a step")


def _top(budget: dict[str, float]) -> str:
    return ", ".join(
        f"{name} {share:.0f} %" for name, share in sorted(budget.items(), key=lambda one: -one[1])[:3]
    )


def kernels(place: Place) -> Iterator[Result]:
    """Kernel times are not to be had from outside without CUPTI: a trace of torch.profiler is imported."""
    trace = place.directory / "trace.json"
    done = subprocess.run(
        place.work("traced", str(trace)), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise Failed(f"torch.profiler did not run: {last_line(done.stderr)}")
    own = json.loads(last_line(done.stdout))
    told = json.loads(place.unidle("profile", "--from", trace, "--json", timeout_s=40))
    seen = [one for one in told["calls"] if one["kind"] == "kernel"]
    count, spent_us = sum(one["count"] for one in seen), sum(one["ns"] or 0 for one in seen) / 1e3
    if count != own["kernels"] or abs(spent_us - own["kernel_us"]) > 0.01 * own["kernel_us"] + 1:
        raise Failed(
            f"{count} kernels of {spent_us:.0f} us, where torch.profiler has {own['kernels']} of {own['kernel_us']:.0f} us"
        )
    says = f"all of torch.profiler's, {spent_us / 1e3:.1f} ms"
    if not place.rehearsal and not own["kernels"]:
        raise Failed("torch.profiler recorded no kernel (CUPTI)")
    yield Result("kernels from a trace of torch.profiler", "ran", says, own["kernels"] or None, "kernels")
    yield Result(
        "kernels by an injected CUPTI library",
        "missing",
        "there is none in this version: import a trace of torch.profiler or nsys",
    )
