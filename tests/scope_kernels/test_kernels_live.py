"""`unidle profile` of processes that record their kernels, and jobs that ask for it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e import commands
from scope_kernels.playing import PROGRAM, build, files, program, rows
from unidle.engine.local.injection import DIRECTORY, LIBRARY, of_rank, variables
from unidle.scope.tiers.imported import read
from waiting import wait_until


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cupti"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


def unidle(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return commands.unidle(*arguments, env=os.environ | env)


def looked(pid: int) -> dict[str, Any]:
    done = unidle("profile", str(pid), "--seconds", "0.6", "--tier", "T2", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_look_at_a_process_has_the_kernels_of_its_time(played: Path, folder: Path) -> None:
    with program(played, variables(str(folder)) | {"UNIDLE_KERNELS_MIB": "1"}) as one:
        one.do("kernel(3000, '_Z6beforev')")
        wait_until(lambda: len(rows(folder)) == 3000)
        one.send("busy()")
        assert one.line() == "busy"
        told = looked(one.pid)
        kernels = {call["name"]: call for call in told["calls"] if call["kind"] == "kernel"}
        assert "before" not in kernels, "only what ran while it was looked at"
        assert kernels["gemm"]["count"] >= 10
        assert kernels["gemm"]["ns"] == kernels["gemm"]["count"] * 1000
        assert any(
            "kernels: " in note and "unidle's CUPTI library" in note for note in told["quality"]["notes"]
        )


def test_a_cupti_that_refused_is_one_line_of_what_a_look_misses(played: Path, folder: Path) -> None:
    env = variables(str(folder)) | {"PLAYED_REFUSES": "cuptiActivityRegisterCallbacks"}
    with program(played, env) as one:
        lines = [miss for miss in looked(one.pid)["misses"] if "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in miss]
    assert len(lines) == 1


def test_no_file_is_one_line_of_what_a_look_misses(played: Path, folder: Path) -> None:
    folder.write_text("no directory")
    with program(played, variables(str(folder))) as one:
        misses = looked(one.pid)["misses"]
    assert [miss for miss in misses if miss.startswith("kernels of process")] == [
        f"kernels of process {one.pid}: no file in {folder}: CUDA did not start in it, or the directory is not its user's alone"
    ]


def test_a_job_with_kernels_has_them_below_its_ranks_directories(played: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM + "\nkernel(40)\n")
    env = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = unidle(
        "run", "--kernels", "--ranks", "2", "--env", f"LD_LIBRARY_PATH={played}", "--store", tmp_path / "s.db",
        "--json", sys.executable, script, **env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = sorted(tmp_path.rglob("*.kernels"))
    assert sorted(path.parent.parent.name for path in found) == ["rank0", "rank1"]
    for path in found:
        told = read(path)
        assert [call.count for call in told.calls if call.name == "gemm"] == [40]
        assert [one.rank for one in told.processes] == [int(path.parent.parent.name[-1])]
    told = json.loads(unidle("profile", "--from", found[0], "--json").stdout)
    assert [(call["name"], call["count"]) for call in told["calls"]] == [("gemm", 40)]


def test_a_job_without_it_has_neither_variable(tmp_path: Path) -> None:
    done = unidle(
        "run", "--store", tmp_path / "s.db", "--logs", "0", "env", XDG_DATA_HOME=str(tmp_path / "data")
    )
    assert done.returncode == 0, done.stderr
    assert "UNIDLE_RANK=0" in done.stdout
    assert DIRECTORY not in done.stdout and LIBRARY not in done.stdout


def test_another_tools_library_stays() -> None:
    assert of_rank("/rank0", {LIBRARY: "/opt/nsys/lib.so"}) == {DIRECTORY: "/rank0/kernels"}


def test_the_lines_for_a_shell_make_any_program_record(played: Path, tmp_path: Path) -> None:
    env = {"XDG_DATA_HOME": str(tmp_path / "my data"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = unidle("profile", "--injection", **env)
    assert done.returncode == 0, done.stderr
    told = dict(shlex.split(line)[1].split("=", 1) for line in done.stdout.splitlines())
    assert set(told) == {LIBRARY, DIRECTORY}
    with program(played, told) as one:
        one.do("kernel(3)")
        assert one.end() == 0
    assert len(rows(Path(told[DIRECTORY]))) == 3
    assert len(files(Path(told[DIRECTORY]), one.pid)) == 1


def test_the_lines_for_a_shell_are_alone() -> None:
    done = unidle("profile", "--injection", "--memory")
    assert done.returncode == 2
    assert "--injection, --allocations: cannot be used together" in done.stderr
