"""A box holds real ranks for a real hub over TLS: start, end, stop, and what it says of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from box.small_hub import TRAINS, RealBox, SmallHub, died, hub_and_box
from unidle import wire
from unidle.box.given_back import unchanged_mappings
from waiting import wait_until


def test_a_rank_runs_to_its_end_and_each_mark_comes_once(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer()
        assert (
            peer.hello["kind"] == "box" and peer.hello["job"] == "job-1" and peer.hello["token"] == "secret"
        )
        assert peer.hello["box"] == {"attempts": []}
        peer.welcome()
        assert peer.start(1, "print('hello')")["ok"]
        end = hub.end_of(1)
        assert end["k"] == "exit" and end["code"] == 0
        marks = hub.marks[1, 0]
        assert sorted(marks) == list(range(len(box.journal()))) and not hub.doubled
        peer.send(f=wire.END, fence=peer.fence)
        assert box.process is not None and box.process.wait(60) == 0
        assert peer.frames[-1]["f"] == wire.BYE


def test_a_rank_that_fails_is_told_with_its_code_and_error(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        peer.start(1, "raise ValueError('no such shape')")
        end = hub.end_of(1)
        assert end["code"] == 1 and "no such shape" in end["last"]["what"]


def test_a_killed_rank_is_told_and_a_new_attempt_runs_in_the_same_box(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        peer.start(1, TRAINS)
        os.kill(hub.mark("spawn")["pid"], signal.SIGKILL)
        assert hub.end_of(1)["code"] == -signal.SIGKILL
        assert peer.ask(wire.RELEASE, attempt=1)["ok"]
        assert peer.start(2, "print('again')")["ok"]
        assert hub.end_of(2)["code"] == 0
        assert box.process is not None and box.process.poll() is None


def test_stop_gives_the_grace_and_then_kills(tmp_path: Path) -> None:
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{TRAINS}"
    with hub_and_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        peer.start(1, deaf)
        hub.mark("step")
        assert peer.ask(wire.STOP, attempt=1, ranks=[0], grace_ns=100_000_000)["ok"]
        end = hub.end_of(1)
        assert end["code"] == -signal.SIGKILL and end["info"]["stopped"]


def test_sigterm_stops_all_ranks_and_ends_the_box(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        peer.start(1, TRAINS, ranks=2)
        hub.mark("step", rank=1)
        assert box.process is not None
        box.process.terminate()
        assert box.process.wait(60) == 0
        assert {hub.end_of(1, rank)["code"] for rank in (0, 1)} == {-signal.SIGTERM}
        said = [frame["f"] for frame in peer.frames]
        assert said.count(wire.SEEN) == 1
        last = [frame for frame in peer.frames[said.index(wire.SEEN) :] if frame["f"] == wire.MARKS]
        assert {frame["rank"] for frame in last if "exit" in str(frame["marks"])} == {0, 1}


def test_a_hub_that_comes_after_sigterm_also_hears_of_it_before_the_ends(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        peer.start(1, TRAINS)
        hub.mark("step")
        peer.close()
        os.kill(box.pid, signal.SIGTERM)
        wait_until(box.journal_ends)
        again = hub.peer(2).welcome()
        again.send(f=wire.RESUME, attempt=1, known={})
        hub.end_of(1)
        said = [frame["f"] for frame in again.frames]
        assert wire.MARKS in said[said.index(wire.SEEN) :]
        assert wire.MARKS not in said[: said.index(wire.SEEN)]


def test_a_killed_box_is_followed_by_one_that_takes_up_its_ranks(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        peer.start(1, TRAINS)
        pid = hub.mark("spawn")["pid"]
        known = len(hub.marks[1, 0])
        box.kill()
        assert not died(pid)()
        box.run()
        again = hub.peer(2)
        told = again.hello["box"]["attempts"]
        assert [entry["attempt"] for entry in told] == [1]
        assert told[0]["ranks"]["0"]["marks"] >= known and not told[0]["ranks"]["0"]["ended"]
        again.welcome().send(f=wire.RESUME, attempt=1, known={"0": known})
        assert again.ask(wire.STOP, attempt=1, ranks=[0], grace_ns=0)["ok"]
        assert hub.end_of(1)["info"]["stopped"]
        assert not hub.doubled and sorted(hub.marks[1, 0]) == list(range(len(box.journal())))


def test_two_boxes_of_one_job_on_one_directory_are_one_too_many(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        hub.peer().welcome()
        other = RealBox(tmp_path, hub)
        other.errors = tmp_path / "other.err"
        other.run()
        assert other.process is not None and other.process.wait(60) == 3
        (line,) = other.errors.read_text().splitlines()
        assert f"the box with pid {box.pid} has" in line
        assert int((box.directory / "box.lock").read_text()) == box.pid


def test_the_first_rank_gets_the_port_that_was_prepared(tmp_path: Path) -> None:
    listen = (
        "import socket, os; s = socket.socket(socket.AF_INET6); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
        "s.bind(('::', int(os.environ['MASTER_PORT']))); s.listen(); print('listens')"
    )
    with hub_and_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        data = peer.ask(wire.PREPARE, attempt=1, leader=True)["data"]
        assert peer.ask(wire.PREPARE, attempt=1, leader=True)["data"] == data
        env = {"MASTER_PORT": str(data["port"])}
        peer.start(1, listen, env=env)
        assert hub.end_of(1)["code"] == 0, hub.marks
        assert data["interface"] == "lo"


def test_logs_are_read_in_parts_and_nothing_else_is(tmp_path: Path) -> None:
    import base64

    with hub_and_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        peer.start(1, "print('a' * 10); print('b' * 10)")
        hub.end_of(1)

        def read(file: str, **more: int) -> dict[str, object]:
            return peer.ask(wire.READ, attempt=1, rank=0, file=file, **more)

        data = read("log", offset=-11, bytes=4)["data"]
        assert base64.b64decode(data["text"]) == b"bbbb" and data["size"] == 22 and data["offset"] == 11
        for name in ("orders.json", "../rank0/log", "/etc/passwd", "log.x", "", "lock"):
            assert not read(name)["ok"], name


def test_output_is_copied_with_the_rank_before_each_line(tmp_path: Path) -> None:
    import subprocess

    hub = SmallHub(tmp_path)
    box = RealBox(tmp_path, hub)
    try:
        box.run("--output", stdout=subprocess.PIPE)
        peer = hub.peer().welcome()
        peer.start(1, "import sys; print('one'); sys.stdout.write('no end')", ranks=2)
        hub.end_of(1, 0), hub.end_of(1, 1)
        peer.send(f=wire.END, fence=peer.fence)
        assert box.process is not None
        text, _ = box.process.communicate(timeout=60)
        assert sorted(text.decode().splitlines()) == [
            "[rank 0] no end",
            "[rank 0] one",
            "[rank 1] no end",
            "[rank 1] one",
        ]
    finally:
        box.close()
        hub.vanish()


def test_settings_are_refused_when_others_could_have_written_or_read_them(tmp_path: Path) -> None:
    hub = SmallHub(tmp_path)
    try:
        box = RealBox(tmp_path, hub)
        path = box.directory / "box.json"
        path.chmod(0o644)
        assert box.run().process.wait(60) == 2  # type: ignore[union-attr]
        assert "chmod 600" in box.errors.read_text()
        path.rename(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").chmod(0o600)
        path.symlink_to(tmp_path / "elsewhere")
        assert box.run().process.wait(60) == 2  # type: ignore[union-attr]
        assert "a link is not followed" in box.errors.read_text()
    finally:
        hub.vanish()


def test_a_box_waits_for_a_hub_that_is_not_there_yet(tmp_path: Path) -> None:
    hub = SmallHub(tmp_path)
    box = RealBox(tmp_path, hub)
    hub.vanish()
    try:
        box.run()
        wait_until(lambda: "ECONNREFUSED" in box.errors.read_text())
        hub.listen()
        assert hub.peer().hello["node"] == "n1"
    finally:
        box.close()
        hub.vanish()


def test_a_box_at_rest_gives_memory_back_and_works_on(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        assert peer.start(1, TRAINS)["ok"]
        hub.mark("step")
        wait_until(lambda: rss_mb(box) < 15, what="a box that has given memory back")
        os.kill(hub.mark("spawn")["pid"], signal.SIGKILL)
        assert hub.end_of(1)["code"] == -signal.SIGKILL
        assert peer.ask(wire.RELEASE, attempt=1)["ok"]
        assert peer.start(2, "print('again')")["ok"]
        assert hub.end_of(2)["code"] == 0


def rss_mb(box: RealBox) -> float:
    status = Path(f"/proc/{box.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1000


def test_only_unchanged_mappings_of_files_are_given_back() -> None:
    shown = """\
7f0000000000-7f0000002000 r-xp 00000000 08:01 7        /usr/lib/a name.so
Rss:                   8 kB
Anonymous:             0 kB
Locked:                0 kB
VmFlags: rd ex mr mw me
7f0000003000-7f0000004000 r--p 00000000 08:01 7        /usr/lib/changed.so
Anonymous:             4 kB
Locked:                0 kB
7f0000005000-7f0000006000 r--p 00000000 08:01 7        /usr/lib/locked.so
Anonymous:             0 kB
Locked:                4 kB
7f0000007000-7f0000008000 rw-p 00000000 08:01 7        /usr/lib/writable.so
Anonymous:             0 kB
Locked:                0 kB
7f0000009000-7f000000a000 r--p 00000000 00:00 0
Anonymous:             0 kB
Locked:                0 kB
7f000000b000-7f000000c000 r-xp 00000000 00:00 0        [vdso]
Anonymous:             0 kB
Locked:                0 kB
7f000000d000-7f000000e000 r--p 00000000 08:01 7        /usr/lib/rodata.so (deleted)
Anonymous:             0 kB
Locked:                0 kB
"""
    assert list(unchanged_mappings(shown.splitlines())) == [
        (0x7F0000000000, 0x7F0000002000),
        (0x7F000000D000, 0x7F000000E000),
    ]
