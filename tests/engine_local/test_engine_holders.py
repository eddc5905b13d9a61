"""Holders of copies in memory live as long as their job: not as long as its attempts, nor the engine, nor each other."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import needs
from engine_local.local_gangs import FLEET, Gang, Machine, gang_of, sh
from unidle.drill.lab import Lab
from unidle.engine.local.ranks import process_tree
from unidle.engine.protocol import StartGang
from unidle.fleet import Fleet
from waiting import wait_until


class Held:
    """Where the holders of a test's job keep their copies."""

    def __init__(self, place: Path) -> None:
        self.hold, self.storage = place / "hold", place / "ckpt"
        self.hold.mkdir()

    def command(self, attempt: int = 1, job: str = "job") -> StartGang:
        saves = {"checkpoint_path": str(self.storage), "checkpoint_memory": True}
        return gang_of(
            sh("sleep 600"), 2, job=job, attempt=attempt, workdir=str(self.storage.parent), **saves
        )

    def pids(self) -> dict[str, int]:
        """Live holders by node."""
        said = [json.loads(path.read_text()) for path in self.hold.glob("*/*/holder.json")]
        return {one["node"]: one["pid"] for one in said if process_tree.is_live(one["pid"])}

    def both(self, gang: Gang) -> dict[str, int]:
        return dict(gang.until(lambda: len(found := self.pids()) == 2 and found, 60, "two holders"))


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(tmp_path)
    monkeypatch.setenv("UNIDLE_HOLD_DIR", str(made.hold))
    yield made
    for pid in made.pids().values():
        os.kill(pid, signal.SIGKILL)


def over(gang: Gang) -> None:
    """The attempt ends, as the controller would have it."""
    gang.stop(0)
    gang.ends()
    gang.engine.release(gang.command.job, gang.command.attempt)


def test_holders_outlive_attempts_and_end_with_their_job(machine: Machine, held: Held) -> None:
    first = machine.begin(held.command())
    before = held.both(first)
    over(first)
    second = machine.begin(held.command(2))
    second.spawned()
    assert held.both(second) == before
    over(second)
    machine.engine.finish("job")
    records = machine.run_root / ".holders"
    second.until(lambda: not any(held.hold.iterdir()) and not any(records.iterdir()), what="no copies")
    assert not any((held.storage / ".unidle" / "holders").iterdir())


def test_a_killed_holder_is_started_again_where_its_copies_are(machine: Machine, held: Held) -> None:
    gang = machine.begin(held.command())
    before = held.both(gang)
    [copies] = [
        p
        for p in held.hold.glob("unidle-hold-*/*")
        if p.is_dir() and json.loads((p / "holder.json").read_text())["node"] == "left"
    ]
    (copies / "r0-kept").write_text("a copy")
    os.kill(before["left"], signal.SIGKILL)
    gang.until(lambda: held.pids().get("left") not in (None, before["left"]), what="another holder")
    assert held.pids()["right"] == before["right"]
    assert (copies / "r0-kept").exists()
    over(gang)


def test_the_next_engine_takes_holders_up_and_ends_those_of_jobs_that_are_over(
    machine: Machine, held: Held
) -> None:
    gang = machine.begin(held.command())
    before = held.both(gang)
    machine.engine.close()
    again = machine.adopt(held.command(), gang.marks)
    again.engine.keep(["job"])
    os.kill(before["right"], signal.SIGKILL)
    again.until(lambda: held.pids().get("right") not in (None, before["right"]), 60, "another holder")
    assert held.pids()["left"] == before["left"]
    over(again)
    third = machine.new_engine()
    third.keep([])
    wait_until(lambda: third.poll() == [] and not any(held.hold.iterdir()), 60, "no copies")
    assert not held.pids()
    third.close()


def test_a_holder_that_was_killed_before_other_nodes_could_find_it_is_started_again(
    machine: Machine, held: Held
) -> None:
    gang = machine.begin(held.command())
    before = held.both(gang)
    published = held.storage / ".unidle" / "holders"
    gang.until(lambda: len(list(published.glob("[!.]*"))) == 2, what="both addresses")
    machine.engine.close()
    for path in published.iterdir():
        path.unlink()
    os.kill(before["right"], signal.SIGKILL)
    again = machine.adopt(held.command(), gang.marks)
    again.engine.keep(["job"])
    again.until(lambda: held.pids().get("right") not in (None, before["right"]), 60, "another holder")
    over(again)
    again.engine.finish("job")
    again.until(lambda: not any(held.hold.iterdir()), 60, "no copies")


def test_a_job_that_asks_for_none_has_none(machine: Machine, held: Held) -> None:
    gang = machine.begin(replace(held.command(), spec=replace(held.command().spec, checkpoint_memory=False)))
    gang.spawned()
    over(gang)
    assert not (machine.run_root / ".holders").exists() and not any(held.hold.iterdir())


@needs.root
@needs.shaping
def test_the_holder_of_a_node_with_a_network_of_its_own_is_in_it(tmp_path: Path, held: Held) -> None:
    lab = Lab(("left", "right"))
    nodes = tuple(replace(n, address=lab.address(n.id), netns=lab.space(n.id)) for n in FLEET.nodes)
    machine = Machine(tmp_path / "apart", grouped=True)

    def said() -> dict[str, str]:
        """Where the nodes' holders are, by what other nodes read."""
        texts = [path.read_text() for path in (held.storage / ".unidle" / "holders").glob("*.json")]
        return {one["node"]: one["host"] for one in map(json.loads, texts)}

    try:
        machine.engine.close()
        machine.engine = machine.new_engine(Fleet(nodes=nodes))
        gang = machine.begin(held.command())
        for node, pid in held.both(gang).items():
            assert (
                Path(f"/proc/{pid}/ns/net").stat().st_ino
                == Path(f"/run/netns/{lab.space(node)}").stat().st_ino
            )
        gang.until(
            lambda: len(said()) == 2, what="both said to other nodes"
        )  # after they are found on their own
        assert said() == {node.id: lab.address(node.id) for node in nodes}
        over(gang)
        machine.engine.finish("job")
        gang.until(lambda: not any(held.hold.iterdir()), what="no copies")
    finally:
        machine.close()
        lab.close()
