"""Machines on which gangs are started: with control groups, and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from engine_local.local_gangs import Machine


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
