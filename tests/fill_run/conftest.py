"""What these tests need of the machine."""

from __future__ import annotations

import pytest

from unidle.engine.local.ranks.cgroups import detect


@pytest.fixture(scope="session")
def groups() -> None:
    """Control groups of the cpu controller can be made here."""
    found = detect("unidle-fill-test")
    if "cpu" not in found and "unified" not in found:
        pytest.skip("no control groups here")
