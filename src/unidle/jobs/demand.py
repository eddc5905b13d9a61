"""What one pod asks of the node that it runs on."""

from __future__ import annotations

from typing import NamedTuple


class Demand(NamedTuple):
    """CPU, memory and GPUs of one node. ``gpu_milli`` is asked of each of ``gpus`` GPUs; 1000 is a whole one.

    ``models`` are the GPU models that it can use; empty means any.
    """

    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_milli: int = 0
    models: frozenset[str] = frozenset()

    @property
    def total_gpu_milli(self) -> int:
        """What it takes of all its GPUs together."""
        return self.gpus * self.gpu_milli
