"""What a short run does not use is not loaded for it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from unidle.control.nodes.late_detectors import AFTER_S, LateDetectors
from unidle.files.fleet import fleet_from_mapping
from unidle.fleet import Fleet
from unidle.view.state import View
from waiting import wait_until

LATE = (
    "unidle.control.nodes.detectors", "unidle.engine.local.commands", "unidle.control.gangs.progress_watch", "unidle.control.nodes.preflight", "unidle.control.nodes.remedies",
    "unidle.guard.progress", "unidle.guard.remedy", "unidle.guard.slowness", "unidle.probe",
)  # fmt: skip


def loaded_by(code: str) -> set[str]:
    words = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    return set(subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split())


def test_taking_up_a_store_loads_nothing_that_looks_after_nodes() -> None:
    assert not loaded_by("import unidle.control.session") & set(LATE)


def fleet(**node: object) -> Fleet:
    return fleet_from_mapping({"nodes": [{"id": "n1", "devices": {"kind": "cpu"}, **node}]}, "test")


def test_detectors_that_nobody_asked_for_begin_when_the_run_has_lasted_a_while(tmp_path: Path) -> None:
    late, begun_s = LateDetectors(fleet(), tmp_path / "watch.json", 0), time.monotonic()
    late.start()
    try:
        assert late._made is None
        wait_until(lambda: list(late.take(View(), 0)), 60, "what the detectors see")
        assert time.monotonic() - begun_s >= AFTER_S
    finally:
        late.close()


@pytest.mark.parametrize(
    "asks", [{"watch": {"kernel_log": "x.log"}}, {"devices": {"kind": "gpu", "model": "H100"}}]
)
def test_detectors_that_the_fleet_asks_for_begin_with_the_run(
    tmp_path: Path, asks: dict[str, object]
) -> None:
    late = LateDetectors(fleet(**asks), tmp_path / "watch.json", 0)
    late.start()
    try:
        assert late._made is not None
    finally:
        late.close()
