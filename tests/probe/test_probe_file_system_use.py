"""Which file systems are in use: on tables as the kernel writes them, and on a loop device of this machine."""

from __future__ import annotations

from pathlib import Path

from unidle.probe.check import Context, ProbeResult
from unidle.probe.check.kernel_log import kernel_log
from unidle.probe.check.model import LogReading
from unidle.probe.file_system_use import used_at

TABLE = """\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 253:0 / /var/lib rw - xfs /dev/mapper/vg-lib rw
23 21 7:3 / /mnt/test rw - ext4 /dev/loop3 ro
24 21 8:17 / /data/my\\040set rw - ext4 /dev/sdb1 rw
"""


class Fault:
    kind, code, role, action, because = "fs", None, "culprit", "drain", "the file system is damaged"

    def __init__(self, device: str) -> None:
        self.device = device


def machine(root: Path, table: str = TABLE) -> Path:
    (root / "sys/dev/block").mkdir(parents=True)
    for name, number in {
        "sda1": "8:1",
        "dm-0": "253:0",
        "loop3": "7:3",
        "sdb1": "8:17",
        "loop9": "7:9",
    }.items():
        (root / "sys/dev/block" / number).symlink_to(f"../../devices/virtual/block/{name}")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(table)
    return root


def failed(root: Path, device: str, *directories: str, used: str = "") -> bool:
    context = Context(
        root=root,
        used=(used,) if used else (),
        directories=tuple(map(Path, directories)),
        kernel_log=lambda: LogReading([Fault(device)]),
    )
    found = kernel_log(context)
    assert isinstance(found, ProbeResult)
    return found.checks[0].ok is False


def test_a_failed_file_system_that_nothing_uses_does_not_fail_the_node(tmp_path: Path):
    root = machine(tmp_path)
    assert not failed(root, "loop3")
    assert not failed(root, "loop3-8")  # its journal
    assert not failed(root, "loop9")  # mounted nowhere


def test_a_failed_file_system_of_the_system_fails_the_node(tmp_path: Path):
    root = machine(tmp_path)
    assert failed(root, "sda1") and failed(root, "sda1-8")
    assert failed(root, "dm-0") and failed(root, "dm-0-8")  # by the name that the kernel gives it
    assert failed(root, "")  # which one it is is unknown


def test_a_failed_file_system_with_a_directory_that_jobs_use_fails_the_node(tmp_path: Path):
    root = machine(tmp_path)
    assert not failed(root, "sdb1")
    assert failed(root, "sdb1", "/data/my set/run 1")
    assert failed(root, "sdb1", used="/data/my set/run 2")
    assert not failed(root, "loop3", "/mnt/testing/run")  # next to it, not on it


def test_a_file_system_that_a_process_works_in_is_in_use(tmp_path: Path):
    root = machine(tmp_path)
    (root / "proc/42/fd").mkdir(parents=True)
    (root / "proc/42/cwd").symlink_to("/home")
    (root / "proc/42/fd/0").symlink_to("socket:[1]")
    assert used_at("loop3", root=root) == ""
    (root / "proc/42/fd/1").symlink_to("/mnt/test/log (deleted)")
    assert used_at("loop3", root=root) == "/mnt/test/log"


def test_without_a_table_of_mounts_every_failed_file_system_counts(tmp_path: Path):
    assert failed(tmp_path, "loop3")
    assert used_at("loop3", root=tmp_path) == "unknown"


def test_the_root_of_this_machine_is_in_use():
    table = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    number = next(fields[2] for fields in table if fields[4] == "/")
    devices = Path("/sys/class/block").glob("*/dev")
    name = next((path.parent.name for path in devices if path.read_text().strip() == number), "")
    used = used_at(name)  # an overlay of a container has no device
    assert used in ("/", "unknown") or used.endswith("(in another mount namespace)")


def test_a_file_system_that_only_a_container_has_mounted_or_mounts_elsewhere_is_in_use(tmp_path: Path):
    root = machine(tmp_path)
    (root / "proc/self/ns").mkdir()
    (root / "proc/self/ns/mnt").symlink_to("mnt:[1]")
    (root / "proc/77/ns").mkdir(parents=True)
    (root / "proc/77/ns/mnt").symlink_to("mnt:[2]")
    (root / "proc/77/mountinfo").write_text(TABLE)  # a service with a table of its own, as systemd makes them
    assert used_at("loop3", root=root) == ""
    (root / "proc/77/mountinfo").write_text("21 1 7:3 /sub /data rw - ext4 /dev/loop3 rw\n")
    assert used_at("loop3", root=root) == "/data (in another mount namespace)"
