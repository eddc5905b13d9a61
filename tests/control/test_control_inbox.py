"""The inbox: a flood of requests is taken in portions, and every request is taken once."""

from __future__ import annotations

import msgspec
import pytest

from unidle.clock import VirtualClock
from unidle.control import loop_state
from unidle.control.inbox import INBOX_AT_ONCE, CancelRequest, SubmitRequest, add_submitted
from unidle.control.loop import Controller
from unidle.control.services import ControllerTiming
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import seeded
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec
from unidle.place.policy import Unidle
from unidle.place.protocol import starves
from unidle.store.memory import MemoryStore
from unidle.store.protocol import Request
from unidle.view.state import View

FLEET = Fleet(nodes=(Node("n0", "", (Device("n0/0", "n0", 0, "gpu"),)),))
START_NS = 1_000_000_000_000


def _controller(store: MemoryStore) -> Controller:
    clock = VirtualClock(START_NS)
    engine = SimEngine(FLEET, clock, seeded(1, mean_work_s=1e6))
    controller = Controller(store, store.acquire("test"), engine, Unidle(), clock)
    controller.start("test")
    return controller


def _submit(store: MemoryStore, job: str) -> None:
    spec = JobSpec(("train",), user=store.user())
    store.request("submit", msgspec.json.encode(SubmitRequest(job, spec)))


def test_one_turn_takes_a_bounded_portion_of_a_flood_and_the_next_turn_follows_at_once() -> None:
    store = MemoryStore()
    many = 3 * INBOX_AT_ONCE + 5
    for number in range(many):
        _submit(store, f"j{number}")
    controller = _controller(store)
    seen = []
    for _ in range(5):
        wake_ns = controller.turn()
        seen.append(len(controller.view.jobs))
        if store.requests(1):
            assert wake_ns is not None
            assert wake_ns <= START_NS
    assert seen == [INBOX_AT_ONCE, 2 * INBOX_AT_ONCE, 3 * INBOX_AT_ONCE, many, many]
    assert not store.requests()


def test_a_job_that_is_still_in_the_inbox_waits_since_its_submission() -> None:
    view = View()
    body = msgspec.json.encode(SubmitRequest("a-1", JobSpec(("train",))))
    add_submitted(view, [Request(1, START_NS, "submit", body)])
    assert view.jobs["a-1"].waiting_since_ns == START_NS
    assert not starves(view, START_NS + 1)


def test_a_request_behind_a_flood_is_carried_out_in_its_order() -> None:
    store = MemoryStore()
    for number in range(INBOX_AT_ONCE + 1):
        _submit(store, f"j{number}")
    last = f"j{INBOX_AT_ONCE}"
    cancel = store.request("cancel", msgspec.json.encode(CancelRequest(last, "ann")))
    controller = _controller(store)
    controller.turn()
    assert store.is_waiting(cancel)
    controller.turn()
    assert not store.is_waiting(cancel)
    assert controller.view.jobs[last].state == "cancelled"


def test_a_request_that_is_nested_too_deeply_is_refused_and_the_next_one_is_taken() -> None:
    store = MemoryStore()
    store.request("submit", b'{"job": "a", "spec": ' + b"[" * 100_000)
    _submit(store, "b")
    controller = _controller(store)
    controller.turn()
    assert list(controller.view.jobs) == ["b"]
    assert not store.requests()


def _drive(store: MemoryStore) -> Controller:
    clock = VirtualClock(START_NS)
    engine = SimEngine(FLEET, clock, seeded(1, mean_work_s=2, step_s=1))
    controller = Controller(
        store, store.acquire("test"), engine, Unidle(), clock, timing=ControllerTiming(inbox_every_ns=0)
    )
    controller.start("test")
    while not controller.idle():
        controller.turn()
        clock.advance_to(clock.now_ns() + 500_000_000)
    return controller


def test_a_long_queue_is_kept_packed_and_gives_the_same_log(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []
    for above in (0, 1_000):
        monkeypatch.setattr(loop_state, "REST_ABOVE", above)
        store = MemoryStore()
        for number in range(40):
            _submit(store, f"j{number}")
        _drive(store)
        logs.append([(event.time_ns, event.kind, event.body) for event in store.read()])
    assert logs[0] == logs[1]
    assert sum(kind == "job_ended" for _, kind, _ in logs[0]) == 40


def test_a_turn_unpacks_no_more_jobs_than_it_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_state, "REST_ABOVE", 0)
    store = MemoryStore()
    many = 3 * INBOX_AT_ONCE
    for number in range(many):
        _submit(store, f"j{number}")
    controller = _controller(store)
    for turn in range(4):
        controller.turn()
        awake = [job.id for job in controller.view.jobs.open.awake()]
        assert awake == ["j0", "j1"][: turn + 1], "one runs, and a later turn looks at the next of its shape"
    assert len(controller.view.jobs.resting) == many - 2
