"""The row of `make test-gpu` that injects the library, on a driver that is played."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from scope_kernels.playing import PROGRAM, build

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from gputest.common import Missing, Place  # noqa: E402
from gputest.profile_rows import _injected  # noqa: E402

TRAINING = (
    PROGRAM.partition("for line")[0]
    + """
import json, select
sys.stdin.readline()
began_ns = time.time_ns()
kernel(120, ns=2000)
time.sleep(0.001)
print(json.dumps({"began_ns": began_ns, "ended_ns": time.time_ns()}), flush=True)
while not select.select([sys.stdin], [], [], 0.005)[0]:
    kernel(10)
"""
)


@dataclass(frozen=True, slots=True)
class Played(Place):
    """Its training has a driver that is played."""

    def work(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", TRAINING]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build(tmp_path)))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return Played(tmp_path, "cuda")


def test_count_and_time_are_compared_with_those_of_torch_profiler(place: Played) -> None:
    found = {one.what: one for one in _injected(place, {"kernels": 120, "kernel_us": 240.0})}
    one = found["kernels by an injected CUPTI library"]
    assert (one.state, one.value) == ("ran", 120), one.says
    assert (found["kernels in a look at that process"].value or 0) >= 10


def test_another_count_fails_and_a_cupti_that_refuses_is_missing(
    place: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [one.state for one in _injected(place, {"kernels": 121, "kernel_us": 240.0})]
    assert states[0] == "failed"
    monkeypatch.setenv("PLAYED_REFUSES", "cuptiActivityEnable")
    with pytest.raises(Missing, match="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"):
        list(_injected(place, {"kernels": 120, "kernel_us": 240.0}))
