"""A gang on hosts whose checkpoints are on a file server that stops answering, in real processes on a real mount."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import ask
from e2e.gangs import submit
from e2e.host_fleets import opened
from fuse import stubborn
from waiting import wait_until

pytestmark = pytest.mark.slow


@needs.root
def test_a_file_server_that_stops_answering_on_hosts_is_named_and_so_is_the_end_of_it(tmp_path: Path) -> None:
    with stubborn(tmp_path / "far") as mount, opened(tmp_path, ("n1",)) as fleet:
        try:
            where = {"workdir": str(tmp_path), "checkpoint": {"path": str(mount.place / "ck")}}
            submit(fleet.store, tmp_path / "far.json", "exec sleep 600", ranks=1, device="cpu", **where)

            def told() -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = ask("guard", "incidents", "--store", fleet.store)
                return found

            wait_until(lambda: (tmp_path / "n1" / "mounts").exists(), 60, "the first question")
            mount.stall()
            [incident] = wait_until(told, 120, "the incident")
            assert (incident["kind"], incident["node"], incident["rank"]) == ("storage", "n1", None)
            assert str(mount.place) in incident["because"]
            mount.answer()
            wait_until(lambda: told()[0]["resumed_ns"], 120, "its end")
        finally:
            mount.answer()
