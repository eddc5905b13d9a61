"""How many CPUs and how much memory this process may use: the machine's, or less by its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def cpus(root: Path = Path("/")) -> float:
    """CPUs that this process may run on, or the quota of its control groups where that is less."""
    most = float(len(os.sched_getaffinity(0)))
    for group in _groups(root):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit() and int(period):
            most = min(most, int(quota) / int(period))
    return most


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory of the machine, or the limit of its control groups where that is less."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for group in _groups(root):
        limit = _text(group / "memory.max")
        if limit.isdigit():
            most = min(most, int(limit))
    return most


def numa_nodes(root: Path = Path("/")) -> int:
    """NUMA nodes with CPUs or memory; 0 if the kernel lists none."""
    return len(list((root / "sys/devices/system/node").glob("node[0-9]*")))


def _groups(root: Path) -> Iterator[Path]:
    """The control group (version 2) of this process, and those above it."""
    line = next((x for x in _text(root / "proc/self/cgroup").splitlines() if x.startswith("0::")), "")
    top = root / "sys/fs/cgroup"
    here = top / line.removeprefix("0::").lstrip("/")
    while line and here.is_relative_to(top):
        yield here
        here = here.parent


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
