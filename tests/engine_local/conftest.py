"""Machines on which gangs are started: with control groups, and without."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from engine_local.local_gangs import Machine
from engine_local.recorded_nvml import RecordedNvml
from engine_local.sharing import MPS_CONTROL, Sharing


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """As this machine is."""
    machine = Machine(tmp_path / "runs", grouped=True)
    yield machine
    machine.close()


@pytest.fixture(params=["grouped", "bare"])
def any_machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """With control groups, and as if there were none."""
    grouped = request.param == "grouped"
    if grouped and not needs.cgroup_roots():
        pytest.skip("needs control groups that this user may make")
    machine = Machine(tmp_path / "runs", grouped=grouped)
    yield machine
    machine.close()


@pytest.fixture
def sharing(machine: Machine, tmp_path: Path) -> Iterator[Sharing]:
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(MPS_CONTROL)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environ = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    made = Sharing(machine, RecordedNvml(), environ, tmp_path / "mps")
    made.parent.mkdir()
    yield made
    for gang in machine.gangs:
        key = (gang.command.job, gang.command.attempt)
        if key in gang.engine._gangs:  # not released by the test
            gang.stop(0)
            gang.ends()
            gang.engine.release(*key)
    assert not made.daemons()
