"""``unidle fill run`` and ``unidle fill proof`` with a real job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fill_run.running import HERE, groups_of, left_of_this_process, order, supervised, training
from unidle.errors import BadInput, CannotRun
from unidle.fill.cli.run import run
from unidle.fill.runtime import supervise
from unidle.fill.runtime.ranks import FilledRank
from unidle.fill.runtime.trial import Trial
from waiting import wait_until


def unidle(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "unidle", *words], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout, done.stderr


@contextmanager
def job(place: Path, steps: int) -> Iterator[subprocess.Popen[bytes]]:
    command = (
        sys.executable,
        "-m",
        "unidle",
        "run",
        "--store",
        str(place / "a.db"),
        "--cpu-devices",
        "1",
        "--",
        sys.executable,
        "-u",
    )
    process = subprocess.Popen([*command, str(HERE / "trainer.py"), str(steps)], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()


def filler_file(place: Path, **more: object) -> Path:
    file = place / "filler.json"
    content = {
        "filler": f"{HERE / 'fillers.py'}:Counter",
        "arguments": {"out": "out"},
        "memory": "256MB",
    } | more
    file.write_text(json.dumps(content))
    return file


@pytest.mark.usefixtures("groups")
def test_a_job_is_filled_and_the_ledger_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # a busy machine would give an idle group no time
    monkeypatch.setattr(supervise, "FillSupervisor", partial(supervise.FillSupervisor, idle=False))
    store = ("--store", str(tmp_path / "a.db"))
    with job(tmp_path, 400) as process:
        wait_until(lambda: json.loads(unidle("list", "--json", *store)[1] or "[]"))
        with pytest.raises(SystemExit) as ended:
            run(str(filler_file(tmp_path, trial=False)), store=store[1], as_json=True)
        assert process.wait() == 0
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["ended"] == "training ended"
    assert found["pieces"] > 0
    assert 0 < found["filled_ns"] <= found["waited_ns"]
    assert found["units"] == len((tmp_path / "out").read_text().splitlines())
    rows = json.loads(unidle("ledger", *store, "--json")[1])
    filled = sum(leaf["ns"] for leaf in rows["leaves"] if leaf["leaf"] == "filled")
    # the last step's part, and marks that are a little late, are missing
    assert 0 < filled <= found["filled_ns"]
    code, out, _ = unidle("fill", "proof", *store, "--json")
    assert code == 0
    assert json.loads(out) == {
        "slowdown_pct": None,
        "low": None,
        "high": None,
        "pairs": 0,
        "loss_equal": None,
    }
    assert left_of_this_process() == []
    page = tmp_path / "report.html"
    assert unidle("report", *store, "--out", str(page))[0] == 0
    assert "Fillers in its waits" in page.read_text()
    assert ", with fillers</b>" in page.read_text()


@pytest.mark.usefixtures("groups")
def test_pairs_of_blocks_are_recorded_and_fillers_rest_in_half_of_them(tmp_path: Path) -> None:
    with training() as (_, rank):
        trial = Trial(block_steps=2, seed=3)
        found, _, _ = supervised(
            order("Counter", tmp_path / "out"), rank, tmp_path, lambda _: len(trial.pairs) >= 2, trial
        )
    pairs = [
        json.loads(line) for line in (tmp_path / "fill.jsonl").read_text().splitlines() if '"pair"' in line
    ]
    assert len(pairs) >= 2
    assert all(pair["filled_ns"] > 0 and pair["unfilled_ns"] > 0 for pair in pairs)
    assert found.sums["pieces"] > 0


def test_losses_of_two_runs_are_compared_to_the_bit(tmp_path: Path) -> None:
    for _ in range(2):
        with job(tmp_path, 20) as process:
            assert process.wait() == 0
    store = ("--store", str(tmp_path / "a.db"))
    one, other = (each["job"] for each in json.loads(unidle("list", "--all", "--json", *store)[1]))
    records = tmp_path / "a.db.d" / "runs" / one / "fill.jsonl"
    pair = {"kind": "pair", "filled_ns": 1.0, "unfilled_ns": 1.0, "first": True}
    records.write_text("".join(json.dumps(pair) + "\n" for _ in range(6)) + '{"torn')
    code, out, _ = unidle("fill", "proof", one, "--against", other, "--json", *store)
    assert code == 0
    assert json.loads(out) == {"slowdown_pct": 0.0, "low": 0.0, "high": 0.0, "pairs": 6, "loss_equal": True}
    code, _, error = unidle("fill", "proof", other, *store)
    assert code == 2
    assert "has no fillers" in error


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        ({"filler": "nothing"}, {"pid": [1]}, "is no filler"),
        ({"filler": "missing.py:Class"}, {"pid": [1]}, "names no file"),
        ({"piece_ms": 0}, {"pid": [1]}, "piece_ms"),
        ({"surprise": 1}, {"pid": [1]}, "surprise"),
        ({"memory": "much"}, {"pid": [1]}, "memory"),
        ({"windows": "never"}, {"pid": [1]}, "windows"),
        ({}, {"pid": [4194304]}, "no such process"),
        ({}, {"pid": [1], "job": "x"}, "cannot be used together"),
        ({}, {"out": "x"}, "is for processes"),
        ({"ranks": [3]}, {"pid": [os.getpid()]}, "is no rank of it"),
    ],
)
def test_bad_input_is_one_clear_error(
    content: dict[str, object], options: dict[str, Any], problem: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=problem):
        run(str(filler_file(tmp_path, **content)), **options)


def test_a_process_that_shows_no_waits_is_named_with_what_to_do(tmp_path: Path) -> None:
    words = ("--pid", str(os.getpid()), "--wait", "0", "--out", str(tmp_path))
    code, _, error = unidle("fill", "run", str(filler_file(tmp_path)), *words)
    assert code == 3
    assert "rank 0 shows no waits" in error
    assert "unidle.rank.waiting()" in error


def test_a_job_that_has_not_started_is_waited_for(tmp_path: Path) -> None:
    store = str(tmp_path / "a.db")
    assert unidle("submit", "--store", store, "--", "true")[0] == 0
    with pytest.raises(CannotRun, match="no rank of the job runs"):
        run(str(filler_file(tmp_path)), store=store, wait_s=0.0)


@pytest.mark.usefixtures("groups")
def test_fillers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(HERE.parent)!r})
from fill_run.running import order, supervised
from unidle.fill.runtime.ranks import FilledRank
place = Path({str(tmp_path)!r})
supervised(order("Bad", place / "out", how="fork"), FilledRank(0, int(sys.argv[1]), int(sys.argv[2])), place)
"""
    with training() as (process, rank):
        supervisor = subprocess.Popen([sys.executable, "-c", program, str(rank.pid), str(rank.board)])
        wait_until(lambda: (tmp_path / "out").exists())
        assert groups_of(supervisor.pid)
        supervisor.kill()
        supervisor.wait()
        wait_until(lambda: not groups_of(supervisor.pid))
        assert process.poll() is None


@pytest.mark.usefixtures("groups")
def test_a_filler_that_would_not_give_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unidle.fill.runtime.kernel import FillGroup

    plain = FillGroup.add

    def add(self: FillGroup, name: str, memory_bytes: int) -> object:
        group = plain(self, name, memory_bytes)
        Path(self._top, "cpu.idle").write_text("0")
        return group

    monkeypatch.setattr(FillGroup, "add", add)
    with training() as (process, rank):
        fill = supervise.FillSupervisor(
            order("Counter", tmp_path / "out"),
            [FilledRank(0, rank.pid, rank.board)],
            tmp_path,
            tmp_path / "fill.jsonl",
            None,
            print,
        )
        with pytest.raises(CannotRun, match=r"has no cpu\.idle 1"):
            fill.run(lambda: False)
        assert process.poll() is None
    assert not (tmp_path / "out").exists()
    assert left_of_this_process() == []
