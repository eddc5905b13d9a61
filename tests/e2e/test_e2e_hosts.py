"""A controller of hosts, agents and boxes, as a user starts them: all of them on the loopback address."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from e2e.commands import UNIDLE, unidle
from e2e.gangs import submit
from e2e.host_fleets import HOSTS, Fleet, opened
from waiting import wait_until


def lines_of(fleet: Fleet, job: str) -> list[str]:
    """What its ranks printed, once all its hosts are connected."""

    def complete() -> list[str] | None:
        done = unidle("logs", job, "--store", fleet.store)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines() if not done.stderr else None

    return wait_until(complete, 60)


def ended(fleet: Fleet, job: str) -> None:
    wait_until(lambda: (found := fleet.job(job)) is not None and found.terminal, 120)
    view = fleet.view().jobs[job]
    assert view.state == "succeeded", [attempt.why for attempt in view.attempts]


GANG = """
echo "rank $RANK of $WORLD_SIZE on $UNIDLE_NODE at $MASTER_ADDR"
[ -n "$MASTER_PORT" ] || exit 3
"""

WAITS = """
echo "began $RANK"
while [ ! -e GO ]; do sleep 0.05; done
echo "went on $RANK"
"""


def test_a_gang_runs_over_two_hosts_and_its_output_is_read_from_them(tmp_path: Path) -> None:
    with opened(tmp_path) as fleet:
        job = submit(fleet.store, tmp_path / "gang.json", GANG, ranks=2, device="cpu")
        ended(fleet, job)
        places = fleet.view().jobs[job].attempts[0].places
        assert sorted(place.node for place in places) == list(HOSTS)
        shown = sorted(f"[{p.rank}] rank {p.rank} of 2 on {p.node} at 127.0.0.1" for p in places)
        assert sorted(lines_of(fleet, job)) == shown
        steps = unidle("progress", job, "--pattern", r"rank \d+ of (?P<step>\d+)", "--store", fleet.store)
        assert (steps.returncode, steps.stderr) == (0, "")
        assert "no steps were found" not in steps.stdout
        check = unidle("ledger", "--check", "--store", fleet.store)
        assert check.returncode == 0, check.stdout
        wait_until(lambda: not fleet.boxes(), 60)  # the job's boxes end with it
        assert sorted(lines_of(fleet, job)) == shown  # which its agents read from then on
        assert fleet.up is not None
        fleet.up.terminate()
        assert fleet.up.wait(60) == 0
        away = unidle("logs", job, "--store", fleet.store)
        assert away.returncode == 3
        assert "the controller of the hosts cannot be reached" in away.stderr


@pytest.mark.slow
def test_a_controller_and_an_agent_that_are_killed_are_followed_by_others_and_the_gang_does_not_notice(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as fleet:
        job = submit(
            fleet.store, tmp_path / "waits.json", WAITS, ranks=2, device="cpu", workdir=str(tmp_path)
        )
        wait_until(
            lambda: (
                (found := fleet.job(job)) is not None and found.live is not None and found.live.all_spawned
            ),
            60,
        )
        boxes = sorted(fleet.boxes())
        assert len(boxes) == 2
        assert fleet.up is not None
        fleet.up.kill()
        fleet.up.wait()
        fleet.agents["n1"].kill()
        fleet.agents["n1"].wait()
        fleet.serve()
        fleet.join("n1")
        (tmp_path / "GO").touch()
        ended(fleet, job)
        assert len(fleet.view().jobs[job].attempts) == 1
        assert sorted(lines_of(fleet, job)) == [
            "[0] began 0",
            "[0] went on 0",
            "[1] began 1",
            "[1] went on 1",
        ]


@pytest.mark.slow
def test_boxes_find_a_controller_that_moved_and_the_gang_does_not_notice(tmp_path: Path) -> None:
    with opened(tmp_path, serve=("--deadline", "10m")) as fleet:
        job = submit(
            fleet.store, tmp_path / "waits.json", WAITS, ranks=2, device="cpu", workdir=str(tmp_path)
        )
        wait_until(
            lambda: (
                (found := fleet.job(job)) is not None and found.live is not None and found.live.all_spawned
            ),
            60,
        )
        boxes = sorted(fleet.boxes())
        assert fleet.up is not None
        for process in (fleet.up, *fleet.agents.values()):
            process.kill()
            process.wait()
        fleet.address, fleet.port = "127.0.0.2", 0
        fleet.serve("--deadline", "10m")
        for node in HOSTS:
            fleet.join(node)
        (tmp_path / "GO").touch()
        ended(fleet, job)
        assert len(fleet.view().jobs[job].attempts) == 1
        assert len(lines_of(fleet, job)) == 2 * len(boxes) == 4
        wait_until(lambda: not fleet.boxes(), 60)  # they heard that their job is over


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--cpu-devices", "2"), "--cpu-devices: is not possible with --listen"),
        (("--certificate", "x.pem"), "--certificate and --key belong together"),
        (("--deadline", "1s"), "--deadline: is too short"),
    ],
)
def test_options_that_hosts_do_not_have_are_refused(
    tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    done = unidle("up", "--store", tmp_path / "s.db", "--listen", "127.0.0.1:0", *words)
    assert done.returncode == 2
    assert problem in done.stderr
    assert not (tmp_path / "s.db").exists()


def test_a_fleet_file_with_nodes_is_refused_where_hosts_join(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes: [{id: n1, devices: {kind: cpu}}]\n")
    done = unidle("up", "--store", tmp_path / "s.db", "--listen", "127.0.0.1:0", "--fleet", file)
    assert done.returncode == 2
    assert "declares 1 node" in done.stderr and "leave `nodes` out" in done.stderr
    assert not (tmp_path / "s.db").exists()


@pytest.mark.parametrize("source", ["", "a\nb"])
def test_a_kernel_log_that_is_no_file_is_refused(tmp_path: Path, source: str) -> None:
    done = unidle("agent", "--join", "127.0.0.1:1", "--token-file", tmp_path / "join", "--kernel-log", source)
    assert done.returncode == 2
    assert "--kernel-log: is not a file's name" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("--hub-name", "login1"), ("--deadline", "10s")])
def test_options_of_hosts_need_listen(tmp_path: Path, words: tuple[str, str]) -> None:
    done = unidle("up", "--store", tmp_path / "s.db", *words)
    assert done.returncode == 2
    assert "add --listen HOST:PORT" in done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*UNIDLE, "up", "--store", str(tmp_path / "s.db"), "--listen", where], capture_output=True, text=True,
            timeout=100, check=False,
        )  # fmt: skip
    assert done.returncode == 3
    assert where.rpartition(":")[2] in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
