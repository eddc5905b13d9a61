"""Some of the faults of ``bench/hosts_faults.py``: nothing is lost or started twice, no two attempts live, nothing is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import needs
from host_faults.run import FAULTS, run_fault

TRIES = {
    "cable pulled for 1 s": 1,
    "box killed and host cut within the grace of a stop": 1,
    "box killed at a line of its restart": 2,
    "journal torn at any byte": 2,
    "frames repeated, reordered, cut, random": 1,
    "strangers: token, version, bytes": 1,
}


@needs.root
@needs.shaping
@pytest.mark.parametrize("name", TRIES)
def test_a_fault_loses_nothing_and_lets_no_two_attempts_run_at_once(name: str, tmp_path: Path) -> None:
    [fault] = [one for one in FAULTS if one.name == name]
    ended = run_fault(fault, tmp_path / "rig", TRIES[name], random.Random(name))
    assert ended.holds, [*ended.wrong, *ended.counts.words()]
    assert all("succeeded" in outcome for outcome in ended.outcomes)
