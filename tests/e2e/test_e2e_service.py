"""A service of real processes: replicas that answer on ports of their own, and are restarted however they end."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from e2e import gangs
from e2e.commands import ask, rows, unidle
from waiting import wait_until

FLEET = """
nodes: [{id: n1, devices: {count: 2, kind: cpu}}]
guard: {preflight: "off"}
"""
SERVE = """
import http.server, os
class Replica(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/exit/"):
            os._exit(int(self.path[6:]))
        self.send_response(503 if os.path.exists("sick") else 200)
        self.end_headers()
        self.wfile.write(os.environ["UNIDLE_JOB"].encode())
    def log_message(self, *what):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Replica).serve_forever()
"""


def get(endpoint: str, path: str) -> str:
    try:
        with urllib.request.urlopen(f"{endpoint}{path}", timeout=60) as answer:
            return str(answer.read().decode())
    except (OSError, urllib.error.URLError):
        return ""


def written(tmp_path: Path) -> Path:
    """The job file of a service, its program and the fleet."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "serve.py").write_text(SERVE)
    job = {
        "name": "chat", "kind": "service", "command": [sys.executable, "serve.py"], "restart": {"backoff_s": 0.1},
        "service": {"replicas": 2, "ready": "/health"},
    }  # fmt: skip
    (tmp_path / "chat.json").write_text(json.dumps(job))
    return tmp_path / "chat.json"


def test_replicas_answer_are_restarted_and_end_together(tmp_path: Path) -> None:
    store, job = tmp_path / "s.db", written(tmp_path)
    with gangs.running("up", "--fleet", tmp_path / "fleet.yaml", "--store", store) as service:
        done = unidle("submit", job, "--store", store, "--json")
        name = str(json.loads(done.stdout)["job"])

        def replicas() -> list[dict[str, Any]]:
            return list(ask("show", name, "--store", store)["service"]["replicas"])

        def ready(restarts: list[int]) -> bool:
            found = replicas()
            return [r["restarts"] for r in found] == restarts and all(r["ready"] for r in found)

        wait_until(lambda: gangs.jobs_of(store), 60, "the service to be submitted")
        wait_until(lambda: ready([0, 0]), 60, "both replicas to be ready")
        first, second = replicas()
        assert get(first["endpoint"], "/") == name and get(second["endpoint"], "/") == f"{name}-1"
        get(first["endpoint"], "/exit/3")
        get(second["endpoint"], "/exit/0")
        wait_until(lambda: ready([1, 1]), 60, "both replicas to be restarted")
        (tmp_path / "sick").touch()
        wait_until(lambda: not any(r["ready"] for r in replicas()), 60, "the replicas to be unready")
        (tmp_path / "sick").unlink()
        wait_until(lambda: ready([1, 1]), 60, "the replicas to be ready again")
        shown = unidle("show", name, "--store", store)
        assert "service  2 of 2 replicas ready" in shown.stdout
        ask("cancel", name, "--store", store)
        wait_until(lambda: {r["state"] for r in replicas()} == {"cancelled"}, 60, "all replicas to be over")
        service.terminate()
        assert service.wait(60) == 0
    assert unidle("ledger", "--store", store, "--check").returncode == 0
    leaves = {row["leaf"] for row in rows(store) if (row["job"] or "").startswith(name)}
    assert {"model_load", "ready", "unready"} <= leaves
    assert not leaves & {"useful", "unmeasured", "replayed", "no_artefact", "failed_start"}
