"""Network interfaces: trees as the kernel documents them, and real ones in a network namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import needs
from unidle.fleet import Node
from unidle.probe.check import Absent, Check, Context, Outcome, ProbeResult, shipped
from unidle.probe.check.counter_history import CounterHistory, CounterSample, boot_id, kept
from unidle.probe.check.network import infiniband, nic
from unidle.probe.check.thresholds import ModelThresholds

HOUR = 3600.0


def checks(outcome: Outcome) -> dict[str, Check]:
    assert isinstance(outcome, ProbeResult)
    return {check.name: check for check in outcome.checks}


def interface(root: Path, name: str, **more: object) -> None:
    """A physical Ethernet port that is up, as ``sysfs-class-net`` documents it."""
    files = {
        "flags": "0x1003", "type": 1, "carrier": 1, "speed": 200_000, "carrier_changes": 2, "carrier_down_count": 1,
        "carrier_up_count": 1, "statistics/rx_packets": 10**9, "statistics/tx_packets": 10**9,
    }  # fmt: skip
    files |= more  # type: ignore[arg-type]
    here = root / "sys/class/net" / name
    (here / "statistics").mkdir(parents=True)
    if files.pop("physical", True):
        (here / "device").mkdir()
    for file, text in files.items():
        (here / file).write_text(f"{text}\n")


def test_the_interfaces_of_this_machine_are_up():
    found = checks(nic(Context(book=shipped())))
    assert found["nic"].ok is True


def test_a_port_that_lost_its_carrier_fails_and_one_that_never_had_one_is_not_in_use(tmp_path: Path):
    interface(tmp_path, "eth0")
    interface(tmp_path, "eth1", carrier=0, carrier_changes=1, carrier_down_count=1, carrier_up_count=0)
    interface(tmp_path, "lo", physical=False)
    context = Context(book=shipped(), root=tmp_path, environ={})
    found = checks(nic(context))["nic"]
    assert (found.ok, found.value) == (True, 1) and "not in use: eth1" in found.because
    interface(tmp_path, "eth2", carrier=0)
    found = checks(nic(context))["nic"]
    assert found.ok is False and found.because.startswith("eth2: no carrier")


def test_the_interfaces_that_jobs_are_told_to_use_must_be_up(tmp_path: Path):
    interface(tmp_path, "eth0")
    interface(tmp_path, "eth1", flags="0x1002", carrier=0, carrier_up_count=0)
    context = Context(book=shipped(), root=tmp_path, environ={"NCCL_SOCKET_IFNAME": "=eth1"})
    assert checks(nic(context))["nic"].ok is False
    assert checks(nic(Context(book=shipped(), root=tmp_path, environ={})))["nic"].ok is True


def test_a_port_that_came_up_slower_than_declared_fails(tmp_path: Path):
    interface(tmp_path, "eth0", speed=25_000)
    context = Context(book=shipped(), root=tmp_path, environ={}, bandwidth_bps=200_000_000_000)
    found = checks(nic(context))["nic.speed"]
    assert (found.ok, found.value, found.threshold) == (False, 25.0, 200.0)
    book = ModelThresholds({"nic_gbps": 10})
    assert checks(nic(Context(book=book, root=tmp_path, environ={})))["nic.speed"].ok is True
    (tmp_path / "sys/class/net/eth0/speed").write_text("-1\n")
    assert checks(nic(Context(book=book, root=tmp_path, environ={})))["nic.speed"].ok is None


def test_errors_of_packets_are_judged_by_their_part(tmp_path: Path):
    interface(tmp_path, "eth0", **{"statistics/rx_crc_errors": 10_000})
    found = checks(nic(Context(book=shipped(), root=tmp_path, environ={})))["nic.errors"]
    assert (found.ok, found.value) == (True, 5)
    interface(tmp_path, "eth1", **{"statistics/rx_crc_errors": 10_000_000})
    assert checks(nic(Context(book=shipped(), root=tmp_path, environ={})))["nic.errors"].ok is False


def test_a_node_without_a_network_fails(tmp_path: Path):
    (tmp_path / "sys/class/net/lo").mkdir(parents=True)
    assert checks(nic(Context(book=shipped(), root=tmp_path, environ={})))["nic"].ok is False


def port(root: Path, name: str, **more: object) -> None:
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
    }
    files |= {"counters/link_downed": "0"} | more  # type: ignore[dict-item]
    here = root / "sys/class/infiniband" / name / "ports/1"
    (here / "counters").mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (here / file).write_text(f"{text}\n")


def test_infiniband_ports_that_are_down_or_too_few_fail(tmp_path: Path):
    context = Context(book=shipped(), root=tmp_path)
    assert isinstance(infiniband(context), Absent)
    declared = Context(book=shipped(), root=tmp_path, declared=Node("n", "s", (), fabric="infiniband"))
    assert checks(infiniband(declared))["infiniband"].ok is False  # declared, and not there
    for k in range(8):
        port(tmp_path, f"mlx5_{k}")
    found = checks(infiniband(context))
    assert (found["infiniband"].ok, found["infiniband"].value, found["infiniband.flaps"].ok) == (
        True,
        8,
        True,
    )
    port(tmp_path, "mlx5_7", state="1: DOWN", phys_state="3: Disabled")
    assert checks(infiniband(context))["infiniband"].ok is True
    eight = Context(book=ModelThresholds({"ib_ports": 8}), root=tmp_path)
    assert checks(infiniband(eight))["infiniband"].ok is False
    port(tmp_path, "mlx5_7", state="1: DOWN", phys_state="2: Polling")
    found = checks(infiniband(context))
    assert found["infiniband"].ok is False and "mlx5_7/1 is DOWN (Polling)" in found["infiniband"].because


# -- how often in a day ------------------------------------------------------------------------------


def test_losses_of_the_window_are_told_from_those_of_the_whole_boot():
    day = 24 * HOUR
    old = CounterHistory(
        "b", (CounterSample(100 * HOUR, {"eth0": 90}), CounterSample(124 * HOUR, {"eth0": 95}))
    )
    rate = old.within("eth0", 100, 148 * HOUR, day)
    assert (rate.count, rate.whole) == (5, True)  # since the reading of 24 h ago
    assert old.within("eth0", 95, 148 * HOUR, day).count == 0
    assert (
        CounterHistory("b").within("eth0", 6, 2 * HOUR, day).count == 6
    )  # the boot itself is shorter than the window
    rate = CounterHistory("b").within("eth0", 60, 240 * HOUR, day)
    assert (rate.count, rate.whole) == (6, False)  # no reading: the mean of the boot
    recent = CounterHistory("b", (CounterSample(239 * HOUR, {"eth0": 50}),))
    assert (
        recent.within("eth0", 60, 240 * HOUR, day).count == 10
    )  # a burst within the hour is not averaged away


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 3)), max_size=30), st.integers(0, 3))
def test_no_more_is_counted_than_there_was_and_no_recent_loss_is_missed(
    steps: list[tuple[int, int]], last: int
):
    history, at, count = CounterHistory("b"), 0.0, 0
    losses: list[float] = []
    for minutes, more in steps:
        at += minutes * 60
        losses += [at] * more
        count += more
        history = history.added(at, {"e": count})
    at += 60
    losses += [at] * last
    count += last
    rate = history.within("e", count, at, 24 * HOUR)
    assert rate.count <= count + 1e-9
    if rate.whole:
        assert rate.count >= sum(when > at - 23 * HOUR for when in losses)


def test_readings_are_kept_between_checks_and_begin_anew_after_a_boot(tmp_path: Path):
    file = tmp_path / "history"
    proc = Path("/proc")
    with kept(file, "nic", proc) as held:
        assert held[0] == CounterHistory(boot_id(proc))
        held[0] = held[0].added(1.0, {"eth0": 3})
    with kept(file, "nic", proc) as held:
        assert held[0].samples == (CounterSample(1.0, {"eth0": 3}),)
    own = tmp_path / "history.nic"
    own.write_text(own.read_text().replace(boot_id(proc), "another boot"))
    with kept(file, "nic", proc) as held:
        assert held[0].samples == ()
    for broken in ("", "{", "[]", '{"boot": 3}', "null"):
        own.write_text(broken)
        with kept(file, "nic", proc) as held:
            assert held[0].samples == ()
    with kept(Path("/proc/none/history"), "nic", proc) as held:  # a place that cannot be written
        assert held[0].samples == ()


# -- real interfaces ---------------------------------------------------------------------------------


@contextmanager
def namespace(name: str) -> Iterator[str]:
    """A network namespace with one interface, ``eth0``, whose other end stays outside."""
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        outside = f"{name}o"
        subprocess.run(
            ["ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name], check=True
        )
        subprocess.run(["ip", "link", "set", outside, "up"], check=True)
        subprocess.run(["ip", "-n", name, "link", "set", "eth0", "up"], check=True)
        yield outside
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def check_in(name: str, home: Path) -> tuple[int, dict[str, dict[str, object]]]:
    command = [
        "ip",
        "netns",
        "exec",
        name,
        sys.executable,
        "-m",
        "unidle",
        "check",
        "--only",
        "nic",
        "--json",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "XDG_DATA_HOME": str(home)}, timeout=60
    )
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@needs.root
@needs.shaping
def test_an_interface_that_goes_down_in_a_namespace_makes_the_node_unfit(tmp_path: Path):
    name = f"uc{os.getpid() % 100_000}"
    with namespace(name) as outside:
        code, found = check_in(name, tmp_path)
        assert (code, found["nic"]["ok"]) == (0, True), found
        subprocess.run(["ip", "link", "set", outside, "down"], check=True)
        code, found = check_in(name, tmp_path)
        assert (code, found["nic"]["ok"], found["nic"]["because"]) == (1, False, "eth0: no carrier")
        for _ in range(5):
            subprocess.run(["ip", "link", "set", outside, "up"], check=True)
            subprocess.run(["ip", "link", "set", outside, "down"], check=True)
        subprocess.run(["ip", "link", "set", outside, "up"], check=True)
        code, found = check_in(name, tmp_path)
        losses = found["nic.carrier_losses"]
        assert found["nic"]["ok"] is True
        if losses["because"] == "most on eth0: since boot":  # the machine is up for less than a day
            assert (code, losses["ok"]) == (1, False), losses
        subprocess.run(["ip", "-n", name, "link", "set", "eth0", "down"], check=True)
        assert check_in(name, tmp_path)[1]["nic"]["because"] == "none is up (not in use: eth0)"
