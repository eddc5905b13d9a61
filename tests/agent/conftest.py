"""A hub and a host, for tests with an agent as a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.hosts import Host
from agent.hubs import TestHub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[TestHub]:
    hub = TestHub(tmp_path / "hub")
    yield hub
    hub.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.end_boxes()
