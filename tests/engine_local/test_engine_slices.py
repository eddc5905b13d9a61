"""Slices of devices are real for the ranks: CPU quotas, MPS clients, MIG instances; or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

import needs
from engine_local.local_gangs import Machine, python, sh
from engine_local.sharing import GIB, UUID, Sharing, command, cut_cpus, cut_gpu, env_of, orders
from unidle.engine.local.devices.discovery import discover
from unidle.engine.local.devices.mig import MigHands, NvmlMig
from unidle.engine.local.devices.mps import MpsControl
from unidle.engine.local.devices.slicing import Slicer
from unidle.engine.protocol import LiveAttempt
from unidle.errors import CannotRun
from unidle.jobs import Limits, Share
from unidle.share.modes import Mode

# -- CPU devices ---------------------------------------------------------------------------------


@needs.cgroups
def test_ranks_on_slices_of_a_cpu_device_get_their_shares_and_no_more(machine: Machine) -> None:
    engine = machine.new_engine(cut_cpus(200_000, 400_000, 400_000))
    spin = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    gang = machine.follow(command(python(spin), ["n/0#0", "n/0#1"]), engine)
    engine.start(gang.command)
    assert gang.codes() == [0, 0]
    assert [orders(gang, rank)["cpus"] for rank in range(2)] == [0.2, 0.4]
    used_ns = [int((gang.last("exit", rank).info or {})["cpu_ns"] or 0) for rank in range(2)]
    # quotas are per 100 ms; a spell of 1 s touches at most 11 of them, and Python itself takes a little
    assert 0 < used_ns[0] < 300_000_000 and 0 < used_ns[1] < 550_000_000


@needs.cgroups
def test_a_slice_of_a_device_with_memory_is_bounded_in_memory_too(machine: Machine) -> None:
    engine = machine.new_engine(cut_cpus(250_000, 750_000, memory=256 << 20))
    gang = machine.follow(
        command(python("x = bytearray(200 << 20); print('unreachable')"), ["n/0#0"]), engine
    )
    engine.start(gang.command)
    assert gang.codes() == [-9]
    info = gang.last("exit").info
    assert info is not None and info["oom"] is True


def test_the_jobs_own_bound_holds_where_it_is_tighter(machine: Machine) -> None:
    engine = machine.new_engine(cut_cpus(500_000, 500_000, cpus=2.0))
    for job, cpus, expected in (("a", 0.1, 0.1), ("b", 1.5, 1.0)):
        gang = machine.follow(command(sh("true"), ["n/0#0"], job=job, limits=Limits(cpus=cpus)), engine)
        engine.start(gang.command)
        gang.ends()
        assert orders(gang)["cpus"] == expected


def test_a_whole_device_is_not_bounded(machine: Machine) -> None:
    engine = machine.new_engine(cut_cpus(1_000_000))
    gang = machine.follow(command(sh("true"), ["n/0"]), engine)
    engine.start(gang.command)
    gang.ends()
    assert orders(gang)["cpus"] is None and not (machine.run_root / ".slices").exists()


# -- MPS -----------------------------------------------------------------------------------------


def test_ranks_that_share_a_gpu_by_mps_are_bounded_clients_of_its_daemon(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(250_000, 750_000))
    gang = sharing.start(engine, "env", ["n/0#0", "n/0#1"], share=Share(mode="mps"))
    assert gang.codes() == [0, 0]
    assert sharing.daemons() == [UUID]
    envs = [env_of(gang, rank) for rank in range(2)]
    assert [e["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for e in envs] == ["25", "75"]
    assert [e["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for e in envs] == ["0=20480M", "0=61440M"]
    assert {e["CUDA_VISIBLE_DEVICES"] for e in envs} == {UUID}
    assert all(Path(e["CUDA_MPS_PIPE_DIRECTORY"]).is_dir() for e in envs)


def test_what_a_job_asks_of_its_slice_goes_before_the_slices_size(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(250_000, 750_000))
    share = Share(compute_ppm=100_000, memory_bytes=4 * GIB, mode="mps")
    gang = sharing.start(engine, "env", ["n/0#0"], share=share)
    assert gang.codes() == [0]
    assert env_of(gang)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"
    assert env_of(gang)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"


def test_the_daemon_lives_as_long_as_anyone_uses_it(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(500_000, 500_000))
    first = sharing.start(engine, "sleep 600", ["n/0#0"], job="a", share=Share(mode="mps"))
    second = sharing.start(engine, "true", ["n/0#1"], job="b", share=Share(mode="mps"))
    assert second.codes() == [0]
    engine.release("b", 1)
    assert sharing.daemons() == [UUID]
    first.stop(0)
    first.ends()
    engine.release("a", 1)
    assert sharing.daemons() == []


def test_an_engine_that_adopts_keeps_the_daemon_and_ends_it_with_the_last(sharing: Sharing) -> None:
    fleet = cut_gpu(500_000, 500_000)
    before = sharing.engine(fleet)
    gang = sharing.start(before, "sleep 600", ["n/0#0"], share=Share(mode="mps"))
    gang.spawned()
    before.close()
    assert sharing.daemons() == [UUID]
    after = sharing.engine(fleet)
    after.adopt([LiveAttempt(gang.command, (0,))])
    later = sharing.machine.follow(gang.command, after)
    later.stop(0)
    later.ends()
    after.release("job", 1)
    assert sharing.daemons() == []


def test_without_mps_a_wish_for_it_is_refused_and_any_mode_means_time_slices(sharing: Sharing) -> None:
    sharing.environ["PATH"] = "/nonexistent"
    sharing.nvml.told["mig_mode"] = [0, 0]
    engine = sharing.engine(cut_gpu(500_000, 500_000))
    refused = sharing.start(engine, "true", ["n/0#0"], job="a", share=Share(mode="mps"))
    (mark,) = refused.ends()
    assert mark.k == "lost" and "nvidia-cuda-mps-control is not installed" in (mark.text or "")
    assert "mode: time" in (mark.text or "")
    plain = sharing.start(engine, "env", ["n/0#0"], job="b", share=Share())
    assert plain.codes() == [0]
    assert "CUDA_MPS_PIPE_DIRECTORY" not in env_of(plain) and env_of(plain)["CUDA_VISIBLE_DEVICES"] == UUID


def test_a_daemon_that_does_not_start_is_told_with_its_own_words(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(500_000, 500_000))
    pipes, _ = MpsControl("test", str(sharing.parent), sharing.environ).directories(UUID)
    Path(pipes).mkdir(parents=True)
    (Path(pipes) / "broken").touch()
    gang = sharing.start(engine, "true", ["n/0#0"], share=Share(mode="mps"))
    (mark,) = gang.ends()
    assert mark.k == "lost" and "already running" in (mark.text or "")


def test_a_gpu_without_uuid_cannot_be_bound_to_a_daemon(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(500_000, 500_000, uuid=""))
    (mark,) = sharing.start(engine, "true", ["n/0#0"], share=Share(mode="mps")).ends()
    assert mark.k == "lost" and "has no UUID" in (mark.text or "")


# -- MIG (NVML's answers written from the documented format) ------------------------------------------


def test_a_rank_gets_a_mig_instance_of_its_profile(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(500_000, 500_000))
    gang = sharing.start(engine, "env", ["n/0#0", "n/0#1"], share=Share(profile="3g.40gb", mode="mig"))
    assert gang.codes() == [0, 0]
    assert sharing.nvml.standing() == {(9, 0), (9, 4)}
    seen = [env_of(gang, rank)["CUDA_VISIBLE_DEVICES"] for rank in range(2)]
    assert len(set(seen)) == 2 and all(uuid.startswith("MIG-") for uuid in seen)


def test_without_a_profile_the_slice_says_how_large_the_instance_is(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(571_428, 428_572))
    gang = sharing.start(engine, "true", ["n/0#0", "n/0#1"], share=Share(mode="any"))
    assert gang.codes() == [0, 0]
    assert sharing.nvml.standing() == {(5, 0), (9, 4)}


def test_instances_in_use_stay_and_what_is_left_idle_is_used_again_or_makes_way(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(*[250_000] * 4))
    held = sharing.start(engine, "sleep 600", ["n/0#0"], job="a", share=Share(profile="1g.10gb"))
    held.spawned()
    for job in ("b", "c"):
        gang = sharing.start(engine, "true", ["n/0#1"], job=job, share=Share(profile="2g.20gb"))
        assert gang.codes() == [0]
        engine.release(job, 1)
    assert sharing.nvml.log == ["create 19 at 6", "create 14 at 4"]  # c used the instance that b left
    large = sharing.start(engine, "true", ["n/0#2"], job="d", share=Share(profile="4g.40gb"))
    assert large.codes() == [0]
    assert sharing.nvml.standing() == {(19, 6), (14, 4), (5, 0)}
    wide = sharing.start(engine, "true", ["n/0#3"], job="e", share=Share(profile="3g.40gb"))
    (mark,) = wide.ends()
    assert mark.k == "lost" and "it fits once" in (mark.text or "")


def test_instances_of_others_are_never_destroyed(sharing: Sharing) -> None:
    sharing.nvml.by_others(14, 0)
    sharing.nvml.by_others(19, 4, processes=1)
    engine = sharing.engine(cut_gpu(500_000, 500_000))
    (mark,) = sharing.start(engine, "true", ["n/0#0"], job="a", share=Share(profile="4g.40gb")).ends()
    assert mark.k == "lost" and "2g.20gb at 0" in (mark.text or "")
    gang = sharing.start(engine, "env", ["n/0#0"], job="b", share=Share(profile="2g.20gb"))
    assert gang.codes() == [0] and sharing.nvml.log == []  # the idle one of theirs serves


def test_a_gang_that_cannot_have_all_its_instances_keeps_none_for_itself(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(*[250_000] * 4))
    gang = sharing.start(
        engine, "true", [f"n/0#{k}" for k in range(3)], job="a", share=Share(profile="3g.40gb")
    )
    assert {mark.k for mark in gang.ends()} == {"lost"}
    assert not (sharing.machine.run_root / ".slices" / "a.1.json").exists()
    assert sharing.start(engine, "true", ["n/0#0"], job="b", share=Share(profile="4g.40gb")).codes() == [0]


@pytest.mark.parametrize(
    ("mode", "fails", "said"),
    [
        ([0, 0], {}, "switching it on resets the GPU"),
        ([0, 1], {}, "awaits a reset"),
        ([1, 1], {"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}, "Driver Not Loaded"),
        ([1, 1], {"nvmlDeviceGetMigMode": pynvml.NVML_ERROR_NOT_SUPPORTED}, "has no MIG"),
        ([1, 1], {"nvmlDeviceCreateGpuInstanceWithPlacement": pynvml.NVML_ERROR_NO_PERMISSION}, "root"),
        ([1, 1], {"nvmlGpuInstanceCreateComputeInstance": pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES}, "-lgi"),
    ],
)
def test_why_mig_cannot_be_had_is_said(
    sharing: Sharing, mode: list[int], fails: dict[str, int], said: str
) -> None:
    sharing.nvml.told["mig_mode"], sharing.nvml.fails = mode, fails
    engine = sharing.engine(cut_gpu(500_000, 500_000))
    (mark,) = sharing.start(engine, "true", ["n/0#0"], share=Share(profile="1g.10gb")).ends()
    assert mark.k == "lost" and said in (mark.text or "")
    assert sharing.nvml.standing() == set()


def test_a_gpu_that_reports_other_places_than_the_table_is_left_alone(sharing: Sharing) -> None:
    sharing.nvml.told["profiles"]["2"]["starts"] = [0, 2, 4]
    engine = sharing.engine(cut_gpu(500_000, 500_000))
    (mark,) = sharing.start(engine, "true", ["n/0#0"], share=Share(profile="1g.10gb")).ends()
    assert "other places for 3g.40gb" in (mark.text or "")


def test_the_chooser_is_told_what_this_machine_allows_and_why_not_the_rest(sharing: Sharing) -> None:
    fleet = cut_gpu(500_000, 500_000)
    (device,) = fleet.devices()
    root = str(sharing.machine.run_root)

    def modes() -> tuple[frozenset[Mode], dict[Mode, str]]:
        mps = MpsControl("test", str(sharing.parent), sharing.environ)
        return Slicer(root, fleet, mps, MigHands(root, NvmlMig(sharing.nvml))).modes(device)

    assert modes()[0] == {"mig"}
    sharing.nvml.told["mig_mode"] = [0, 0]
    allowed, why = modes()
    assert allowed == {"whole", "mps", "time"} and "nvidia-smi -i 0 -mig 1" in why["mig"]
    sharing.environ["PATH"] = "/nonexistent"
    allowed, why = modes()
    assert allowed == {"whole", "time"} and "not installed" in why["mps"]


def test_a_gpu_that_mig_cannot_cut_is_named(sharing: Sharing) -> None:
    engine = sharing.engine(cut_gpu(500_000, 500_000, model="NVIDIA L40S"))
    (mark,) = sharing.start(engine, "true", ["n/0#0"], share=Share(mode="mig")).ends()
    assert "NVIDIA L40S" in (mark.text or "") and "mode: mps or time" in (mark.text or "")


@needs.gpu
def test_nvml_of_this_machine_answers_about_mig() -> None:
    driver = NvmlMig()
    for device in discover().devices():
        try:
            places = driver.placements(device.uuid) if driver.mode(device.uuid).current else []
        except CannotRun as error:
            places = []
            assert "no MIG" in str(error)  # noqa: PT017 - a GPU without MIG is as good an answer
        assert all(place.starts for place in places)


@pytest.mark.skipif(needs.gpus() > 0, reason="GPU: only where there is none")
def test_a_machine_without_a_driver_says_so() -> None:
    with pytest.raises(CannotRun, match="no NVIDIA driver"):
        NvmlMig().mode(UUID)
