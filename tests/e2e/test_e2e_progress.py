"""``unidle progress`` on files, on standard input and on what a job printed; and what a job's summary says without steps."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from e2e.commands import UNIDLE, ask, rows, unidle
from progress.outputs import others, trainings

TRAININGS, OTHERS = trainings(), others()


def test_a_file_and_standard_input_give_the_contract(tmp_path: Path) -> None:
    marks, first, last, text = TRAININGS["pytorch_mnist"]
    (tmp_path / "train.log").write_text(text)
    found = ask("progress", tmp_path / "train.log")
    assert found == {
        "marks": marks,
        "first": first,
        "last": last,
        "form": "pytorch-examples",
        "confidence": 0.97,
    }
    piped = unidle("progress", "-", "--json", input=OTHERS["access_log_of_uvicorn"])
    assert json.loads(piped.stdout) == {
        "marks": 0,
        "first": None,
        "last": None,
        "form": None,
        "confidence": 0.0,
    }


def test_one_line_with_a_step_and_a_loss_is_a_step(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("device: cpu\nstep 3 loss 0.5\n")
    assert ask("progress", tmp_path / "train.log") == {
        "marks": 1,
        "first": 3,
        "last": 3,
        "form": "lines",
        "confidence": 0.9,
    }


def test_a_pattern_is_tried_and_a_bad_one_refused(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("stage 3 of 9\nstage 4 of 9\nloaded\n")
    assert ask("progress", log, "--pattern", r"stage (\d+)")["marks"] == 2
    refused = unidle("progress", log, "--pattern", "(")
    assert refused.returncode == 2 and "not a regular expression" in refused.stderr
    nothing = unidle("progress", log)
    assert (
        nothing.returncode == 0
        and "no steps were found" in nothing.stdout
        and "stage 4 of 9" in nothing.stdout
    )


@pytest.mark.parametrize("what", ["a directory", "no such file", "no such job"])
def test_what_cannot_be_read_is_one_line_and_exit_code_2(what: str, tmp_path: Path) -> None:
    source = {"a directory": tmp_path, "no such file": tmp_path / "none.log", "no such job": "none"}[what]
    done = unidle("progress", source, "--store", tmp_path / "s.db")
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1


def test_a_job_whose_steps_nobody_named_has_them_in_the_ledger_and_its_output_reads_the_same(
    tmp_path: Path,
) -> None:
    store = tmp_path / "s.db"
    script = 'for k in 1 2 3 4 5 6; do echo "it $k of 6 -- cost=0.$k"; sleep 0.06; done'
    done = unidle("run", "--store", store, "--name", "own", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    [job] = ask("list", "--store", store)
    assert job["steps"] == 6
    steps = {row["step"] for row in rows(store) if row["leaf"] == "useful"}
    assert steps == {1, 2, 3, 4, 5, 6}, "also those before it was sure that the lines count"
    assert ask("progress", "own", "--store", store)["marks"] == 6
    told = unidle("progress", "own", "--store", store).stdout
    pattern = shlex.split(told.splitlines()[-1].strip().removesuffix("}"))[-1]
    assert ask("progress", "own", "--store", store, "--pattern", pattern)["last"] == 6


def test_a_job_without_steps_is_unmeasured_and_one_that_crashes_has_a_failed_start(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    done = unidle("run", "--store", store, "--name", "quiet", "--", "sleep", "0.3")
    assert (
        "No steps were seen: set progress.pattern" in done.stdout and "unidle progress quiet" in done.stdout
    )
    assert "unmeasured" in done.stdout and "useful" not in done.stdout
    assert "unidle.rank.step()" in unidle("explain", "quiet", "--store", store).stdout
    assert (
        unidle("run", "--store", store, "--name", "bad", "--", "sh", "-c", "sleep 0.2; exit 3").returncode
        == 1
    )
    leaves = {(row["job"].split("-")[0], row["leaf"]) for row in rows(store) if row["job"]}
    assert {("quiet", "unmeasured"), ("bad", "failed_start")} <= leaves
    assert not {("quiet", "useful"), ("bad", "no_artefact"), ("bad", "hang")} & leaves


def test_a_reader_that_closes_the_pipe_is_no_fault_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"step {k} loss 0.5\n" for k in range(100)))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [*UNIDLE, "progress", tmp_path / "log"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.stderr == ""
