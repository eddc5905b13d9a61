"""Third-party programs, run as a new user would: each is shown, its steps are read, and a failure says why."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from e2e.commands import ask, unidle
from e2e.programs import BAD, GOOD, PROGRAMS, Program

pytestmark = pytest.mark.slow  # one run of each, two at a time


class Ran(NamedTuple):
    text: str  # all that a user sees of it without a terminal
    job: dict[str, Any]
    steps: dict[str, Any]
    explained: str


def run(program: Program, directory: Path) -> Ran:
    store = directory / f"{program.name}.db"
    options = ("--store", store, "--cpu-devices", "2", "--max-restarts", "3", *program.options)
    done = unidle("run", *options, PROGRAMS / program.name, cwd=directory, timeout_s=120)
    steps = ask("progress", "--store", store)
    explained = unidle("explain", "--store", store).stdout
    return Ran(done.stdout + done.stderr, ask("show", "--store", store), steps, explained)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    directory = tmp_path_factory.mktemp("programs")
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda program: run(program, directory), (*GOOD, *BAD))
        return {program.name: one for program, one in zip((*GOOD, *BAD), found, strict=True)}


@pytest.mark.parametrize("program", GOOD, ids=lambda program: program.name)
def test_a_program_that_succeeds_is_shown_and_its_steps_are_read(
    program: Program, ran: dict[str, Ran]
) -> None:
    one = ran[program.name]
    assert one.job["state"] == "succeeded", one.text
    assert program.shown in one.text
    assert (one.steps["marks"], one.steps["last"]) == (program.marks, program.last)
    assert ("no steps were seen" in one.text) == (program.marks == 0)


@pytest.mark.parametrize("program", BAD, ids=lambda program: program.name)
def test_a_program_that_fails_is_explained_and_not_retried_in_vain(
    program: Program, ran: dict[str, Ran]
) -> None:
    one = ran[program.name]
    assert (one.job["state"], one.job["attempts"]) == ("failed", program.attempts), one.text
    assert program.shown in one.text and program.shown in one.explained
    failure = one.job["failure"]
    assert (failure["kind"], failure["where"]) == (program.kind, program.where)
    assert failure["lines"] and "not retried" in one.text
