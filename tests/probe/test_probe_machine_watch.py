"""Links and memory of a machine, from a tree of files in the kernel's form, and a real network namespace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import needs
from unidle.engine.local.netns import enter
from unidle.probe.machine_watch import MachineWatch, SpaceWatch
from waiting import wait_until

S = 1_000_000_000


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
    found = [heard for k in range(looks) for heard in one.look(k * S)]
    return [(h.finding.kind, h.finding.device, h.finding.action) for h in found]


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


@needs.root
def test_a_namespace_that_goes_away_makes_its_node_silent() -> None:
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
        wait_until(lambda: b"state UP" in subprocess.run(show, capture_output=True).stdout, 10, "the link")
        entered: list[str] = []
        found: list[tuple[str, str, str]] = []

        def run() -> None:  # the thread that looks is moved into the namespace for good
            one = SpaceWatch(
                "n1", name, "10.9.8.7", "", lambda space: (entered.append(space), enter(space))[1]
            )
            found.extend(kinds(one, 2))
            ip("-n", name, "link", "set", "d0", "down")
            found.extend(kinds(one, 4))
            ip("netns", "del", name)
            found.extend(kinds(one, 5))

        import threading

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    assert entered == [name]
    assert found == [("nic", "d0", "check_link"), ("silent", "", "reboot_node")]
    wait_until(lambda: not Path(f"/run/netns/{name}").exists(), 5, "the namespace to go")
