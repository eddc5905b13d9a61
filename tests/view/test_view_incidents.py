"""Incidents: when a job went on after it was hurt, and what each time cost."""

from __future__ import annotations

from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.view.incidents import incidents
from view.telling import Telling

S = 1_000_000_000


def hurt() -> Telling:
    """A gang of one that did three steps of a second each and failed at second 4."""
    return (
        Telling(2)
        .submit("j")
        .place("j", "n0/0")
        .at(1)
        .mark("j", 0, "ready")
        .steps("j", 1, 3)
        .end("j", 1, "failed")
    )


def test_a_job_went_on_when_a_later_attempt_was_past_its_first_step() -> None:
    told = hurt().retry("j").at(5).place("j", "n0/0").at(6).end("j", 1, "failed").retry("j")
    assert [one.resumed_ns for one in incidents(told.view)] == [None, None]
    told.at(9).place("j", "n0/0").at(10).mark("j", 0, "ready").steps("j", 1, 2)
    first, second = incidents(told.view)
    went_on = told.job("j").attempts[2].ranks[0].step_ns[0]
    assert (first.resumed_ns, second.resumed_ns) == (went_on, went_on)
    # each bears its own time: 4 to 6 with the three steps that were lost, and from 6 on
    failed = [attempt.ended_ns or 0 for attempt in told.job("j").attempts[:2]]
    lost_ns = 3 * S
    assert first.device_ns == failed[1] - failed[0] + lost_ns
    assert second.device_ns == went_on - failed[1]


def slowed(until_s: float) -> Telling:
    """Two devices from second 1 on, of which one is slower from second 10: the other waits a quarter of its time."""
    told = Telling(2).submit("j", ranks=2, price_per_device_hour=3.6).at(1).place("j", "n0/0", "n0/1")
    why = Reason("slow", "rank 1 is slower", {"share": 0.25})
    told.at(15).tell(ev.VerdictReached("j", 1, "slow", 10 * S, 15 * S, False, why, 1, "n0"))
    return told.at(until_s).tell(ev.Sighted())


def test_a_slow_down_that_goes_on_has_its_bill_up_to_now_and_for_each_day() -> None:
    first, second = (incidents(slowed(until_s).view)[0] for until_s in (50, 110))
    assert (first.lasts, second.lasts) == (True, True)
    assert second.device_ns - first.device_ns == 60 * S * 2 // 4
    assert (
        first.device_ns == (first_now := slowed(50).view.time_ns - first.onset_ns) * 2 // 4 and first_now > 0
    )
    assert first.cost_micro is not None and first.cost_micro == first.device_ns * 1000 // S
    assert first.day_ns == 24 * 3600 * S // 2
    assert first.day_micro == round(12 * 3.6 * 1_000_000)


def test_a_slow_down_that_is_over_costs_no_more() -> None:
    told = slowed(50).tell(ev.VerdictOver("j", 1, Reason("over", "over")))
    before = incidents(told.view)[0]
    after = incidents(told.at(500).tell(ev.Sighted()).view)[0]
    assert not after.lasts and (after.day_ns, after.day_micro) == (0, None)
    assert after.device_ns == before.device_ns


def fault(at_s: float, action: str, text: str, device: str = "n0/0") -> ev.FaultSeen:
    at_ns = int(at_s * S)
    return ev.FaultSeen("n0", "xid", action, at_ns, at_ns, Reason("xid", text), device, 95)


def test_a_fault_whose_remedy_escalates_is_one_incident() -> None:
    told = Telling(2)
    for at_s, action in ((1, "reset_gpu"), (3, "reboot_node"), (200, "replace")):
        told.at(at_s).tell(fault(at_s, action, "it broke"))
    told.at(201).tell(fault(201, "reset_gpu", "another one", "n0/1"))
    assert [(one.device, one.because) for one in incidents(told.view)] == [
        ("n0/0", "it broke"),
        ("n0/1", "another one"),
    ]


def test_a_job_that_is_hit_by_such_a_fault_has_one_incident_too() -> None:
    told = Telling(1).submit("j").at(1).place("j", "n0/0")
    why = Reason("xid", "it broke", {"hardware": "0000:3b:00.0"})
    for at_s in (2, 4):
        told.at(at_s).tell(ev.VerdictReached("j", 1, "gpu", at_s * S, at_s * S, False, why, 0, "n0"))
    assert [(one.job, one.kind) for one in incidents(told.view)] == [("j", "gpu")]
