"""Every acknowledged submit, cancel and mark is in the final log, while processes, connections, files and clocks fail."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
from histories.run import Result, run

pytestmark = pytest.mark.slow
FAULTS = 5


def told(result: Result) -> str:
    return "\n".join(map(str, result.violations))


@pytest.mark.parametrize(
    "store", [pytest.param("sqlite", marks=needs.root), pytest.param("postgres", marks=needs.postgres)]
)
def test_nothing_acknowledged_is_lost(store: str, tmp_path: Path) -> None:
    result = run(store, tmp_path / "round", 1, faults=FAULTS)
    assert not result.violations, told(result)
    assert result.ops["submit acknowledged"] >= 5
    assert result.ops["mark acknowledged"] >= 20
    assert sum(result.faults.values()) == FAULTS


@needs.root
def test_a_deleted_write_ahead_log_is_reported(tmp_path: Path) -> None:
    result = run("sqlite", tmp_path / "round", 2, faults=1, deletes_wal=True, only=("wal_deleted",))
    assert not result.violations, told(result)
    assert result.faults["wal_deleted"] == 1
    assert all(loss.said for loss in result.history.losses)
