"""Real processes on one device: a filler runs while no other job needs it, makes room, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

from e2e import gangs
from e2e.commands import ask, rows, unidle
from waiting import wait_until

FLEET = """
nodes: [{id: n1, devices: {count: 1, kind: cpu, model: cpu}}]
prices: {cpu: 2.0}
filler_price: 0.5
guard: {preflight: "off"}
"""
COUNTS = """
n=$(cat saved/n 2>/dev/null || echo 0)
trap 'echo it was asked' TERM
while [ ! -e end ]; do
  n=$((n+1)); echo "step $n"; echo $n > saved/new; mv saved/new saved/n; sleep 0.1
done
"""
WAITS = "while [ ! -e done ]; do sleep 0.05; done"


def test_a_filler_makes_room_for_a_job_and_goes_on_after_it(tmp_path: Path) -> None:
    store, fleet, saved = tmp_path / "s.db", tmp_path / "fleet.yaml", tmp_path / "saved"
    fleet.write_text(FLEET)
    saved.mkdir()
    steps = lambda: int((saved / "n").read_text() or 0) if (saved / "n").exists() else 0  # noqa: E731
    with gangs.running("up", "--fleet", fleet, "--store", store) as service:
        more = {"class": "filler", "checkpoint": {"path": "saved"}, "grace_s": 600}
        filler = gangs.submit(store, tmp_path / "filler.yaml", COUNTS, **more)
        wait_until(lambda: steps() > 3, 60, "the filler to work")
        normal = gangs.submit(store, tmp_path / "normal.yaml", WAITS)
        gangs.wait_for_state(store, "normal", "running")
        waits = ask("explain", filler, "--store", store)
        assert waits["class"] == "filler" and waits["state"] == "queued"
        assert "a filler gets what no other job uses" in waits["waiting"]["now"]["text"]
        made = [
            d for d in ask("explain", normal, "--store", store)["decisions"] if d["what"] == "room for it"
        ]
        assert [d["jobs"] for d in made] == [[filler]]
        done = steps()
        (tmp_path / "done").touch()
        gangs.wait_for_state(store, "normal", "succeeded")
        wait_until(lambda: steps() > done + 3, 60, "the filler to go on")
        (tmp_path / "end").touch()
        gangs.wait_for_state(store, "filler", "succeeded")
        service.terminate()
        assert service.wait(60) == 0
    jobs = gangs.jobs_of(store)
    first, second = jobs["filler"].attempts
    assert first.stop is not None and (first.stop.why, first.stop.grace_ns) == ("preempted", 0)
    assert (second.first_step() or 0) >= (first.last_step() or 0) > 3
    began_ns = jobs["normal"].attempts[0].ranks[0].spawn_ns
    assert began_ns is not None and began_ns >= (first.ranks[0].end_ns or 0)
    assert jobs["normal"].attempts[0].placed_ns >= (first.yielded_ns or 0) > 0
    assert unidle("ledger", "--store", store, "--check").returncode == 0
    leaves = {(row["job"], row["leaf"]) for row in rows(store)}
    assert (filler, "filled") in leaves
    assert not {leaf for job, leaf in leaves if job == filler} & {"useful", "replayed", "preempted"}
    assert {job.spec.price_per_device_hour for job in jobs.values()} == {0.5, None}
