"""How large a node is, for packing."""

from __future__ import annotations

from typing import NamedTuple


class NodeSize(NamedTuple):
    """What an empty node holds. ``gpus`` whole GPUs of one ``model`` (empty where it has none)."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str = ""
