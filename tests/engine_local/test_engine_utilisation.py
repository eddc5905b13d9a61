"""Whether devices are used: CPU time of real processes, and GPUs as NVML's reference describes its answers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest

from engine_local.local_gangs import Gang, Machine, python
from unidle.engine.local.vitals.utilisation import GpuMeter
from unidle.engine.protocol import Utilised, WatchGang
from unidle.fleet import Device

SLEEPS = "import time; time.sleep(600)"
COMPUTES = "while True: pass"
FORKS = (
    "import subprocess\nwhile True: subprocess.run([sys.executable, '-I', '-S', '-c', 'sum(range(2000000))'])"
)
RESTS_AND_COMPUTES = """
import time
while not os.path.exists(flag): time.sleep(0.05)
while os.path.exists(flag): pass
time.sleep(600)
"""


def started(machine: Machine, *codes: str) -> Gang:
    """A gang whose ranks have begun to run these programs; ``flag`` is a file that is not there yet."""
    flag = str(machine.run_root) + ".flag"
    code = (
        f"import os, sys; flag = {flag!r}; open(flag + os.environ['RANK'], 'w').close(); "
        f"exec({list(codes)!r}[int(os.environ['RANK'])])"
    )
    gang = machine.start(python(code), len(codes))
    for rank in range(len(codes)):
        gang.until(lambda rank=rank: Path(f"{flag}{rank}").exists())  # type: ignore[misc]
    return gang


def watch(gang: Gang, every_ms: int = 200) -> None:
    command = gang.command
    gang.engine.watch(
        WatchGang(command.job, command.attempt, command.places, every_ms * 1_000_000, busy_ppm=50_000)
    )


def word(gang: Gang, number: int = 1) -> Utilised:
    """What is told of the gang at the given time of telling."""
    gang.until(lambda: len(gang.told) >= number, 30.0, "the utilisation of the gang")
    return gang.told[number - 1]


def test_a_gang_that_sleeps_is_quiet_since_it_was_watched(any_machine: Machine) -> None:
    gang = started(any_machine, SLEEPS, SLEEPS)
    begin_ns = gang.engine._clock.now_ns()
    watch(gang)
    told = word(gang)
    assert (told.job, told.attempt, told.use) == ("job", 1, "quiet")
    assert begin_ns <= told.since_ns < gang.engine._clock.now_ns()


def test_one_rank_that_computes_makes_the_gang_busy(any_machine: Machine) -> None:
    gang = started(any_machine, SLEEPS, COMPUTES)
    watch(gang)
    assert word(gang).use == "busy"


def test_work_that_is_done_by_children_counts(any_machine: Machine) -> None:
    gang = started(any_machine, FORKS)
    watch(gang, 500)
    assert word(gang).use == "busy"


def test_only_changes_are_told(machine: Machine) -> None:
    gang = started(machine, RESTS_AND_COMPUTES)
    watch(gang)
    assert word(gang).use == "quiet"
    flag = machine.run_root.with_name(machine.run_root.name + ".flag")
    flag.touch()
    assert word(gang, 2).use == "busy"
    flag.unlink()
    assert word(gang, 3).use == "quiet"
    assert gang.told[2].since_ns >= gang.told[1].since_ns


def test_who_is_not_watched_any_more_is_not_measured(machine: Machine) -> None:
    gang = started(machine, SLEEPS)
    watch(gang)
    watch(gang, 0)
    other = machine.follow(gang.command)
    assert other.engine._uses is not None
    assert other.engine._uses.poll(gang.engine._clock.now_ns() + 10**12) == []


# -- GPUs: answers written from the NVML API reference, in pynvml's own structures --------------------------


@dataclass
class Answers:
    """NVML on a machine with one GPU. ``percent``: its samples; ``processes``: pid -> percent."""

    percent: Sequence[int] = ()
    processes: dict[int, int] | None = field(default_factory=dict)
    mig: bool = False
    at_us: int = 1_000_000

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            raise AssertionError(f"{name} is not part of the answers")
        return getattr(pynvml, name)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetSamples(self, device: Any, kind: int, since_us: int) -> tuple[int, Any]:  # noqa: N802
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        if self.mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        samples = (pynvml.c_nvmlSample_t * len(self.percent))()
        for k, percent in enumerate(self.percent):
            samples[k].timeStamp = self.at_us + k * 100_000
            samples[k].sampleValue.uiVal = percent
        found = [sample for sample in samples if sample.timeStamp > since_us]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, found

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802
        if self.mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu = self.percent[-1] if self.percent else 0
        return rates

    def nvmlDeviceGetProcessUtilization(self, handle: Any, since_us: int) -> Any:  # noqa: N802
        if self.processes is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        samples = (pynvml.c_nvmlProcessUtilizationSample_t * len(self.processes))()
        for k, (pid, percent) in enumerate(self.processes.items()):
            samples[k].pid, samples[k].smUtil, samples[k].timeStamp = pid, percent, self.at_us
        return list(samples)


H100 = Device("n/0", "n", 0, "gpu", "H100", "GPU-0a1b")


def look(
    nvml: Answers, device: Device = H100, *, mine: set[int] | None = None, known: frozenset[int] = frozenset()
) -> Any:
    return GpuMeter(nvml).look(device, 50_000, None if mine is None else lambda: mine, lambda: set(known))


def test_a_gpu_is_busy_when_one_sample_since_the_last_look_was() -> None:
    nvml = Answers([0, 0, 97, 0])
    meter = GpuMeter(nvml)
    assert meter.look(H100, 50_000, None, set).busy is True
    nvml.at_us, nvml.percent = 5_000_000, [0, 3, 4]
    assert meter.look(H100, 50_000, None, set).busy is False
    assert meter.look(H100, 50_000, None, set).busy is False  # no new sample: the rates say it


def test_a_gpu_without_an_identity_is_found_by_its_index() -> None:
    assert look(Answers([50]), Device("n/3", "n", 3, "gpu")).busy is True


def test_a_part_of_a_busy_gpu_is_judged_by_its_own_processes() -> None:
    busy = Answers([90], {11: 90, 12: 0})
    assert look(busy, mine={11, 13}).busy is True
    assert look(busy, mine={12}, known=frozenset({11, 12})).busy is False
    stranger = look(busy, mine={12}, known=frozenset({12}))
    assert stranger.busy is None
    assert "which process uses it" in stranger.why
    assert look(Answers([90], None), mine={12}).busy is None
    assert look(Answers([0], None), mine={12}).busy is False


@pytest.mark.parametrize(
    ("device", "nvml", "why"),
    [
        (H100, Answers([9], mig=True), "NVML has no utilisation of n/0: Not Supported"),
        (Device("n/0", "n", 0, "gpu", vendor="amd"), Answers([9]), "the utilisation of amd GPUs is not read"),
    ],
)
def test_what_cannot_be_measured_says_why(device: Device, nvml: Answers, why: str) -> None:
    found = look(nvml, device)
    assert (found.busy, found.why) == (None, why)


def test_a_machine_without_a_driver_says_so() -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        found = GpuMeter().look(H100, 50_000, None, set)
        assert found.busy is None
        assert found.why.startswith("NVML cannot be asked: libnvidia-ml.so.1")
    else:
        assert GpuMeter()._missing == ""
