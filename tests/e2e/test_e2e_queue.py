"""Queues of a fleet file in a real service: who starts, who is stopped, and the books."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import gangs
from e2e.commands import ask, unidle

FLEET = """
nodes:
  - {id: "n[1-2]", devices: {count: 2, kind: cpu}}
queues:
  - {name: research, deserved: {cpu: 2}}
  - {name: nlp, parent: research}
  - {name: vision, parent: research, limit: {cpu: 1}}
  - {name: public, kind: public}
"""
UNTIL_STOPPED = "trap 'exit 1' TERM; while :; do sleep 0.1; done"


def fleet(path: Path, text: str = FLEET) -> Path:
    path.write_text(text)
    return path


@pytest.mark.slow
def test_a_queue_takes_back_what_it_lent_and_the_books_show_it(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    for k in range(4):
        gangs.submit(store, tmp_path / f"guest{k}.yaml", UNTIL_STOPPED, queue="public", preemption="low")
    with gangs.running("up", "--fleet", fleet(tmp_path / "fleet.yaml"), "--store", store) as service:
        for k in range(4):
            gangs.wait_for_state(store, f"guest{k}", "running")
        books = {line["queue"]: line for line in ask("queue", "--store", store)}
        assert (books["public"]["used"]["cpu"], books["public"]["borrowed"]["cpu"]) == (4, 4)
        assert books["research"]["deserved"]["cpu"] == 2
        gangs.submit(store, tmp_path / "owner.yaml", UNTIL_STOPPED, queue="nlp", ranks=2, preemption="low")
        gangs.wait_for_state(store, "owner", "running")
        states = sorted(
            line["state"] for line in ask("list", "--store", store) if line["name"].startswith("guest")
        )
        assert states == ["queued", "queued", "running", "running"]
        waits = next(line for line in ask("list", "--store", store) if line["state"] == "queued")
        story = ask("explain", waits["job"], "--store", store)
        assert any(d["what"] == "attempt preempted" for d in story["decisions"])
        for line in ask("list", "--store", store):
            ask("cancel", line["job"], "--store", store)
        service.terminate()
        assert service.wait(60) == 0
    assert unidle("ledger", "--store", store, "--check").returncode == 0
    used = {row["queue"] for row in ask("queue", "--usage", "--store", store)}
    assert used == {"public", "nlp", "research"}


def test_a_quota_tree_that_cannot_hold_is_one_clear_error_with_its_line(tmp_path: Path) -> None:
    cases = {
        "  - {name: a, guarantee: {cpu: 1}}\n  - {name: b, parent: a, guarantee: {cpu: 2}}\n": "guarantee",
        "  - {name: a}\n  - {name: a}\n": "two queues have this name",
        "  - {name: a, parent: b}\n": "no such queue",
        "  - {name: a, parent: b}\n  - {name: b, parent: a}\n": "its own ancestor",
        "  - {name: a, guarantee: {cpu: 99}}\n": "and the fleet has 4",
        "  - {name: a, limit: {tpu: 1}}\n": "no such resource",
        "  - {name: a, limit: {cpu: -1}}\n": "limit",
        "  - {name: a, limit: {cpu: .nan}}\n": "limit",
        "  - {name: a, windows: [{when: 'moon 25:00-26:00'}]}\n": "weekly window",
    }
    for queues, says in cases.items():
        text = FLEET.partition("queues:")[0] + "queues:\n" + queues
        file = fleet(tmp_path / "fleet.yaml", text)
        done = unidle("run", "--fleet", file, "--store", tmp_path / "s.db", "--", "true")
        assert done.returncode == 2, (queues, done.stdout)
        (line,) = done.stderr.splitlines()
        assert says in line and f"{file}:" in line, line
    assert not (tmp_path / "s.db").exists()


def test_a_job_that_its_queue_can_never_run_is_refused(tmp_path: Path) -> None:
    file, store = fleet(tmp_path / "fleet.yaml"), tmp_path / "s.db"
    for fields, code, says in (
        ({"queue": "nope"}, 3, "there is no queue nope that takes jobs; there are nlp, public, vision"),
        ({"queue": "research"}, 3, "there is no queue research that takes jobs"),
        ({"queue": "vision", "ranks": 2}, 3, "vision may use at most 1 cpu, and the job needs 2"),
    ):
        job = gangs.write_job(tmp_path / "job.yaml", "true", **fields)
        done = unidle("run", job, "--fleet", file, "--store", store)
        assert done.returncode == code
        assert says in done.stderr
    assert not store.exists()
