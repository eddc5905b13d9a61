"""Real processes on three declared nodes, one kept as a spare: filled by a low job, until a gang has lost its node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e import gangs
from e2e.commands import ask, rows, unidle
from waiting import wait_until

FLEET = """
nodes:
  - {id: "n[1-3]", devices: {count: 1, kind: cpu}}
guard:
  preflight: "off"
  spares: 1
  spare_grace: 1s
  probation_work: low
  prove: {command: ["true"]}
  quick: {command: ["true"]}
"""
UNTIL_STOPPED = "trap 'exit 1' TERM; while :; do sleep 0.1; done"


def places(store: Path, name: str) -> list[str]:
    live = gangs.jobs_of(store)[name].live
    return [place.node for place in live.places] if live is not None else []


def nodes(store: Path) -> dict[str, dict[str, Any]]:
    return {line["target"]: line for line in ask("guard", "nodes", "--store", store)}


@pytest.mark.slow
def test_a_gang_whose_node_falls_sick_goes_on_on_the_spare_though_others_wait(tmp_path: Path) -> None:
    store, fleet, end = tmp_path / "s.db", tmp_path / "fleet.yaml", tmp_path / "end"
    deaf = f"trap '' TERM; until [ -e {end} ]; do sleep 0.1; done"
    fleet.write_text(FLEET)
    with gangs.running("up", "--fleet", fleet, "--store", store) as service:
        gangs.submit(store, tmp_path / "gang.yaml", UNTIL_STOPPED, ranks=2)
        gangs.wait_for_state(store, "gang", "running")
        gangs.submit(store, tmp_path / "normal.yaml", UNTIL_STOPPED)
        filler = gangs.submit(store, tmp_path / "filler.yaml", deaf, preemption="low", grace_s=600)
        gangs.wait_for_state(store, "filler", "running")
        assert (places(store, "gang"), places(store, "filler")) == (["n1", "n2"], ["n3"])
        normal = ask("explain", gangs.jobs_of(store)["normal"].id, "--store", store)
        assert "1 is kept as spare" in normal["reason"]
        assert (nodes(store)["n3"]["spare"], nodes(store)["n3"]["filler"]) == (True, [filler])
        assert [d["spare"] for d in ask("fleet", "--store", store)["devices"]] == [False, False, True]

        assert unidle("guard", "report", "n1", "--store", store).returncode == 0
        wait_until(lambda: sorted(places(store, "gang")) == ["n2", "n3"], 60, "the gang on the spare")
        wait_until(lambda: places(store, "filler") == ["n1"], 60, "the filler on the node on probation")
        wait_until(lambda: gangs.jobs_of(store)["filler"].state == "running", 60, "the filler to run there")
        assert nodes(store)["n1"]["state"] == "probation" and nodes(store)["n1"]["filler"] == [filler]
        assert gangs.jobs_of(store)["normal"].state == "queued"
        story = ask("explain", filler, "--store", store)
        end.touch()
        gangs.wait_for_state(store, "filler", "succeeded")
        for name in ("normal", "gang"):
            ask("cancel", gangs.jobs_of(store)[name].id, "--store", store)
            gangs.wait_for_state(store, name, "cancelled")
        service.terminate()
        assert service.wait(60) == 0
    assert any("a job of 2 devices that restarts after a fault" in d["text"] for d in story["decisions"])
    assert unidle("ledger", "--store", store, "--check").returncode == 0
    spent = {(row["device"], row["leaf"]) for row in rows(store)}
    assert ("n3/0", "reserved") in spent and ("n1/0", "quarantine") in spent
