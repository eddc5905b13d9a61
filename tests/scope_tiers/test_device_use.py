"""A trace of torch.profiler: the device's busy time, what it waited for, and the lines that its kernels belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unidle.scope.device_use import devices_of, lines_on_device
from unidle.scope.export.folded import read
from unidle.scope.tiers import imported

STEP_US = 10_000


class Trace:
    """Three steps as Kineto writes them: a loader, a forward, a backward on autograd's thread, and a wait for a value."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._links = 0
        for step in range(3):
            self._step(step, 1_000 + step * STEP_US)

    def _step(self, step: int, at: float) -> None:
        self.call("user_annotation", f"ProfilerStep#{step + 5}", at, STEP_US)
        self.device(f"ProfilerStep#{step + 5}", at, STEP_US, {}, "gpu_user_annotation")
        self.call("python_function", "train.py(40): train", at, STEP_US)
        self.call("python_function", "data/loader.py(12): __next__", at, 4_000)
        self.call("python_function", "model.py(33): forward", at + 4_000, 1_000)
        self.call("cpu_op", "aten::linear", at + 4_000, 900)
        self.launch("sgemm_forward", at + 4_000, at + 4_100, 1_900)
        self.call("python_function", "train.py(50): backward", at + 5_000, 1_000)
        self.call("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 5_010, 900, tid=9)
        self.launch("sgemm_backward", at + 5_020, at + 6_000, 3_000, tid=9)
        self.call("python_function", "train.py(52): item", at + 6_000, 3_000)
        self.call("cuda_runtime", "cudaStreamSynchronize", at + 6_000, 3_000, correlation=10**6 + step)

    def call(self, category: str, name: str, at: float, took: float, tid: int = 7, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": at, "dur": took, "args": args}
        )  # fmt: skip

    def device(
        self, name: str, at: float, took: float, args: dict[str, Any], category: str = "kernel"
    ) -> None:
        told = {"device": 0, "stream": 7, **args}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": at, "dur": took, "args": told}
        )  # fmt: skip

    def launch(self, name: str, at: float, runs_at: float, took: float, tid: int = 7) -> None:
        self._links += 1
        self.call("cuda_runtime", "cudaLaunchKernel", at, 5, tid, correlation=self._links)
        self.device(name, runs_at, took, {"correlation": self._links, "External id": self._links})

    def write(self, path: Path) -> str:
        document = {"schemaVersion": 1, "baseTimeNanoseconds": 10**18, "traceEvents": self.events}
        path.write_text(json.dumps(document))
        return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return Trace().write(tmp_path / "trace.json")


def test_the_busy_time_and_what_the_device_waited_for_add_up(trace: str) -> None:
    (one,) = devices_of(imported.read(trace))
    assert one.name == "cuda:0"
    assert one.busy_ns == 3 * 4_900_000  # 1.9 and 3 ms in each step
    waits = dict(one.waits)
    assert waits["__next__ (loader.py:12)"] == 3 * 4_000_000
    assert waits["forward (model.py:33)"] == 3 * 100_000
    assert waits["train (train.py:40)"] == 3 * 1_000_000
    assert one.busy_ns + one.idle_ns == 3 * STEP_US * 1000


def test_kernels_belong_to_the_line_that_launched_them_autograds_to_that_of_backward(trace: str) -> None:
    assert lines_on_device(imported.read(trace)) == [
        ("backward (train.py:50)", 9_000_000),
        ("forward (model.py:33)", 5_700_000),
    ]


def test_the_commands_show_it_first_count_steps_and_call_no_kernel_on_cpu(trace: str) -> None:
    from e2e.commands import unidle

    shown = unidle("profile", "--from", trace).stdout
    lines = shown.splitlines()
    assert lines[2] == "cuda:0 was busy 49 % of 30.0 ms; it waited"
    assert lines[3] == "   40.0 %  while the host was in __next__ (loader.py:12)"
    assert "3 steps (as the profiler marked them), median 10 ms" in shown
    told = json.loads(unidle("profile", "--from", trace, "--json").stdout)
    assert told["devices"][0]["busy_pct"] == 49.0
    assert (told["steps"]["count"], told["steps"]["of"], told["steps"]["p50_ms"]) == (3, "step", 10.0)
    folded = unidle("profile", "--from", trace, "--format", "folded").stdout
    stacks = read(folded.encode())
    kernels = [stack for stack in stacks if any(frame.startswith("sgemm") for frame in stack)]
    assert kernels and all(stack[-1] == "[on a device]" for stack in kernels)
    assert any("forward (model.py:33)" in stack for stack in kernels)
