"""What talks to NVML, unchanged, against a real libnvidia-ml.so.1 that plays described machines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvml.playing import Played, build, machine

S = 1_000_000_000
QUICK = ("devices", "driver", "clocks", "heat", "ecc", "remap", "pcie", "nvlink", "leftovers")
Play = Callable[..., Played]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def play(library: Path, tmp_path: Path) -> Play:
    return lambda name, *lines: machine(name, library, tmp_path, *lines)


@pytest.mark.parametrize(
    ("name", "model", "links"),
    [("a100x8", "NVIDIA A100-SXM4-80GB", "NV12"), ("h100x8", "NVIDIA H100 80GB HBM3", "NV18")],
)
def test_a_machine_that_is_well_is_found_whole_and_fit(play: Play, name: str, model: str, links: str) -> None:
    one = play(name)
    fleet = one.unidle("fleet")
    assert (
        fleet.count(model) == 8 and f"8 GPUs, {links} between all" in fleet and "8 of 8 GPUs by NVML" in fleet
    )
    found = one.checks(*QUICK)
    assert all(check["ok"] for check in found.values()), found
    assert found["nvlink"]["value"] == int(links[2:]) and found["devices"]["value"] == 8
    assert "no foreign process" in found["leftovers"]["because"]


def test_each_fault_is_named_with_its_gpu_and_the_rest_stays_in_sight(play: Play) -> None:
    one = play("h100-faults")
    found = one.checks(*QUICK, code=1)
    unfit = {name: check["because"] for name, check in found.items() if check["ok"] is False}
    expected = {
        "ecc.sram": "GPU 1", "ecc.dram": "GPU 2", "remap.pending": "GPU 2", "remap.failed": "GPU 3",
        "clocks": "GPU 4: hardware slowdown, thermal", "heat": "GPU 4", "heat.memory": "GPU 4",
        "nvlink": "GPU 5: 16 of 18 (down: 3, 4)", "nvlink.errors": "GPU 5: 96 CRC", "pcie.width": "GPU 6",
        "heat.power_limit": "GPU 6", "ecc": "GPU 6", "devices": "1 of NVML's 8 GPUs",
    }  # fmt: skip
    assert unfit.keys() == expected.keys()
    assert all(because in unfit[name] for name, because in expected.items()), unfit
    assert not [name for name, check in found.items() if check["ok"] is None]


def test_a_gpu_that_fell_off_the_bus_does_not_hide_the_others(play: Play) -> None:
    one = play("h100-faults")
    fleet = one.unidle("fleet")
    assert "7 of 8 GPUs by NVML, GPU 7 does not answer: GPU is lost" in fleet
    assert fleet.count("NVIDIA H100") == 7 and "cpu" not in fleet
    doctor = one.unidle("doctor", code=None)
    assert "7 x NVIDIA H100 80GB HBM3" in doctor and "GPU 7 does not answer: GPU is lost" in doctor
    assert "driver 570.124.06, CUDA 12.8" in doctor
    # others have the handle of such a GPU, and only its answers are gone
    one.write("nvmlDeviceGetHandleByIndex 7 =")
    assert "7 of 8 GPUs by NVML, GPU 7 does not answer: GPU is lost" in one.unidle("fleet")


def test_where_every_gpu_is_lost_it_is_said_and_none_is_made_up(play: Play) -> None:
    one = play("h100x8", "* 0-7 ! 15")
    assert "GPU 0 does not answer: GPU is lost" in one.unidle("fleet")
    assert "GPU 3 does not answer: GPU is lost" in one.unidle("doctor", code=None)


def test_variables_hide_gpus_by_number_and_uuid(play: Play) -> None:
    one = play("h100x8")
    one.more = {"CUDA_VISIBLE_DEVICES": "1,GPU-40c00002"}
    assert "2 of 8 GPUs by NVML" in one.unidle("fleet")


def test_a_driver_without_newer_functions_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    one = machine("v100x2", build(tmp_path / "old", "-DOLD_DRIVER"), tmp_path)
    assert "2 GPUs, NV2 between all" in one.unidle("fleet")
    found = one.checks(*QUICK, code=1)
    unfit = {name: check["because"] for name, check in found.items() if check["ok"] is False}
    assert unfit.keys() == {"remap.pending", "ecc.sram"}
    assert "GPU 1: needs a reset" in unfit["remap.pending"]
    assert "GPU 0" in unfit["ecc.sram"], "the register file's own count, where there is no sum"
    assert found["clocks"]["ok"], "by the function's name of that time"
    assert found["leftovers"]["ok"] is None, "it has no list of processes that pynvml can ask for"


def test_processes_are_listed_whatever_their_number(play: Play) -> None:
    pids = [os.getpid(), *range(4_100_000, 4_100_060)]
    one = play("h100x8", f"nvmlDeviceGetComputeRunningProcesses 5 = {' '.join(f'{p}:1048576' for p in pids)}")
    found = one.checks("leftovers", code=1)
    assert found["leftovers"]["value"] == 61 and f"GPU 5: {os.getpid()} " in found["leftovers"]["because"]


def test_a_query_that_hangs_costs_a_check_only_its_own_time(play: Play) -> None:
    found = play("h100x8", "nvmlDeviceGetTemperature 2 0 ! hang").checks(
        "heat", "memory", code=3, timeout="1"
    )
    assert found["heat"]["ok"] is None and "1 s" in found["heat"]["because"]
    assert any(name.startswith("memory") and check["ok"] is not None for name, check in found.items())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nvmlInit ! 9", "Driver Not Loaded"),
        ("nvmlInit ! 18", "version mismatch"),
        ("nvmlInit ! 4", "Insufficient Permissions"),
        ("nvmlDeviceGetCount = 0", "finds no GPU"),
    ],
)
def test_a_driver_that_cannot_be_used_is_quoted(play: Play, line: str, says: str) -> None:
    one = play("h100x8", line)
    assert says in one.unidle("doctor", code=None)
    assert "cpu" in one.unidle("fleet")


# -- in a Python that sees the machine -----------------------------------------------------------------


def write(*lines: str) -> None:
    file = Path(os.environ["UNIDLE_PLAYED_NVML"])
    Played(file.parent, file).write(*lines)


def faults_told() -> list[Any]:
    """What the watch of the GPUs tells in each look, while faults come one after the other."""
    from unidle.engine.local.devices.discovery import discover
    from unidle.probe.device_names import DeviceNames
    from unidle.probe.gpu_watch import GpuWatch

    (node,) = discover().nodes
    one = GpuWatch(node, DeviceNames(node), "", patience_s=0.3)
    looks = []

    def look() -> None:
        heard = one.look((len(looks) + 1) * S)
        found = [[h.device, h.finding.kind, h.finding.action, h.finding.code] for h in heard]
        looks.append([[f for f in found if f[1] != "driver"], one.seeing()[0]])

    look()
    write("nvmlDeviceGetMemoryErrorCounter 2 1 0 2 = 3", "nvmlDeviceGetRemappedRows 3 = 9 9 0 1")
    look()
    write("event 1 4 = 8 79", "event 2 4 = 8 45", "event 3 0 = 4 0")
    look()
    write("nvmlDeviceGetMemoryInfo 6 ! hang")
    look()
    write("nvmlDeviceGetMemoryInfo 6 = 85520809984 84944093184 576716800", "* 7 ! 15")
    while one.seeing()[0]:
        look()
    look()
    write("nvmlDeviceGetCount ! 999")
    look()
    one.close()
    return looks


def test_the_watch_tells_each_fault_once_and_survives_a_driver_that_hangs(play: Play) -> None:
    looks = play("h100x8").python(faults_told)
    assert looks[0] == [[], ""]
    told = [finding for found, _ in looks for finding in found]
    assert [t[:3] for t in told[:2]] == [["local/2", "ecc", "reset_gpu"], ["local/3", "remap", "replace"]]
    assert [t[0] for t in told[2:4]] == ["local/4"] * 2 and [t[3] for t in told[2:4]] == [79, 45]
    assert told[4:] == [["local/7", "gpu_lost", "reboot_node", None]]
    assert looks[3] == [[], "the driver hangs: nvmlDeviceGetMemoryInfo of NVML has not returned"]
    assert looks[-1][1] == "NVML: Unknown Error"


def uses() -> dict[str, Any]:
    """How busy GPUs are found: idle, busy, by whom, and where the driver does not tell."""
    from unidle.engine.local.devices.discovery import discover
    from unidle.engine.local.vitals.utilisation import GpuMeter

    (node,) = discover().nodes
    meter = GpuMeter()
    return {
        device.id: [
            meter.look(device, 50_000, mine, lambda: {71, 72})._asdict() for mine in (None, lambda: {71})
        ]
        for device in node.devices[:4]
    }


def test_use_is_told_of_the_gpu_and_of_a_part_of_it(play: Play) -> None:
    one = play(
        "h100x8", "nvmlDeviceGetSamples 1-2 1 = 0 0 93 93", "nvmlDeviceGetUtilizationRates 1-2 = 93 4",
        "nvmlDeviceGetProcessUtilization 1 = 71 90 72 3", "nvmlDeviceGetProcessUtilization 2 = 72 90",
        "nvmlDeviceGetSamples 3 1 ! 3", "nvmlDeviceGetUtilizationRates 3 ! 3",
    )  # fmt: skip
    told = one.python(uses)
    busy = {name: [look["busy"] for look in looks] for name, looks in told.items()}
    assert busy == {
        "local/0": [False, False],
        "local/1": [True, True],
        "local/2": [True, False],
        "local/3": [None, None],
    }
    assert "Not Supported" in told["local/3"][0]["why"]


def instances() -> dict[str, Any]:
    """MIG as the engine sees it, and what it would give."""
    import tempfile

    from unidle.engine.local.devices.discovery import discover
    from unidle.engine.local.devices.mig import MigHands, NvmlMig
    from unidle.errors import CannotRun
    from unidle.jobs import Share

    (node,) = discover().nodes
    driver = NvmlMig()
    first, second = node.devices[:2]
    with tempfile.TemporaryDirectory() as place:
        hands = MigHands(place, driver)

        def grant(profile: str) -> str:
            try:
                return hands.grant(first, Share(profile=profile), frozenset()).uuid
            except CannotRun as error:
                return f"{error.problem}; {error.remedy}"

        seen = {
            "on": [hands.is_on(device.uuid) for device in (first, second)],
            "why_not": hands.why_not(first),
        }
        if not all(seen["on"]) or seen["why_not"]:
            return seen
        return seen | {
            "devices": [
                [d.instance_id, d.start, d.uuid[-2:], d.processes] for d in driver.devices(first.uuid)
            ],
            "none": driver.devices(second.uuid),
            "idle": grant("1g.10gb"),
            "refused": grant("1g.20gb"),
        }


def test_mig_instances_are_seen_and_an_idle_one_is_given_without_a_change(play: Play) -> None:
    seen = play("h100-mig").python(instances)
    assert seen["on"] == [True, True] and seen["why_not"] is None and seen["none"] == []
    assert sorted(seen["devices"]) == [[2, 0, "02", 0], [7, 4, "07", 1], [8, 5, "08", 0]]
    assert seen["idle"].endswith("08"), "the one that nobody uses"
    assert "Insufficient Permissions" in seen["refused"] and "root" in seen["refused"]


def test_where_mig_is_off_the_command_that_switches_it_on_is_named(play: Play) -> None:
    seen = play("h100x8").python(instances)
    assert seen["on"] == [False, False] and "nvidia-smi -i 0 -mig 1" in seen["why_not"]
    other = play("h100-mig", "nvmlDeviceGetGpuInstancePossiblePlacements * 9 = 4 0 2")
    assert "reports other places for 3g.40gb" in other.python(instances)["why_not"]
