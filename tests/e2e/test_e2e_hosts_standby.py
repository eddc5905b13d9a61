"""A controller that stands by: it takes the store where another one ends, and ends by itself where it is asked to."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from e2e.commands import UNIDLE, unidle
from e2e.gangs import submit
from e2e.host_fleets import Fleet, opened
from waiting import wait_until

WAITS = 'echo started >> "started.$RANK"; while [ ! -e GO ]; do sleep 0.05; done'


def standby(fleet: Fleet, log: Path) -> subprocess.Popen[bytes]:
    """It listens where the first one did, once that is gone."""
    words = ["up", "--standby", "--store", fleet.store, "--listen", f"{fleet.address}:{fleet.port}", "--progress", "plain"]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen([*UNIDLE, *map(str, words)], stdout=out, stderr=out)
    wait_until(lambda: "standing by: the store is held by unidle up" in log.read_text(), 60, "it stands by")
    return process


def test_a_controller_that_stands_by_continues_what_a_killed_one_began(tmp_path: Path) -> None:
    with opened(tmp_path) as fleet:
        job = submit(
            fleet.store, tmp_path / "waits.json", WAITS, ranks=2, device="cpu", workdir=str(tmp_path)
        )
        wait_until(lambda: (found := fleet.job(job)) is not None and found.live is not None and found.live.all_spawned, 60)  # fmt: skip
        second = standby(fleet, tmp_path / "second.log")
        assert fleet.up is not None
        fleet.up.kill()
        fleet.up.wait(60)
        fleet.up = second
        wait_until(lambda: " s  serving " in (tmp_path / "second.log").read_text(), 60, "it serves")
        (tmp_path / "GO").touch()
        wait_until(lambda: (found := fleet.job(job)) is not None and found.terminal, 120)
        found = fleet.view().jobs[job]
        assert (found.state, len(found.attempts)) == ("succeeded", 1)
        assert [(tmp_path / f"started.{rank}").read_text() for rank in (0, 1)] == ["started\n"] * 2
        assert unidle("store", "check", "--store", fleet.store).returncode == 0


def test_a_controller_that_stands_by_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    with opened(tmp_path, hosts=()) as fleet:
        for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
            process = standby(fleet, tmp_path / "log")
            process.send_signal(number)
            assert process.wait(60) == code
        assert fleet.up is not None
        assert fleet.up.poll() is None


def test_standing_by_is_for_controllers_of_hosts(tmp_path: Path) -> None:
    done = unidle("up", "--standby", "--store", tmp_path / "none.db")
    assert done.returncode == 2
    assert "--standby: is for a controller that hosts join" in done.stderr
