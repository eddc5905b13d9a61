"""What a schedule decides: the order of each stage, what is made again, who shares links, when weights' gradients run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Stuck(Exception):
    """The orders of the stages wait for each other."""


@dataclass(frozen=True, slots=True)
class Filler:
    """Gradients of weights run where a device would wait.

    ``most``: how many may be put off on each stage, shape ``(stages,)``. ``slack_ns``: how much later the next
    operation may become for one that does not quite fit into the wait.
    """

    most: Ints
    slack_ns: Ints


@dataclass(frozen=True, slots=True)
class Share:
    """How links between sites are used.

    ``own``: each pipeline its own pair of nodes. ``turns``: a transfer is scattered over the nodes of its cell, all
    send at once, the far side gathers; pipelines take turns. ``wide``: nodes of all stages of both sites take part.
    ``pieces``: a transfer in turns is cut, so that scatter, send and gather overlap.
    """

    how: Literal["own", "turns"] = "own"
    wide: bool = False
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class Program:
    """A schedule, made for a setting.

    A *unit* is one microbatch in one chunk of a stage: ``chunk * microbatches + microbatch``, of which there are U.

    ``order``: shape ``(stages, 2U)``; unit u forward is ``u``, backward ``U + u``. ``again``: ``(stages, U)``, units
    whose activations are made again before their backward. ``early``: that is done while the gradient is still on its
    way. ``joined``: the gradient leaves only after that of the weights (no split of the backward pass).
    ``weights_after``: ``(stages, 2U)``, how many gradients of weights run after each operation, in the order of the
    backwards; for a program with a ``filler`` it is empty.
    """

    label: str
    order: Ints
    again: Flags
    weights_after: Ints
    chunks: int = 1
    early: bool = False
    joined: bool = False
    filler: Filler | None = None
    max_flows: bool = False
    share: Share = field(default_factory=Share)

    @property
    def units(self) -> int:
        return int(self.order.shape[1]) // 2


def depth_order(depth: Ints, units: int) -> Ints:
    """So many forwards as ``depth`` (``(stages,)``, at least 1), then backward and forward in turn. Shape ``(stages, 2U)``."""
    d = np.clip(depth, 1, units)[:, None]
    k = np.arange(units, dtype=np.int64)[None, :]
    return arranged(k, k, d, units)


def arranged(forwards: Ints, backwards: Ints, depth: Ints, units: int) -> Ints:
    """The same with given orders of units, each of shape ``(1, U)``; ``depth`` of shape ``(stages, 1)``."""
    k = np.arange(units, dtype=np.int64)[None, :]
    stages = depth.shape[0]
    order = np.empty((stages, 2 * units), dtype=np.int64)
    rows = np.arange(stages)[:, None]
    order[rows, k + np.maximum(0, k - depth + 1)] = forwards
    order[rows, k + np.minimum(units, depth + k)] = units + backwards
    return order


def joined_weights(order: Ints) -> Ints:
    """One gradient of weights right after each backward."""
    found: Ints = (order >= order.shape[1] // 2).astype(np.int64)
    return found


def delayed_weights(order: Ints, delay: Ints) -> Ints:
    """That of a microbatch after the backward of the ``delay``-th next one; the rest at the end."""
    units = order.shape[1] // 2
    is_backward = order >= units
    count = np.cumsum(is_backward, axis=1)
    after: Ints = (is_backward & (count > delay[:, None])).astype(np.int64)
    after[:, -1] += units - after.sum(axis=1)
    return after


def falling(depth: Sequence[int] | Ints) -> Ints:
    """Depths that never rise from stage to stage (they would wait for each other), at least 1."""
    return np.maximum(np.minimum.accumulate(np.asarray(depth, dtype=np.int64)), 1)
