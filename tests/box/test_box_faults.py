"""Frames that are wrong, repeated or out of order; disks that are full; journals that are torn; hubs that are others."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import needs
from box.small_hub import TRAINS, Peer, RealBox, SmallHub, died, hub_and_box, python_orders
from places import fill
from unidle import wire
from waiting import wait_until

HEAD = wire.HEADER.pack


def supervisor_of(box: RealBox, attempt: int = 1, rank: int = 0) -> int:
    return int(json.loads((box.rank(attempt, rank) / "supervisor.json").read_text())["pid"])


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        HEAD(0),
        HEAD(wire.FRAME_BYTES + 1),
        HEAD(9) + b"not JSON!",
        HEAD(2) + b"[]",
        HEAD(9) + b'{"f":1}  ',
        HEAD(3) + b"\xff\xfe\xfd",
        wire.framed(b"[" * 100_000),
        wire.encode({"f": "what"}),
        wire.encode({"f": wire.HELLO}),
        wire.encode({"f": wire.PING, "n": "1", "fence": 7}),
        wire.encode({"f": wire.PING, "n": 1, "fence": -7}),
        wire.encode({"f": wire.START, "fence": 7, "attempt": 1, "ranks": []}),
        wire.encode({"f": wire.START, "id": 1, "fence": 7, "attempt": 2, "ranks": [1]}),
        wire.encode({"f": wire.STOP, "id": 1, "fence": 7, "attempt": 1, "ranks": ["0"], "grace_ns": 0}),
        wire.encode({"f": wire.STOP, "id": 1, "fence": True, "attempt": 1, "ranks": [0], "grace_ns": 0}),
        wire.encode({"f": wire.RESUME, "attempt": 1, "known": {"zero": 0}}),
        wire.encode({"f": wire.END, "fence": None}),
    ],
)
def test_a_frame_that_is_none_ends_the_connection_and_nothing_else(tmp_path: Path, data: bytes) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        peer.start(1, TRAINS)
        pid = hub.mark("spawn")["pid"]
        peer.send_bytes(data)
        again = hub.peer(2).welcome()
        assert again.start(2, "print(1)")["ok"]
        assert not died(pid)() and box.process is not None and box.process.poll() is None
        assert len(box.errors.read_text().splitlines()) == 1


def test_a_frame_that_was_cut_counts_for_nothing(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        frame = wire.encode({"f": wire.START, "id": 3, "fence": 7, "attempt": 1, "ranks": [{"rank": 0}]})
        peer.send_bytes(frame[:-5])
        peer.close()
        assert hub.peer(2).hello["box"] == {"attempts": []}
        assert not (box.runs / "job-1" / "1").exists()


def test_commands_that_are_repeated_and_reordered_change_nothing(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        orders = [{"rank": rank, "orders": python_orders(TRAINS, 1, rank)} for rank in (0, 1)]
        assert peer.ask(wire.STOP, attempt=1, ranks=[1], grace_ns=10**9)["ok"]  # before its start
        for _ in range(3):
            assert peer.ask(wire.START, attempt=1, ranks=orders)["ok"]
        assert hub.end_of(1, 1)["text"] == "stopped before it was started"
        hub.mark("step")
        assert not peer.ask(wire.RELEASE, attempt=1)["ok"]  # a rank of it runs
        for _ in range(2):
            assert peer.ask(wire.STOP, attempt=1, ranks=[0], grace_ns=10**9)["ok"]
        assert hub.end_of(1)["code"] == -signal.SIGTERM
        assert peer.ask(wire.START, attempt=1, ranks=orders)["ok"]
        for _ in range(2):
            assert peer.ask(wire.RELEASE, attempt=1)["ok"]
        late = peer.ask(wire.START, attempt=1, ranks=[{"rank": 2, "orders": python_orders(TRAINS, 1, 2)}])
        assert not late["ok"] and "released" in late["why"]
        assert peer.ask(wire.STOP, attempt=1, ranks=[0], grace_ns=0)["ok"]
        assert [mark["k"] for mark in box.journal()].count("spawn") == 1
        assert [mark["k"] for mark in box.journal(1, 1)] == ["lost"]
        assert not (box.rank(1, 2)).exists() and not hub.doubled


def test_many_commands_at_once_are_each_answered_once(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        for number in range(1000, 1200):
            peer.send(f=wire.PREPARE, id=number, fence=7, attempt=number, leader=False)
        for number in range(1000, 1200):
            peer.answer(number)
        answered = [frame["id"] for frame in peer.frames if frame["f"] == wire.DONE]
        assert sorted(answered) == list(range(1000, 1200))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"argv": []}, "argv"),
        ({"argv": "echo"}, "argv"),
        ({"env": {"A": 1}}, "env"),
        ({"workdir": None}, "workdir"),
        ({"grace_ns": True}, "grace_ns"),
        ({"memory_bytes": "1G"}, "memory_bytes"),
    ],
)
def test_orders_that_cannot_be_used_are_answered_and_in_the_journal(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    with hub_and_box(tmp_path) as (hub, _):
        done = hub.peer().welcome().start(1, "pass", **change)
        assert not done["ok"] and f"usable {why}" in done["why"]
        assert f"usable {why}" in hub.end_of(1)["text"]


def test_a_hub_of_the_next_version_is_understood_and_one_after_that_is_not(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome(v=wire.VERSION + 1)
        peer.send(f="new", anything=[1])
        done = peer.ask(wire.PREPARE, attempt=1, leader=False, more={"unknown": 1})
        assert done["ok"]
        peer.close()
        hub.peer(2).welcome(v=wire.VERSION + 2)
        wait_until(lambda: f"speaks version {wire.VERSION + 2}" in box.errors.read_text())


def test_a_hub_of_another_authority_gets_no_token(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = SmallHub(tmp_path / "other")
    try:
        with hub_and_box(tmp_path, hub=[["127.0.0.1", other.port]]) as (hub, box):
            wait_until(lambda: "certificate" in box.errors.read_text())
            assert not hub.peers and not any(peer.frames for peer in other.peers)
    finally:
        other.vanish()


@pytest.mark.parametrize("host", ["DNS:localhost", "IP:127.0.0.1"])
def test_a_certificate_of_the_site_names_the_machine(tmp_path: Path, host: str) -> None:
    hub = SmallHub(tmp_path, host)
    box = RealBox(tmp_path, hub, hub=[[host.partition(":")[2], hub.port]])
    try:
        box.run()
        assert hub.peer().hello["node"] == "n1"
    finally:
        box.close()
        hub.vanish()


def test_a_certificate_of_another_name_is_refused(tmp_path: Path) -> None:
    hub = SmallHub(tmp_path, "DNS:elsewhere")
    box = RealBox(tmp_path, hub)
    try:
        box.run()
        wait_until(lambda: "certificate" in box.errors.read_text())
        assert not any(peer.frames for peer in hub.peers)
    finally:
        box.close()
        hub.vanish()


def test_a_torn_journal_ends_with_lost_and_every_whole_line_is_told(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        peer.start(1, TRAINS)
        hub.mark("step")
        box.kill()
        os.kill(supervisor_of(box), signal.SIGKILL)
        path = box.rank() / "journal.jsonl"
        whole = len(path.read_bytes().splitlines())
        with path.open("ab") as file:
            file.write(b'\xff\xfe no mark\n{"k":"step","t":1,"v":NaN}\n{"k":"st')
        box.run()
        again = hub.peer(2)
        wait_until(lambda: box.journal_ends())
        again.welcome().send(f=wire.RESUME, attempt=1, known={"0": len(hub.marks[1, 0])})
        assert hub.end_of(1)["k"] == "lost"
        told = [hub.marks[1, 0][ordinal] for ordinal in range(whole + 3)]
        assert [mark["k"] for mark in told[whole:]] == ["note", "note", "lost"]
        assert len(hub.marks[1, 0]) == whole + 3 and not hub.doubled


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_an_end_is_told_however_many_lines_of_the_journal_a_power_cut_took(
    tmp_path: Path, lines: int
) -> None:
    """The end that the next box writes has the number of a line that the hub has, and is another mark."""
    with hub_and_box(tmp_path) as (hub, box):
        hub.peer().welcome().start(1, TRAINS)
        hub.mark("step")
        wait_until(lambda: len(hub.marks[1, 0]) >= 3, what="three marks")
        box.kill()
        os.kill(supervisor_of(box), signal.SIGKILL)
        hub.vanish()
        known, connections = len(hub.marks[1, 0]), len(hub.peers)
        path = box.rank() / "journal.jsonl"
        left = path.read_bytes().splitlines(keepends=True)[: known - lines]
        path.write_bytes(b"".join(left) + b'{"k":"st')
        box.run()
        wait_until(lambda: box.journal_ends())
        hub.listen()
        again = hub.peer(connections + 1).welcome()
        again.send(f=wire.RESUME, attempt=1, known={"0": known})
        assert hub.end_of(1)["k"] == "lost"
        assert max(hub.marks[1, 0]) == known and not hub.doubled


@needs.root
def test_an_end_that_the_disk_refuses_is_told_all_the_same(small_disk: Path, tmp_path: Path) -> None:
    with hub_and_box(tmp_path, runs=str(small_disk / "runs")) as (hub, box):
        box.runs = small_disk / "runs"
        peer = hub.peer().welcome()
        peer.start(1, TRAINS)
        hub.mark("step")
        (box.rank() / "reserve").unlink()
        fill(small_disk / "data")
        os.kill(supervisor_of(box), signal.SIGKILL)
        end = hub.end_of(1)
        assert end["k"] == "lost" and not hub.doubled
        known = len(hub.marks[1, 0])
        peer.close()
        again = hub.peer(2)
        assert again.hello["box"]["attempts"][0]["ranks"]["0"] == {"marks": known, "ended": True}
        again.welcome().send(f=wire.RESUME, attempt=1, known={"0": known - 1})  # it had not arrived
        wait_until(lambda: hub.doubled)
        assert [mark["k"] for mark in hub.doubled] == ["lost"] and max(hub.marks[1, 0]) == known - 1
        refused = again.start(2, "pass")
        assert not refused["ok"] and "No space left" in refused["why"]
        assert "No space left" in hub.end_of(2)["text"]
        _and_no_second_end(small_disk, hub, box, known)


def _and_no_second_end(disk: Path, hub: SmallHub, box: RealBox, known: int) -> None:
    """The next box writes an end of its own, of which the hub hears nothing: it does not ask for what has ended."""
    box.kill()
    (disk / "data").unlink()
    box.run()
    peer: Peer = hub.peer(3).welcome()
    assert peer.start(3, "pass")["ok"]
    hub.end_of(3)
    assert len(hub.marks[1, 0]) == known and len(hub.doubled) == 1
