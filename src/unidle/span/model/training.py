"""What a real run trains, as its file states; paths are absolute. Checked where it is read, `span/files/train.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Saving:
    """Checkpoints: every so many steps, the newest ``keep`` stay."""

    directory: str
    every: int
    keep: int


@dataclass(frozen=True, slots=True)
class Training:
    """The model, its data and how long; functions are ``/path/file.py:name``.

    ``cut``: layers of each part of the model in its order, None for even parts; ``paced``: devices take the times of
    the setting. ``semantics``: what changes the result, empty for nothing. ``hosts``: addresses by site.
    """

    build: str
    data: str
    loss: str
    steps: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    optimizer: str = "sgd"
    optimizer_arguments: Mapping[str, Any] = field(default_factory=dict)
    clip_norm: float | None = None
    seed: int = 0
    microbatch: int = 1
    cut: tuple[int, ...] | None = None
    schedule: str = "unidle"
    saving: Saving | None = None
    paced: bool = False
    device: str = "cpu"
    tls: Mapping[str, str] | None = None
    semantics: Mapping[str, Any] = field(default_factory=dict)
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
