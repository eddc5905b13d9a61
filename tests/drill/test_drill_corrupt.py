"""How each way to damage the newest checkpoint changes its files; what a gang does then is in ``test_drill_faults``."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unidle.drill.fail import Fault
from unidle.drill.inject import NotYet, inject

SIZE = 3000


def injected(directory: Path, how: str) -> None:
    """Into the newest of these checkpoints; of a testbed nothing but their place is used."""
    given: Any = SimpleNamespace(checkpoint=directory)
    inject(given, Fault("corrupt_checkpoint", "checkpoint", how=how), random.Random(1))


def saved(directory: Path, *, whole: bool) -> list[Path]:
    """Two checkpoints, each a file or a directory of two files; the larger file of each, the newest last."""
    found = []
    for step in (10, 20):
        path = directory / (f"step_{step}" if whole else f"step_{step}.npz")
        if whole:
            path.mkdir(parents=True)
            (path / "head.json").write_text("{}")
            path = path / "data.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(SIZE))
        found.append(path)
    return found


@pytest.mark.parametrize("whole", [True, False], ids=["directory", "file"])
@pytest.mark.parametrize("how", ["truncate", "flip", "remove"])
def test_the_newest_checkpoint_is_damaged_and_the_one_before_it_is_left(
    tmp_path: Path, how: str, whole: bool
) -> None:
    before, newest = saved(tmp_path, whole=whole)
    injected(tmp_path, how)
    assert before.read_bytes() == bytes(SIZE)
    if how == "remove":
        assert not newest.exists() and (not whole or not newest.parent.exists())
    elif how == "truncate":
        assert newest.read_bytes() == bytes(SIZE * 2 // 3)
    else:
        data = newest.read_bytes()
        assert len(data) == SIZE and sum(byte.bit_count() for byte in data) == 1
        assert any(data[SIZE // 2 :])  # the head of a format is at the front


def test_before_the_first_checkpoint_the_fault_waits(tmp_path: Path) -> None:
    with pytest.raises(NotYet):
        injected(tmp_path, "flip")
