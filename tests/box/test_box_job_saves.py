"""What a real box does for the checkpoints of its job, and that a box in one file does without."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from box.small_hub import Peer, RealBox, SmallHub, hub_and_box
from unidle import wire
from unidle.box import archive
from unidle.checkpoint.sums import remember
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
