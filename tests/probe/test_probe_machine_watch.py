"""Links and memory of a machine, from a tree of files in the kernel's form, and a real network namespace."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import needs
from unidle.engine.local.ranks.netns import enter
from unidle.probe.detector import Detection
from unidle.probe.machine_watch import MachineWatch, SpaceWatch
from waiting import wait_until

S = 1_000_000_000
HOUR = 3600 * S


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def machine(sysfs: Path) -> None:
    for name in ("eth0", "eth1"):
        write(sysfs / "class/net" / name, flags="0x1003", type="1", carrier="1", device__vendor="0x15b3")
    write(sysfs / "class/net/docker0", flags="0x1003", type="1", carrier="0")
    write(sysfs / "class/infiniband/mlx5_0/ports/1", state="4: ACTIVE")
    write(sysfs / "devices/system/edac/mc/mc0", ue_count="2", ce_count="100")


def kinds(one: MachineWatch | SpaceWatch, looks: int) -> list[tuple[str, str, str]]:
    """The signs of so many looks, without what is only said."""
    return told([heard for k in range(looks) for heard in one.look(k * S)])


def told(heard: list[Detection]) -> list[tuple[str, str, str]]:
    return [
        (h.finding.kind, h.finding.device, h.finding.action) for h in heard if h.finding.role == "culprit"
    ]


def test_what_was_so_before_is_no_news(tmp_path: Path) -> None:
    machine(tmp_path)
    write(tmp_path / "class/net/eth1", carrier="0")
    assert kinds(MachineWatch("n1", "", tmp_path), 6) == []


def test_links_that_stay_down_and_new_memory_errors_are_told_once(tmp_path: Path) -> None:
    machine(tmp_path)
    one = MachineWatch("n1", "", tmp_path)
    one.look(0)
    write(tmp_path / "class/net/eth1", carrier="0")
    write(tmp_path / "class/infiniband/mlx5_0/ports/1", state="1: DOWN")
    write(tmp_path / "devices/system/edac/mc/mc0", ue_count="3")
    assert kinds(one, 6) == [
        ("mce", "mc0", "drain"),
        ("nic", "eth1", "check_link"),
        ("nic", "mlx5_0 port 1", "check_link"),
    ]


def test_a_link_that_comes_back_at_once_is_no_fault(tmp_path: Path) -> None:
    machine(tmp_path)
    one = MachineWatch("n1", "", tmp_path)
    one.look(0)
    for carrier in ("0", "0", "1", "0", "0", "1"):
        write(tmp_path / "class/net/eth0", carrier=carrier)
        assert kinds(one, 1) == []


def test_memory_errors_that_came_between_two_controllers_are_told(tmp_path: Path) -> None:
    machine(tmp_path)
    one = MachineWatch("n1", "", tmp_path)
    one.look(0)
    write(tmp_path / "devices/system/edac/mc/mc0", ue_count="3")
    assert kinds(MachineWatch("n1", one.keep(), tmp_path), 1) == [("mce", "mc0", "drain")]


def flapped(sysfs: Path, link: str, times: int) -> None:
    """The link was lost and came back so often in all."""
    write(sysfs / "class/net" / link, carrier_down_count=str(times), carrier_changes=str(2 * times + 1))


def watched(sysfs: Path, times: int) -> MachineWatch:
    """A watch that has looked once at a machine whose first link had flapped so often before."""
    machine(sysfs)
    flapped(sysfs, "eth0", times)
    one = MachineWatch("n1", "", sysfs)
    one.look(0)
    return one


def test_a_link_that_comes_back_between_two_readings_is_a_fault_at_the_fifth_time(tmp_path: Path) -> None:
    one = watched(tmp_path, 100)  # what was before is no news
    seen = []
    for hour in range(1, 9):
        flapped(tmp_path, "eth0", 100 + hour)
        seen.append([(h.finding.action, h.finding.role) for h in one.look(hour * HOUR)])
        assert one.look(hour * HOUR + S) == []
    assert seen == [[("ignore", "info")]] * 4 + [[("check_link", "culprit")]] + [[("ignore", "info")]] * 3


def test_lost_carriers_of_another_day_do_not_count_and_later_ones_are_another_fault(tmp_path: Path) -> None:
    machine(tmp_path)
    one = MachineWatch("n1", "", tmp_path)
    faults = []
    for day in range(4):
        flapped(tmp_path, "eth0", 4 * day)  # four a day, and ten on the last one
        faults += told(one.look(day * 25 * HOUR))
    flapped(tmp_path, "eth0", 22)
    assert (faults, told(one.look(76 * HOUR))) == ([], [("nic", "eth0", "check_link")])
    one.look(101 * HOUR)
    flapped(tmp_path, "eth0", 27)
    assert told(one.look(102 * HOUR)) == [("nic", "eth0", "check_link")]


def test_lost_carriers_are_counted_over_controllers_and_those_in_between_as_well(tmp_path: Path) -> None:
    one = watched(tmp_path, 0)
    flapped(tmp_path, "eth0", 3)
    assert told(one.look(HOUR)) == []
    flapped(tmp_path, "eth0", 5)
    again = MachineWatch("n1", one.keep(), tmp_path)
    [fault] = again.look(2 * HOUR)
    assert fault.finding.because == "eth0: the link went down 5 times in 24 h"
    assert MachineWatch("n1", again.keep(), tmp_path).look(3 * HOUR) == []


def test_where_nobody_looked_for_long_only_the_part_of_the_window_counts(tmp_path: Path) -> None:
    one = watched(tmp_path, 0)
    flapped(tmp_path, "eth0", 20)  # in ten days: two a day
    assert told(MachineWatch("n1", one.keep(), tmp_path).look(240 * HOUR)) == []


def test_a_driver_that_is_loaded_again_begins_its_counters_anew(tmp_path: Path) -> None:
    one = watched(tmp_path, 50)
    flapped(tmp_path, "eth0", 20)
    assert one.look(S) == []
    flapped(tmp_path, "eth0", 25)
    assert told(one.look(2 * S)) == [("nic", "eth0", "check_link")]


def test_an_old_kernel_counts_changes_of_the_carrier(tmp_path: Path) -> None:
    machine(tmp_path)
    write(tmp_path / "class/net/eth0", carrier_changes="1")
    one = MachineWatch("n1", "", tmp_path)
    one.look(0)
    write(tmp_path / "class/net/eth0", carrier_changes="11")
    assert told(one.look(S)) == [("nic", "eth0", "check_link")]


def port(sysfs: Path, **counters: int) -> None:
    for name, count in counters.items():
        room = "hw_counters" if name == "out_of_sequence" else "counters"
        write(sysfs / "class/infiniband/mlx5_0/ports/1" / room, **{name: str(count)})


def test_an_infiniband_port_that_went_down_twice_is_a_fault(tmp_path: Path) -> None:
    machine(tmp_path)
    port(tmp_path, link_downed=3)
    one = MachineWatch("n1", "", tmp_path)
    one.look(0)
    port(tmp_path, link_downed=4)
    assert told(one.look(HOUR)) == []
    port(tmp_path, link_downed=5)
    [fault] = one.look(6 * HOUR)
    assert (fault.finding.kind, fault.finding.device, fault.finding.action) == (
        "nic", "mlx5_0 port 1", "check_link",
    )  # fmt: skip


def test_growing_errors_of_a_port_are_watched_and_take_nothing_out(tmp_path: Path) -> None:
    machine(tmp_path)
    port(tmp_path, symbol_error=40, out_of_sequence=10_000, port_xmit_discards=7, port_rcv_errors=0)
    one = MachineWatch("n1", "", tmp_path)
    one.look(0)
    port(tmp_path, symbol_error=50, out_of_sequence=11_000, port_xmit_discards=107, port_rcv_errors=10)
    assert one.look(HOUR // 2) == [], "so many in an hour are no sign"
    port(tmp_path, symbol_error=51, out_of_sequence=11_001, port_xmit_discards=108, port_rcv_errors=11)
    heard = one.look(HOUR // 2 + 60 * S)
    assert [(h.finding.device, h.finding.action, h.finding.severity) for h in heard] == [
        ("mlx5_0 port 1", "watch", "warning")
    ] * 4
    assert "mlx5_0 port 1: 11 symbol errors in 1 h (symbol_error)" in [h.finding.because for h in heard]
    assert one.look(HOUR // 2 + 120 * S) == []
    port(tmp_path, symbol_error=0)  # somebody has set it back
    assert one.look(HOUR) == []


def chip(sysfs: Path, **alarms: str) -> None:
    write(sysfs / "class/hwmon/hwmon2", name="nct6775", **alarms)


def looks(one: MachineWatch, since_s: int, count: int) -> list[tuple[str, str, str]]:
    """The signs of so many readings of the sensors."""
    return told([heard for k in range(2 * count) for heard in one.look((since_s + 5 * k) * S)])


def test_alarms_of_power_and_cooling_count_when_they_last_and_those_that_stood_at_first_never(
    tmp_path: Path,
) -> None:
    machine(tmp_path)
    chip(
        tmp_path, in3_alarm="1", in1_crit_alarm="0", fan2_alarm="0", temp1_max_alarm="0", power1_cap_alarm="0"
    )
    one = MachineWatch("n1", "", tmp_path)
    assert looks(one, 0, 4) == []
    chip(tmp_path, in1_crit_alarm="1", fan2_alarm="1", temp1_max_alarm="1", power1_cap_alarm="1")
    assert looks(one, 100, 2) == []
    assert looks(MachineWatch("n1", one.keep(), tmp_path), 200, 5) == [
        ("thermal", "nct6775 hwmon2", "check_hardware"),
        ("power", "nct6775 hwmon2", "check_hardware"),
        ("thermal", "nct6775 hwmon2", "watch"),
    ]
    chip(tmp_path, fan2_alarm="0", in3_alarm="0")
    looks(one, 300, 1)
    chip(tmp_path, in3_alarm="1")
    assert ("power", "nct6775 hwmon2", "watch") in looks(one, 400, 3)


@pytest.mark.parametrize(
    "kept",
    ["{", "[]", '{"links": 3}', '{"links": {}, "down_times": {}, "errors": {}}', '{"growths": {"eth0 x": [1]}}',
     '{"growths": {"eth0 other_counter": {"count": 1, "at_ns": 0, "steps": []}}}'],
)  # fmt: skip
def test_what_an_earlier_or_another_version_kept_does_no_harm(kept: str, tmp_path: Path) -> None:
    machine(tmp_path)
    flapped(tmp_path, "eth0", 5)
    one = MachineWatch("n1", kept, tmp_path)
    assert kinds(one, 2) == []
    assert '"eth0 carrier":{"count":5' in one.keep()


def test_without_the_kernels_tree_nothing_is_seen(tmp_path: Path) -> None:
    one = MachineWatch("n1", "", tmp_path)
    assert one.look(0) == []
    assert "there is no sysfs here" in one.seeing()[0]


@contextmanager
def space_with_a_link() -> Iterator[tuple[str, Callable[..., None]]]:
    """A namespace whose interface d0 (10.9.8.7) is up, its peer d1 too; and the command `ip` in it."""
    name = f"unidle-t{os.getpid()}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "add", "d0", "type", "veth", "peer", "name", "d1")
        ip("-n", name, "addr", "add", "10.9.8.7/24", "dev", "d0")
        ip("-n", name, "link", "set", "d1", "up")
        ip("-n", name, "link", "set", "d0", "up")
        show = ["ip", "-n", name, "link", "show", "d0"]  # the kernel takes its time to say so
        wait_until(lambda: b"state UP" in subprocess.run(show, capture_output=True).stdout, 60, "the link")
        yield name, ip
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    wait_until(lambda: not Path(f"/run/netns/{name}").exists(), 60, "the namespace to go")


def in_a_thread(run: Callable[[], None]) -> None:
    """The thread that looks is moved into the namespace for good."""
    errors: list[BaseException] = []

    def caught() -> None:
        try:
            run()
        except BaseException as error:  # raised again below
            errors.append(error)

    thread = threading.Thread(target=caught)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@needs.root
def test_a_namespace_that_goes_away_makes_its_node_silent() -> None:
    entered: list[str] = []
    found: list[tuple[str, str, str]] = []
    with space_with_a_link() as (name, ip):

        def run() -> None:
            one = SpaceWatch(
                "n1", name, "10.9.8.7", "", lambda space: (entered.append(space), enter(space))[1]
            )
            found.extend(kinds(one, 2))
            ip("-n", name, "link", "set", "d0", "down")
            found.extend(kinds(one, 4))
            ip("netns", "del", name)
            found.extend(kinds(one, 5))

        in_a_thread(run)
        assert entered == [name]
    assert found == [("nic", "d0", "check_link"), ("silent", "", "reboot_node")]


@needs.root
def test_a_link_of_a_namespace_that_flaps_within_a_second_is_seen_though_it_is_up_at_each_look() -> None:
    found: list[tuple[str, str, str]] = []
    with space_with_a_link() as (name, ip):

        def flap(times: int) -> None:
            for _ in range(times):
                ip("-n", name, "link", "set", "d1", "down")
                ip("-n", name, "link", "set", "d1", "up")

        def run() -> None:
            flap(2)  # before the first look: no news
            one = SpaceWatch("n1", name, "10.9.8.7", "", enter)
            assert (one.look(0), one.seeing()) == ([], ("", 0))
            flap(2)
            assert [h.finding.role for h in one.look(S)] == ["info"]
            again = SpaceWatch("n1", name, "10.9.8.7", one.keep(), enter)
            flap(4)
            found.extend(told(again.look(2 * S)))

        in_a_thread(run)
    assert found == [("nic", "d0", "check_link")]


@needs.root
def test_a_namespace_without_the_nodes_address_is_not_watched() -> None:
    with space_with_a_link() as (name, _):

        def run() -> None:
            one = SpaceWatch("n1", name, "10.9.8.1", "", enter)
            assert one.look(0) == []
            assert "10.9.8.1" in one.seeing()[0]

        in_a_thread(run)
