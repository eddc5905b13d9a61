"""From a line in a kernel log, through a controller and its remedies, to the component in the counts of failures."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from e2e.commands import ask
from e2e.gangs import jobs_of, submit
from e2e.test_e2e_detect import append, up
from waiting import wait_until

FLEET = {
    "nodes": [
        {
            "id": "n[1-4]",
            "devices": {"count": 2, "kind": "cpu"},
            "watch": {"kernel_log": "n[1-4].log", "pci": ["0000:3b:00.0", "0000:5e:00.0"]},
        }
    ],
    "guard": {
        "out": {"nodes": 4},
        "breaker": {"nodes": 4},
        "quarantine": "1h",
        "remedy": {
            step: {"command": ["false"], "tries": 1, "timeout": "60s"}
            for step in ("reset_gpu", "reboot", "replace")
        },
    },
}
LOST = "[  219.471050] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ASKED = "[  219.571050] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
ECC = "[  300.000001] NVRM: Xid (PCI:0000:5e:00): 95, pid='<unknown>', name=<unknown>, Uncontained: FBHUB"
LINK = "[  400.000001] mlx5_core 0000:ab:00.0 eth5: Link down"


def failures(store: Path) -> dict[str, Any]:
    found: dict[str, Any] = ask("guard", "failures", "--store", store)
    return found


def components(store: Path) -> dict[str, tuple[int, int]]:
    rows = failures(store)["components"]
    return {row["component"]: (row["failures"], row["out_of_service"]) for row in rows}


def kinds(store: Path) -> dict[str, tuple[int, int]]:
    return {row["fault"]: (row["failures"], row["of_jobs"]) for row in failures(store)["faults"]}


def test_a_line_in_a_log_is_one_failure_of_its_component_however_its_remedies_escalate(
    tmp_path: Path,
) -> None:
    fleet, store = tmp_path / "fleet.json", tmp_path / "s.db"
    fleet.write_text(json.dumps(FLEET))
    for k in range(1, 5):
        (tmp_path / f"n{k}.log").touch()
    with up(fleet, store):
        append(tmp_path / "n1.log", LOST)
        append(tmp_path / "n1.log", ASKED)
        wait_until(lambda: components(store).get("GPU") == (1, 1), 120, "the lost GPU to be counted")
        append(tmp_path / "n2.log", ECC)  # reset fails, then the node's reboot, then its replacement
        append(tmp_path / "n3.log", LINK)
        wanted = {"any": (3, 2), "GPU": (2, 2), "link": (1, 0)}
        wait_until(lambda: components(store) == wanted, 120, "all three to be counted")

        def over() -> bool:
            last = {one["target"]: one["state"] for one in ask("guard", "nodes", "--store", store)}
            return last.get("n1") == "out" and last.get("n2") == "out"

        wait_until(over, 180, "both nodes to need a person")
        assert components(store) == wanted, "remedies that fail are no further failures"
        assert kinds(store) == {"gpu_lost": (1, 0), "gpu_ecc": (1, 0), "ib_link": (1, 0)}
        found = failures(store)
        assert {row["node"]: row["events"] for row in found["nodes"]} == {"n1": 1, "n2": 1, "n3": 1}
        assert all(row["node_days"] > 0 and row["per_node_year"]["value"] is None for row in found["nodes"])
        assert found["removals_per_1000_node_days"]["value"] is None, "too little was seen for a rate"
        faults = [one for one in ask("guard", "incidents", "--store", store) if one["job"] is None]
        assert sorted((one["node"], one["kind"]) for one in faults) == [
            ("n1", "gpu"),
            ("n2", "gpu"),
            ("n3", "node"),
        ]


def test_jobs_that_fail_by_their_code_or_by_a_signal_from_outside_are_no_failures_of_nodes(
    tmp_path: Path,
) -> None:
    fleet, store = tmp_path / "fleet.json", tmp_path / "s.db"
    fleet.write_text(json.dumps({"nodes": [{"id": "n1", "devices": {"count": 2, "kind": "cpu"}}]}))
    with up(fleet, store):
        code = "echo 'Traceback (most recent call last):' >&2; echo 'ValueError: no' >&2; exit 1"
        submit(store, tmp_path / "a.json", code, ranks=1, name="a")
        submit(store, tmp_path / "b.json", "read -t 600 <> <(:)", ranks=1, name="b")

        def pid() -> int | None:
            job = jobs_of(store).get("b")
            attempts = job.attempts if job is not None and job.state == "running" else ()
            return attempts[-1].ranks[0].pid if attempts else None

        os.kill(wait_until(pid, 60, "the job to run") or 0, signal.SIGKILL)
        wait_until(lambda: all(job.terminal for job in jobs_of(store).values()), 60, "both to end")
        assert kinds(store) == {"user_code": (1, 1), "operation": (1, 1)}
        assert components(store) == {"any": (0, 0)}
