"""Two clusters with a service each: a job goes where it starts, and moves on where it would wait."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from e2e import gangs
from e2e.commands import ask, unidle
from unidle.control.dispatch import MOVER
from unidle.control.inbox import CancelRequest
from unidle.store.open import open_store

SMALL = "nodes: [{id: e, devices: {count: 2, kind: cpu}}]\n"
LARGE = "nodes: [{id: w, devices: {count: 4, kind: cpu}}]\nqueues: [{name: default}]\n"
WAITS = "trap 'exit 1' TERM; while :; do sleep 0.1; done"


def clusters(path: Path) -> Path:
    file = path / "clusters.yaml"
    file.write_text("clusters: [{name: east, store: east.db}, {name: west, store: west.db}]\n")
    (path / "east.yaml").write_text(SMALL)
    (path / "west.yaml").write_text(LARGE)
    return file


def send(file: Path, job: Path) -> dict[str, object]:
    done = unidle("submit", job, "--clusters", file, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.slow
def test_a_job_goes_where_it_starts_and_moves_when_room_comes_free_elsewhere(tmp_path: Path) -> None:
    file = clusters(tmp_path)
    east, west = tmp_path / "east.db", tmp_path / "west.db"
    with (
        gangs.running("up", "--store", east, "--fleet", tmp_path / "east.yaml"),
        gangs.running("up", "--store", west, "--fleet", tmp_path / "west.yaml"),
    ):
        gangs.wait_until(lambda: all(line["reached"] for line in ask("clusters", file)))
        two = gangs.write_job(tmp_path / "two.yaml", WAITS, ranks=2)
        first = send(file, two)
        assert (first["cluster"], first["state"]) == ("east", "queued")
        gangs.wait_for_state(east, "two", "running")
        four = gangs.write_job(tmp_path / "four.yaml", WAITS, ranks=4)
        assert send(file, four)["cluster"] == "west"
        gangs.wait_for_state(west, "four", "running")
        later = gangs.write_job(tmp_path / "later.yaml", WAITS, ranks=2)
        done = unidle("submit", later, "--store", west, "--json")
        job = json.loads(done.stdout)["job"]
        gangs.wait_until(lambda: (found := gangs.jobs_of(west).get("later")) is not None and found.verdict)
        assert ask("clusters", file, "--rebalance") == []
        ask("cancel", first["job"], "--store", east)
        proposed = ask("clusters", file, "--rebalance")
        assert [(m["job"], m["from"], m["to"], m["moved"]) for m in proposed] == [
            (job, "west", "east", False)
        ]
        assert [m["moved"] for m in ask("clusters", file, "--rebalance", "--apply")] == [True]
        gangs.wait_for_state(east, "later", "running")
        assert gangs.jobs_of(west)["later"].state == "cancelled"
        for store, name in ((east, job), (west, "four")):
            ask("cancel", name, "--store", store)


def test_a_move_that_died_half_way_is_finished_by_the_next(tmp_path: Path) -> None:
    file = clusters(tmp_path)
    east, west = tmp_path / "east.db", tmp_path / "west.db"
    with (
        gangs.running("up", "--store", east, "--fleet", tmp_path / "east.yaml"),
        gangs.running("up", "--store", west, "--fleet", tmp_path / "west.yaml"),
    ):
        gangs.wait_until(lambda: all(line["reached"] for line in ask("clusters", file)))
        job = gangs.submit(west, tmp_path / "never.yaml", "true", hold=True, ranks=5)
        gangs.wait_until(lambda: (found := gangs.jobs_of(west).get("never")) is not None and found.verdict)
        opened = open_store(str(west), create=False)  # what a mover does before it dies
        opened.request("cancel", msgspec.json.encode(CancelRequest(job, f"{MOVER}east", only_waiting=True)))
        opened.close()
        gangs.wait_for_state(west, "never", "cancelled")
        moved = ask("clusters", file, "--rebalance", "--apply")
        assert [(m["job"], m["to"]) for m in moved] == [(job, "east")]
        gangs.wait_until(lambda: "never" in gangs.jobs_of(east))
        assert ask("clusters", file, "--rebalance", "--apply") == []
        ask("cancel", job, "--store", east)


def test_a_job_that_runs_is_not_cancelled_by_a_mover(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    job = gangs.submit(store, tmp_path / "quick.yaml", "sleep 0.5")
    opened = open_store(str(store), create=False)
    with gangs.running("up", "--until-idle", "--store", store) as service:
        gangs.wait_for_state(store, "quick", "running")
        opened.request("cancel", msgspec.json.encode(CancelRequest(job, f"{MOVER}east", only_waiting=True)))
        assert service.wait(60) == 0
    opened.close()
    assert gangs.jobs_of(store)["quick"].state == "succeeded"


def test_clusters_that_cannot_be_reached_are_named_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "clusters.yaml"
    file.write_text("clusters: [{name: east, store: east.db}, {name: west, summary: west.json}]\n")
    done = unidle("clusters", file)
    assert done.returncode == 0
    assert "cluster east is left out" in done.stderr
    assert "cluster west is left out" in done.stderr
    job = gangs.write_job(tmp_path / "j.yaml", "true")
    done = unidle("submit", job, "--clusters", file)
    assert (done.returncode, "no cluster can take the job" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("clusters: []\n", "clusters"),
        ("clusters: [{name: a}]\n", "clusters[0]"),
        ("clusters: [{name: a, store: s, summary: t}]\n", "clusters[0]"),
        ("clusters: [{name: a, store: s}, {name: a, store: t}]\n", "clusters[1].name"),
        ("clusters: [{name: A B, store: s}]\n", "clusters[0].name"),
        ("clusters: [{name: a, stor: s}]\n", "clusters[0].stor"),
        ("prefer: luck\nclusters: [{name: a, store: s}]\n", "prefer"),
        ("- a\n", "mapping"),
    ],
)
def test_a_bad_clusters_file_is_one_error_with_its_line(tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "clusters.yaml"
    file.write_text(text)
    done = unidle("clusters", file)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert field in done.stderr
    assert "clusters.yaml:" in done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace('"version":2', '"version":9'), "another version"),
        (lambda text: text.replace("unidle-summary", "other"), "not a capacity summary"),
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: text.replace('"free":2', '"free":7'), "more free than it has in all"),
    ],
)
def test_a_bad_summary_is_left_out_with_what_is_wrong(tmp_path: Path, change: object, says: str) -> None:
    store = tmp_path / "s.db"
    (tmp_path / "east.yaml").write_text(SMALL)
    gangs.submit(store, tmp_path / "j.yaml", "true")
    done = unidle("up", "--until-idle", "--store", store, "--fleet", tmp_path / "east.yaml")
    assert done.returncode == 0, done.stderr
    written = unidle("fleet", "--store", store, "summary").stdout
    assert '"free":2' in written
    (tmp_path / "c.json").write_text(change(written))  # type: ignore[operator]
    file = tmp_path / "clusters.yaml"
    file.write_text("clusters: [{name: c, summary: c.json}]\n")
    done = unidle("clusters", file)
    assert says in done.stderr
