"""Services on the simulated engine: replicas, restarts without end, and what the ledger has of them."""

from __future__ import annotations

from collections import defaultdict

from loop.drive import Loop
from share.cutting import check_ledger
from unidle.control.replicas import service_detail
from unidle.engine.sim.workload import S, SimJob
from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import JobSpec, Restart, Service
from unidle.view.accounts import job_entries

START_NS = 1_000 * S
FLEET = Fleet(
    (Tier("rack", "rack"),), (Node("n0", "rack", tuple(Device(f"n0/{k}", "n0", k, "gpu") for k in range(2))),)
)
CHAT = JobSpec(
    ("x",), user="ann", device="gpu", restart=Restart(backoff_s=2, insists=True), service=Service(2, 8000)
)


def world(behaviour: SimJob) -> Loop:
    loop = Loop(FLEET, {"chat": behaviour, "chat-1": behaviour}, START_NS)
    loop.controller.submit("chat", CHAT)
    return loop


def starts(loop: Loop, job: str) -> list[float]:
    return [(attempt.placed_ns - START_NS) / S for attempt in loop.view.jobs[job].attempts]


def test_each_replica_is_a_job_that_is_restarted_however_it_ends() -> None:
    """With exit code 0 or not; after an attempt that was ready, the back-off begins again."""
    loop = world(SimJob(10 * S, startup_ns=3 * S, step_ns=S, report_every=0, fails={2: (0, 5 * S, 3)}))
    loop.to(START_NS + 40 * S)
    assert list(loop.view.jobs) == ["chat", "chat-1"]
    for name in ("chat", "chat-1"):
        assert starts(loop, name) == [0, 15, 22, 37]
        assert not loop.view.jobs[name].terminal
    texts = [event.because.text for _, event in loop.events if isinstance(event, ev.RetryPlanned)]
    assert texts[0] == "a service is always restarted, in 2 s: exited 0"
    assert "rank 0 exited 3" in texts[2]


def test_the_back_off_grows_while_a_replica_does_not_come_to_be_ready() -> None:
    loop = world(
        SimJob(10 * S, startup_ns=9 * S, step_ns=S, report_every=0, fails=dict.fromkeys((1, 2, 3), (0, S, 1)))
    )
    loop.to(START_NS + 55 * S)
    assert starts(loop, "chat") == [0, 3, 8, 17, 38]  # after 2, 4 and 8 s, then 2 s after one that was ready


def test_the_service_is_cancelled_as_a_whole_or_one_replica_of_it() -> None:
    loop = world(SimJob(100 * S))
    loop.to(START_NS + S)
    loop.controller.cancel("chat-1", "ann")
    loop.settle()
    assert [loop.view.jobs[name].state for name in ("chat", "chat-1")] == ["running", "cancelled"]
    again = world(SimJob(100 * S))
    again.to(START_NS + S)
    again.controller.cancel("chat", "ann")
    again.settle()
    assert {job.state for job in again.view.jobs.values()} == {"cancelled"}


def test_time_before_a_replica_is_ready_loads_a_model_and_none_is_lost() -> None:
    loop = world(SimJob(10 * S, startup_ns=3 * S, step_ns=S, report_every=0, fails={2: (0, 5 * S, 3)}))
    loop.to(START_NS + 19 * S)
    told = service_detail(loop.view, loop.view.jobs["chat"])
    assert told is not None and (told["ready"], told["wanted"], told["of"]) == (2, 2, "chat")
    loop.controller.cancel("chat", "ann")
    loop.settle()
    found: dict[str, int] = defaultdict(int)
    for entry in job_entries(loop.view, loop.view.jobs["chat"], loop.view.time_ns):
        found[entry.leaf] += entry.sign * (entry.end_ns - entry.start_ns)
    assert {leaf: ns // S for leaf, ns in found.items() if ns} == {"model_load": 6, "ready": 11}
    check_ledger(loop.store)  # type: ignore[arg-type]
