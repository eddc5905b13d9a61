"""The engine of hosts over real boxes (``needs.shaping``): what ranks see of their host, and what is read from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import needs
from engine_contract.engines import RIGS
from engine_contract.process_rigs import HostsRig
from unidle.errors import CannotRun

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
