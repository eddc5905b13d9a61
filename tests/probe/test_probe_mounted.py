"""Which file systems of the kernel's log are in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.probe.mounted import is_abandoned, mounted_devices

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 253:0 / /data rw - xfs /dev/mapper/vg-data rw
24 22 0:40 / /pool rw - btrfs /dev/nvme0n1p2 rw
25 22 0:5 / /proc rw - proc proc rw
"""


@pytest.fixture
def tree(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    block = tmp_path / "sys/dev/block"
    block.mkdir(parents=True)
    (block / "8:1").symlink_to("../../devices/pci/block/sda/sda1")
    (block / "253:0").symlink_to("../../devices/virtual/block/dm-0")
    return str(tmp_path / "proc"), str(tmp_path / "sys")


@pytest.mark.parametrize("device", ["sda1", "sda1-8", "dm-0", "dm-0-8", "nvme0n1p2"])
def test_a_mounted_file_system_counts(tree: tuple[str, str], device: str) -> None:
    assert not is_abandoned(device, mounted_devices(*tree))


@pytest.mark.parametrize("device", ["loop0-8", "loop0", "sdb1", "dm-1-8"])
def test_one_that_is_not_mounted_does_not(tree: tuple[str, str], device: str) -> None:
    assert is_abandoned(device, mounted_devices(*tree))


def test_what_is_unknown_counts(tmp_path: Path) -> None:
    assert mounted_devices(str(tmp_path)) is None
    assert not is_abandoned("sda1", None)
    assert not is_abandoned(None, frozenset())


def test_this_machine_has_mounted_devices() -> None:
    assert mounted_devices() is not None
