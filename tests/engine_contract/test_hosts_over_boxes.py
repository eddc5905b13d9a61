"""The engine of hosts over real boxes (``needs.shaping``): what ranks see of their host, and what is read from it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import needs
from engine_contract.engines import RIGS
from engine_contract.process_rigs import HostsRig
from engine_contract.rigs import Followed
from unidle.engine.local.ranks import process_tree
from unidle.errors import CannotRun
from unidle.jobs import RankPlace

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "checkpoint" / "train.py"
SOURCES = Path(__file__).resolve().parents[2] / "src"

pytestmark = needs.shaping
LOCKSTEP = Path(__file__).parent.parent / "e2e" / "allreduce.py"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HostsRig]:
    with RIGS["hosts"](tmp_path) as made:
        yield made


def test_ranks_find_each_other_by_the_address_of_rank_0s_host(rig: HostsRig) -> None:
    command = rig.command("finish", 3)
    show = ("python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))")
    gang = rig.follow(replace(command, spec=replace(command.spec, command=show)))
    rig.engine.start(gang.command)
    assert rig.ends(gang) == [0, 0, 0]
    found = []
    for place in gang.command.places:
        part = rig.engine.read(place.node, "job", 1, place.rank, "log", 0, 100_000)
        rig.until(part.done, "a part of a log")
        assert part.result().size_bytes == len(part.result().data)
        found.append(json.loads(part.result().data))
    assert {env["MASTER_ADDR"] for env in found} == {rig.lab.address("one")}
    assert len({env["MASTER_PORT"] for env in found}) == 1
    assert [(env["RANK"], env["LOCAL_RANK"], env["GROUP_RANK"]) for env in found] == [
        ("0", "0", "0"),
        ("1", "0", "1"),
        ("2", "1", "0"),
    ]
    assert {env["GLOO_SOCKET_IFNAME"] for env in found} == {"eth0"}


def test_what_cannot_be_read_has_a_reason(rig: HostsRig) -> None:
    gang = rig.start("finish")
    rig.ends(gang)
    absent = rig.engine.read("one", "job", 1, 0, "../../box.json", 0, 100)
    elsewhere = rig.engine.read("three", "job", 1, 0, "log", 0, 100)
    rig.until(lambda: absent.done() and elsewhere.done(), "two answers")
    with pytest.raises(CannotRun, match="no such file"):
        absent.result()
    with pytest.raises(CannotRun, match="not connected"):
        elsewhere.result()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Path]:
    """Where copies are; no holder is left at the end."""
    (tmp_path / "hold").mkdir()
    yield tmp_path / "hold"
    for pid in holders(tmp_path / "hold").values():
        os.kill(pid, signal.SIGKILL)


def holders(place: Path) -> dict[str, int]:
    """Live holders of copies by node."""
    said = [json.loads(path.read_text()) for path in place.glob("*/*/holder.json")]
    return {one["node"]: one["pid"] for one in said if process_tree.is_live(one["pid"])}


@pytest.mark.slow
def test_a_gang_that_loses_a_host_continues_from_the_copies_on_another_one(rig: HostsRig, hold: Path) -> None:
    """Also where the rank of the lost host starts on a host that never had its state."""
    pytest.importorskip("torch", reason="needs PyTorch (pip install unidle[train])")
    train = (sys.executable, "-u", str(TRAIN), "--checkpoint-dir", str(rig.place / "ckpt"), "--checkpoint-every", "100000",
             "--restore-test", "read", "--batch", "8", "--width", "16")  # fmt: skip
    env = {"UNIDLE_HOLD_DIR": str(hold), "PYTHONPATH": str(SOURCES)}
    first = rig.command("run")
    spec = replace(
        first.spec, command=(*train, "--steps", "100000", "--step-s", "0.1"), env=env, checkpoint_path="ckpt", checkpoint_memory=True
    )  # fmt: skip
    gang = rig.follow(replace(first, spec=spec))
    rig.engine.start(gang.command)
    rig.until(lambda: steps(gang) >= 8, "eight steps", 150)
    before = holders(hold)
    assert set(before) == {"one", "two"}
    rig.boxes["two", "job"].kill()
    os.kill(before["two"], signal.SIGKILL)
    rig.kill(gang.command, 1)
    lost = held_by(hold, "two")
    shutil.rmtree(lost)
    lost.with_name(f"{lost.name}.start").unlink()  # the memory of a lost host is gone as a whole
    rig.stop(gang, 0)
    rig.ends(gang)
    done = steps(gang)
    rig.engine.release(*gang.key)
    assert holders(hold) == {"one": before["one"]}, "it outlives the attempt"
    places = tuple(RankPlace(rank, "one", (f"one/{rank}",)) for rank in range(2))
    enough = replace(spec, command=(*train, "--steps", str(done + 5)))
    again = rig.follow(replace(gang.command, attempt=2, places=places, spec=enough))
    rig.engine.start(again.command)
    rig.until(lambda: again.is_over, "the end of the second attempt", 150)
    assert again.codes() == [0, 0]
    text = (Path(rig.directory(again.command, 0)) / "log").read_text()
    [told] = [line for line in text.splitlines() if "continues after step" in line]
    assert "in memory" in told
    assert done - 1 <= int(told.split("after step ")[1].split(",")[0]) <= done
    rig.engine.release(*again.key)
    rig.engine.finish("job")
    rig.until(lambda: not holders(hold), "the end of the holder")
    rig.until(lambda: not any(hold.iterdir()), "the end of the copies")


def steps(gang: Followed) -> int:
    """The last step of rank 0 that was reported."""
    return max((mark.n or 0 for mark in gang.marks[0] if mark.k == "step"), default=0)


def held_by(hold: Path, node: str) -> Path:
    """Where the copies of a node are."""
    return next(p.parent for p in hold.glob("*/*/holder.json") if json.loads(p.read_text())["node"] == node)


def test_the_box_of_a_job_outlives_its_attempts_and_ends_with_it(rig: HostsRig) -> None:
    first = rig.start("finish")
    rig.ends(first)
    rig.engine.release(*first.key)
    boxes = dict(rig.boxes)
    rig.ends(rig.start("finish", attempt=2))
    rig.engine.release("job", 2)
    assert rig.boxes == boxes
    rig.engine.finish("job")
    rig.until(lambda: all(box.poll() == 0 for box in boxes.values()), "the end of the boxes")


def test_a_cut_between_two_hosts_is_seen_as_the_link_of_the_ranks_there(rig: HostsRig) -> None:
    """Both hosts still reach the controller."""
    rig.look()
    command = rig.command("run", 2)
    gang = rig.follow(
        replace(command, spec=replace(command.spec, command=("python3", str(LOCKSTEP), "100000", "0.01")))
    )
    rig.engine.start(gang.command)
    rig.up(gang)

    def linked() -> bool:
        return bool(gang.vitals) and [link.peer for link in gang.vitals[-1].ranks[0].links] == [1]

    rig.until(linked, "the link of both ranks")
    assert not any(rank.stuck for rank in gang.vitals[-1].ranks)
    rig.lab.cut("one", "two")
    try:
        rig.until(
            lambda: any(rank.stuck for rank in gang.vitals[-1].ranks),
            "a link on which nothing is acknowledged",
        )
        look = gang.vitals[-1]
        assert {(rank.rank, rank.stuck) for rank in look.ranks if rank.stuck} <= {(0, (1,)), (1, (0,))}
        assert not gang.silent
    finally:
        rig.lab.mend("one", "two")
    rig.until(lambda: not any(rank.stuck for rank in gang.vitals[-1].ranks), "that it goes on")
    rig.stop(gang, 0)
    rig.ends(gang)
