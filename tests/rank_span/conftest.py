"""One process that starts all ranks of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rank_span.runs import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()
