"""GPUs watched through NVML (a recorded node, written from the documented API) and through a drill's overlay."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from probe.check.recorded_node import RecordedNode
from unidle.fleet import Device, Node
from unidle.probe.gpu_watch import GpuWatch
from unidle.probe.heard import Heard
from unidle.probe.names import Names

S = 1_000_000_000


class RecordedDriver(RecordedNode):
    """The recorded node with what else is asked of a driver that is followed."""

    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError  # noqa: N815

    def __init__(self) -> None:
        super().__init__()
        self.events: deque[tuple[int, int]] = deque()  # GPU and Xid
        self.dead = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.dead:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return super().nvmlDeviceGetCount()

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "set"

    def nvmlEventSetFree(self, events: str) -> None: ...  # noqa: N802

    def nvmlDeviceRegisterEvents(self, gpu: int, kinds: int, events: str) -> None:  # noqa: N802
        assert (kinds, events) == (pynvml.nvmlEventTypeXidCriticalError, "set")

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:  # noqa: N802
        assert timeout_ms == 0, "a look never waits"
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        gpu, code = self.events.popleft()
        return SimpleNamespace(device=gpu, eventData=code, eventType=pynvml.nvmlEventTypeXidCriticalError)


def node(kind: str = "gpu", count: int = 8) -> Node:
    return Node("n1", "site", tuple(Device(f"n1/{k}", "n1", k, kind, "H100") for k in range(count)))  # type: ignore[arg-type]


def watch(driver: RecordedDriver, kept: str = "") -> GpuWatch:
    return GpuWatch(node(), Names(node()), kept, nvml=driver)


def told(heard: list[Heard]) -> list[tuple[str, str, str]]:
    return [(h.device, h.finding.kind, h.finding.action) for h in heard]


def test_a_healthy_node_is_seen_and_tells_nothing() -> None:
    one = watch(RecordedDriver())
    assert [one.look(k * S) for k in range(3)] == [[], [], []]
    assert one.seeing() == ("", 0)


def test_new_errors_are_told_once_and_old_ones_never() -> None:
    driver = RecordedDriver()
    driver.gpus[2]["dram_uncorrected"] = 5
    one = watch(driver)
    assert one.look(0) == []
    driver.gpus[2]["dram_uncorrected"] = 7
    driver.gpus[3]["remapped"] = [1, 1, 0, 1]
    heard = one.look(S)
    assert told(heard) == [("n1/2", "ecc", "reset_gpu"), ("n1/3", "remap", "replace")]
    assert "2 errors" in heard[0].finding.because
    assert one.look(2 * S) == []


def test_errors_that_came_while_nobody_looked_are_told_by_the_next_controller() -> None:
    driver = RecordedDriver()
    one = watch(driver)
    one.look(0)
    kept = one.keep()
    one.close()
    driver.gpus[0]["dram_uncorrected"] = 1
    again = watch(driver, kept)
    assert told(again.look(S)) == [("n1/0", "ecc", "reset_gpu")]
    assert watch(driver, again.keep()).look(2 * S) == []


def test_a_lost_gpu_is_named_also_when_the_driver_does_not_list_it_any_more() -> None:
    driver = RecordedDriver()
    one = watch(driver)
    one.look(0)
    driver.lost.add(5)
    assert told(one.look(S)) == [("n1/5", "gpu_lost", "reboot_node")]
    assert one.look(2 * S) == []


def test_a_driver_that_dies_is_a_fault_of_the_node_and_is_not_watched_from_then_on() -> None:
    driver = RecordedDriver()
    one = watch(driver)
    one.look(0)
    driver.dead = True
    assert told(one.look(S)) == [("", "driver", "reboot_node")]
    assert one.look(2 * S) == []
    assert "NVML" in one.seeing()[0]
    driver.dead = False
    assert one.look(100 * S) == []
    assert one.seeing() == ("", 0)


def test_a_slow_clock_is_a_fault_only_when_it_lasts() -> None:
    driver = RecordedDriver()
    one = watch(driver)
    one.look(0)
    driver.gpus[1]["reasons"] = 0x40
    assert told(one.look(S)) == []
    driver.gpus[1]["reasons"] = 0
    one.look(2 * S)
    driver.gpus[1]["reasons"] = 0x40
    looks = [told(one.look(k * S)) for k in range(3, 8)]
    assert looks == [[], [], [("n1/1", "thermal", "check_hardware")], [], []]


def test_the_drivers_xid_events_mean_what_the_same_line_in_the_log_means() -> None:
    driver = RecordedDriver()
    one = watch(driver)
    one.look(0)
    driver.events.extend([(4, 79), (4, 45)])
    lost, cleaned = one.look(S)
    assert (lost.device, lost.finding.code, lost.finding.role) == ("n1/4", 79, "culprit")
    assert (cleaned.finding.code, cleaned.finding.role) == (45, "symptom")


def test_without_a_driver_it_says_why_it_sees_nothing() -> None:
    driver = RecordedDriver()

    def fails() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    driver.nvmlInit = fails  # type: ignore[method-assign]
    one = watch(driver)
    assert one.look(0) == []
    assert "NVML does not start" in one.seeing()[0]


def test_fewer_gpus_than_declared_is_not_a_watched_node() -> None:
    driver = RecordedDriver()
    del driver.gpus[6:]
    one = watch(driver)
    one.look(0)
    assert one.seeing()[0] == "NVML does not list n1/6, n1/7"


def test_an_overlay_changes_what_a_device_tells_for_drills(tmp_path: Path) -> None:
    overlay = tmp_path / "nvml.json"
    cpus = node("cpu", 2)
    one = GpuWatch(cpus, Names(cpus), "", str(overlay))
    assert one.look(0) == []
    assert one.seeing() == ("", 0)
    overlay.write_text(json.dumps({"n1/1": {"sram_errors": 1, "xid": 79}, "n1/0": {"lost": True}}))
    assert told(one.look(S)) == [
        ("n1/0", "gpu_lost", "reboot_node"),
        ("n1/1", "ecc", "drain"),
        ("n1/1", "xid", "reboot_node"),
    ]
    assert one.look(2 * S) == []
    assert GpuWatch(cpus, Names(cpus), one.keep(), str(overlay)).look(3 * S) == []


def test_an_overlay_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    overlay = tmp_path / "nvml.json"
    overlay.write_text('{"n1/0": {"speed": 3}}')
    cpus = node("cpu", 1)
    one = GpuWatch(cpus, Names(cpus), "", str(overlay))
    assert one.look(0) == []
    assert str(overlay) in one.seeing()[0]
    assert "speed" in one.seeing()[0]
