"""Logs of many programs: those that train, with their steps, and those that do not.

``logs/steps`` holds the shapes of logs of trainings, and ``logs/steps.tsv`` how many of their lines are steps, the first
step and the last. ``logs/none`` holds logs without a step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from progress.feeding import SECOND, cut
from unidle.engine.local.ranks.supervisor.progress import Scanner
from unidle.engine.local.ranks.supervisor.progress.scanner import OutputSummary, read_output

LOGS = Path(__file__).parent / "logs"
Steps = tuple[int, int | None, int | None]


def _table() -> dict[str, Steps]:
    rows = [line.split("\t") for line in (LOGS / "steps.tsv").read_text().splitlines()[1:]]
    return {name: (int(marks), int(first), int(last)) for name, marks, first, last in rows}


STEPS = _table()
TRAININGS = {name: (LOGS / "steps" / f"{name}.txt").read_bytes() for name in STEPS}
OTHERS = {path.stem: path.read_bytes() for path in sorted((LOGS / "none").iterdir())}
NONE: Steps = (0, None, None)


def _steps(found: OutputSummary) -> Steps:
    return found.marks, found.first, found.last


def _wrong(read: dict[str, Steps], expected: dict[str, Steps]) -> dict[str, tuple[Steps, Steps]]:
    """What was read otherwise than expected: by log, what was expected and what was read."""
    return {name: (expected[name], steps) for name, steps in read.items() if steps != expected[name]}


def _before_each_line(prefix: Callable[[int], str], data: bytes) -> bytes:
    lines = data.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    return "".join(f"{prefix(k)}{line}\n" for k, line in enumerate(lines)).encode()


def test_the_table_names_each_log() -> None:
    assert {path.stem for path in (LOGS / "steps").iterdir()} == STEPS.keys()
    assert len(STEPS) >= 60 and len(OTHERS) >= 40


def test_each_step_of_a_training_is_read_and_nothing_else() -> None:
    assert _wrong({name: _steps(read_output([data])) for name, data in TRAININGS.items()}, STEPS) == {}


def test_a_log_of_something_else_has_no_step() -> None:
    assert {name for name, data in OTHERS.items() if read_output([data]).marks} == set()


@pytest.mark.parametrize(
    "prefix",
    [
        lambda k: f"2026-03-01 12:{k // 60 % 60:02}:{k % 60:02},{k % 1000:03} - root - INFO - ",
        lambda k: f"I0301 12:{k // 60 % 60:02}:{k % 60:02}.{k % 1000:06} 4121 main.py:88] ",
        lambda _: "(Worker pid=4121) ",
    ],
    ids=["logging", "glog", "ray"],
)
def test_what_a_logger_or_a_launcher_puts_before_lines_changes_nothing(prefix: Callable[[int], str]) -> None:
    def read(logs: dict[str, bytes]) -> dict[str, Steps]:
        whole_lines = {name: data for name, data in logs.items() if b"\r" not in data}
        return {
            name: _steps(read_output([_before_each_line(prefix, data)])) for name, data in whole_lines.items()
        }

    assert _wrong(read(TRAININGS), STEPS) == {}
    assert {name for name, steps in read(OTHERS).items() if steps != NONE} == set()


def test_a_training_behind_the_log_of_something_else_is_read() -> None:
    name = "own_eval_interleaved"
    read = {other: _steps(read_output([data, b"\n", TRAININGS[name]])) for other, data in OTHERS.items()}
    assert _wrong(read, dict.fromkeys(OTHERS, STEPS[name])) == {}


@settings(max_examples=25)
@given(name=st.sampled_from(sorted(STEPS)), seed=st.integers(0, 2**32), most=st.sampled_from([9, 300, 9000]))
def test_a_rank_that_prints_a_log_piece_by_piece_has_the_steps_of_the_file(
    name: str, seed: int, most: int
) -> None:
    scanner, t_ns = Scanner(), 0
    for chunk in cut(TRAININGS[name], seed, most):
        t_ns += SECOND
        scanner.feed("stdout", chunk, t_ns)
    marks = scanner.flush(t_ns)
    assert (scanner.lines, scanner.first_step, scanner.last_step) == STEPS[name]
    assert [mark["n"] for mark in marks if mark["k"] == "step"][-1:] in ([], [STEPS[name][2]])
