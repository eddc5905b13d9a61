"""A view with one job in it."""

from __future__ import annotations

import pytest

from unidle.view.state import View
from view.telling import Telling


@pytest.fixture
def one_job() -> View:
    """Job ``j`` of one rank, placed on a node of two devices."""
    return Telling(2).submit("j").place("j", "n0/0").view
