"""Parts of devices that are cut on demand are made as they were decided, or refused so that the job goes elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pynvml

import needs
from engine_local.local_gangs import Gang, Machine, sh
from engine_local.sharing import GIB, UUID, Sharing, command, cut_gpu, env_of, orders
from unidle.clock import RealClock
from unidle.control.loop import Controller
from unidle.control.services import ControllerTiming
from unidle.engine.local.engine import LocalEngine
from unidle.engine.protocol import PartOf, StartGang
from unidle.fleet import CutMode, CutPart, Device, Fleet, Node
from unidle.fleet import Sharing as CutOnDemand
from unidle.jobs import JobSpec, Share
from unidle.place.policy import Unidle
from unidle.store.memory import MemoryStore
from unidle.view.jobs import JobView
from waiting import wait_until

MIG_7G = 0  # NVML's id of 7g.80gb


def gpu(*modes: CutMode) -> Fleet:
    fleet = cut_gpu(1_000_000)
    device = replace(fleet.nodes[0].devices[0], sharing=CutOnDemand(modes))
    return replace(fleet, nodes=(replace(fleet.nodes[0], devices=(device,)),))


def cpus(count: int = 1, memory_bytes: int = 0) -> Fleet:
    devices = tuple(
        Device(f"n/{k}", "n", k, "cpu", memory_bytes=memory_bytes, sharing=CutOnDemand(("quota",)))
        for k in range(count)
    )
    return Fleet(nodes=(Node("n", "site", devices, cpus=2.0),))


def part(
    mode: CutMode, compute_ppm: int, memory_bytes: int = 0, profile: str = "", start: int = -1
) -> PartOf:
    made = CutPart("1.0", compute_ppm, "job", compute_ppm, memory_bytes, profile, start)
    return PartOf("n/0", mode, made)


def start(sharing: Sharing, engine: LocalEngine, script: str, given: PartOf, job: str = "job") -> Gang:
    """One rank on a part of the device."""
    order = command(sh(script), ["n/0#1.0"], job=job, share=Share(given.part.compute_ppm))
    order = StartGang(order.job, 1, order.spec, order.places, {"n/0#1.0": given})
    gang = sharing.machine.follow(order, engine)
    engine.start(order)
    return gang


def test_a_part_by_mps_is_bounded_by_what_was_promised(sharing: Sharing) -> None:
    gang = start(sharing, sharing.engine(gpu("mps")), "env", part("mps", 300_000, 8 * GIB))
    assert gang.codes() == [0]
    env = env_of(gang)
    assert (env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], env["CUDA_VISIBLE_DEVICES"]) == ("30", UUID)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"


def test_a_part_by_time_slices_sees_the_gpu_unbounded(sharing: Sharing) -> None:
    gang = start(sharing, sharing.engine(gpu("time")), "env", part("time", 300_000, 8 * GIB))
    assert gang.codes() == [0]
    env = env_of(gang)
    assert env["CUDA_VISIBLE_DEVICES"] == UUID and "CUDA_MPS_PIPE_DIRECTORY" not in env


def test_an_instance_is_made_at_the_place_that_was_decided(sharing: Sharing) -> None:
    engine = sharing.engine(gpu("mig"))
    gang = start(sharing, engine, "env", part("mig", 142_857, 10 * GIB, "1g.10gb", 3))
    assert gang.codes() == [0]
    assert sharing.nvml.log == ["create 19 at 3"] and env_of(gang)["CUDA_VISIBLE_DEVICES"].startswith("MIG-")


def test_an_idle_instance_of_ours_makes_way_and_one_of_others_refuses(sharing: Sharing) -> None:
    engine = sharing.engine(gpu("mig"))
    assert start(sharing, engine, "true", part("mig", 1, 0, "1g.10gb", 3), "a").codes() == [0]
    engine.release("a", 1)
    assert start(sharing, engine, "true", part("mig", 1, 0, "2g.20gb", 2), "b").codes() == [0]
    assert sharing.nvml.standing() == {(14, 2)}
    sharing.nvml.by_others(19, 6)
    (mark,) = start(sharing, engine, "true", part("mig", 1, 0, "3g.40gb", 4), "c").ends()
    assert mark.k == "lost" and mark.info == {"refused": True}
    assert "others made 1g.10gb at 6" in (mark.text or "")


def test_a_whole_gpu_in_mig_mode_is_its_largest_instance(sharing: Sharing) -> None:
    engine = sharing.engine(gpu("mig"))
    gang = sharing.start(engine, "env", ["n/0#4.0"])
    assert gang.codes() == [0]
    assert sharing.nvml.standing() == {(MIG_7G, 0)} and env_of(gang)["CUDA_VISIBLE_DEVICES"].startswith(
        "MIG-"
    )


def test_the_engine_offers_only_the_ways_that_the_machine_has(sharing: Sharing) -> None:
    (device,) = sharing.engine(gpu("mig", "mps", "time")).fleet().devices()
    assert device.sharing is not None and device.sharing.modes == ("mig",)  # MIG mode is on
    assert dict(device.sharing.why_not)["time"] == "n/0 is in MIG mode"
    sharing.nvml.told["mig_mode"] = [0, 0]
    (device,) = sharing.engine(gpu("mig", "mps", "time")).fleet().devices()
    assert device.sharing is not None and device.sharing.modes == ("mps", "time")
    assert "switching it on resets the GPU" in dict(device.sharing.why_not)["mig"]


@needs.cgroups
def test_a_part_of_a_cpu_device_has_its_promise_as_quota_though_it_counts_for_less(machine: Machine) -> None:
    engine = machine.new_engine(cpus(memory_bytes=1 << 30))
    given = PartOf("n/0", "quota", CutPart("1.0", 250_000, "job", 375_000, 384 << 20))
    order = command(sh("true"), ["n/0#1.0"], share=Share(375_000))
    order = StartGang(order.job, 1, order.spec, order.places, {"n/0#1.0": given})
    gang = machine.follow(order, engine)
    engine.start(order)
    assert gang.codes() == [0]
    assert (orders(gang)["cpus"], orders(gang)["memory_bytes"]) == (0.75, 384 << 20)


# -- with the loop above it ----------------------------------------------------------------------


class Driven:
    """A controller on a local engine whose NVML is recorded."""

    def __init__(self, sharing: Sharing, fleet: Fleet) -> None:
        self.store, clock = MemoryStore(), RealClock()
        engine = sharing.engine(fleet)
        lease = self.store.acquire("test")
        self.controller = Controller(
            self.store, lease, engine, Unidle(), clock, timing=ControllerTiming(inbox_every_ns=None)
        )
        self.controller.start("test")

    def submit(self, job: str, script: str, share: Share) -> None:
        self.controller.submit(job, JobSpec(sh(script), name=job, share=share, workdir="/"))

    def until(self, holds: Callable[[], bool]) -> None:
        def turn() -> bool:
            self.controller.turn()
            return holds()

        wait_until(turn, 60, "the loop")

    def job(self, job: str) -> JobView:
        return self.controller.view.jobs[job]


def test_a_part_that_the_machine_refuses_puts_the_job_back_with_the_reason_and_does_not_loop(
    sharing: Sharing,
) -> None:
    sharing.nvml.fails = {"nvmlDeviceCreateGpuInstanceWithPlacement": pynvml.NVML_ERROR_NO_PERMISSION}
    driven = Driven(sharing, gpu("mig"))
    driven.submit("a", "true", Share(profile="1g.10gb"))
    driven.until(lambda: driven.job("a").state == "queued" and bool(driven.job("a").attempts))
    for _ in range(20):
        driven.controller.turn()
    job = driven.job("a")
    assert len(job.attempts) == 1 and job.retries == 0 and job.verdict is not None
    assert job.attempts[0].why is not None and job.attempts[0].why.code == "cut_refused"
    assert job.verdict.code == "no_share" and "run unidle as a user who may set up MIG" in job.verdict.text
    assert driven.controller.view.fleet.devices()[0].cut is None
    driven.controller.stop("done")


def test_a_job_on_a_part_runs_in_its_instance_and_the_gpu_is_whole_again_at_its_end(sharing: Sharing) -> None:
    driven = Driven(sharing, gpu("mig"))
    driven.submit("a", "env", Share(profile="1g.10gb"))
    driven.submit("b", "sleep 600", Share(profile="2g.20gb"))
    driven.until(lambda: driven.job("a").state == "succeeded" and driven.job("b").state == "running")
    (device,) = driven.controller.view.fleet.devices()
    assert device.cut is not None and [p.job for p in device.cut.parts] == ["b", ""]
    made = {f"create {19 if p.profile == '1g.10gb' else 14} at {p.start}" for p in device.cut.parts if p.job}
    assert made <= set(sharing.nvml.log)
    driven.controller.cancel("b", "test")
    driven.controller.kill("b")
    driven.until(lambda: driven.job("b").terminal)
    assert driven.controller.view.fleet.devices()[0].cut is None
    driven.controller.stop("done")
