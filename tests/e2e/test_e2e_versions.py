"""Hosts and controllers one version of the wire apart: with the frozen code of the last one (``tests/e2e/releases``)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
from contextlib import ExitStack
from pathlib import Path

import pytest

import unidle
from e2e.commands import UNIDLE
from e2e.gangs import write_job
from e2e.host_fleets import HOSTS, Fleet, opened
from unidle import wire
from unidle.engine.local.ranks import rundir
from unidle.view.jobs import JobView
from waiting import wait_until

RELEASES = Path(__file__).with_name("releases")
RANK = """
echo "began $UNIDLE_ATTEMPT.$RANK"
while [ ! -e GO ]; do sleep 0.05; done
echo "went on $RANK"
"""


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the last version; `releases/freeze.sh` names others."""
    if named := os.environ.get("UNIDLE_LAST_WIRE"):
        return Path(named)
    place = tmp_path_factory.mktemp("wire")
    with tarfile.open(RELEASES / f"wire-{wire.VERSION - 1}.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place / "src"


def submitted(fleet: Fleet, place: Path) -> str:
    """A gang over both hosts, by the controller's release."""
    file = write_job(
        place / "gang.json",
        RANK,
        ranks=2,
        device="cpu",
        workdir=str(place),
        restart={"max": 5, "backoff_s": 0},
    )
    done = subprocess.run(
        [*UNIDLE, "submit", str(file), "--store", str(fleet.store), "--json"],
        stdout=subprocess.PIPE, text=True, check=True, env=fleet.release("hub"),
    )  # fmt: skip
    return str(json.loads(done.stdout)["job"])


def running(fleet: Fleet, job: str, attempt: int) -> JobView | None:
    found = fleet.job(job)
    live = found.live if found is not None else None
    return found if live is not None and live.number == attempt and live.all_spawned else None


def kill_rank(fleet: Fleet, job: str, attempt: int, rank: int) -> None:
    found = running(fleet, job, attempt)
    assert found is not None and found.live is not None
    (node,) = [place.node for place in found.live.places if place.rank == rank]
    directory = rundir.rank_dir(fleet.place / node / "boxes" / job / "runs", job, attempt, rank)
    spawn = json.loads((Path(directory) / rundir.JOURNAL).read_text().splitlines()[0])
    os.kill(spawn["pid"], signal.SIGKILL)


def replace_controller(fleet: Fleet) -> None:
    assert fleet.up is not None
    fleet.up.kill()
    fleet.up.wait()
    fleet.serve()


def goes_on(fleet: Fleet, job: str, attempt: int) -> None:
    """The attempt succeeds, was the last one, and each of its ranks began once."""
    (fleet.place / "GO").touch()
    wait_until(lambda: (found := fleet.job(job)) is not None and found.terminal, 120)
    view = fleet.view().jobs[job]
    assert view.state == "succeeded", [each.why for each in view.attempts]
    assert len(view.attempts) == attempt
    for place in view.attempts[-1].places:
        directory = rundir.rank_dir(
            fleet.place / place.node / "boxes" / job / "runs", job, attempt, place.rank
        )
        printed = (Path(directory) / "log").read_text().splitlines()
        assert printed == [f"began {attempt}.{place.rank}", f"went on {place.rank}"]
    wait_until(lambda: not fleet.boxes(), 60)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """These sources with the number of the version after the next one: two apart from the last one."""
    source = tmp_path_factory.mktemp("later") / "src"
    shutil.copytree(
        Path(unidle.__file__).parent, source / "unidle", ignore=shutil.ignore_patterns("__pycache__")
    )
    text = (file := source / "unidle" / "wire.py").read_text()
    number = f"\nVERSION = {wire.VERSION}\n"
    assert number in text
    file.write_text(text.replace(number, f"\nVERSION = {wire.VERSION + 1}\n"))
    return source


@pytest.mark.slow
@pytest.mark.parametrize("old", [("n1",), HOSTS, ("hub",), ("hub", "n1")], ids="-".join)
def test_a_gang_starts_restarts_and_outlives_its_controller_with_parts_of_the_last_version(
    tmp_path: Path, last: Path, old: tuple[str, ...]
) -> None:
    with opened(tmp_path, code=dict.fromkeys(old, last)) as fleet:
        job = submitted(fleet, tmp_path)
        wait_until(lambda: running(fleet, job, 1), 60)
        kill_rank(fleet, job, 1, 0)
        wait_until(lambda: running(fleet, job, 2), 60)
        replace_controller(fleet)
        kill_rank(fleet, job, 2, 1)
        wait_until(lambda: running(fleet, job, 3), 60)
        goes_on(fleet, job, 3)


@pytest.mark.slow
def test_a_fleet_is_updated_under_a_gang_that_runs(tmp_path: Path, last: Path) -> None:
    """First the controller, then the agents; the boxes of the gang stay."""
    with opened(tmp_path, code=dict.fromkeys(("hub", *HOSTS), last)) as fleet:
        job = submitted(fleet, tmp_path)
        wait_until(lambda: running(fleet, job, 1), 60)
        boxes = sorted(fleet.boxes())
        fleet.code.clear()
        replace_controller(fleet)
        for node in HOSTS:
            fleet.agents[node].kill()
            fleet.agents[node].wait()
            fleet.join(node)
        kill_rank(fleet, job, 1, 0)
        wait_until(lambda: running(fleet, job, 2), 60)
        assert sorted(fleet.boxes()) == boxes
        goes_on(fleet, job, 2)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["hub", "n1"])
def test_an_agent_two_versions_apart_is_refused_with_one_error(
    tmp_path: Path, last: Path, later: Path, which: str
) -> None:
    """An agent that has not joined yet ends. That of the last version dials again."""
    versions = {"hub": later, "n1": last} if which == "n1" else {"hub": last, "n1": later}
    numbers = {last: wire.VERSION - 1, later: wire.VERSION + 1}
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack, ("n1",), code=versions)
        fleet.serve()
        fleet.join("n1")
        client, hub = numbers[versions["n1"]], numbers[versions["hub"]]
        error = f"the client speaks version {client}, the hub version {hub}"
        printed = tmp_path / "n1.err"
        wait_until(lambda: error in printed.read_text(), 60)
        if which == "hub":
            assert fleet.agents["n1"].wait(60) != 0
            assert "update the older of the two" in printed.read_text()
        assert len(printed.read_text().splitlines()) == 1
        assert not fleet.view().fleet.nodes
