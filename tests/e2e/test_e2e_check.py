"""`unidle check` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import needs
from e2e.commands import unidle

KEYS = ["name", "ok", "value", "unit", "threshold", "because"]


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


def fleet(tmp_path: Path, **node: object) -> Path:
    file = tmp_path / "fleet.json"
    declared = {"id": "n1", "devices": {"count": 2, "kind": "cpu"}} | node
    file.write_text(json.dumps({"nodes": [declared, {"id": "n2", "devices": {"count": 1, "kind": "cpu"}}]}))
    return file


def test_the_result_says_of_each_check_what_was_found_and_the_exit_code_agrees(tmp_path: Path):
    done = unidle("check", "--json", "--dir", tmp_path, "--kernel-log", "kmsg")
    result = json.loads(done.stdout)
    assert result["node"] == os.uname().nodename
    assert all(list(check) == KEYS and check["because"] for check in result["checks"])
    told = {check["ok"] for check in result["checks"]}
    assert result["ok"] == (False if False in told else None if None in told else True)
    assert done.returncode == {True: 0, False: 1, None: 3}[result["ok"]]
    assert {"devices", "nic", "memory.free", "cpu", "clock", "kernel_log"} <= {
        c["name"] for c in result["checks"]
    }


@pytest.mark.parametrize(
    ("source", "code", "said"), [("off", 3, "switched off"), ("nowhere.log", 3, "nowhere.log")]
)
def test_the_kernel_log_is_that_of_the_environment_unless_one_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, code: int, said: str
) -> None:
    """As for a controller: the log of a machine has the faults of all that runs on it."""
    monkeypatch.setenv("UNIDLE_KERNEL_LOG", source)
    done = unidle("check", "--only", "kernel_log")
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
    quiet = tmp_path / "quiet.log"
    quiet.touch()
    assert unidle("check", "--only", "kernel_log", "--kernel-log", quiet).returncode == 0


def test_a_fit_node_is_fit_and_the_table_says_so(tmp_path: Path):
    done = unidle("check", "--only", "storage,memory,cpu", "--dir", tmp_path)
    assert done.returncode == 0, done.stdout
    assert "fit (quick" in done.stdout.splitlines()[-1]


def test_a_node_that_has_less_than_declared_is_unfit(tmp_path: Path):
    file = fleet(tmp_path, cpus=100_000, memory="500TiB")
    done = unidle("check", "--fleet", file, "--node", "n1", "--only", "cpu,memory", "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, result["node"], result["ok"]) == (1, "n1", False)
    bad = {check["name"]: check for check in result["checks"] if not check["ok"]}
    assert set(bad) == {"cpu", "memory.total"} and bad["cpu"]["threshold"] == 100_000


def test_gpus_that_are_declared_and_not_there_make_a_node_unfit(tmp_path: Path):
    file = fleet(tmp_path, devices={"count": 8, "kind": "gpu", "model": "H100", "vendor": "ascend"})
    done = unidle("check", "--fleet", file, "--node", "n1", "--only", "devices", "--json")
    check = json.loads(done.stdout)["checks"][0]
    assert (done.returncode, check["ok"], check["threshold"]) == (1, False, 8)


def test_what_could_not_be_told_has_its_own_exit_code(tmp_path: Path):
    done = unidle("check", "--only", "gemm", "--timeout", "0.1", "--json")
    check = json.loads(done.stdout)["checks"][0]
    assert (done.returncode, check["ok"]) == (3, None) and "no answer within 0.1 s" in check["because"]


@needs.root
def test_a_directory_that_is_full_makes_the_node_unfit(tmp_path: Path):
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
    try:
        done = unidle("check", "--only", "storage", "--dir", place, "--json")
        assert done.returncode == 1
        assert "it is full" in {check["because"] for check in json.loads(done.stdout)["checks"]}
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "gem"], "did you mean gemm?"),
        (["--only", ""], "empty name"),
        (["--fleet", "none.yaml"], "there is no such file"),
        (["--thresholds", "none.yaml"], "there is no such file"),
        (["--node", "n9", "--fleet", "FLEET"], "is not a node of the fleet file"),
        (["--fleet", "FLEET"], "is not in the fleet file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, words: list[str], says: str):
    file = fleet(tmp_path)
    done = unidle("check", *[str(file) if word == "FLEET" else word for word in words])
    assert (done.returncode, says in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr


@pytest.mark.parametrize("words", [["--tier", "slow"], ["--timeout", "0"], ["--duration", "-1"]])
def test_options_out_of_range_are_refused(words: list[str]):
    assert unidle("check", *words).returncode == 2
