"""What this machine can do, and what is missing for what."""

from __future__ import annotations

import os
from pathlib import Path

from unidle.doctor.check import DoctorCheck, State

__all__ = ["DoctorCheck", "State", "checks"]


def checks(
    store: str | os.PathLike[str] | None = None, data_dir: str | os.PathLike[str] | None = None
) -> list[DoctorCheck]:
    """All checks of this machine, in the order to show them; well under a second.

    The disk that is checked is the one of ``store`` (a path), else of ``data_dir``, else of the current directory.
    """
    from unidle.doctor import gpu, kernel, machine, profiler, tools

    root = Path("/")
    place = Path(store or data_dir or ".")
    return [
        tools.python(),
        *gpu.gpus(),
        tools.pytorch(),
        kernel.cgroups(root),
        kernel.pressure(root),
        kernel.network_namespaces(),
        kernel.user_namespaces(root),
        kernel.ebpf(root, kernel.capabilities(root)),
        kernel.perf_events(root, kernel.capabilities(root)),
        *profiler.profiler(profiler.facts(root, kernel.capabilities(root))),
        machine.disk(root, place),
        machine.clock(root),
        machine.time_sync(machine.kernel_time_state()),
        machine.open_files(machine.limit("NOFILE")),
        machine.processes(machine.limit("NPROC")),
        machine.locked_memory(machine.limit("MEMLOCK")),
        machine.ports(root),
        machine.huge_pages(root),
        tools.postgresql(root, os.environ),
        tools.chromium(os.environ),
        tools.go(root, os.environ),
        tools.rust(os.environ),
        tools.kubernetes(os.environ),
    ]
