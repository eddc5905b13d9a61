"""What the kernel tells of PCI devices, on trees written from the documented form of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.kfd_trees import pci_device
from unidle.fleet.pci import pci_way

ROOT = "pci0000:00/0000:00:01.0"  # a root complex and a port of it


@pytest.mark.parametrize(
    ("a", "b", "way"),
    [
        (f"{ROOT}/0000:01:00.0/0000:02:00.0", f"{ROOT}/0000:01:00.0/0000:02:01.0", "PIX"),
        (f"{ROOT}/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:00.0", f"{ROOT}/0000:01:00.0/0000:02:01.0", "PXB"),
        (ROOT, "pci0000:00/0000:00:02.0", "PHB"),
        (ROOT, "pci0000:40/0000:40:01.0", "NODE"),
        (ROOT, "pci0000:80/0000:80:01.0", "SYS"),
    ],
)  # fmt: skip
def test_the_bridges_on_the_way_tell_how_near_two_devices_are(tmp_path: Path, a: str, b: str, way: str):
    pci_device(tmp_path, "0000:0a:00.0", a, numa=0)
    pci_device(tmp_path, "0000:0b:00.0", b, numa=1 if way == "SYS" else 0)
    assert pci_way("0000:0a:00.0", "0000:0b:00.0", tmp_path) == way
    assert pci_way("0000:0B:00.0", "00000000:0A:00.0", tmp_path) == way


def test_a_device_that_the_kernel_does_not_know_is_far_away(tmp_path: Path):
    pci_device(tmp_path, "0000:0a:00.0", ROOT, numa=0)
    assert pci_way("0000:0a:00.0", "0000:0b:00.0", tmp_path) == "SYS"
