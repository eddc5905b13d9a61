"""Fillers on the simulated engine: what they use, how they leave, what the ledger and `explain` say of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from loop.drive import Loop
from loop.fillercheck import FillerChecker
from share.cutting import check_ledger
from unidle.control.queries import describe
from unidle.control.queries.explanation import story_lines
from unidle.engine.sim.workload import S, SimJob
from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.fleet.policies import GuardPolicy
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec, Requests
from unidle.view.accounts import job_entries
from unidle.view.state import View

START_NS = 1_000 * S
ONE = Fleet(
    (Tier("rack", "rack"),),
    (Node("n0", "rack", (Device("n0/0", "n0", 0, "gpu"),), cpus=4),),
    filler_price=0.5,
)
FILLER = JobSpec(
    ("x",), user="ann", device="gpu", preemption="low", job_class="filler", checkpoint_path="saved"
)
NORMAL = JobSpec(("x",), user="bob", device="gpu")
WORKS = SimJob(1_000 * S, step_ns=S, checkpoint_every=10)


def at(seconds: float) -> int:
    return START_NS + int(seconds * S)


def world(fleet: Fleet = ONE, **jobs: SimJob) -> Loop:
    loop = Loop(fleet, {"fill": WORKS, **jobs}, START_NS, checker=FillerChecker())
    loop.controller.submit("fill", FILLER)
    loop.to(at(1))
    return loop


def spent(view: View, job: str) -> dict[str, int]:
    """Seconds by leaf."""
    found: dict[str, int] = defaultdict(int)
    for entry in job_entries(view, view.jobs[job], view.time_ns):
        found[entry.leaf] += entry.sign * (entry.end_ns - entry.start_ns) * len(entry.slices)
    return {leaf: ns // S for leaf, ns in found.items() if ns}


def test_a_job_starts_at_once_on_a_fillers_device_and_the_filler_goes_on_after_it() -> None:
    loop = world(normal=SimJob(30 * S))
    loop.to(at(25))
    loop.controller.submit("normal", NORMAL)
    loop.to(at(60))
    filler, normal = loop.view.jobs["fill"], loop.view.jobs["normal"]
    assert [a.placed_ns for a in normal.attempts] == [at(25)]
    first, second = filler.attempts
    assert first.stop is not None
    assert (first.stop.why, first.stop.grace_ns, first.stop.for_job) == ("preempted", 0, "normal")
    assert (first.yielded_ns, first.ended_ns, second.placed_ns) == (at(25), at(25), at(55))
    assert spent(loop.view, "fill") == {"filled": 25, "discarded": 5}  # saved at 20 s; 5 s since it came back
    check_ledger(loop.store)  # type: ignore[arg-type]


def test_a_filler_counts_in_no_quota_and_in_no_count_of_free_devices() -> None:
    fleet = replace(ONE, queues=(QueueSpec("default", limit={"gpu": 1.0}),))
    loop = world(fleet, normal=SimJob(30 * S))
    view = loop.view
    assert view.usage.held == {} and view.occupancy.free["gpu"] == 1 and not view.waiting
    assert set(view.fillers.on) == {"n0/0"} and view.jobs["fill"].spec.price_per_device_hour == 0.5
    loop.controller.submit("normal", NORMAL)
    loop.settle()
    assert view.jobs["normal"].live is not None and view.fillers.waiting == {"fill"}


def test_a_filler_of_a_queue_that_is_not_there_waits_and_says_so() -> None:
    loop = world(replace(ONE, queues=(QueueSpec("a"), QueueSpec("b"))))
    filler = loop.view.jobs["fill"]
    assert filler.live is None and filler.verdict is not None
    assert filler.verdict.text == "there is no queue default that takes jobs; there are a, b"


def test_spares_and_what_a_quota_keeps_from_others_are_filled() -> None:
    nodes = tuple(Node(f"n{k}", "rack", (Device(f"n{k}/0", f"n{k}", 0, "gpu"),)) for k in range(2))
    fleet = replace(
        ONE, nodes=nodes, guard=GuardPolicy(spares=1), queues=(QueueSpec("default", limit={"gpu": 1.0}),)
    )
    loop = Loop(
        fleet,
        {"fill-1": WORKS, "fill-2": WORKS, "a": SimJob(50 * S), "b": SimJob(50 * S)},
        START_NS,
        checker=FillerChecker(),
    )
    for name, spec in (("a", NORMAL), ("b", NORMAL), ("fill-1", FILLER), ("fill-2", FILLER)):
        loop.controller.submit(name, spec)
    loop.to(at(1))
    assert loop.view.jobs["b"].live is None and set(loop.view.fillers.on.values()) == {"fill-1"}
    loop.to(at(100))
    assert loop.view.jobs["b"].attempts[0].placed_ns == at(50)
    assert set(loop.view.fillers.on) == {"n0/0", "n1/0"}


def test_a_filler_that_takes_the_cores_that_a_job_requests_makes_room() -> None:
    two = (Device("n0/0", "n0", 0, "gpu"), Device("n0/1", "n0", 1, "gpu"))
    fleet = replace(ONE, nodes=(Node("n0", "rack", two, cpus=4),))
    loop = Loop(
        fleet,
        {"fill": WORKS, "small": SimJob(9 * S), "large": SimJob(9 * S)},
        START_NS,
        checker=FillerChecker(),
    )
    loop.controller.submit("fill", replace(FILLER, requests=Requests(cpus=3)))
    loop.to(at(1))
    loop.controller.submit("small", replace(NORMAL, requests=Requests(cpus=1)))
    loop.settle()
    assert loop.view.jobs["fill"].live is not None
    loop.controller.submit(
        "large", replace(NORMAL, devices_per_rank=0, device="cpu", requests=Requests(cpus=2))
    )
    loop.settle()
    assert loop.view.jobs["large"].live is not None and loop.view.jobs["fill"].live is None


def test_a_filler_that_is_cancelled_with_a_long_grace_leaves_at_once_when_a_job_needs_its_device() -> None:
    loop = Loop(
        ONE,
        {"fill": SimJob(100 * S, stop_ns=50 * S), "normal": SimJob(9 * S)},
        START_NS,
        checker=FillerChecker(),
    )
    loop.controller.submit("fill", replace(FILLER, grace_s=60))
    loop.to(at(1))
    loop.controller.cancel("fill", "ann")
    loop.to(at(2))
    loop.controller.submit("normal", NORMAL)
    loop.settle()
    assert loop.view.jobs["fill"].state == "cancelled"
    assert loop.view.jobs["normal"].attempts[0].ranks[0].spawn_ns == at(2)


@pytest.mark.parametrize(("saves", "grace_ms"), [(True, 0), (False, 300)])
def test_only_a_filler_without_a_checkpoint_gets_time_to_leave(saves: bool, grace_ms: int) -> None:
    """Until its process has ended, the job's does not begin; a controller that dies meanwhile changes nothing."""
    loop = Loop(
        ONE,
        {"fill": SimJob(100 * S, stop_ns=50 * S), "normal": SimJob(9 * S)},
        START_NS,
        checker=FillerChecker(),
    )
    loop.controller.submit("fill", replace(FILLER, grace_s=60, checkpoint_path="saved" if saves else None))
    loop.to(at(1))
    loop.controller.submit("normal", NORMAL)
    loop.settle()
    assert loop.view.jobs["normal"].attempts[0].placed_ns == at(1)
    loop.take_up()
    loop.to(at(3))
    normal = loop.view.jobs["normal"].attempts[0]
    assert normal.ranks[0].spawn_ns == at(1) + grace_ms * 1_000_000
    ended = [time_ns for time_ns, event in loop.events if isinstance(event, ev.AttemptEnded)]
    assert ended == [normal.ranks[0].spawn_ns]


def test_explanations_say_what_a_filler_is_what_it_got_and_whom_it_made_room_for() -> None:
    loop = world(normal=SimJob(30 * S))
    loop.to(at(25))
    loop.controller.submit("normal", NORMAL)
    loop.settle()
    view = loop.view
    story = describe.explain(view, view.jobs["fill"])
    assert story["filler"] == (
        "a filler: it runs on devices that no other job uses, and makes room at once; 1 start, made room 1 time: "
        "20 device-s of useful work, 5 device-s discarded"
    )
    assert story["waiting"]["now"]["text"].startswith(
        "a filler gets what no other job uses: needs 1 GPU, 0 of 1"
    )
    assert story["waiting"]["start_unknown"].startswith("a filler starts when no other job uses")
    stop = next(line for line in story_lines(story) if "  stop  " in line)
    assert (
        "stopped to make room for job normal of user bob (queue default, priority 0): it is a filler" in stop
    )
    other = describe.explain(view, view.jobs["normal"])
    assert [d["jobs"] for d in other["decisions"] if d["what"] == "room for it"] == [["fill"]]
    assert other["filler"] is None
