"""What is out of service is named to a job that waits, with the command that brings it back."""

from __future__ import annotations

from unidle.control.queries.describe import explain
from unidle.events import guard as gd
from unidle.events import types as ev
from unidle.jobs import Reason
from view.telling import Telling

FAULT = Reason("fault", "vda1: the file system stopped its journal")
BACK = "after the repair, `unidle guard return n0`"


def unblocks(told: Telling) -> list[str]:
    return [one["unblock"] for one in explain(told.view, told.job("j"))["waiting"]["in_the_way"]]


def test_the_fault_of_a_node_and_the_way_back_are_named() -> None:
    told = Telling(2).tell(ev.RemedySet("n0", "out", FAULT)).health("n0", "quarantine")
    told.submit("j", ranks=2)
    assert unblocks(told)[-1] == f"n0 is out of service (out): {FAULT.text}; {BACK}"
    told.tell(ev.RemedySet("n0", "proving", FAULT, "prove"))
    assert unblocks(told)[-1] == f"n0 is out of service (proving): {FAULT.text}; wait for its check"


def test_a_cordon_and_a_state_without_a_known_cause_are_named() -> None:
    told = Telling(1, 1).tell(gd.CordonSet("n0", True, "ada", Reason("cordon", "a test")))
    told.health("n1/0", "maintenance").submit("j", ranks=2)
    assert unblocks(told)[-2:] == [
        "n0 is cordoned by ada; `unidle guard uncordon n0`",
        "n1/0 takes no new job (maintenance); `unidle guard nodes` has the reason",
    ]


def test_what_the_job_could_not_use_is_left_out_and_many_are_counted() -> None:
    told = Telling(*[1] * 6)
    for k in range(6):
        told.health(f"n{k}", "fault")
    told.submit("j", device="gpu" if told.view.fleet.devices()[0].kind == "cpu" else "cpu")
    assert not any("n0" in one for one in unblocks(told))
    told.submit("k", ranks=2)
    found = [one["unblock"] for one in explain(told.view, told.job("k"))["waiting"]["in_the_way"]]
    assert [one.split()[0] for one in found[-4:-1]] == ["n0", "n1", "n2"]
    assert found[-1] == "nodes and devices out of service: 3 more: `unidle guard nodes`"


def test_a_healthy_fleet_adds_nothing() -> None:
    told = Telling(2).submit("i", ranks=2).place("i", "n0/0", "n0/1").submit("j", ranks=2)
    assert unblocks(told) == ["free the devices of 2 more ranks"]
