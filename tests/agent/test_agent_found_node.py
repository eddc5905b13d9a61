"""A host as a node: its devices under its name, and no more CPUs and memory than it may use."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec
import pytest

from unidle.agent import host_limits
from unidle.agent.found_node import find_node
from unidle.agent.slurm import LEAVE_S, allocation
from unidle.errors import CannotRun
from unidle.fleet import Node


def test_devices_have_the_nodes_name_and_labels_of_the_user_take_precedence() -> None:
    found = find_node("n7", "10.0.0.7", {"rack": "a1", "arch": "mine"}, 3)
    assert [device.id for device in found.node.devices] == ["n7/0", "n7/1", "n7/2"]
    assert {device.node for device in found.node.devices} == {"n7"}
    assert (found.node.id, found.node.address) == ("n7", "10.0.0.7")
    assert (found.node.labels["rack"], found.node.labels["arch"]) == ("a1", "mine")
    assert found.node.cpus <= len(os.sched_getaffinity(0))
    assert found.node.memory_bytes > 0


def test_a_node_goes_over_the_wire_and_comes_back_the_same() -> None:
    found = find_node(socket.gethostname(), "::1", {}, 2)
    text = msgspec.json.encode(found.to_json())
    assert msgspec.json.decode(text, type=Node) == found.node


def test_a_host_without_gpus_is_no_node_where_only_gpus_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CannotRun, match="no device") as error:
        find_node("n7", "10.0.0.7", {}, 0)
    assert error.value.exit_code == 3


def test_limits_of_control_groups_count_also_of_those_above(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/a/b"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("1:name=x:/\n0::/a/b\n")
    assert host_limits.cpus(tmp_path) == len(os.sched_getaffinity(0))
    whole = host_limits.memory_bytes(tmp_path)
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("50000 100000\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("1048576\n")
    assert host_limits.cpus(tmp_path) == 0.5
    assert host_limits.memory_bytes(tmp_path) == 1 << 20 < whole


def test_an_allocation_of_slurm_names_the_node_and_its_end() -> None:
    assert allocation({}) is None
    environ = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "c3", "SLURM_JOB_END_TIME": "1700000000"}
    found = allocation(environ)
    assert found is not None
    assert (found.job, found.node) == ("7", "c3")
    assert found.leaves_in_s(1_700_000_000 - LEAVE_S - 5) == 5
    assert found.leaves_in_s(1_700_000_000) == 0
    unlimited = allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "Unknown"})
    assert unlimited is not None
    assert unlimited.leaves_in_s(time.time()) is None
