"""The budget of running processes beside their own timers, which no rule has seen."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
from scope_truth.compare import NAMES, compared, shares

# Points. bench/profile_truth.py has the goals (2 and 3); a wrong rule is off by more than these, a busy machine by less.
EACH, TOGETHER = 5.0, 6.0


def test_a_window_counts_the_parts_of_pieces_inside_it() -> None:
    pieces = [("compute", 0, 100, 0), ("data", 100, 200, 50), ("compute", 220, 300, 0)]
    assert shares(pieces, 50, 250) == {"compute": 40.0, "cpu_contention": 25.0, "data": 25.0, "other": 10.0}


@pytest.mark.slow
@needs.ebpf
@pytest.mark.parametrize("name", NAMES)
def test_the_budget_is_what_the_processes_own_timers_say(name: str, tmp_path: Path) -> None:
    found = compared(name, tmp_path)
    assert found.profile["quality"]["drops"] == 0
    assert found.misplaced <= TOGETHER, found.text()
    assert max(map(abs, found.errors.values())) <= EACH, found.text()
