"""Reading a job trace: what a line means, and one clear error for each slip."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping
from unidle.files.trace import COLUMNS, JobTrace, Renames
from unidle.files.trace import load_trace as read_trace
from unidle.files.trace_fits import check_fits, without_misfits
from unidle.fleet import Fleet
from unidle.fleet.queues import QueueSpec

HEADER = ",".join(COLUMNS)
LINE = {
    "job": "a", "submit_s": "1.5", "duration_s": "60", "gpus": "8", "cpu_milli": "4000", "memory_mib": "1024",
    "model": "A100", "queue": "ml", "priority": "3", "preemptible": "true", "ranks": "4",
}  # fmt: skip


def fleet() -> Fleet:
    devices = {"count": 8, "kind": "gpu", "model": "A100"}
    small = {"count": 2, "kind": "gpu", "model": "T4"}
    return fleet_from_mapping(
        {"nodes": [
            {"id": "a[1-2]", "devices": devices, "cpus": 64, "memory": "256GiB"},
            {"id": "t1", "devices": small},
        ]},
        "test",
    )  # fmt: skip


def load_trace(path: Path | str, on: Fleet | None = None, renames: Renames | None = None) -> JobTrace:
    """The trace, each job of which fits on the fleet."""
    trace = read_trace(path, renames)
    if on is not None:
        check_fits(trace, on)
    return trace


def write(tmp_path: Path, *lines: dict[str, str], header: str = HEADER) -> Path:
    path = tmp_path / "t.csv"
    rows = [",".join(LINE[c] if c not in line else line[c] for c in COLUMNS) for line in lines]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_line_is_a_job_with_amounts_of_the_whole_job(tmp_path: Path) -> None:
    (job,) = load_trace(write(tmp_path, {}), fleet()).jobs
    assert (job.submit_ns, job.duration_ns) == (1_500_000_000, 60_000_000_000)
    assert (job.gpus, job.ranks, job.cpu_milli, job.memory_bytes) == (8, 4, 4000, 1 << 30)
    assert (job.models, job.queue, job.priority, job.preemptible) == (("A100",), "ml", 3, True)


def test_cells_that_may_be_empty_have_their_defaults(tmp_path: Path) -> None:
    empty = dict.fromkeys(COLUMNS[4:], "")
    (job,) = load_trace(write(tmp_path, empty), fleet()).jobs
    assert (job.ranks, job.cpu_milli, job.models, job.queue, job.preemptible) == (1, 0, (), "default", False)


def test_columns_may_come_in_any_order_and_lines_may_be_blank(tmp_path: Path) -> None:
    columns = [*reversed(COLUMNS), "name"]
    path = tmp_path / "t.csv"
    row = ",".join({**LINE, "name": '"a, b"'}[c] for c in columns)
    path.write_text("\ufeff" + ",".join(columns) + "\r\n\r\n" + row + "\r\n")
    (job,) = load_trace(path, fleet()).jobs
    assert (job.line, job.job, job.models, job.name) == (3, "a", ("A100",), "a, b")


def test_what_else_a_trace_may_say_of_a_job(tmp_path: Path) -> None:
    header = f"{HEADER},estimate_s,user,name,min_runtime_s"
    path = write(tmp_path, {"ranks": "4,90,ann,sweep,600"}, {"job": "b", "ranks": "4,,,,"}, header=header)
    said, silent = load_trace(path, fleet()).jobs
    assert (said.estimate_s, said.user, said.name, said.min_runtime_s) == (90.0, "ann", "sweep", 600.0)
    assert (silent.estimate_s, silent.user, silent.name, silent.min_runtime_s) == (None, "", "", 0.0)


def test_ranks_never_ask_for_more_than_their_job(tmp_path: Path) -> None:
    line = {"gpus": "3", "ranks": "3", "cpu_milli": "64000", "memory_mib": "1000"}
    (job,) = load_trace(write(tmp_path, line), fleet()).jobs
    assert (job.gpus_each, job.cpu_milli_each, job.memory_bytes_each) == (1, 21_333, (1000 << 20) // 3)


def test_models_are_named_as_in_job_files(tmp_path: Path) -> None:
    there = fleet_from_mapping(
        {"nodes": [{"id": "n", "devices": {"count": 8, "kind": "gpu", "model": "NVIDIA A100-SXM4-80GB"}}]}, "test"
    )  # fmt: skip
    assert load_trace(write(tmp_path, {}), there).jobs[0].models == ("A100",)
    with pytest.raises(BadInput, match="the fleet has no such GPU"):
        load_trace(write(tmp_path, {"model": "A10"}), there)


def test_one_of_several_models_is_enough(tmp_path: Path) -> None:
    assert load_trace(write(tmp_path, {"model": "H100|A100"}), fleet()).jobs[0].models == ("H100", "A100")
    with pytest.raises(BadInput, match=r"no such GPU \(got 'H100\|B200'\); its models are A100, T4"):
        load_trace(write(tmp_path, {"model": "H100|B200"}), fleet())


def test_other_names_are_taken_before_the_fleet_is_asked(tmp_path: Path) -> None:
    there = replace(fleet(), queues=(QueueSpec("vision"),))
    path = write(tmp_path, {"model": "H100"})
    renames = Renames({"ml": "vision"}, {"H100": "A100"})
    (job,) = load_trace(path, there, renames).jobs
    assert (job.queue, job.models) == ("vision", ("A100",))
    for slip in (Renames({"nlp": "vision"}), Renames({}, {"T4": "A100"})):
        with pytest.raises(BadInput, match="no job names it"):
            load_trace(path, there, slip)


BAD = {
    "nan": ({"duration_s": "NaN"}, "t.csv:3: duration_s: must be a finite number (got 'NaN')"),
    "infinite": ({"submit_s": "inf"}, "t.csv:3: submit_s: must be a finite number"),
    "negative time": ({"submit_s": "-1"}, "t.csv:3: submit_s: must be from 0 to 9000000000 seconds (got '-1')"),
    "word": ({"duration_s": "long"}, "t.csv:3: duration_s: is not a number (got 'long')"),
    "negative": ({"gpus": "-2"}, "t.csv:3: gpus: must be a whole number from 1"),
    "none": ({"gpus": "0"}, "t.csv:3: gpus: must be a whole number from 1"),
    "nan gpus": ({"gpus": "nan"}, "t.csv:3: gpus: is not a number"),
    "part": ({"gpus": "0.5"}, "t.csv:3: gpus: a part of a GPU (got '0.5'); write 1; `unidle replay openb` packs parts"),
    "empty": ({"gpus": ""}, "t.csv:3: gpus: is not a number"),
    "huge": ({"cpu_milli": "1e300"}, "t.csv:3: cpu_milli: must be a whole number from 0"),
    "uneven": ({"ranks": "3"}, "t.csv:3: gpus: do not divide among 3 ranks (got 8)"),
    "no rank": ({"ranks": "0"}, "t.csv:3: ranks: must be a whole number from 1"),
    "maybe": ({"preemptible": "maybe"}, "t.csv:3: preemptible: is not true or false (got 'maybe')"),
    "nameless": ({"job": " "}, "t.csv:3: job: must not be empty"),
    "long": ({"duration_s": "4e8"}, "t.csv:3: duration_s: must be from 0 to 315360000 seconds (got '4e8')"),
    "twice": ({"job": "first"}, "t.csv:3: job: the name is used twice, first on line 2 (got 'first')"),
    "model": ({"model": "H100"}, "t.csv:3: model: the fleet has no such GPU (got 'H100'); its models are A100, T4"),
    "node": ({"gpus": "9", "ranks": "1"}, "t.csv:3: gpus: 9 for each rank, more than any node has: 8 (got 9)"),
    "small node": ({"gpus": "4", "ranks": "1", "model": "T4"}, "t.csv:3: gpus: more than the fleet has: 2 of T4 (got 4)"),
    "fleet": ({"gpus": "32"}, "t.csv:3: gpus: more than the fleet has: 18 (got 32)"),
    "shape": ({"gpus": "15", "ranks": "3", "model": ""}, "t.csv:3: ranks: the nodes do not hold so many ranks of 5 GPUs"),
    "cpu": ({"gpus": "1", "ranks": "1", "cpu_milli": "65000"}, "t.csv:3: cpu_milli: 65000 for each rank, more than any node with its GPUs has: 64000"),
    "memory": ({"gpus": "1", "ranks": "1", "memory_mib": "300000"}, "t.csv:3: memory_mib: 300000 for each rank, more than any node with its GPUs has: 262144"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_each_slip_is_one_error_with_file_line_field_value_and_remedy(name: str, tmp_path: Path) -> None:
    line, says = BAD[name]
    model = {"model": ""} if name == "fleet" else {}
    path = write(tmp_path, {"job": "first"}, {"job": "second", **model, **line})
    with pytest.raises(BadInput) as caught:
        load_trace(path, fleet())
    assert caught.value.exit_code == 2
    assert says in caught.value.line().replace(str(tmp_path) + "/", "")
    assert "; " in caught.value.line()


FILES = {
    "missing columns": (b"job,submit_s,gpus\na,1,1\n", ":1: duration_s, cpu_milli, memory_mib, model, queue"),
    "a column twice": (HEADER.encode() + b",gpus\n", "gpus: the column is there twice"),
    "a column of another form": (
        HEADER.encode() + b",gpu_milli\n",
        ":1: gpu_milli: no such column; leave it out",
    ),
    "a column misspelt": (
        HEADER.encode() + b",estimate\n",
        "estimate: no such column; did you mean estimate_s?",
    ),
    "nothing": (b"", "the trace is empty"),
    "only a header": (HEADER.encode() + b"\n", "the trace has no job"),
    "too few cells": (HEADER.encode() + b"\na,1\n", ":2: 2 cells where the header has 11"),
    "an open quote": (HEADER.encode() + b'\n"a,1\n', "not CSV"),
    "not text": (HEADER.encode() + b"\n\xff\xfe\n", "not text in UTF-8: byte 0xff"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_trace_is_one_error(name: str, tmp_path: Path) -> None:
    content, says = FILES[name]
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        load_trace(path)
    assert says in caught.value.line()


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, what in ((tmp_path / "fifo", "a FIFO"), ("/dev/zero", "a device"), (tmp_path, "a directory")):
        with pytest.raises(BadInput, match=f"it is {what}, not a file"):
            load_trace(path, fleet())


def test_an_estimate_of_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEADER},estimate_s\na,0,5,1,,,,,,,,0\n")
    with pytest.raises(BadInput, match=r":2: estimate_s: must be above 0 \(got '0'\)"):
        load_trace(path, fleet())


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path, "a\0b"):
        with pytest.raises(BadInput):
            load_trace(path)


@given(st.text(max_size=200) | st.lists(st.text("0123456789.,-naif\"\n ", max_size=40), max_size=6).map("\n".join))  # fmt: skip
def test_whatever_follows_the_header_is_a_trace_or_bad_input(tmp_path_factory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.csv"
    path.write_text(HEADER + "\n" + text, encoding="utf-8", errors="replace")
    with suppress(BadInput):
        assert load_trace(path, fleet()).jobs


def test_misfits_are_left_out_where_that_is_asked_for_and_never_all_jobs(tmp_path: Path) -> None:
    big, bigger = {"job": "b", "gpus": "64", "ranks": "8"}, {"job": "c", "gpus": "16", "ranks": "1"}
    trace = read_trace(write(tmp_path, {}, big, bigger))
    kept, skipped = without_misfits(trace, fleet())
    assert ([job.job for job in kept.jobs], skipped) == (["a"], 2)
    with pytest.raises(BadInput, match="more than the fleet has"):
        without_misfits(read_trace(write(tmp_path, big, bigger)), fleet())
    with pytest.raises(BadInput, match="the fleet has no such GPU"):
        without_misfits(read_trace(write(tmp_path, {}, {"job": "d", "model": "B200"})), fleet())


def test_a_job_of_a_queue_that_takes_no_jobs_is_refused_where_the_fleet_declares_queues(
    tmp_path: Path,
) -> None:
    there = replace(fleet(), queues=(QueueSpec("all"), QueueSpec("ml", "all"), QueueSpec("vision", "all")))
    assert load_trace(write(tmp_path, {}), there).jobs[0].queue == "ml"
    for name in ("all", "other"):
        path = write(tmp_path, {}, {"job": "b", "queue": name})
        with pytest.raises(BadInput) as caught:
            load_trace(path, there)
        assert f"{path}:3: queue: the fleet file has no such queue" in str(caught.value)
        assert "its queues are ml, vision" in str(caught.value)


def test_tainted_nodes_hold_no_job_of_a_trace(tmp_path: Path) -> None:
    tainted = replace(fleet(), nodes=tuple(replace(n, taints=("only-me",)) for n in fleet().nodes[:2]))
    with pytest.raises(BadInput, match="the fleet has no such GPU"):
        load_trace(write(tmp_path, {}), tainted)
