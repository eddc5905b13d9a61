"""Advice: each leaf has one, and its command exists."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from report.sample import bar, report, tracks
from unidle.cli.commands import app
from unidle.ledger.taxonomy import GROUPS
from unidle.report.advice import ADVICE, best_advice, shell_lines
from unidle.report.model import DeviceTrack
from unidle.report.totals import WINS

LOSSES = sorted({leaf for leaves in GROUPS.values() for leaf in leaves} - WINS)


def test_every_loss_has_advice_and_nothing_else_has() -> None:
    assert sorted(ADVICE) == LOSSES


@pytest.mark.parametrize("leaf", LOSSES)
def test_the_command_exists(leaf: str) -> None:
    track = DeviceTrack("n/0", "n", "cpu", (bar(0, 9, leaf, job="job-1", attempt=1),))
    advice = best_advice(report((track,), end_s=9))
    assert advice is not None
    words = list(advice.words[1:])
    group = typer.main.get_command(app())
    context = group.make_context("unidle", list(words))
    name, command, rest = group.resolve_command(context, words)  # type: ignore[attr-defined]
    assert command.make_context(name, rest, parent=context).params["store"] == "unidle.db"


def test_the_largest_loss_is_named_and_work_of_use_never_is() -> None:
    advice = best_advice(report())
    assert advice is not None
    assert advice.line.leaf == "no_demand"
    busy = DeviceTrack("n/0", "n", "cpu", (bar(0, 9, "useful", job="job-1"),))
    assert best_advice(report((busy,), end_s=9)) is None


def test_the_job_that_lost_most_is_named() -> None:
    own = DeviceTrack("n/0", "n", "cpu", (bar(0, 3, "hang", job="b"), bar(3, 4, "hang", job="a")))
    advice = best_advice(report((own,), end_s=4))
    assert advice is not None
    assert advice.words == ("unidle", "logs", "b", "--store", "unidle.db")


def test_a_loss_without_a_job_asks_the_ledger() -> None:
    gang = tracks()[0]
    own = DeviceTrack(gang.device, "n", "cpu", (bar(0, 4, "hang"),))
    advice = best_advice(report((own,), end_s=4))
    assert advice is not None
    assert advice.words[:4] == ("unidle", "ledger", "--by", "job")


WORDS = st.lists(
    st.text(
        st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\x00"), min_size=1, max_size=90
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.integers(24, 100))
def test_a_wrapped_command_is_read_back_by_the_shell(words: list[str], width: int) -> None:
    lines = shell_lines(("printf", "%s\\0", *words), width)
    assert all(len(line) <= width for line in lines)
    done = subprocess.run(["sh", "-c", "\n".join(lines)], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_idle_holders_are_shown_while_a_job_runs_and_jobs_by_what_they_held_afterwards() -> None:
    track = DeviceTrack("n/0", "n", "cpu", (bar(0, 9, "idle", job="job-1", attempt=1),))
    data = report((track,), end_s=9)
    assert data.jobs
    for state, command in (("running", ("fleet", "--idle")), ("cancelled", ("ledger", "--by", "job"))):
        jobs = tuple(dataclasses.replace(job, state=state) for job in data.jobs)
        advice = best_advice(dataclasses.replace(data, jobs=jobs))
        assert advice is not None
        assert advice.words == ("unidle", *command, "--store", "unidle.db")
