"""A drill leaves nothing, whatever ends it; and what cannot be done is refused before anything starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import needs
from drill.drills import GANG, drill_of
from e2e.commands import UNIDLE, unidle
from unidle.drill import fail
from unidle.drill.conduct import _Conductor, refuse
from unidle.drill.disk import Disk
from unidle.drill.end_state import compare
from unidle.drill.phases import Injected
from unidle.drill.scratch import PREFIX, Scratch, marked, sweep
from unidle.engine.local.ranks import cgroups
from unidle.errors import BadInput, CannotRun
from unidle.files.drill import Fault
from waiting import wait_until


def drill_file(tmp_path: Path, **fields: object) -> Path:
    (tmp_path / "work").mkdir()
    job = {
        "name": "gang", "command": [sys.executable, str(GANG), "60", "0.02", "0"], "workdir": "work", "ranks": 2,
        "checkpoint": {"path": "checkpoints"}, "progress": {"pattern": "^step ([0-9]+)"},
        "restart": {"max": 3, "backoff_s": 0.1}, "grace_s": 1,
    }  # fmt: skip
    path = tmp_path / "drill.json"
    content = {
        "job": job,
        "nodes": 2,
        "result": "result.json",
        "faults": [{"kind": "kill", "target": "rank:1", "at_step": 20}],
    }
    path.write_text(json.dumps(content | fields))
    return path


@pytest.fixture
def scratches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the drills of this test have their places: other drills on this machine are none of its business."""
    place = tmp_path / "scratches"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return place


@pytest.mark.slow
def test_the_command_prints_the_contract_and_leaves_nothing(tmp_path: Path, scratches: Path) -> None:
    done = unidle("drill", drill_file(tmp_path), "--json", "--store", tmp_path / "kept.db", timeout_s=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["result_equal"] is True
    (fault,) = found["faults"]
    assert (fault["kind"], fault["target"], fault["named"], fault["correct"]) == (
        "kill",
        "rank:1",
        "rank:1",
        True,
    )
    assert {"inject", "signal", "verdict", "taint", "restored", "first_step", "caught_up"} <= fault[
        "ns"
    ].keys()
    assert not list((tmp_path / "work").iterdir())  # the job's own place is as it was
    assert (
        json.loads(unidle("guard", "incidents", "--store", tmp_path / "kept.db", "--json").stdout)[0]["rank"]
        == 1
    )
    assert not list(scratches.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_drill_that_is_ended_in_the_middle_leaves_nothing(
    tmp_path: Path, scratches: Path, number: signal.Signals
) -> None:
    command = [*UNIDLE, "drill", str(drill_file(tmp_path))]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:

        def running() -> str:
            ranks = scratches.glob(f"{PREFIX}*/undisturbed/store.db.d/runs/*/1/rank1")
            return next((rank.relative_to(scratches).parts[0] for rank in ranks), "")

        name = wait_until(running, 60, "ranks to run")
        process.send_signal(number)
        process.wait(60)
    if number == signal.SIGKILL:
        assert list(marked(name))
        sweep()
    assert not list(marked(name))
    assert not list(scratches.iterdir())
    assert not Path(f"/dev/shm/{name}-memory").exists()


@pytest.mark.usefixtures("scratches")
def test_a_drill_that_is_alive_is_not_swept() -> None:
    scratch = Scratch()
    sweep()
    assert scratch.directory.is_dir()
    scratch.close()
    assert not scratch.directory.exists()


@needs.root
@pytest.mark.usefixtures("scratches")
def test_control_groups_go_with_the_drill_also_those_that_nobody_entered() -> None:
    scratch = Scratch()
    root = scratch.directory / "undisturbed" / "store.db.d" / "runs"
    root.mkdir(parents=True)
    name = cgroups.group_name(str(root))
    group = cgroups.ControlGroup(cgroups.group_paths(cgroups.detect(name), name, "gang.1.0"))
    assert not group.create()
    assert group.paths
    scratch.close()
    assert not [path for path in group.paths.values() if Path(path).parent.exists()]


def test_faults_at_different_steps_are_apart_also_where_a_look_saw_both_steps(tmp_path: Path) -> None:
    first, second, same = fail.rank(1).at_step(3), fail.rank(2).at_step(5), fail.rank(0).at_step(3)
    conductor = _Conductor(drill_of(tmp_path, first, second, same, nodes=1), None, print)  # type: ignore[arg-type]
    seen = [9]
    job: Any = SimpleNamespace(attempts=[None], steps=lambda: seen[-1])
    assert [conductor._is_time(job, k, one) for k, one in enumerate((first, second, same))] == [True] * 3
    conductor.done[0] = Injected(first, 1, 1, 9)
    assert [conductor._is_time(job, k, one) for k, one in ((1, second), (2, same))] == [False, True]
    seen.append(10)
    assert conductor._is_time(job, 1, second)


def test_network_faults_need_two_nodes_and_a_result_is_needed(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="one node only"):
        refuse(drill_of(tmp_path, fail.node("n1").cut().at_step(1), nodes=1))


@needs.root
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (fail.node("n2").cut().at_step(5), "cut is not possible here: it needs root"),
        (fail.link("n1", "n2").delay(5).at_step(5), "delay is not possible here: it needs root"),
        (fail.rank(0).slow(2).at_step(5), "slow is not possible here: it needs root"),
        (fail.checkpoint().disk_full().at_step(5), "disk_full is not possible here: it needs root"),
        (fail.rank(0).at_step(5), "possible"),
    ],
)
def test_without_root_what_needs_it_is_refused_before_anything_starts(
    tmp_path: Path, fault: Fault, words: str
) -> None:
    drill = drill_of(tmp_path, fault)
    read, write = os.pipe()
    pid = os.fork()  # a process that has all it needs imported, and then no rights
    if pid == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            refuse(drill)
            os.write(write, b"possible")
        except CannotRun as error:
            os.write(write, error.line().encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as said:
        assert words in said.read()


@needs.root
def test_a_disk_can_be_filled_slowed_and_is_gone_afterwards(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "place", tmp_path / "disk.img", 16 << 20)
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space"):
            (tmp_path / "place" / "more").write_bytes(bytes(1 << 16))
        disk.empty()
        disk.slow(1_000_000)
        begun = time.monotonic()
        with (tmp_path / "place" / "file").open("wb") as file:
            file.write(bytes(1_500_000))
            os.fsync(file.fileno())
        assert time.monotonic() - begun > 1
    finally:
        disk.close()
    assert not (tmp_path / "place" / "file").exists()
    assert not (tmp_path / "disk.img").exists()


@needs.root
@pytest.mark.usefixtures("scratches")
def test_a_disk_goes_with_the_drill_also_where_its_directory_was_renamed() -> None:
    scratch = Scratch()
    disk = Disk(scratch.directory / "place", scratch.directory / "disk.img", 16 << 20)
    moved = scratch.directory.rename(scratch.directory.with_name("moved"))
    try:
        scratch.close()
        assert str(moved) not in Path("/proc/self/mounts").read_text()
        used = subprocess.run(
            ["losetup", "--list", "--noheadings", disk.device], capture_output=True, check=False
        )
        assert str(moved).encode() not in used.stdout
        assert not list(moved.iterdir())
    finally:
        disk.close()


def test_checkpoints_outside_the_workdir_are_refused(tmp_path: Path) -> None:
    job = {
        "command": ["true"],
        "ranks": 2,
        "workdir": "work",
        "checkpoint": {"path": str(tmp_path / "elsewhere")},
    }
    done = unidle("drill", drill_file(tmp_path, job=job))
    assert done.returncode == 2
    assert "job.checkpoint.path" in done.stderr


def test_results_are_compared_value_by_value(tmp_path: Path) -> None:
    def written(name: str, x: float, more: object = 1) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"x": x, "more": [more, "text"]}))
        return path

    same, near, far = written("a", 1.0), written("b", 1.0 + 1e-15), written("c", 1.1)
    assert compare(same, same, 1e-12).text == "equal bit by bit"
    assert compare(same, near, 1e-12).equal
    assert not compare(same, near, 0.0).equal
    assert not compare(same, far, 1e-12).equal
    assert not compare(same, written("d", 1.0, more=2), 1e-12).equal
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(CannotRun, match="cannot be read"):
        compare(broken, same, 1e-12)


def test_a_drill_without_a_way_to_compare_is_refused(tmp_path: Path) -> None:
    done = unidle("drill", drill_file(tmp_path, job={"command": ["true"], "ranks": 2}, result=None))
    assert done.returncode == BadInput.exit_code
    assert "result" in done.stderr
