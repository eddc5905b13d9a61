"""The job of a launcher: what happens to it while its members only wait for a plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import commands
from rank_span.runs import plan, records
from unidle.span.run.gang import SpanGang, gang_of
from unidle.span.run.hosts import RunHosts
from unidle.view.jobs import JobView


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[SpanGang]:
    """That of a site with one device, which is the only node of its fleet."""
    node = {"id": "a-0-0", "devices": {"count": 1, "kind": "cpu"}}
    hosts = RunHosts({"a/0/0": ("127.0.0.1", 1)}, (node,), "one device")
    with gang_of(hosts, "span", str(tmp_path / "s.db"), tmp_path, "model.py:Descent") as found:
        yield found
        found.over()
        assert found.run(lambda job: job.terminal).state == "succeeded"


def until(gang: SpanGang, condition: Callable[[JobView], object]) -> JobView:
    """Run the launcher's loop until it is so."""
    return gang.run(lambda job: bool(condition(job)))


def test_a_fault_of_a_sites_only_machine_is_reported_and_its_ranks_stay(
    gang: SpanGang, tmp_path: Path
) -> None:
    """Taken out, they would wait for a repair, and the other sites for them."""
    until(gang, lambda job: job.attempts and job.attempts[-1].all_spawned)
    words = ("guard", "report", "a-0-0", "--action", "drain", "--because", "a file system failed")
    done = commands.unidle(*words, "--store", str(tmp_path / "s.db"))
    assert done.returncode == 0, done.stderr
    view = gang.session.controller.view
    until(gang, lambda _: view.faults and "a-0-0" in view.care.targets)
    assert view.care.targets["a-0-0"].state == "suspect"
    assert "not removed" in view.care.targets["a-0-0"].because.text
    job = until(gang, lambda job: job.attempts[-1].stop or "a-0-0" not in view.care.targets)
    assert len(job.attempts) == 1 and job.attempts[-1].stop is None


@pytest.mark.slow
def test_a_member_whose_python_has_not_imported_pytorch_starts_one_that_does(tmp_path: Path) -> None:
    """As where the warm Python of the launcher was killed."""
    given = plan(stages=1)
    [device] = given["devices"]
    (tmp_path / "plan-1.json").write_text(json.dumps(given))
    (tmp_path / "secret").write_text("of this test")
    environment = os.environ | {"UNIDLE_NODE": device["device"].replace("/", "-"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-P", "-m", "unidle.span.rank.member", str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(records(tmp_path / "out-1", device["device"], "step")) == given["steps"]
