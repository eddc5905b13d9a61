"""Hot spares and nodes on probation in the view: where their time goes, who has them, and who may."""

from __future__ import annotations

from dataclasses import replace

from sim.worlds import S, fleet_of
from unidle.events import types as ev
from unidle.fleet.policies import GuardPolicy
from unidle.view.spares import busy_nodes, comes_back, coming_back, on_trial
from view.telling import WHY, Telling

LOW = {"preemption": "low"}


def spares(told: Telling, *nodes: str) -> Telling:
    return told.tell(ev.SparesSet(nodes))


def guarded(policy: GuardPolicy, *devices: int) -> Telling:
    return Telling(*devices).fleet(replace(fleet_of(*devices), guard=policy))


def remedy(told: Telling, target: str, state: str) -> Telling:
    return told.tell(ev.RemedySet(target, state, WHY))  # type: ignore[arg-type]


def test_the_idle_time_of_a_spare_is_reserved_and_its_device_is_free() -> None:
    told = spares(Telling(1, 1).at(10), "n1").at(25)
    assert told.ledger("n1/0") == [(0, 10, "no_demand"), (10, 25, "reserved")]
    assert told.view.occupancy.free == {"gpu": 2}
    spares(told).at(30)
    assert told.ledger("n1/0")[-1] == (25, 30, "no_demand")


def test_filler_on_a_spare_has_its_own_time_and_leaves_it_reserved() -> None:
    told = spares(Telling(1), "n0").at(5).submit("j", **LOW).place("j", "n0/0").at(15)
    told.end("j", 0, "succeeded").done("j", "succeeded").at(20)
    assert told.ledger("n0/0") == [(0, 5, "reserved"), (5, 15, "unmeasured"), (15, 20, "reserved")]
    assert told.view.occupancy.is_free("n0/0")


def test_a_spare_that_falls_ill_is_down_before_it_is_reserved() -> None:
    told = spares(Telling(1), "n0").at(5).health("n0", "fault").at(9).health("n0", "healthy").at(12)
    assert told.ledger("n0/0") == [(0, 5, "reserved"), (5, 9, "fault"), (9, 12, "reserved")]


def test_a_job_on_a_node_that_becomes_a_spare_keeps_its_time() -> None:
    told = spares(Telling(1).submit("j", **LOW).place("j", "n0/0").at(5), "n0")
    spares(told.at(8)).at(10).end("j", 0, "succeeded").done("j", "succeeded").at(12)
    assert told.ledger("n0/0") == [(0, 10, "unmeasured"), (10, 12, "no_demand")]


def test_probation_is_quarantine_but_for_who_works_there() -> None:
    told = remedy(guarded(GuardPolicy(probation_work="low"), 1).at(2), "n0", "probation")
    assert on_trial(told.view) == {"n0"} and not told.view.occupancy.is_free("n0/0")
    told.at(5).submit("j", **LOW).place("j", "n0/0").at(9).end("j", 0, "succeeded").done("j", "succeeded")
    remedy(told.at(12), "n0", "healthy").at(14)
    assert told.ledger("n0/0") == [
        (0, 2, "no_demand"), (2, 5, "quarantine"), (5, 9, "unmeasured"), (9, 12, "quarantine"), (12, 14, "no_demand"),
    ]  # fmt: skip
    assert told.view.occupancy.is_free("n0/0") and not on_trial(told.view)


def test_without_leave_nobody_works_on_probation_and_a_cordon_goes_before_it() -> None:
    assert not on_trial(remedy(guarded(GuardPolicy(), 1), "n0", "probation").view)
    told = remedy(guarded(GuardPolicy(probation_work="low"), 1), "n0", "probation")
    assert not on_trial(told.tell(ev.CordonSet("n0", True, "ann", WHY)).view)


def test_firm_work_is_counted_by_node_and_filler_is_not() -> None:
    told = Telling(2, 2).submit("j").submit("low", **LOW).submit("least", **LOW, min_runtime_s=5)
    assert told.view.firm == {}
    told.place("j", "n0/0", "n1/0").place("low", "n0/1").place("least", "n1/1")
    assert told.view.firm == {"n0": 1, "n1": 2}
    told.end("j", 0, "succeeded").done("j", "succeeded")
    assert told.view.firm == {"n1": 1}
    told.submit("waits").tell(ev.Promised("waits", "gpu", {"n0": 1}, 9 * S, WHY))
    assert busy_nodes(told.view) == {"n0", "n1"}


def test_the_places_of_a_gang_that_comes_back_soon_are_kept_until_it_was_told_to_wait() -> None:
    told = Telling(1, 1).submit("j").place("j", "n0/0").at(5).end("j", 1, "failed").retry("j", 2)
    assert [job.id for job in coming_back(told.view)] == ["j"] and busy_nodes(told.view) == {"n0"}
    told.tell(ev.JobJudged("j", WHY))
    assert not coming_back(told.view) and not busy_nodes(told.view)


def test_who_was_cancelled_preempted_or_comes_back_late_keeps_no_place() -> None:
    late = Telling(1).submit("j").place("j", "n0/0").at(5).end("j", 1, "failed").retry("j", 60)
    assert comes_back(late.job("j")) and not coming_back(late.view)
    told = Telling(1).submit("j", **LOW).place("j", "n0/0")
    told.tell(ev.StopAsked("j", 1, "preempted", 0, WHY)).end("j", 1, "preempted")
    told.tell(ev.Requeued("j", WHY))
    assert not comes_back(told.job("j"))
    moved = Telling(1).submit("j").place("j", "n0/0").end("j", 1, "failed").retry("j").place("j", "n0/0")
    moved.tell(ev.StopAsked("j", 2, "service_stopped", 0, WHY)).end("j", 1, "preempted")
    assert comes_back(moved.tell(ev.Requeued("j", WHY)).job("j"))
