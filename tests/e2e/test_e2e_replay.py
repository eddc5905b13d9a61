"""``unidle replay openb``: its JSON, its decisions, its errors."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from e2e.commands import ask, unidle

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"node-{k},{32_000 * gpus},{65_536 * gpus},{gpus},{model}\n"
    for k, (gpus, model) in enumerate([(8, "G2"), (2, "T4"), (4, "P100"), (8, "G2"), (1, "A10")])
)
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"pod-{k},{cpu},{1_000 * (k % 5)},{gpus},{milli},{spec}\n"
    for k, (cpu, gpus, milli, spec) in enumerate(
        [(8_000, 1, 500, ""), (16_000, 1, 1000, "T4|P100"), (4_000, 1, 250, ""), (9_000, 0, 0, ""),
         (64_000, 4, 1000, ""), (2_000, 1, 700, "A10"), (30_000, 1, 1000, "")]
    )
)  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["--nodes", tmp_path / "nodes.csv", "--pods", tmp_path / "pods.csv"]


def test_the_decisions_file_replays_to_the_reported_percentage(files: list[object], tmp_path: Path):
    out = tmp_path / "decisions.csv"
    words = ["--policy", "unidle,fgd", "--requested", "1.3", "--seeds", "42..43", "--decisions", out]
    answer = ask("replay", "openb", *files, *words)
    nodes = {row["sn"]: row for row in csv.DictReader(NODES.splitlines())}
    pods = {row["name"]: row for row in csv.DictReader(PODS.splitlines())}
    capacity = 1000 * sum(int(node["gpu"]) for node in nodes.values())
    taken: dict[tuple[str, str], int] = defaultdict(int)
    cpu: dict[tuple[str, str], int] = defaultdict(int)
    used: dict[tuple[str, str, str], int] = defaultdict(int)
    for seq, row in enumerate(csv.DictReader(out.read_text().splitlines())):
        run, pod = (row["policy"], row["seed"]), pods[row["pod"]]
        assert list(row) == ["policy", "seed", "seq", "pod", "node", "gpus"]
        assert seq or row["seq"] == "0"
        if not row["node"]:
            assert not row["gpus"]
            continue
        gpus = [part.split(":") for part in row["gpus"].split(";") if part]
        assert len(gpus) == int(pod["num_gpu"]) and all(milli == pod["gpu_milli"] for _, milli in gpus)
        for index, milli in gpus:
            used[*run, f"{row['node']}/{index}"] += int(milli)
            assert int(index) < int(nodes[row["node"]]["gpu"])
            taken[run] += int(milli)
        cpu[*run, row["node"]] += int(pod["cpu_milli"])
        assert cpu[*run, row["node"]] <= int(nodes[row["node"]]["cpu_milli"])
    assert max(used.values()) <= 1000
    for name in ("unidle", "fgd"):
        said = answer["policies"][name]
        assert [row["seed"] for row in said["seeds"]] == [42, 43]
        assert list(said["mean"]) == ["1.0", "1.3"]
        for row in said["seeds"]:
            assert row["1.3"] == pytest.approx(100 * taken[name, str(row["seed"])] / capacity)
        assert said["mean"]["1.0"] == pytest.approx(sum(row["1.0"] for row in said["seeds"]) / 2)


def test_processes_do_not_change_the_answer(files: list[object]):
    words = ["replay", "openb", *files, "--policy", "random,clustering", "--seeds", "1,5"]
    assert ask(*words, "--jobs", 1) == ask(*words, "--jobs", 3)


def test_people_get_a_table(files: list[object]):
    done = unidle(
        "replay", "openb", *files, "--policy", "firstfit,bestfit", "--seeds", "7", "--requested", "0.5"
    )
    assert done.returncode == 0 and not done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["policy", "firstfit", "bestfit"]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--policy", "best"], "--policy"),
        (["--policy", ","], "--policy"),
        (["--seeds", "9..1"], "--seeds"),
        (["--seeds", "x"], "--seeds"),
        (["--seeds", "1..9999999"], "--seeds"),
        (["--requested", "0"], "--requested"),
        (["--requested", "nan"], "--requested"),
        (["--nodes", "nowhere.csv"], "nowhere.csv"),
        (["--decisions", "/nowhere/out.csv"], "--decisions"),
    ],
)
def test_bad_options_are_one_line(files: list[object], words: list[str], field: str):
    done = unidle("replay", "openb", *files, "--policy", "firstfit", "--seeds", "1", *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert field in done.stderr and "Traceback" not in done.stderr


def test_a_bad_trace_leaves_no_decisions_file(files: list[object], tmp_path: Path):
    (tmp_path / "pods.csv").write_text(PODS.replace("16000", "-16000"))
    done = unidle("replay", "openb", *files, "--decisions", tmp_path / "out.csv")
    assert done.returncode == 2 and "pods.csv:3: cpu_milli: is not an amount" in done.stderr
    assert not (tmp_path / "out.csv").exists()
