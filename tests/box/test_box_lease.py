"""Fencing: ranks end when the controller was not heard for the lease, also those of a box that was killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from box.small_hub import TRAINS, died, hub_and_box
from unidle import wire
from waiting import wait_until


def _boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _lease_s(job: Path) -> float:
    return int((job / "lease").read_text().split()[1]) / 1e9


def test_a_hub_that_is_away_for_less_than_the_lease_changes_nothing(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        peer.start(1, TRAINS)
        pid = hub.mark("spawn")["pid"]
        hub.mark("step")
        hub.vanish()
        wait_until(lambda: "unidle box:" in box.errors.read_text())
        known = len(hub.marks[1, 0])
        wait_until(lambda: len(box.journal()) > known + 1, what="marks while nobody hears them")
        hub.listen()
        again = hub.peer(2)
        assert again.hello["box"]["attempts"][0]["ranks"]["0"]["marks"] > known
        again.welcome().send(f=wire.RESUME, attempt=1, known={"0": known})
        wait_until(lambda: len(hub.marks[1, 0]) > known + 2)
        assert not died(pid)()
        again.ask(wire.STOP, attempt=1, ranks=[0], grace_ns=10**9)
        hub.end_of(1)
        told = {n: {k: v for k, v in mark.items() if k != "received"} for n, mark in hub.marks[1, 0].items()}
        assert told == dict(enumerate(box.journal())) and not hub.doubled


def test_ranks_end_when_the_hub_is_away_for_the_lease_and_it_is_told_later(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome(deadline_s=4)
        peer.start(1, TRAINS, ranks=2)
        pids = [hub.mark("spawn", rank=rank)["pid"] for rank in (0, 1)]
        known = [len(hub.marks[1, rank]) for rank in (0, 1)]
        hub.vanish()
        for pid in pids:
            wait_until(died(pid), 60, "the end of a rank after its lease")
        after_s = _boottime_s() - _lease_s(box.runs / "job-1")
        assert 0 <= after_s < 1.5
        wait_until(lambda: all(box.journal(1, rank)[-1]["k"] == "exit" for rank in (0, 1)))
        assert box.process is not None and box.process.poll() is None
        hub.listen()
        again = hub.peer(2)
        ranks = again.hello["box"]["attempts"][0]["ranks"]
        assert all(ranks[str(rank)]["ended"] for rank in (0, 1))
        again.welcome().send(f=wire.RESUME, attempt=1, known={"0": known[0], "1": known[1]})
        assert {hub.end_of(1, rank)["code"] for rank in (0, 1)} == {-signal.SIGKILL}
        assert not hub.doubled
        assert again.start(2, "print(1)")["ok"]  # the lease is new
        assert hub.end_of(2)["code"] == 0


def test_a_hub_that_acknowledges_no_pong_does_not_renew(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, _box):
        peer = hub.peer().welcome(deadline_s=4)
        peer.start(1, TRAINS)
        pid = hub.mark("spawn")["pid"]
        peer.mute = True
        wait_until(died(pid), 60)
        assert (
            hub.peer(2).hello["box"]["attempts"][0]["attempt"] == 1
        )  # it closed the connection and dialled again


def test_ranks_of_a_killed_box_end_with_the_lease_without_any_box(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome(deadline_s=4)
        peer.start(1, TRAINS)
        pid = hub.mark("spawn")["pid"]
        box.kill()
        wait_until(died(pid), 60, "the end of a rank that no box holds")
        assert _boottime_s() >= _lease_s(box.runs / "job-1")
        wait_until(lambda: box.journal()[-1]["k"] == "exit")
        assert any("lease" in mark.get("text", "") for mark in box.journal())
        box.run()  # and the next one finds the end
        again = hub.peer(2).hello["box"]["attempts"][0]["ranks"]["0"]
        assert again == {"marks": len(box.journal()), "ended": True}


def test_a_rank_that_takes_its_time_to_stop_ends_with_the_lease_too(tmp_path: Path) -> None:
    """It may run elsewhere from then on, whatever grace its stop has."""
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome(deadline_s=4)
        peer.start(1, f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{TRAINS}")
        pid = hub.mark("spawn")["pid"]
        hub.mark("step")
        assert peer.ask(wire.STOP, attempt=1, ranks=[0], grace_ns=300 * 10**9)["ok"]
        box.kill()
        wait_until(died(pid), 60, "the end of a rank within its grace, when its lease is over")
        assert _boottime_s() >= _lease_s(box.runs / "job-1")
        wait_until(lambda: box.journal()[-1]["k"] == "exit")
        assert sum("lease" in mark.get("text", "") for mark in box.journal()) == 1


def test_a_box_that_comes_back_after_the_lease_ends_what_it_finds(tmp_path: Path) -> None:
    """As a supervisor does that cannot read its lease any more, because it is stopped."""
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome(deadline_s=3)
        peer.start(1, TRAINS)
        pid = hub.mark("spawn")["pid"]
        supervisor = json.loads((box.rank() / "supervisor.json").read_text())["pid"]
        box.kill()
        os.kill(supervisor, signal.SIGSTOP)
        wait_until(lambda: _boottime_s() > _lease_s(box.runs / "job-1"), 60)
        assert not died(pid)()
        hub.vanish()
        box.run()
        wait_until(died(pid), 60)
        wait_until(lambda: box.journal()[-1]["k"] in ("exit", "lost"), 60)


def test_a_stopped_box_hears_nothing_before_it_has_looked_at_its_lease(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome(deadline_s=4)
        peer.ask(wire.PREPARE, attempt=1, leader=False)
        peer.start(1, TRAINS)
        pid = hub.mark("spawn")["pid"]
        os.kill(box.pid, signal.SIGSTOP)
        wait_until(
            died(pid), 60
        )  # by its supervisor, whose file may be a quarter of the lease behind the box
        over_s = _lease_s(box.runs / box.job) + 4 / 4
        wait_until(lambda: _boottime_s() > over_s)
        peer.send(f=wire.START, id=900, fence=peer.fence, attempt=2, ranks=[])
        os.kill(box.pid, signal.SIGCONT)
        hub.peer(2).welcome()
        assert not [frame for frame in peer.frames if frame.get("id") == 900]


def test_commands_of_an_older_fence_are_refused_also_by_the_next_box(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome(fence=5)
        assert peer.start(1, TRAINS)["ok"]
        old = peer.ask(wire.STOP, attempt=1, ranks=[0], grace_ns=0, fence=4)
        assert (old["ok"], old["why"]) == (False, wire.FENCED)
        assert peer.ask(wire.PREPARE, attempt=2, leader=False, fence=9)["ok"]
        assert peer.ask(wire.PREPARE, attempt=2, leader=False, fence=5)["why"] == wire.FENCED
        assert not died(hub.mark("spawn")["pid"])()
        box.kill()
        box.run()
        hub.peer(2).welcome(fence=8)
        wait_until(lambda: "older fence, 8, than the newest one seen, 9" in box.errors.read_text())
        again = hub.peer(3).welcome(fence=9)
        assert again.ask(wire.PREPARE, attempt=2, leader=False)["ok"]
