"""What placement keeps of a fleet follows a node of which a label, a taint or its size changes."""

from __future__ import annotations

from dataclasses import replace

from sim.worlds import fleet_of
from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.jobs import JobSpec, Where
from unidle.place.nodes.free import FreeSlices
from unidle.place.policy import Unidle
from view.telling import Telling

ZONE_B = JobSpec(("train",), device="gpu", where=Where(labels={"zone": "b"}))


def labelled(told: Telling, name: str, **labels: str) -> None:
    told.tell(ev.FleetChanged(edits=(ev.NodeEdit(name, dict(labels)),)))


def test_a_label_that_no_job_names_leaves_all_that_was_made() -> None:
    told = Telling(1, 1)
    free = FreeSlices(told.view)
    free.open_nodes(ZONE_B.where)
    labelled(told, "n1", rack="7")
    assert free.follow(told.view)
    assert free.nodes[free.place["n1"]].labels == {"rack": "7"}
    assert free.fleet is told.view.fleet


def test_a_label_that_a_job_names_and_a_taint_have_it_made_again() -> None:
    for edit in (
        ev.NodeEdit("n1", {"zone": "b"}),
        ev.NodeEdit("n1", taints=("lab",)),
        ev.NodeEdit("n1", cpus=8.0),
    ):
        told = Telling(1, 1)
        free = FreeSlices(told.view)
        free.open_nodes(ZONE_B.where)
        told.tell(ev.FleetChanged(edits=(edit,)))
        assert not free.follow(told.view)


def test_one_policy_sees_each_label_that_comes_and_goes() -> None:
    told, policy = Telling(1, 1), Unidle()
    told.tell(ev.JobSubmitted("j", ZONE_B))
    for zone, node in (("a", None), ("b", "n1"), ("c", None), ("b", "n1")):
        labelled(told, "n1", zone=zone)
        places = policy.decide(told.view, told.view.time_ns).places
        assert [place.places[0].node for place in places] == ([] if node is None else [node])


def test_what_others_take_of_cores_is_not_given_to_a_job() -> None:
    from unidle.jobs import Reason, Requests

    told, policy = Telling(2), Unidle()
    node = replace(fleet_of(2).nodes[0], cpus=8.0)
    told.fleet(Fleet(nodes=(node,)))
    told.tell(ev.JobSubmitted("j", JobSpec(("train",), device="gpu", requests=Requests(cpus=6.0))))
    told.tell(ev.NodeTaken("n0", 4.0, 0, (), Reason("pods", "pods of others")))
    assert policy.decide(told.view, told.view.time_ns).places == ()
    told.tell(ev.NodeTaken("n0", 2.0, 0, (), Reason("pods", "pods of others")))
    assert len(policy.decide(told.view, told.view.time_ns).places) == 1
