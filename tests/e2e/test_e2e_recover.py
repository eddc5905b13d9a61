"""Jobs with copies of their state in memory, run for real: what is killed, and how little of it is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import ask, rows, unidle
from e2e.gangs import jobs_of, running
from unidle.engine.local.ranks import process_tree
from waiting import wait_until

pytestmark = pytest.mark.slow
TRAIN = Path(__file__).resolve().parents[2] / "examples" / "checkpoint" / "train.py"
FLEET = {"nodes": [{"id": name, "devices": {"count": 2, "kind": "cpu"}} for name in ("left", "right")]}


class Run:
    """One job of two ranks on two nodes, with holders; its directory, and what is left of it."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.store, self.hold = place, place / "s.db", place / "hold"
        self.hold.mkdir()
        monkeypatch.setenv("UNIDLE_HOLD_DIR", str(self.hold))
        (place / "fleet.json").write_text(json.dumps(FLEET))

    def words(self, steps: int = 60, **more: Any) -> list[object]:
        job = {
            "name": "train", "ranks": 2, "devices_per_rank": 2,
            "command": [sys.executable, str(TRAIN), "--steps", str(steps), "--step-s", "0.1", "--checkpoint-every", "1000",
                        "--checkpoint-dir", str(self.place / "ckpt")],
            "checkpoint": {"path": str(self.place / "ckpt"), "memory": True},
            "restart": {"max": 5, "backoff_s": 0},
            **more,
        }  # fmt: skip
        (self.place / "job.json").write_text(json.dumps(job))
        return ["run", self.place / "job.json", "--store", self.store, "--fleet", self.place / "fleet.json"]

    def past(self, attempt: int, step: int) -> list[int]:
        """The pids of an attempt's ranks once it is past a step."""

        def reached() -> list[int] | None:
            job = jobs_of(self.store).get("train")
            if job is None or len(job.attempts) < attempt:
                return None
            tried = job.attempts[attempt - 1]
            done = (tried.last_step() or 0) >= step
            return [r.pid for r in tried.ranks if r.pid is not None] if done else None

        try:
            return list(wait_until(reached, 90, f"step {step} of attempt {attempt}"))
        except AssertionError as late:
            story = unidle("explain", "train", "--store", self.store).stdout
            raise AssertionError(f"{late}\n{story}") from None

    def holders(self) -> dict[str, int]:
        """The live holders of the job, by node."""
        found = {}
        for path in self.hold.glob("*/*/holder.json"):
            said = json.loads(path.read_text())
            if process_tree.is_live(said["pid"]):
                found[said["node"]] = said["pid"]
        return found

    def left(self) -> list[str]:
        return [
            str(path)
            for path in (
                *self.hold.iterdir(),
                *(self.store.with_suffix(".db.d") / "runs" / ".holders").glob("*"),
            )
        ]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    made = Run(tmp_path, monkeypatch)
    yield made
    for pid in made.holders().values():
        os.kill(pid, signal.SIGKILL)


def test_a_killed_rank_with_its_holder_costs_at_most_one_step(run: Run) -> None:
    with running(*run.words(), stdout=subprocess.DEVNULL) as process:
        pids = run.past(1, 10)
        before = run.holders()
        assert sorted(before) == ["left", "right"]
        assert all(os.getsid(pid) == pid for pid in before.values()), "outside of the ranks"
        os.kill(pids[1], signal.SIGKILL)
        pids = run.past(2, 20)
        assert run.holders() == before, "kept over the restart"
        os.kill(before["right"], signal.SIGKILL)
        os.kill(pids[1], signal.SIGKILL)
        run.past(3, 30)
        after = run.holders()
        assert after["left"] == before["left"] and after["right"] != before["right"]
        assert process.wait(120) == 0
    told = ask("guard", "incidents", "--store", run.store)
    assert [(one["kind"], one["rank"]) for one in told] == [("exit", 1)] * 2
    assert all(one["lost_steps"] <= 1 for one in told), told
    shown = ask("show", "train", "--store", run.store)
    first, second, third = shown["runs"]
    assert (
        first["durable_step"] + 1 == second["first_step"]
        and second["durable_step"] + 1 == third["first_step"]
    )
    wait_until(lambda: not run.left(), 60, f"nothing to be left: {run.left()}")
    assert sum(row["end_ns"] - row["start_ns"] for row in rows(run.store) if row["leaf"] == "replayed") < 4e9


def test_a_controller_killed_in_between_leaves_holders_that_the_next_one_ends(run: Run) -> None:
    with running(*run.words(), stdout=subprocess.DEVNULL) as process:
        run.past(1, 5)
        before = run.holders()
        process.kill()
        process.wait()
    assert run.holders() == before
    with running("up", "--store", run.store, "--fleet", run.place / "fleet.json"):
        [pid, *_] = run.past(1, 10)
        os.kill(pid, signal.SIGKILL)
        run.past(2, 20)
        assert run.holders() == before
        assert unidle("cancel", "train", "--store", run.store).returncode == 0
        wait_until(lambda: not run.left(), 60, "the holders' end")
    [one] = ask("guard", "incidents", "--store", run.store)
    assert one["lost_steps"] <= 1


@pytest.mark.parametrize("aside", [True, False])
def test_a_bit_that_flipped_since_it_was_saved_is_told_before_the_restart(
    tmp_path: Path, aside: bool
) -> None:
    store, saved = tmp_path / "s.db", tmp_path / "ckpt"
    job = {
        "name": "own", "command": [sys.executable, str(Path(__file__).with_name("writes_own.py")), str(saved), "400"],
        "progress": {"pattern": "^step ([0-9]+)"}, "checkpoint": {"path": str(saved), "quarantine_bad": aside}, "restart": {"max": 1, "backoff_s": 0},
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    with running(
        "run", tmp_path / "job.json", "--store", store, "--cpu-devices", 1, stdout=subprocess.DEVNULL
    ) as run:
        sums = saved / ".unidle" / "sums" / "step_10.bin.json"
        wait_until(sums.exists, 60, "checksums of the second checkpoint")
        flip(saved / "step_10.bin")
        os.kill(jobs_of(store)["own"].attempts[0].ranks[0].pid or 0, signal.SIGKILL)
        assert run.wait(90) == 0
    storage, killed = sorted(
        ask("guard", "incidents", "--store", store), key=lambda one: str(one["kind"] == "exit")
    )
    assert (storage["kind"], storage["attempt"]) == ("storage", 2)
    assert "step_10.bin is bad: it does not match the checksum" in storage["because"]
    assert (saved / ".unidle" / "bad" / "step_10.bin.1").exists() is aside
    text = unidle("logs", "own", "--store", store).stdout
    assert f"goes on from {5 if aside else 10}" in text
    last = ask("show", "own", "--store", store)["runs"][0]["last_step"]
    assert killed["lost_steps"] == last - (5 if aside else 10)
    assert "step_10.bin is bad" in unidle("explain", "own", "--store", store).stdout


def flip(path: Path) -> None:
    """One bit, as a disk would: the time of change stays."""
    state = path.stat()
    data = bytearray(path.read_bytes())
    data[5000] ^= 4
    path.write_bytes(bytes(data))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_an_elastic_gang_goes_on_with_other_numbers_of_ranks(run: Run) -> None:
    run.words(steps=80, ranks={"min": 1, "max": 2})
    (run.place / "block.json").write_text(
        json.dumps({"name": "block", "command": ["sleep", "600"], "devices_per_rank": 2})
    )
    for name in ("block", "job"):
        assert unidle("submit", run.place / f"{name}.json", "--store", run.store).returncode == 0
    with running("up", "--store", run.store, "--fleet", run.place / "fleet.json", "--until-idle") as up:
        [pid] = run.past(1, 5)
        assert unidle("cancel", "block", "--store", run.store).returncode == 0
        wait_until(lambda: jobs_of(run.store)["block"].terminal, 60, "the other job's end")
        os.kill(pid, signal.SIGKILL)
        assert len(run.past(2, 20)) == 2
        assert up.wait(120) == 0
    shown = ask("show", "train", "--store", run.store)
    first, second = shown["runs"]
    assert (len(first["ranks"]), len(second["ranks"])) == (1, 2)
    assert second["first_step"] == first["durable_step"] + 1 >= first["last_step"]
    said = unidle("explain", "train", "--store", run.store).stdout
    assert "attempt 1 (1 rank)" in said and "attempt 2 (2 ranks)" in said, said
    wait_until(lambda: not run.left(), 60, f"nothing to be left: {run.left()}")
