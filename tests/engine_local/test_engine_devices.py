"""What this machine is found to have."""

from __future__ import annotations

import socket

import pytest

import needs
from unidle.engine.local.devices.discovery import discover, is_visible


@pytest.mark.skipif(needs.gpus() > 0, reason="GPU: only where there is none")
def test_a_machine_without_a_gpu_is_one_node_of_cpu_devices() -> None:
    fleet = discover(3)
    (node,) = fleet.nodes
    assert node.id == socket.gethostname()
    assert [(d.id, d.kind, d.node) for d in node.devices] == [
        (f"local/{k}", "cpu", node.id) for k in range(3)
    ]
    assert node.cpus >= 1 and node.memory_bytes > 1 << 20
    assert "no GPU (NVML" in fleet.source
    assert {tier.id for tier in fleet.tiers} == {node.parent}


@needs.gpu
def test_gpus_are_found_with_their_memory_and_model() -> None:
    (node,) = discover().nodes
    assert node.devices and all(d.kind == "gpu" and d.uuid.startswith("GPU-") for d in node.devices)
    assert all(d.memory_bytes > 1 << 30 and d.model for d in node.devices)
    assert "driver" in node.labels and "gpu0.pci" in node.labels


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [True, True]),
        ("", [False, False]),
        ("1", [False, True]),
        ("0, 1", [True, True]),
        ("GPU-aa", [True, False]),
        ("GPU-b", [False, True]),
        ("-1", [False, False]),
    ],
)
def test_hidden_gpus_are_left_out(visible: str | None, expected: list[bool]) -> None:
    uuids = ["GPU-aa11", "GPU-bb22"]
    assert [is_visible(index, uuid, visible) for index, uuid in enumerate(uuids)] == expected
