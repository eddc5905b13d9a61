"""A machine that shares one GPU by recorded NVML and a stand-in for NVIDIA's MPS program."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_local.local_gangs import Gang, Machine, sh
from engine_local.recorded_nvml import RecordedNvml
from unidle.clock import RealClock
from unidle.engine.local.devices.mig import MigHands, NvmlMig
from unidle.engine.local.devices.mps import MpsControl
from unidle.engine.local.devices.slicing import Slicer
from unidle.engine.local.engine import LocalEngine
from unidle.engine.local.ranks import rundir
from unidle.engine.protocol import StartGang
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, RankPlace

GIB = 1 << 30
UUID = "GPU-6b1e0001-aaaa-bbbb-cccc-000000000001"
H100 = "NVIDIA H100 80GB HBM3"

# A stand-in for NVIDIA's program (also on hosts: tests/e2e/test_e2e_hosts_parts.py), with the part of its documented behaviour that unidle uses.
MPS_CONTROL = """#!/bin/sh
pid_file="$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
if [ "$1" = -d ]; then
    [ -e "$CUDA_MPS_PIPE_DIRECTORY/broken" ] && { echo "An instance of this daemon is already running"; exit 1; }
    setsid sleep 600 & echo $! > "$pid_file"
    echo "$CUDA_VISIBLE_DEVICES" > "$CUDA_MPS_PIPE_DIRECTORY/bound"
    exit 0
fi
kill -0 "$(cat "$pid_file" 2>/dev/null)" 2>/dev/null || { echo "Cannot find MPS control daemon process"; exit 1; }
while read -r command; do
    case "$command" in
        quit) kill "$(cat "$pid_file")"; rm "$pid_file" ;;
        get_server_list) : ;;
        *) exit 1 ;;
    esac
done
"""


def cut_cpus(*shares_ppm: int, cpus: float = 1.0, memory: int = 0) -> Fleet:
    """A node with one CPU device, cut."""
    device = Device("n/0", "n", 0, "cpu", memory_bytes=memory, slices_ppm=shares_ppm)
    return Fleet(nodes=(Node("n", "site", (device,), cpus=cpus),))


def cut_gpu(*shares_ppm: int, uuid: str = UUID, model: str = H100) -> Fleet:
    device = Device("n/0", "n", 0, "gpu", model, uuid, 80 * GIB, shares_ppm)
    return Fleet(nodes=(Node("n", "site", (device,)),))


@dataclass
class Sharing:
    """A machine whose engine shares one GPU by recorded NVML and a stand-in for MPS."""

    machine: Machine
    nvml: RecordedNvml
    environ: dict[str, str]
    parent: Path

    def engine(self, fleet: Fleet) -> LocalEngine:
        root = str(self.machine.run_root)
        mps = MpsControl("test", str(self.parent), self.environ)
        slicer = Slicer(root, fleet, mps, MigHands(root, NvmlMig(self.nvml)))
        engine = LocalEngine(self.machine.run_root, fleet, RealClock(), slicer)
        self.machine.engines.append(engine)
        return engine

    def start(
        self, engine: LocalEngine, script: str, slices: list[str], *, job: str = "job", **spec: Any
    ) -> Gang:
        gang = self.machine.follow(command(sh(script), slices, job=job, **spec), engine)
        engine.start(gang.command)
        return gang

    def daemons(self) -> list[str]:
        """The GPUs to which running daemons are bound."""
        return [(pid.parent / "bound").read_text().strip() for pid in self.parent.glob("*/pipe/*.pid")]


def command(argv: tuple[str, ...], slices: list[str], *, job: str = "job", **spec: Any) -> StartGang:
    """One rank on each slice."""
    places = tuple(RankPlace(rank, "n", (name,)) for rank, name in enumerate(slices))
    return StartGang(job, 1, JobSpec(command=argv, ranks=len(slices), **spec), places)


def env_of(gang: Gang, rank: int = 0) -> dict[str, str]:
    return dict(line.split("=", 1) for line in gang.log(rank).splitlines() if "=" in line)


def orders(gang: Gang, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((gang.rank(rank) / rundir.ORDERS).read_text())
    return found
