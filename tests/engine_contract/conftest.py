"""A rig for each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_contract.engines import RIGS, close_lab
from engine_contract.rigs import EngineRig


@pytest.fixture(scope="session", autouse=True)
def hosts_are_taken_down() -> Iterator[None]:
    yield
    close_lab()


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineRig]:
    with RIGS[request.param](tmp_path) as made:
        yield made
