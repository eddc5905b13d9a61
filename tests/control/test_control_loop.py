"""The loop on the simulated engine: requests, deadlines, stops, and what a controller does when it comes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

from sim.worlds import S, World, fleet_of
from unidle.clock import VirtualClock
from unidle.control.inbox import INBOX_EVERY_NS, CancelRequest, SubmitRequest
from unidle.control.loop import Controller
from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import SimJob
from unidle.errors import BadInput, LeaseLost
from unidle.jobs import JobSpec, Restart
from unidle.place.policy import FirstFit
from unidle.store.memory import MemoryStore


class Service:
    """A controller on a simulated fleet. Times are in seconds."""

    def __init__(self, world: World, store: MemoryStore | None = None) -> None:
        self.clock = VirtualClock(1)
        self.engine = SimEngine(world.fleet, self.clock, world.workload, world.faults)
        self.store = store or MemoryStore()
        self.take_up()

    def take_up(self) -> None:
        self.lease = self.store.acquire("test")
        self.controller = Controller(self.store, self.lease, self.engine, FirstFit(), self.clock)
        self.controller.start("test")

    def until(self, at_s: float) -> Service:
        end_ns = 1 + int(at_s * S)
        while True:
            wake_ns = self.controller.turn()
            if self.clock.now_ns() >= end_ns:
                return self
            self.engine.wait(end_ns if wake_ns is None else min(wake_ns, end_ns))

    def state(self, job: str) -> str:
        return self.controller.view.jobs[job].state

    def code(self, job: str) -> str:
        return self.controller.view.jobs[job].because.code

    def logged(self) -> Counter[str]:
        return Counter(event.kind for event in self.store.read())


def world(*devices: int, faults: tuple[tuple[int, str, int], ...] = (), **behaviour: SimJob) -> World:
    return World(fleet_of(*devices), (), behaviour, faults=faults)


def spec(**more: object) -> JobSpec:
    return JobSpec(("train",), **more)  # type: ignore[arg-type]


LONG = SimJob(1000 * S)


def test_a_job_that_waits_again_after_a_failure_has_its_queue_timeout() -> None:
    fails = SimJob(50 * S, fails={1: (0, 5 * S, 1)})
    service = Service(world(2, broken=fails, other=LONG))
    service.controller.submit("broken", spec(ranks=2, restart=Restart(3, 2.0), queue_timeout_s=10.0))
    service.until(5.5).controller.submit("other", spec())
    assert service.until(16).state("broken") == "restarting"
    assert service.until(18).state("broken") == "failed"
    assert service.code("broken") == "queue_timeout"


def test_a_back_off_longer_than_the_queue_timeout_does_not_fail_the_job() -> None:
    service = Service(world(1, j=SimJob(10 * S, fails={1: (0, S, 1)})))
    service.controller.submit("j", spec(restart=Restart(1, 60.0), queue_timeout_s=5.0))
    assert service.until(100).state("j") == "succeeded"


def test_requests_are_taken_from_the_inbox_once_and_a_broken_one_stops_nobody() -> None:
    service = Service(world(1, a=LONG))
    submit = msgspec.json.encode(SubmitRequest("a", spec()))
    for kind, body in (
        ("submit", b"{"),
        ("submit", submit),
        ("dance", b"{}"),
        ("submit", submit),
        ("cancel", b"[]"),
    ):
        service.store.request(kind, body)
    service.until(1)
    assert service.state("a") == "running"
    service.store.request("cancel", msgspec.json.encode(CancelRequest("a", "ann")))
    service.store.request("cancel", msgspec.json.encode(CancelRequest("ghost", "ann")))
    service.until(1 + 2 * INBOX_EVERY_NS / S)
    assert service.state("a") == "cancelled"
    assert service.store.requests() == []
    assert service.logged()["job_submitted"] == 1
    assert service.logged()["request_refused"] == 3


def test_cancelling_an_unknown_job_is_bad_input() -> None:
    with pytest.raises(BadInput, match="no such job"):
        Service(world(1)).controller.cancel("ghost", "ann")


@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_job_that_is_cancelled_while_the_service_stops_does_not_wait_again(cancel_first: bool) -> None:
    service = Service(world(1, j=LONG))
    service.controller.submit("j", spec())
    service.until(5)
    asks = [lambda: service.controller.cancel("j", "ann"), service.controller.drain]
    for ask in asks if cancel_first else reversed(asks):
        ask()
    assert service.until(20).state("j") == "cancelled"


def test_a_drained_service_requeues_its_jobs_and_the_next_one_goes_on() -> None:
    service = Service(world(1, j=SimJob(10 * S, step_ns=S, checkpoint_every=2)))
    service.controller.submit("j", spec())
    service.until(5.5).controller.drain()
    assert service.until(8).state("j") == "queued"
    service.controller.stop("test")
    service.store.release(service.lease)
    service.take_up()
    assert service.until(13.5).state("j") == "running"
    assert service.until(14.5).state("j") == "succeeded"
    assert [a.outcome for a in service.controller.view.jobs["j"].attempts] == ["preempted", "succeeded"]


def test_a_paused_service_places_nothing() -> None:
    service = Service(world(1, j=LONG))
    service.controller.pause()
    service.controller.submit("j", spec())
    assert service.until(60).state("j") == "queued"


def test_a_node_that_is_down_is_told_to_every_controller_and_logged_once() -> None:
    service = Service(world(1, 1, faults=((1 + 2 * S, "n0", 1 + 50 * S),), j=LONG))
    service.until(3)
    service.store.release(service.lease)
    service.take_up()
    service.controller.submit("j", spec())
    service.until(5)
    assert service.logged()["health_set"] == 1
    assert service.controller.view.jobs["j"].live.places[0].node == "n1"
    assert service.until(60).logged()["health_set"] == 2


def test_a_controller_that_lost_its_lease_starts_nothing() -> None:
    service = Service(world(1, j=LONG))
    service.store.release(service.lease)
    service.store.acquire("another")
    service.controller.submit("j", spec())
    with pytest.raises(LeaseLost):
        service.until(5)
    assert service.engine.idle


def test_a_simulation_goes_on_through_back_offs_and_ends_when_nothing_can_happen() -> None:
    fails = SimJob(5 * S, fails={1: (0, S, 1), 2: (0, S, 1)})
    hangs = SimJob(5 * S, fails={1: (0, S, 0)})
    arrivals = [
        Arrival(1, "retried", spec(restart=Restart(2, 30.0))),
        Arrival(1, "hangs", spec(ranks=2)),
        Arrival(1, "huge", spec(ranks=9, queue_timeout_s=200.0)),
        Arrival(1, "never", spec(ranks=9)),
    ]
    behaviour = {"retried": fails, "hangs": hangs, "huge": LONG, "never": LONG}
    view = simulate(MemoryStore(), fleet_of(4), arrivals, lambda command: behaviour[command.job], FirstFit())
    assert {job.id: job.state for job in view.jobs.values()} == {
        "retried": "succeeded", "hangs": "running", "huge": "failed", "never": "queued",
    }  # fmt: skip


SAME = """
import zlib
from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.sim.workload import seeded
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, Restart
from unidle.place.policy import FirstFit
from unidle.store.memory import MemoryStore
node = Node("n", "", tuple(Device(f"n/{k}", "n", k, "gpu") for k in range(4)))
jobs = [Arrival(1 + k // 9, f"j{k}", JobSpec(("x",), ranks=1 + k % 3, restart=Restart(2))) for k in range(40)]
store = MemoryStore()
simulate(store, Fleet(nodes=(node,)), jobs, seeded(1, mean_work_s=60, failures_per_rank_hour=20), FirstFit())
print(zlib.crc32(repr([e[1:5] for e in store.read() if e.kind != "controller_started"]).encode()))
"""


def test_the_same_simulation_gives_the_same_log_in_every_process() -> None:
    def run(seed: str) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", SAME], env=environment, capture_output=True, check=True
        ).stdout

    assert run("1") == run("2") != b""
