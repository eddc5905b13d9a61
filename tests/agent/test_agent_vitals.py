"""What an agent sees of the ranks in its boxes: real boxes and ranks, and run directories that others wrote."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.hosts import Host
from agent.hubs import TestHub
from unidle.agent.held_ranks import HeldRanks
from unidle.clock import boottime_ns
from unidle.engine.local.ranks import process_tree, rundir
from unidle.hub import frames
from unidle.hub.protocol import Joined, Peer, Received
from unidle.jobs.vitals import GangVitals

S = 1_000_000_000
SLEEPS = "import time\nwhile time.process_time() < 0.2: pass\nwhile True: time.sleep(0.05)"


def start(hub: TestHub, box: Peer, *ranks: int, script: str = SLEEPS) -> None:
    """Start ranks of the first attempt in a box."""
    orders = {
        "argv": [sys.executable, "-c", script], "workdir": "/", "env": {"UNIDLE_RUN_ID": "agent-test"}, "unset": [],
        "clock_offset_ns": 0, "grace_ns": 0,
    }  # fmt: skip
    made = [frames.RankOrders(rank, orders) for rank in ranks]
    assert hub.ask(box, lambda command: frames.Prepare(command, hub.fence, 1)).ok
    answer = hub.ask(box, lambda command: frames.Start(command, hub.fence, 1, made))
    assert answer.ok, answer.why


def look(hub: TestHub, suits: Any, since: int = 0) -> GangVitals:
    """The first look that suits, of those that came after ``since`` events."""

    def find() -> GangVitals | None:
        for one in hub.heard[since:]:
            frame = one.frame if isinstance(one, Received) else None
            if isinstance(frame, frames.Seen) and frame.what == "vitals":
                found = msgspec.convert(frame.body, GangVitals)
                if suits(found):
                    return found
        return None

    return hub.until(find, "a look")


def of_ranks(*ranks: int) -> Any:
    return lambda seen: tuple(rank.rank for rank in seen.ranks) == ranks


def test_ranks_of_a_box_are_seen_until_they_end_and_by_the_next_agent_too(hub: TestHub, host: Host) -> None:
    with host.agent(hub) as first:
        assert hub.box(hub.joined(), "job-1").ok
        box = hub.joined("box")
        start(hub, box, 0, 1)
        look(hub, lambda seen: of_ranks(0, 1)(seen) and not any(rank.cpu_ns for rank in seen.ranks))
        seen = look(hub, of_ranks(0, 1))
        assert (seen.job, seen.attempt) == ("job-1", 1)
        assert {rank.doing for rank in seen.ranks} <= {"sleep", "running", "network", "lock"}
        assert seen.from_ns <= seen.at_ns <= boottime_ns()
        first.kill()
    with host.agent(hub):
        again = hub.joined(count=2)
        count = hub.heard.index(Joined(again))
        seen = look(hub, of_ranks(0, 1), count)
        assert all(
            rank.cpu_ns for rank in seen.ranks
        )  # what they have used by now: it may not call them idle
        hub.ask(box, lambda command: frames.Stop(command, hub.fence, 1, [1], 0))
        look(hub, of_ranks(0), count)


def test_what_is_seen_while_the_connection_is_away_is_part_of_the_next_look(
    tmp_path: Path, host: Host
) -> None:
    first = TestHub(tmp_path / "hub")
    with host.agent(first):
        assert first.box(first.joined(), "job-1").ok
        start(first, first.joined("box"), 0)
        before = look(first, of_ranks(0))
        first.close()
        second = TestHub(tmp_path / "hub", first.address, fence=4)
        try:
            second.joined()
            seen = look(second, of_ranks(0))
            last = max(
                msgspec.convert(one.frame.body, GangVitals).at_ns
                for one in first.heard
                if isinstance(one, Received)
                and isinstance(one.frame, frames.Seen)
                and one.frame.what == "vitals"
            )
            assert before.at_ns <= last
            assert seen.from_ns <= last + S
            assert seen.at_ns - seen.from_ns >= S // 2
        finally:
            second.close()


def test_stacks_are_read_of_ranks_that_boxes_here_hold_and_of_no_others(hub: TestHub, host: Host) -> None:
    with host.agent(hub):
        agent = hub.joined()
        assert hub.box(agent, "job-1").ok
        start(hub, hub.joined("box"), 0)
        look(hub, of_ranks(0))

        def stacks(**body: Any) -> frames.Done:
            return hub.ask(agent, lambda command: frames.Run(command, hub.fence, "stacks", body))

        assert stacks().ok  # it is ready now
        answer = stacks(job="job-1", attempt=1, ranks=[0, 1])
        assert answer.ok, answer.why
        found = {tuple(one["ranks"]): one for one in answer.data["stacks"]}
        assert found[1,]["state"] == "ended"
        assert found[0,]["frames"] or found[0,]["at"]
        other = stacks(job="job-2", attempt=1, ranks=[0])
        assert [one["state"] for one in other.data["stacks"]] == ["ended"]
        assert "not as agreed" in stacks(job="job-1", ranks="all").why
        assert "directory" in stacks(job="../boxes/job-1", attempt=1, ranks=[0]).why
        assert "at most" in stacks(job="job-1", attempt=1, ranks=list(range(5000))).why


def written(place: Path, rank: int = 0, **spawn: Any) -> Path:
    directory = Path(rundir.rank_dir(place / "job-1" / "runs", "job-1", 1, rank))
    directory.mkdir(parents=True)
    mark = {"k": "spawn", "t": 1, "pid": os.getpid(), "ticks": process_tree.ticks_of(os.getpid())} | spawn
    (directory / rundir.JOURNAL).write_text(
        json.dumps({"k": "note", "t": 1, "text": "x"}) + "\n" + json.dumps(mark) + "\n"
    )
    (directory / rundir.SUPERVISOR).write_text(json.dumps({"pid": os.getppid(), "ticks": 1}))
    return directory


def test_a_rank_is_known_by_its_journal_and_the_start_of_its_process(tmp_path: Path) -> None:
    written(tmp_path, 0)
    written(tmp_path, 1, ticks=1)  # another process has its number by now
    written(tmp_path, 2, pid="12")
    ranks = HeldRanks(tmp_path, "runs")
    ranks.look(["job-1", "job-2"])
    assert {key: list(held) for key, held in ranks.live.items()} == {("job-1", 1): [0]}
    [held] = ranks.live["job-1", 1].values()
    assert (held.pid, held.state) == (os.getpid(), "alive")
    assert os.getpid() in held.pids()
    assert held.cpu_ns()
    Path(rundir.attempt_dir(tmp_path / "job-1" / "runs", "job-1", 1), rundir.RELEASED).touch()
    ranks.look(["job-1"])
    assert ranks.live == {}


def test_a_process_that_has_ended_is_not_looked_for_again(tmp_path: Path) -> None:
    child = os.posix_spawn("/bin/sleep", ["sleep", "300"], os.environ)
    written(tmp_path, 0, pid=child, ticks=process_tree.ticks_of(child))
    ranks = HeldRanks(tmp_path, "runs")
    ranks.look(["job-1"])
    assert list(ranks.live) == [("job-1", 1)]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for _ in range(3):
        ranks.look(["job-1"])
        assert ranks.live == {}


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "nothing"])
def test_a_journal_that_is_no_file_is_no_rank(tmp_path: Path, kind: str) -> None:
    journal = written(tmp_path) / rundir.JOURNAL
    kept = journal.rename(tmp_path / "journal")
    if kind == "fifo":
        os.mkfifo(journal)
    elif kind == "link":
        journal.symlink_to(kept)
    elif kind == "directory":
        journal.mkdir()
    ranks = HeldRanks(tmp_path, "runs")
    ranks.look(["job-1"])
    assert ranks.live == {}
