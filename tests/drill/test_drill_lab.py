"""Gangs on nodes with a network of their own: links that are cut or slow are found and named."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import ask
from e2e.gangs import jobs_of, running
from labs import fleet_text
from unidle.drill.lab import Lab
from waiting import wait_until

ALLREDUCE = Path(__file__).parent.parent / "e2e" / "allreduce.py"
pytestmark = [needs.root, needs.shaping, needs.own_mounts, pytest.mark.slow]


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab(("n1", "n2", "n3"))
    yield made
    made.close()


def write(lab: Lab, tmp_path: Path, steps: int, **fields: Any) -> tuple[Path, Path]:
    fleet, job = tmp_path / "fleet.yaml", tmp_path / "job.json"
    fleet.write_text(fleet_text(lab, 1))
    command = [sys.executable, str(ALLREDUCE), str(steps), "0.02"]
    content = {
        "name": "ring",
        "command": command,
        "ranks": 3,
        "progress": {"pattern": "at step ([0-9]+)"},
        **fields,
    }
    job.write_text(json.dumps(content))
    return fleet, job


def after_step(store: Path, step: int, attempt: int = 1) -> None:
    def is_there() -> bool:
        job = jobs_of(store).get("ring")
        return (
            job is not None
            and len(job.attempts) >= attempt
            and (job.attempts[attempt - 1].last_step() or 0) >= step
        )

    wait_until(is_there, 60, f"step {step} of attempt {attempt}")


def test_ranks_reach_each_other_by_the_addresses_of_their_nodes(lab: Lab, tmp_path: Path) -> None:
    fleet, job = write(lab, tmp_path, 20)
    with running(
        "run", job, "--fleet", fleet, "--store", tmp_path / "s.db", stdout=subprocess.DEVNULL
    ) as run:
        assert run.wait(180) == 0
    gang = json.loads(next(tmp_path.glob("s.db.d/runs/*/1/gang.json")).read_text())
    assert gang["master_addr"] == lab.address("n1")


def test_a_node_that_is_cut_off_is_named_and_the_gang_goes_on_when_it_is_back(
    lab: Lab, tmp_path: Path
) -> None:
    store = tmp_path / "s.db"
    fleet, job = write(lab, tmp_path, 150, restart={"max": 5, "backoff_s": 1})
    with running("run", job, "--fleet", fleet, "--store", store, stdout=subprocess.DEVNULL) as run:
        after_step(store, 5)
        lab.cut("n3")
        wait_until(lambda: jobs_of(store)["ring"].attempts[0].verdicts, 60, "a verdict")
        lab.mend("n3")
        assert run.wait(120) == 0
    first = ask("guard", "incidents", "--store", store)[0]
    assert (first["kind"], first["rank"], first["node"]) in (("cut", 2, "n3"), ("cut", None, None))
    assert first["verdict_ns"] - first["onset_ns"] < 60_000_000_000


def test_a_link_that_is_cut_between_two_nodes_names_both_ends(lab: Lab, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    fleet, job = write(lab, tmp_path, 3000)
    with running("run", job, "--fleet", fleet, "--store", store, stdout=subprocess.DEVNULL) as run:
        after_step(store, 5)
        lab.cut("n1", "n2")
        verdict = wait_until(lambda: jobs_of(store)["ring"].attempts[0].verdicts, 60, "a verdict")[0]
        assert verdict.kind == "cut"
        assert "0-1" in verdict.because.text and "0-2" not in verdict.because.text
        assert ask("guard", "incidents", "--store", store)[0]["link"] == "n1-n2"
        lab.mend("n1", "n2")
        wait_until(lambda: jobs_of(store)["ring"].attempts[0].verdict is None, 60, "the end of it")
        run.send_signal(signal.SIGINT)
        run.wait(60)


def test_nothing_of_a_lab_is_left(lab: Lab) -> None:
    assert (
        f"{lab.tag}-n1" in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    )
    other = Lab(("a",), tag=lab.tag)  # as after a kill: the same tag is swept first
    other.close()
    assert lab.tag not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def round_trip_s(lab: Lab, a: str, b: str) -> float:
    """How long a refused connection takes from one node to another: a round trip."""
    program = (
        "import socket, sys, time\n"
        "begun = time.monotonic()\n"
        "try: socket.create_connection((sys.argv[1], 9), timeout=20)\n"
        "except ConnectionRefusedError: print(time.monotonic() - begun)\n"
    )
    command = ["ip", "netns", "exec", lab.space(a), sys.executable, "-c", program, lab.address(b)]
    times = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)
    ]
    return min(times)


def test_a_link_is_delayed_in_both_directions_and_mended(lab: Lab) -> None:
    lab.delay("n1", "n2", 60)
    assert 0.12 <= round_trip_s(lab, "n1", "n2") < 0.5
    assert 0.12 <= round_trip_s(lab, "n2", "n1") < 0.5
    assert round_trip_s(lab, "n1", "n3") < 0.1  # another link of the same node
    assert round_trip_s(lab, "n2", "n3") < 0.1
    lab.mend("n1", "n2")
    assert round_trip_s(lab, "n1", "n2") < 0.1


def test_two_links_of_a_node_are_limited_and_mended_one_by_one(lab: Lab) -> None:
    def rates() -> str:
        return subprocess.run(
            ["ip", "netns", "exec", lab.space("n1"), "tc", "class", "show", "dev", "eth0"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    lab.limit("n1", "n2", 1_000_000)
    lab.limit("n1", "n3", 2_000_000)
    assert "rate 1Mbit" in rates() and "rate 2Mbit" in rates()
    lab.mend("n1", "n2")
    assert "rate 1Mbit" not in rates() and "rate 2Mbit" in rates()
    lab.mend("n1")
    assert "rate 2Mbit" not in rates()
    lab.limit("n1", "n3", 3_000_000)  # a second time
    assert "rate 3Mbit" in rates()


def sent_s(lab: Lab, source: str, targets: str, size: int) -> float:
    """How long a node takes to send so many bytes to each of the others, to all at the same time."""
    take = (
        "import socket\n"
        "with socket.create_server(('', 9)) as server:\n"
        "    print('there', flush=True)\n"
        "    link, _ = server.accept()\n"
        "    while link.recv(1 << 16): pass\n"
        "    link.send(b'.')\n"
    )
    give = (
        "import socket, sys, threading, time\n"
        "def give(address):\n"
        "    with socket.create_connection((address, 9)) as link:\n"
        "        link.sendall(bytes(int(sys.argv[1])))\n"
        "        link.shutdown(socket.SHUT_WR)\n"
        "        link.recv(1)\n"
        "threads = [threading.Thread(target=give, args=(a,)) for a in sys.argv[2:]]\n"
        "begun = time.monotonic()\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
        "print(time.monotonic() - begun)\n"
    )

    def inside(node: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", lab.space(node), sys.executable, "-c", *words]

    with contextlib.ExitStack() as stack:
        for node in targets.split():
            taker = stack.enter_context(
                subprocess.Popen(inside(node, take), stdout=subprocess.PIPE, text=True)
            )
            assert taker.stdout is not None and taker.stdout.readline()
        addresses = [lab.address(node) for node in targets.split()]
        done = subprocess.run(
            inside(source, give, str(size), *addresses), capture_output=True, text=True, check=True
        )
    return float(done.stdout)


def test_nodes_of_a_group_send_to_all_others_of_it_together_no_more_than_their_limit(lab: Lab) -> None:
    lab.limit_among(["n1", "n2", "n3"], 16_000_000)
    assert sent_s(lab, "n1", "n2 n3", 1_000_000) > 0.8
    assert sent_s(lab, "n3", "n1", 1_000_000) > 0.4
    lab.mend("n1")
    assert sent_s(lab, "n1", "n2 n3", 1_000_000) < 0.5
