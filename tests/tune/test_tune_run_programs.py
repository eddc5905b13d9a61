"""The programs of `bench/tune_run.py`: each slow-down has an edit, the oracle's form needs none, and mutants are programs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from benches import bench_module
from unidle.tune.fixes.changes import planned_changes
from unidle.tune.settings import TuneSettings

PROGRAMS: Any = bench_module("_tune_run_programs")


def codes(folder: Path, text: str) -> set[str]:
    (folder / "train.py").write_text(text)
    return {one.code for one in planned_changes(folder, [str(folder)], TuneSettings()).changes}


@pytest.mark.parametrize("seed", range(12))
def test_all_that_is_planted_has_an_edit_and_the_oracles_form_has_none(tmp_path: Path, seed: int) -> None:
    one = PROGRAMS.run_program(seed)
    assert codes(tmp_path, one.text) == set(one.codes) != set()
    assert codes(tmp_path, one.oracle) == set()
    assert PROGRAMS.run_program(seed) == one


def test_there_are_a_hundred_mutants_that_each_change_one_place() -> None:
    found = PROGRAMS.mutants()
    assert len({(one.program, one.old, one.new) for one in found}) == len(found) >= 100
    texts = {name: PROGRAMS.plain_program(name) for name in PROGRAMS.TEMPLATES}
    for one in found:
        assert texts[one.program].count(one.old) == 1
        ast.parse(texts[one.program].replace(one.old, one.new))
    assert any("shuffle" in one.old for one in found)
    assert any("Dropout" in one.old for one in found)
