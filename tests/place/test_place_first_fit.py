"""First fit as small tables: a fleet, what waits, and where each rank goes."""

from __future__ import annotations

import pytest

from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, Reason
from unidle.place.policy import FirstFit, fits_ever, why_not
from unidle.view.fold import apply
from unidle.view.state import View

NOW = 1_000


def fleet(*nodes: tuple[int, str]) -> Fleet:
    return Fleet(
        nodes=tuple(
            Node(f"n{k}", "", tuple(Device(f"n{k}/{i}", f"n{k}", i, kind) for i in range(count)))
            for k, (count, kind) in enumerate(nodes)
        )
    )


def view_of(nodes: Fleet, *specs: JobSpec) -> View:
    view = View()
    tell(view, ev.FleetSeen(nodes))
    for k, spec in enumerate(specs):
        tell(view, ev.JobSubmitted(f"j{k}", spec))
    return view


def tell(view: View, event: ev.Event) -> None:
    apply(view, event, view.seq + 1, NOW)


def gang(ranks: int, each: int = 1, device: str = "any", priority: int = 0) -> JobSpec:
    return JobSpec(("x",), ranks=ranks, devices_per_rank=each, device=device, priority=priority)


def placed(view: View) -> dict[str, list[tuple[str, ...]]]:
    plan = FirstFit().decide(view, NOW)
    return {place.job: [rank.slices for rank in place.places] for place in plan.places}


def test_the_first_node_that_holds_the_gang_whole_is_taken():
    view = view_of(fleet((2, "gpu"), (4, "gpu")), gang(3))
    assert placed(view) == {"j0": [("n1/0",), ("n1/1",), ("n1/2",)]}


def test_a_gang_that_no_node_holds_goes_on_the_first_nodes_that_hold_it_together():
    view = view_of(fleet((2, "gpu"), (4, "gpu")), gang(5))
    assert placed(view) == {"j0": [("n0/0",), ("n0/1",), ("n1/0",), ("n1/1",), ("n1/2",)]}


def test_the_devices_of_one_rank_are_on_one_node():
    view = view_of(fleet((3, "gpu"), (3, "gpu")), gang(2, each=2))
    assert placed(view) == {"j0": [("n0/0", "n0/1"), ("n1/0", "n1/1")]}
    assert placed(view_of(fleet((3, "gpu"), (3, "gpu")), gang(3, each=2))) == {}


@pytest.mark.parametrize(("device", "expected"), [("any", "n1/0"), ("gpu", "n1/0"), ("cpu", "n0/0")])
def test_any_device_is_a_gpu_where_there_is_one(device, expected):
    view = view_of(fleet((1, "cpu"), (1, "gpu")), gang(1, device=device))
    assert placed(view) == {"j0": [(expected,)]}


def test_higher_priority_goes_first_then_the_order_of_submission():
    view = view_of(fleet((2, "gpu")), gang(1), gang(1, priority=5), gang(1))
    assert list(placed(view)) == ["j1", "j0"]


def test_a_job_that_does_not_fit_is_passed_over_with_its_reason():
    view = view_of(fleet((4, "gpu")), gang(8), gang(3), gang(2))
    plan = FirstFit().decide(view, NOW)
    assert [place.job for place in plan.places] == ["j1"]
    assert {wait.job: wait.because.code for wait in plan.waits} == {"j0": "never_fits", "j2": "no_fit"}
    assert plan.waits[1].because.figures == {"needs": 2, "free": 1, "devices": 4}


def test_a_reason_is_given_once():
    view = view_of(fleet((1, "gpu")), gang(2))
    tell(view, ev.JobJudged("j0", FirstFit().decide(view, NOW).waits[0].because))
    assert FirstFit().decide(view, NOW).waits == ()


def test_a_decision_changes_nothing_in_the_view():
    view = view_of(fleet((4, "gpu")), gang(3), gang(2))
    assert FirstFit().decide(view, NOW) == FirstFit().decide(view, NOW)
    assert view.occupancy.free == {"gpu": 4}


def test_devices_that_are_taken_or_sick_are_not_given():
    view = view_of(fleet((4, "gpu"), (4, "gpu")), gang(2), gang(4))
    first = FirstFit().decide(view, NOW).places[0]
    tell(view, ev.AttemptPlaced("j0", 1, first.places, first.because))
    tell(view, ev.HealthSet("n1/1", "fault", Reason("test", "broken")))
    assert placed(view) == {"j1": [("n0/2",), ("n0/3",), ("n1/0",), ("n1/2",)]}
    tell(view, ev.HealthSet("n1", "maintenance", Reason("test", "planned")))
    assert placed(view) == {}


def test_what_can_never_fit_is_told_from_what_does_not_fit_now():
    view = view_of(fleet((2, "gpu"), (2, "gpu")), gang(4, each=1), gang(1, each=3), gang(2, each=2))
    shapes = {job.id: job.shape for job in view.jobs.values()}
    assert fits_ever(view, shapes["j0"]) and fits_ever(view, shapes["j2"])
    assert not fits_ever(view, shapes["j1"])
    assert "can never start here" in why_not(view, shapes["j1"]).text
