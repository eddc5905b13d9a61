"""Boxes that are pods, as an agent finds them: real processes in process namespaces and control groups of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import needs
from unidle.agent.boxes import RUNS
from unidle.agent.held_ranks import HeldRanks
from unidle.agent.pods import files, processes
from unidle.agent.pods.boxes import VOLUME, BoxesInPods
from unidle.engine.local.ranks.spawned import live_pid
from waiting import wait_until

UID = "0a1b2c3d-0000-4000-8000-00000000{:04d}"
BOX = """
    import json, os, subprocess, sys, time
    place, rank = sys.argv[1:]
    child = subprocess.Popen(["sleep", "1000"])
    def ticks(pid):
        return int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[19])
    os.makedirs(rank)
    json.dump({"pid": os.getpid(), "ticks": ticks(os.getpid())}, open(f"{rank}/supervisor.json", "w"))
    json.dump({"env": {"UNIDLE_RANKS": "4", "SECRET": "s"}}, open(f"{rank}/orders.json", "w"))
    open(f"{rank}/journal.jsonl", "w").write(json.dumps({"k": "spawn", "t": 5, "pid": child.pid, "ticks": ticks(child.pid)}) + "\\n")
    open(f"{place}/box.lock", "w")
    print(child.pid, flush=True)
    time.sleep(1000)
"""
Pod = Callable[..., tuple[Path, subprocess.Popen[str]]]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    """Starts a box as a pod has one; a number chooses its uid."""
    group = needs.cgroup_roots()[0] / f"unidle-test-pods-{os.getpid()}"
    group.mkdir()
    begun: list[subprocess.Popen[str]] = []

    def start(number: int, job: str, authority: str = "ours") -> tuple[Path, subprocess.Popen[str]]:
        uid = UID.format(number)
        (group / f"pod{uid}").mkdir()
        place = tmp_path.joinpath("pods", uid, *VOLUME, "box")
        place.mkdir(parents=True)
        rank = place / RUNS / job / "3" / "rank1"
        told = json.dumps({"job": job, "authority": authority, "node": "n1", "hub": []})
        join = f'echo $$ > {group}/pod{uid}/cgroup.procs; exec unshare --pid --fork --mount-proc --kill-child "$@"'
        words = ["sh", "-c", join, "sh", sys.executable, "-c", textwrap.dedent(BOX), str(place), str(rank)]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env={**os.environ, "UNIDLE_BOX": told}
        )
        begun.append(process)
        assert process.stdout is not None
        assert 1 < int(process.stdout.readline()) < 10  # a number of its own namespace
        return place, process

    yield start
    for process in begun:
        process.kill()
        process.communicate()
    for below in group.iterdir():
        if below.is_dir():
            wait_until(lambda: not (below / "cgroup.procs").read_text(), 60, "its end")  # noqa: B023
            below.rmdir()
    group.rmdir()


pytestmark = [
    needs.root,
    pytest.mark.skipif(not needs.cgroup_roots(), reason="no control groups can be made"),
]


def test_a_rank_in_a_pod_is_found_with_its_number_on_the_node(pod: Pod, tmp_path: Path) -> None:
    pod(1, "train-1")
    boxes = BoxesInPods(tmp_path / "pods", tmp_path / "copies", "ours\n")
    assert boxes.live() == boxes.running() == ["train-1"]
    ranks = HeldRanks(tmp_path / "copies", RUNS)
    ranks.look(boxes.live())
    [held] = ranks.live["train-1", 3].values()
    assert (held.rank, held.gang, held.state) == (1, 4, "alive")
    assert b"sleep" in Path(f"/proc/{held.pid}/cmdline").read_bytes()
    assert held.pids() == {held.pid}
    copy = boxes.directory("train-1") / RUNS / "train-1" / "3" / "rank1"
    assert live_pid(str(copy)) == held.pid  # as the profiler finds it
    assert "SECRET" not in (copy / "orders.json").read_text()


def test_pods_of_another_controller_are_left_alone(pod: Pod, tmp_path: Path) -> None:
    pod(1, "train-1", authority="theirs")
    assert BoxesInPods(tmp_path / "pods", tmp_path / "copies", "ours").running() == []


def test_a_released_attempt_and_a_pod_that_has_gone_are_forgotten(pod: Pod, tmp_path: Path) -> None:
    place, process = pod(1, "train-1")
    boxes = BoxesInPods(tmp_path / "pods", tmp_path / "copies", "ours")
    assert boxes.running() == ["train-1"]
    attempt = boxes.directory("train-1") / RUNS / "train-1" / "3"
    assert attempt.exists()
    (place / RUNS / "train-1" / "3" / "released").touch()
    boxes.running()
    assert not attempt.exists()
    process.kill()
    process.wait()
    wait_until(lambda: boxes.running() == [], 60)
    assert not boxes.directory("train-1").exists()


def test_a_pod_cannot_give_out_a_process_of_another_for_its_own(pod: Pod, tmp_path: Path) -> None:
    place, _ = pod(1, "train-1")
    pod(2, "other-1")
    journal = place / RUNS / "train-1" / "3" / "rank1" / "journal.jsonl"
    theirs = processes.box_of(UID.format(2))
    assert theirs is not None
    journal.write_text(json.dumps({"k": "spawn", "t": 1, "pid": 1, "ticks": theirs.ticks}) + "\n")
    boxes = BoxesInPods(tmp_path / "pods", tmp_path / "copies", "ours")
    assert boxes.running() == ["other-1", "train-1"]
    assert not (boxes.directory("train-1") / RUNS / "train-1" / "3" / "rank1").exists()


def test_links_in_a_pod_are_not_followed(pod: Pod, tmp_path: Path) -> None:
    place, _ = pod(1, "train-1")
    rank = place / RUNS / "train-1" / "3" / "rank1"
    rank.rename(tmp_path / "elsewhere")
    rank.symlink_to(tmp_path / "elsewhere")
    boxes = BoxesInPods(tmp_path / "pods", tmp_path / "copies", "ours")
    assert boxes.running() == ["train-1"]
    assert not (boxes.directory("train-1") / RUNS / "train-1" / "3" / "rank1").exists()
    with files.opened(str(tmp_path)) as at:
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "orders.json")
        assert files.json_object("link", at) == {}
        os.mkfifo(tmp_path / "pipe")
        assert files.json_object("pipe", at) == {}


def test_boxes_are_not_made_by_an_agent_in_a_pod(tmp_path: Path) -> None:
    from unidle.agent.boxes import BoxOrder

    boxes = BoxesInPods(tmp_path / "pods", tmp_path / "copies", "ours")
    with pytest.raises(ValueError, match="the controller makes them"):
        boxes.begin(BoxOrder("h", "a", "n", "j", "t"), {})
