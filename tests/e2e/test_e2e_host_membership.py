"""Who is a host of the fleet: labels that an agent has at its next start, and a host that was installed again."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from e2e.commands import ask, start, unidle
from e2e.host_fleets import Fleet, opened
from waiting import wait_until


def labels(fleet: Fleet) -> dict[str, str]:
    node = fleet.view().node("n1")
    return dict(node.labels) if node is not None else {}


def test_an_agent_that_starts_again_with_another_label_has_it_in_the_fleet_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as fleet:
        fleet.agents["n1"].send_signal(signal.SIGKILL)
        fleet.agents["n1"].wait()
        fleet.join("n1", "--label", "rack=b")
        wait_until(lambda: labels(fleet).get("rack") == "b", 60)
        spec = tmp_path / "job.json"
        spec.write_text('{"command": ["true"], "device": "cpu", "node_labels": {"rack": "b"}}')
        job = ask("submit", spec, "--store", fleet.store)["job"]
        wait_until(lambda: (found := fleet.job(job)) is not None and found.terminal, 60)
        assert fleet.view().jobs[job].attempts[0].places[0].node == "n1"
        fleet.agents["n1"].send_signal(signal.SIGKILL)
        fleet.agents["n1"].wait()
        fleet.join("n1")
        wait_until(lambda: "rack" not in labels(fleet), 60)


def test_a_host_that_was_installed_again_joins_under_its_name_once_it_is_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path) as fleet:
        forget = ("guard", "forget-host", "n1", "--store", fleet.store)
        connected = unidle(*forget)
        assert connected.returncode == 2
        assert "its agent is connected: stop it first" in connected.stderr
        fleet.agents["n1"].send_signal(signal.SIGKILL)
        fleet.agents["n1"].wait()
        shutil.rmtree(tmp_path / "n1")  # with the token of its own
        words = ("--join", f"127.0.0.1:{fleet.port}", "--token-file", f"{fleet.store}.d/hub/join")
        own = ("--node", "n1", "--state", tmp_path / "n1", "--cpu-devices", 1, "--kernel-log", "off")
        refused = unidle("agent", *words, *own)
        assert refused.returncode == 2
        assert "a node of this name has joined already" in refused.stderr
        assert "unidle guard forget-host n1" in refused.stderr
        forgotten = unidle(*forget)
        assert (forgotten.returncode, forgotten.stderr) == (0, "")
        wait_until(lambda: fleet.view().node("n1") is None, 60)
        fleet.agents["n1"] = start("agent", *words, *own)
        wait_until(lambda: fleet.view().node("n1") is not None, 60)
        nobody = unidle("guard", "forget-host", "n9", "--store", fleet.store)
        assert nobody.returncode == 2
        assert "no host of this name has joined" in nobody.stderr


def test_without_a_controller_of_hosts_there_is_nobody_to_forget(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    assert unidle("run", "--store", store, "--cpu-devices", "1", "--", "true").returncode == 0
    done = unidle("guard", "forget-host", "n1", "--store", store)
    assert done.returncode == 3
    assert "no controller of hosts was on this store" in done.stderr
