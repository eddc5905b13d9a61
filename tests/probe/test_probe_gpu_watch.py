"""GPUs watched through NVML (a recorded node, written from the documented API) and through a drill's overlay."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from probe.check.recorded_node import RecordedNode
from unidle.fleet import Device, Node
from unidle.probe.detector import Detection
from unidle.probe.device_names import DeviceNames
from unidle.probe.gpu_watch import GpuWatch
from waiting import wait_until

S = 1_000_000_000


class RecordedDriver(RecordedNode):
    """The recorded node with what else is asked of a driver that is followed."""

    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError  # noqa: N815

    def __init__(self) -> None:
        super().__init__()
        self.events: deque[tuple[int, int]] = deque()  # GPU and Xid
        self.dead = False
        self.fails_with: int | None = None  # NVML's error at its start
        self.free = threading.Event()  # where this is cleared, memory is not told until it is set again
        self.free.set()

    def nvmlInit(self) -> None:  # noqa: N802
        if self.fails_with is not None:
            raise pynvml.NVMLError(self.fails_with)

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:  # noqa: N802
        self.free.wait()
        return super().nvmlDeviceGetMemoryInfo(gpu)

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


def watch(driver: RecordedDriver, kept: str = "", **more: Any) -> GpuWatch:
    return GpuWatch(node(), DeviceNames(node()), kept, nvml=driver, **more)


def told(heard: list[Detection]) -> list[tuple[str, str, str]]:
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


def test_a_call_that_hangs_costs_the_sight_of_the_gpus_until_it_comes_back(tmp_path: Path) -> None:
    driver, overlay = RecordedDriver(), tmp_path / "nvml.json"
    driver.gpus[3]["dram_uncorrected"] = 5
    one = watch(driver, overlay=str(overlay), patience_s=0.05)
    one.look(0)
    driver.free.clear()
    assert one.look(S) == []
    why = one.seeing()[0]
    assert why == "the driver hangs: nvmlDeviceGetMemoryInfo of NVML has not returned"
    assert one.look(2 * S) == [] and one.seeing()[0] == why, "the reason does not change while it hangs"
    kept = one.keep()
    one.close()  # a hanging driver holds up nobody
    driver.gpus[3]["dram_uncorrected"] = 6
    driver.free.set()
    found: list[tuple[str, str, str]] = []
    wait_until(lambda: found.extend(told(one.look(3 * S))) or found, 60, "the driver to answer")
    assert found == [("n1/3", "ecc", "reset_gpu")]
    assert one.look(4 * S) == [] and one.seeing() == ("", 0)
    assert told(watch(driver, kept).look(5 * S)) == [("n1/3", "ecc", "reset_gpu")]


def test_without_a_driver_it_says_why_it_sees_nothing(tmp_path: Path) -> None:
    driver = RecordedDriver()
    driver.fails_with = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    one = watch(driver, root=tmp_path)
    assert one.look(0) == []
    assert "NVML does not start" in one.seeing()[0]


def pci(root: Path, address: str, kind: str, driver: str = "") -> None:
    place = root / "sys/bus/pci/devices" / address
    place.mkdir(parents=True)
    (place / "vendor").write_text("0x10de\n")
    (place / "class").write_text(f"{kind}\n")
    if driver:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (place / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)


def module(root: Path, version: str = "535.161.08") -> None:
    (root / "sys/module/nvidia").mkdir(parents=True)
    (root / "sys/module/nvidia/version").write_text(f"{version}\n")
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").touch()


def test_a_kernel_module_that_is_not_loaded_is_a_fault_where_there_are_gpus(tmp_path: Path) -> None:
    driver = RecordedDriver()
    driver.fails_with = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    pci(tmp_path, "0000:3b:00.0", "0x030200")
    pci(tmp_path, "0000:3c:00.0", "0x030200", "vfio-pci")  # a virtual machine's
    one = watch(driver, root=tmp_path)
    [heard] = one.look(0)
    assert told([heard]) == [("", "driver", "drain")]
    assert heard.finding.because == "1 GPU is here, and the kernel module nvidia is not loaded"
    assert one.look(S) == one.look(100 * S) == []
    assert "Driver Not Loaded" in one.seeing()[0]
    assert watch(driver, one.keep(), root=tmp_path).look(101 * S) == [], (
        "nor does the next controller tell it again"
    )
    driver.fails_with = None
    assert one.look(200 * S) == [] and one.seeing() == ("", 0)
    driver.dead = True
    assert told(one.look(201 * S)) == [("", "driver", "reboot_node")]


def test_a_machine_without_gpus_has_no_fault_for_lack_of_a_driver(tmp_path: Path) -> None:
    driver = RecordedDriver()
    driver.fails_with = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    pci(tmp_path, "0000:3c:00.0", "0x030200", "vfio-pci")
    one = watch(driver, root=tmp_path)
    assert one.look(0) == []
    assert "install the driver" in one.seeing()[0]


def test_a_library_and_a_kernel_module_of_two_versions_are_named(tmp_path: Path) -> None:
    driver = RecordedDriver()
    driver.fails_with = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    module(tmp_path)
    (tmp_path / "proc/self").mkdir(parents=True)
    lib = "7f00-7f01 r-xp 0000 fe:00 99 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15"
    (tmp_path / "proc/self/maps").write_text(f"{lib}\n7f02-7f03 r-xp 0000 fe:00 98 /usr/lib/libc.so.6\n")
    one = watch(driver, root=tmp_path)
    [heard] = one.look(0)
    assert told([heard]) == [("", "driver", "drain")]
    for text in (heard.finding.because, one.seeing()[0]):
        assert "NVML is 550.54.15, the kernel module 535.161.08" in text


@pytest.mark.parametrize(
    ("code", "door", "faults", "says"),
    [
        (pynvml.NVML_ERROR_UNKNOWN, True, ["reboot_node"], "535.161.08 is loaded, but does not answer"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, True, ["reboot_node"], "535.161.08 is loaded, but does not answer"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, False, [], "give the container its GPUs"),
        (pynvml.NVML_ERROR_NO_PERMISSION, True, [], "run as root"),
    ],
)  # fmt: skip
def test_a_loaded_module_that_does_not_answer_is_a_fault_and_a_closed_door_is_none(
    tmp_path: Path, code: int, door: bool, faults: list[str], says: str
) -> None:
    driver = RecordedDriver()
    driver.fails_with = code
    module(tmp_path)
    if not door:
        (tmp_path / "dev/nvidiactl").unlink()
    one = watch(driver, root=tmp_path)
    assert [h.finding.action for h in one.look(0)] == faults
    assert says in one.seeing()[0]


class Machine:
    """A ``/proc`` and a ``/sys`` of a machine with NVSwitches, written from the kernel's forms."""

    def __init__(self, root: Path, init: str = "systemd", switches: bool = True) -> None:
        self.root = root
        self.runs(1, init)
        pci(root, "0000:3b:00.0", "0x030200", "nvidia")
        if switches:
            pci(root, "0000:05:00.0", "0x068000", "nvidia-nvswitch")

    def runs(self, pid: int, name: str) -> None:
        (self.root / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
        (self.root / f"proc/{pid}/comm").write_text(f"{name[:15]}\n")

    def ends(self, pid: int) -> None:
        (self.root / f"proc/{pid}/comm").unlink()

    def looks(self, one: GpuWatch, count: int, since_s: int = 0) -> list[tuple[str, str]]:
        heard = [h for k in range(count) for h in one.look((since_s + 10 * k) * S)]
        return [(h.finding.device, h.finding.action) for h in heard]


def test_a_fabric_manager_that_ends_is_told_once_and_again_when_it_ends_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.runs(70, "nv-fabricmanager")
    machine.runs(71, "nvidia-persistenced")
    one = watch(RecordedDriver(), root=tmp_path)
    assert machine.looks(one, 4) == [] and one.seeing() == ("", 0)
    machine.ends(70)
    assert machine.looks(one, 2, 100) == [], "a service that is started again is no fault"
    again = watch(RecordedDriver(), one.keep(), root=tmp_path)
    assert machine.looks(again, 5, 200) == [("nvidia-fabricmanager", "restart_service")]
    machine.runs(90, "nv-fabricmanager")
    assert machine.looks(again, 2, 300) == []
    machine.ends(90)
    machine.ends(71)
    assert machine.looks(again, 4, 400) == [
        ("nvidia-fabricmanager", "restart_service"), ("nvidia-persistenced", "watch"),
    ]  # fmt: skip


def test_one_that_never_ran_is_a_fault_only_where_there_are_switches(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a")
    assert machine.looks(watch(RecordedDriver(), root=tmp_path / "a"), 4) == [
        ("nvidia-fabricmanager", "restart_service")
    ]
    machine = Machine(tmp_path / "b", switches=False)
    assert machine.looks(watch(RecordedDriver(), root=tmp_path / "b"), 4) == []


def test_inside_a_container_the_fabric_manager_is_not_watched_instead_of_missed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, init="python3")
    one = watch(RecordedDriver(), root=tmp_path)
    assert machine.looks(one, 5) == []
    assert "run outside the container" in one.seeing()[0]


def test_a_device_plugin_that_dies_is_told_once_and_not_while_its_kubelet_is_away(tmp_path: Path) -> None:
    machine = Machine(tmp_path, switches=False)
    place = tmp_path / "var/lib/kubelet/device-plugins"
    place.mkdir(parents=True)

    def serving(name: str) -> socket.socket:
        (place / name).unlink(missing_ok=True)
        server, here = socket.socket(socket.AF_UNIX), Path.cwd()
        os.chdir(place)  # a socket's path is short
        try:
            server.bind(name)
        finally:
            os.chdir(here)
        server.listen(64)
        return server

    kubelet, plugin = serving("kubelet.sock"), serving("nvidia-gpu.sock")
    serving("never-was.sock").close()  # its file alone is there
    one = watch(RecordedDriver(), root=tmp_path)
    assert machine.looks(one, 3) == []
    plugin.close()
    kubelet.close()
    assert machine.looks(one, 5, 100) == [], "no kubelet, no plugins"
    kubelet = serving("kubelet.sock")
    assert machine.looks(one, 2, 200) == []
    again = watch(RecordedDriver(), one.keep(), root=tmp_path)
    assert machine.looks(again, 4, 300) == [("nvidia-gpu.sock", "restart_service")]
    plugin = serving("nvidia-gpu.sock")
    assert machine.looks(again, 2, 400) == []
    plugin.close()
    (place / "nvidia-gpu.sock").unlink()
    assert machine.looks(again, 4, 500) == [("nvidia-gpu.sock", "restart_service")]
    kubelet.close()


def test_fewer_gpus_than_declared_is_not_a_watched_node() -> None:
    driver = RecordedDriver()
    del driver.gpus[6:]
    one = watch(driver)
    one.look(0)
    assert one.seeing()[0] == "NVML does not list n1/6, n1/7"


def test_an_overlay_changes_what_a_device_tells_for_drills(tmp_path: Path) -> None:
    overlay = tmp_path / "nvml.json"
    cpus = node("cpu", 2)
    one = GpuWatch(cpus, DeviceNames(cpus), "", str(overlay))
    assert one.look(0) == []
    assert one.seeing() == ("", 0)
    overlay.write_text(json.dumps({"n1/1": {"sram_errors": 1, "xid": 79}, "n1/0": {"lost": True}}))
    assert told(one.look(S)) == [
        ("n1/0", "gpu_lost", "reboot_node"),
        ("n1/1", "ecc", "drain"),
        ("n1/1", "xid", "reboot_node"),
    ]
    assert one.look(2 * S) == []
    assert GpuWatch(cpus, DeviceNames(cpus), one.keep(), str(overlay)).look(3 * S) == []


def test_an_overlay_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    overlay = tmp_path / "nvml.json"
    overlay.write_text('{"n1/0": {"speed": 3}}')
    cpus = node("cpu", 1)
    one = GpuWatch(cpus, DeviceNames(cpus), "", str(overlay))
    assert one.look(0) == []
    assert str(overlay) in one.seeing()[0]
    assert "speed" in one.seeing()[0]
