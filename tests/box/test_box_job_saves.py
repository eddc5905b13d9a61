"""What a real box does for the checkpoints of its job, and that a box in one file does without."""

from __future__ import annotations

import json
import os
import signal
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from box.small_hub import Peer, RealBox, SmallHub, hub_and_box
from unidle import wire
from unidle.box import archive
from unidle.checkpoint.sums import remember
from unidle.engine.local.ranks.process_tree import is_live
from waiting import wait_until


def damaged(folder: Path) -> Path:
    """The newest of two checkpoints, one byte of which has changed."""
    folder.mkdir()
    for step in (1, 2):
        (folder / f"step_{step}.bin").write_bytes(bytes([step]) * 10_000)
        assert remember(str(folder / f"step_{step}.bin"))
    newest = folder / "step_2.bin"
    state = newest.stat()
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    os.utime(newest, ns=(state.st_atime_ns, state.st_mtime_ns))
    return newest


def prepared(peer: Peer, folder: Path, attempt: int = 2) -> dict[str, Any]:
    saves = {"path": str(folder), "look": True, "aside": True}
    done = peer.ask(wire.PREPARE, attempt=attempt, leader=True, saves=saves)
    assert done["ok"]
    data: dict[str, Any] = done["data"]
    assert data["port"] > 0
    return data


def seen(peer: Peer) -> list[dict[str, Any]]:
    """What a box said of looks that are over."""
    said = [
        frame["body"]
        for frame in list(peer.frames)
        if frame["f"] == wire.SEEN and frame["what"] == wire.LOOKED
    ]
    return [body for body in said if body["over"]]


def test_a_look_is_answered_at_once_and_its_end_is_seen(tmp_path: Path) -> None:
    newest = damaged(tmp_path / "ckpt")
    with hub_and_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        assert prepared(peer, tmp_path / "ckpt")["looked"] == {"attempt": 2, "over": False, "bad": []}
        wait_until(lambda: seen(peer), what="the end of the look")
        [bad] = seen(peer)[0]["bad"]
        assert (bad["path"], bad["step"], Path(bad["moved_to"]).exists()) == (str(newest), 2, True)
        assert not newest.exists()


def test_an_attempt_is_looked_at_once_and_the_next_connection_gets_the_result(tmp_path: Path) -> None:
    damaged(tmp_path / "ckpt")
    with hub_and_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        prepared(peer, tmp_path / "ckpt")
        wait_until(lambda: seen(peer), what="the end of the look")
        peer.close()
        again = hub.peer(2).welcome()
        looked = prepared(again, tmp_path / "ckpt")["looked"]
        assert looked["over"]
        assert len(looked["bad"]) == 1


class Held:
    """The holder of a box's job, and where its copies are."""

    def __init__(self, place: Path) -> None:
        self.place, self.storage = place / "hold", place / "ckpt"
        self.place.mkdir()
        self.saves = {"path": str(self.storage), "hold": "127.0.0.1", "hold_dir": str(self.place)}

    def prepare(self, peer: Peer, attempt: int = 1) -> None:
        assert peer.ask(wire.PREPARE, attempt=attempt, leader=True, saves=self.saves)["ok"]

    def pid(self) -> int:
        """Of the holder that runs; 0 for none."""
        said = [json.loads(path.read_text()) for path in self.place.glob("*/*/holder.json")]
        return next((one["pid"] for one in said if one["node"] == "n1" and is_live(one["pid"])), 0)

    def gone(self) -> bool:
        return not any(self.place.iterdir()) and not any((self.storage / ".unidle" / "holders").iterdir())


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path)
    yield made
    if pid := made.pid():
        os.kill(pid, signal.SIGKILL)


def test_the_holder_of_copies_outlives_attempts_and_ends_with_the_job(tmp_path: Path, held: Held) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        held.prepare(peer)
        first = wait_until(held.pid, what="a holder")
        peer.ask(wire.RELEASE, attempt=1)
        held.prepare(peer, 2)
        assert held.pid() == first
        peer.send(f=wire.END, fence=peer.fence)
        assert box.process is not None
        assert box.process.wait(60) == 0
        wait_until(held.gone, what="the end of the holder and its copies")


def test_a_holder_that_was_killed_is_started_again(tmp_path: Path, held: Held) -> None:
    with hub_and_box(tmp_path) as (hub, _):
        held.prepare(hub.peer().welcome())
        first = wait_until(held.pid, what="a holder")
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: held.pid() not in (0, first) and held.pid(), what="another holder")


def test_the_holder_outlives_its_box_and_the_next_box_ends_it(tmp_path: Path, held: Held) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        held.prepare(hub.peer().welcome())
        first = wait_until(held.pid, what="a holder")
        box.kill()
        box.run()
        peer = hub.peer(2).welcome()
        held.prepare(peer, 2)
        assert held.pid() == first
        os.kill(first, signal.SIGKILL)  # what it held is removed all the same
        peer.send(f=wire.END, fence=peer.fence)
        wait_until(held.gone, what="the end of the copies")


def test_a_signal_leaves_the_holder_with_its_copies_for_other_hosts(tmp_path: Path, held: Held) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        held.prepare(hub.peer().welcome())
        first = wait_until(held.pid, what="a holder")
        assert box.process is not None
        box.process.terminate()
        assert box.process.wait(60) == 0
        assert held.pid() == first


@pytest.mark.parametrize("saves", [1, {"path": "here"}, {"path": "/x", "hold": 3}, {"path": "/x\0"}])
def test_saves_that_are_not_as_agreed_end_the_connection_and_nothing_else(
    tmp_path: Path, saves: object
) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        peer.send(f=wire.PREPARE, id=1, fence=peer.fence, attempt=2, leader=True, saves=saves)
        assert prepared(hub.peer(2).welcome(), tmp_path / "ckpt")
        assert box.process is not None
        assert box.process.poll() is None


def test_a_box_in_one_file_prepares_without_a_look(tmp_path: Path) -> None:
    archive.write(str(tmp_path / "box.pyz"))
    with zipfile.ZipFile(tmp_path / "box.pyz") as file:
        assert not [name for name in file.namelist() if "checkpoint/attend" in name]
    newest = damaged(tmp_path / "ckpt")
    hub = SmallHub(tmp_path)
    box = RealBox(tmp_path, hub).run(command=[sys.executable, str(tmp_path / "box.pyz")])
    try:
        looked = prepared(hub.peer().welcome(), tmp_path / "ckpt")["looked"]
        assert looked == {"attempt": 2, "over": True, "bad": []}
        assert newest.exists()
    finally:
        box.close()
        hub.vanish()
