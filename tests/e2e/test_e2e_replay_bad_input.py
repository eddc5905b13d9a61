"""Bad traces, fleets, quota trees and snapshots through the commands: one line that names it all, exit code 2."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.commands import unidle

HEADER = "job,submit_s,duration_s,gpus,cpu_milli,memory_mib,model,queue,priority,preemptible,ranks"
NODES = "nodes: [{id: 'n[1-2]', devices: {count: 8, kind: gpu, model: H100}, cpus: 64, memory: 256GiB}]\n"
GOOD = f"{HEADER}\na,0,60,4,0,0,H100,,0,false,4\n"

TRACES = {
    "missing columns": ("job,submit_s\na,1\n", ":1: duration_s, gpus, cpu_milli", "the header is job,submit_s"),
    "an unknown column": (f"{HEADER},gpu_milli\n", ":1: gpu_milli: no such column", "leave it out"),
    "negative": (f"{HEADER}\na,0,-5,1,,,,,,,\n", ":2: duration_s: must be from 0 to", "(got '-5'); give seconds"),
    "nan": (f"{HEADER}\na,0,nan,1,,,,,,,\n", ":2: duration_s: must be a finite number", "(got 'nan'); give"),
    "negative gpus": (f"{HEADER}\na,0,5,-1,,,,,,,\n", ":2: gpus: must be a whole number from 1", "(got '-1');"),
    "a model": (f"{HEADER}\na,0,5,1,,,B200,,,,\n", ":2: model: the fleet has no such GPU (got 'B200')", "--model-map"),
    "a large pod": (f"{HEADER}\na,0,5,9,,,,,,,\n", ":2: gpus: 9 for each rank, more than any node has: 8", "give ranks"),
    "many cores": (f"{HEADER}\na,0,5,2,500000,,,,,,2\n", ":2: cpu_milli: 250000 for each rank", "more than any node"),
    "a part": (f"{HEADER}\na,0,5,0.5,,,,,,,\n", ":2: gpus: a part of a GPU (got '0.5')", "unidle replay openb"),
}  # fmt: skip
FLEETS = {
    "a cycle": (
        ("tiers: [{id: a, kind: rack, parent: b}, {id: b, kind: rack, parent: a}]\n"
        "nodes: [{id: n0, parent: a, devices: {count: 2, kind: gpu}}]\n"),
        ":1: tiers[0].parent: the tiers form a cycle: a -> b -> a",
    ),
    "two parents": (
        ("tiers: [{id: a, kind: rack}, {id: b, kind: rack}]\n"
        "nodes: [{id: n0, parent: [a, b], devices: {count: 2, kind: gpu}}]\n"),
        ":2: nodes[0].parent: must be",
    ),
    "a tier with two parents": (
        "tiers: [{id: a, kind: rack}, {id: b, kind: rack}, {id: c, kind: leaf, parent: a},"
        " {id: c, kind: leaf, parent: b}]\n" + NODES,
        ":1: tiers[3].id: the name is used twice",
    ),
    "no device": ("nodes: [{id: n0, devices: {count: 0, kind: gpu}}]\n", ":1: nodes[0].devices.count: must be"),
    "no devices": ("nodes: [{id: n0, devices: []}]\n", ":1: nodes: the fleet has no device"),
    "a million nodes": (
        "nodes: [{id: 'n[1-1000000]', devices: {count: 8, kind: gpu}}]\n",
        ":1: nodes[0].id: it expands to more than 200,000 names",
    ),
    "guarantees": (
        "queues:\n  - {name: lab, guarantee: {gpu: 4}}\n  - {name: x, parent: lab, guarantee: {gpu: 3}}\n"
        "  - {name: y, parent: lab, guarantee: {gpu: 3}}\n" + NODES,
        "queues.lab.guarantee.gpu: its children guarantee 6 (x 3 + y 3), more than that",
    ),
}  # fmt: skip
WORDS = {
    (
        "--mtbf",
        "1e-9",
    ): "--mtbf: is too short for a node to do useful work (got 1e-09); give 0, or at least 0.01",
    ("--policy", "unidle,,spread"): "--policy: there is no such placement policy (got '')",
    ("--estimates", "exact,0"): "--estimates: is not a kind of estimate (got 'exact,0'); write none",
    ("--estimates", "learned,2"): "--estimates: is not a kind of estimate (got 'learned,2')",
    ("--queue-map", "a"): "--queue-map: is not a list of OLD=NEW (got 'a'); write OLD=NEW",
    ("--queue-map", "a=b,a=c"): "--queue-map: is not a list of OLD=NEW",
    ("--queue-map", "ml=b"): "--queue-map: no job names it (got 'ml'); jobs name default",
    ("--model-map", "T4=H100"): "--model-map: no job names it (got 'T4'); jobs name H100",
    ("--policy", ""): "--policy: there is no such placement policy (got '')",
}


def refused(*words: object) -> str:
    done = unidle(*words)
    assert (done.returncode, done.stdout) == (2, ""), (words, done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(NODES)
    return path


def test_a_bad_trace_is_named_with_its_line_field_value_and_remedy(fleet: Path, tmp_path: Path) -> None:
    def one(case: tuple[int, tuple[str, str, str]]) -> None:
        number, (text, says, remedy) = case
        path = tmp_path / f"t{number}.csv"
        path.write_text(text)
        line = refused("replay", "trace", "--fleet", fleet, "--trace", path, "--policy", "unidle")
        assert f"{path}{says}" in line
        assert remedy in line

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, enumerate(TRACES.values())))


@pytest.mark.slow
def test_a_bad_fleet_is_named_alike_by_replays_and_by_place(tmp_path: Path) -> None:
    trace, job = tmp_path / "t.csv", tmp_path / "job.yaml"
    trace.write_text(GOOD)
    job.write_text("command: [x]\n")

    def one(case: tuple[int, tuple[str, str]]) -> None:
        number, (text, says) = case
        path = tmp_path / f"f{number}.yaml"
        path.write_text(text)
        line = refused("replay", "trace", "--fleet", path, "--trace", trace, "--policy", "firstfit")
        assert says in line
        assert str(path) in line
        assert "; " in line
        assert refused("place", "--fleet", path, "--job", job) == line

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, enumerate(FLEETS.values())))


@pytest.mark.slow
def test_a_slip_in_the_words_of_a_replay_is_named(fleet: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(GOOD)
    for words, says in WORDS.items():
        policy = () if "--policy" in words else ("--policy", "firstfit")
        assert says in refused("replay", "trace", "--fleet", fleet, "--trace", trace, *policy, *words)


def test_no_assumption_may_be_infinite_or_vanish(fleet: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(GOOD)

    def one(words: tuple[str, str]) -> None:
        done = unidle("replay", "trace", "--fleet", fleet, "--trace", trace, "--policy", "unidle", *words)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith((f"unidle: {words[0]}: must be ", f"unidle: {words[0]}: is not a time "))
        assert f"(got '{words[1]}')" in line

    endless = [(f"--{name}", "inf") for name in ("stop-after", "restart", "restore", "stop", "checkpoint-write", "mtbf", "mttr")]  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, [*endless, ("--checkpoint-every", "0.5")]))


def test_a_job_above_its_queues_limit_is_refused_before_the_replay(tmp_path: Path) -> None:
    fleet, trace = tmp_path / "fleet.yaml", tmp_path / "t.csv"
    fleet.write_text("queues: [{name: lab, limit: {gpu: 4}}, {name: other}]\n" + NODES)
    trace.write_text(f"{HEADER}\na,0,5,5,,,,lab,,,\n")
    line = refused("replay", "trace", "--fleet", fleet, "--trace", trace, "--policy", "unidle")
    assert f"{trace}:2: gpus: lab may use at most 4 gpu, and the job needs 5: it can never start here" in line
    assert "raise the queue's limit" in line


def test_a_bad_openb_trace_is_named(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n")
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
    for text, says in {
        "p,1000,1,9,1000\n": f"{pods}:2: num_gpu: requests more than any node has in addition to the rest of the pod (got 9)",
        "p,-5,1,1,1000\n": f"{pods}:2: cpu_milli: is not an amount (got '-5')",
        "p,nan,1,1,1000\n": f"{pods}:2: cpu_milli: is not",
    }.items():
        pods.write_text(head + text)
        assert says in refused("replay", "openb", "--nodes", nodes, "--pods", pods)
    pods.write_text(head + "p,1000,1,1,1000\n")
    for out, says in {
        nodes: "is an input of this command",
        tmp_path: "cannot be written: Is a directory",
    }.items():
        words = ("--decisions", out, "--seeds", "1", "--policy", "firstfit")
        assert f"--decisions: {says}" in refused("replay", "openb", "--nodes", nodes, "--pods", pods, *words)
    assert nodes.read_text().startswith("sn,")
    assert "name: the column is missing" in refused("replay", "openb", "--nodes", nodes, "--pods", nodes)


def test_a_snapshot_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path, job = tmp_path / "snapshot", tmp_path / "job.yaml"
    path.write_text('{"format":"unidle-snapshot","version":9,"time_ns":1}\n')
    job.write_text("command: [x]\n")
    line = refused("place", "--snapshot", path, "--job", job)
    assert (
        f"{path}: line 1: version: a snapshot of a newer version (got 9); this unidle reads version" in line
    )
