"""A gang whose checkpoints are on a file server that stops answering, in real processes on a real mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import ask, start
from fuse import StubbornMount, stubborn
from waiting import wait_until

JOB = """
name: saves-far-away
command: [python3, -c, "import time; time.sleep(600)"]
ranks: 2
workdir: {workdir}
checkpoint: {{path: {checkpoints}}}
"""
FLEET = "nodes: [{id: n1, devices: {count: 2, kind: cpu}, watch: {kernel_log: 'off'}}]\n"


@contextmanager
def gang_far_away(tmp_path: Path) -> Iterator[tuple[Path, StubbornMount, subprocess.Popen[bytes]]]:
    """The store, the mount of its checkpoints and the controller of a gang that runs."""
    store, job, fleet = tmp_path / "s.db", tmp_path / "job.yaml", tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    with stubborn(tmp_path / "far") as mount:
        job.write_text(JOB.format(workdir=tmp_path, checkpoints=mount.place / "ck"))
        run = start("run", job, "--store", store, "--fleet", fleet)
        try:
            wait_until(lambda: (tmp_path / "s.db.d/mounts").exists(), 60, "the first question")
            yield store, mount, run
        finally:
            mount.answer()
            run.terminate()
            run.wait(60)


@needs.root
@pytest.mark.slow
def test_a_file_server_that_stops_answering_is_named_and_so_is_the_end_of_it(tmp_path: Path) -> None:
    with gang_far_away(tmp_path) as (store, mount, _):

        def told() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = ask("guard", "incidents", "--store", store)
            return found

        mount.stall()
        [incident] = wait_until(told, 60, "the incident")
        assert (incident["kind"], incident["node"], incident["rank"]) == ("storage", "n1", None)
        assert str(mount.place) in incident["because"]
        assert incident["resumed_ns"] is None
        mount.answer()
        wait_until(lambda: told()[0]["resumed_ns"], 60, "its end")


@needs.root
@pytest.mark.slow
def test_a_gang_can_be_stopped_while_the_directory_of_its_checkpoints_does_not_answer(tmp_path: Path) -> None:
    with gang_far_away(tmp_path) as (store, mount, run):
        mount.stall()
        assert mount.held.wait(60)
        run.terminate()
        run.wait(60)  # the mount is still dead
        [listed] = ask("list", "--store", store)
        assert listed["state"] == "cancelled"
