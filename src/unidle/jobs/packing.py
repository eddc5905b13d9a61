"""What packing needs: the resources that a pod requests of its node, and how large nodes are."""

from __future__ import annotations

from typing import NamedTuple


class PodDemand(NamedTuple):
    """CPU, memory and GPUs of one node. ``gpu_milli`` is requested of each of ``gpus`` GPUs; 1000 is a whole GPU.

    ``models`` are the GPU models that it can use; empty means any.
    """

    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_milli: int = 0
    models: frozenset[str] = frozenset()

    @property
    def total_gpu_milli(self) -> int:
        """The sum over all its GPUs, in thousandths of a GPU."""
        return self.gpus * self.gpu_milli


class NodeSize(NamedTuple):
    """What an empty node holds. ``gpus`` whole GPUs of one ``model`` (empty where it has none)."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str = ""
