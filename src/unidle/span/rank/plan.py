"""The run plan that all ranks share; :mod:`unidle.span.rank.read_plan` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from unidle.errors import BadInput


class Op(NamedTuple):
    """One operation of a device: ``F``, ``R`` (make activations again), ``B`` or ``W``."""

    kind: str
    microbatch: int
    chunk: int


@dataclass(frozen=True, slots=True)
class PlanDevice:
    """One rank: its place, where its endpoint listens, what it does in order.

    ``joined``: B includes W, and its gradient leaves after both.
    """

    name: str
    site: str
    pipeline: int
    stage: int
    address: tuple[str, int]
    order: tuple[Op, ...]
    joined: bool
    torch_device: str


@dataclass(frozen=True, slots=True)
class StageLink:
    """How two stages are joined. ``turns``: over the links of the whole cell, in ``pieces``; a rate of 0 is no bound."""

    wan: bool = False
    flows: int = 1
    turns: bool = False
    pieces: int = 1
    latency_ns: int = 0
    rate_bytes_per_s: int = 0
    chunk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """``build``, ``loss`` and ``data`` are ``/path.py:function``; ``cut`` holds the layers [first, end) of each part."""

    build: str
    arguments: Mapping[str, Any]
    dtype: str
    cut: tuple[tuple[int, int], ...] | None
    digest: str | None


@dataclass(frozen=True, slots=True)
class SaveSpec:
    """Checkpoints: every so many steps, the newest ``keep`` stay."""

    directory: str
    every: int
    keep: int


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Devices of stated speed: nanoseconds of each operation, by stage. ``speeds``: of each pipeline relative to them, or empty."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    recompute: tuple[int, ...]
    speeds: tuple[float, ...] = ()

    def of(self, pipeline: int) -> DeviceSpeed:
        """The times of one pipeline's devices."""
        if not self.speeds:
            return self
        each = (self.forward, self.backward, self.weight, self.recompute)
        return DeviceSpeed(*(tuple(round(ns / self.speeds[pipeline]) for ns in times) for times in each))


@dataclass(frozen=True, slots=True)
class Outer:
    """Pipelines train alone for ``every`` steps; then Nesterov's step on the mean of their differences."""

    every: int
    lr: float
    momentum: float


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All of it. ``microbatches``: of each pipeline. ``resume``: None is the newest checkpoint, 0 none.

    ``links`` by two stages, and by two stages and a pipeline where pipelines use them otherwise. ``earlier``: what each
    pipeline did up to and with a step, where it was shared out again; only a single process does those steps again.
    """

    run: str
    attempt: int
    model: ModelSpec
    loss: str
    data: str
    optimizer: str
    optimizer_arguments: Mapping[str, Any]
    clip_norm: float | None
    steps: int
    seed: int
    microbatch: int
    microbatches: tuple[int, ...]
    chunks: int
    devices: tuple[PlanDevice, ...]
    links: Mapping[tuple[int, ...], StageLink]
    cell: int
    checkpoint: SaveSpec | None
    resume: int | None
    pace: DeviceSpeed | None
    tls: Mapping[str, str] | None
    activations: str | None
    outer: Outer | None
    trace: bool
    earlier: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def pipelines(self) -> int:
        return len(self.microbatches)

    @property
    def stages(self) -> int:
        return len(self.devices) // self.pipelines

    @property
    def parts(self) -> int:
        """Chunks of all stages; part k is chunk ``k // stages`` of stage ``k % stages``."""
        return self.stages * self.chunks

    def device(self, pipeline: int, stage: int) -> PlanDevice:
        return next(d for d in self.devices if (d.pipeline, d.stage) == (pipeline, stage))

    def named(self, name: str) -> PlanDevice:
        """Errors: BadInput."""
        for device in self.devices:
            if device.name == name:
                return device
        raise BadInput(
            "is not in the plan", field="--device", value=name, remedy="name one of the plan's devices"
        )

    def link(self, a: int, b: int, pipeline: int) -> StageLink:
        """Of two stages, in either order, as a pipeline uses it."""
        pair = (min(a, b), max(a, b))
        return self.links.get((*pair, pipeline)) or self.links.get(pair, StageLink())

    def at(self, step: int) -> RunPlan:
        """The plan with what each pipeline did in a step."""
        found = next((shared for end, shared in self.earlier if step <= end), self.microbatches)
        return self if found == self.microbatches else replace(self, microbatches=found)

    def first_index(self, pipeline: int) -> int:
        """The number of a pipeline's first microbatch in the whole batch."""
        return sum(self.microbatches[:pipeline])

    def cuts(self, layers: int) -> tuple[tuple[int, int], ...]:
        """The layers [first, end) of each part of a model of so many. Errors: BadInput where they do not fit."""
        cut = self.model.cut or _even(layers, self.parts)
        if cut[-1][1] != layers:
            raise BadInput(
                f"ends at layer {cut[-1][1]}, and the model has {layers}", field="model.cut", value=short(cut),
                remedy="give the plan that was made for this model",
            )  # fmt: skip
        return cut

    def semantics(self) -> list[str]:
        """What makes this run differ from one process, in words; empty by default."""
        found = []
        if self.activations:
            found.append(f"activations and their gradients cross sites as {self.activations}")
        if self.outer:
            found.append(
                f"pipelines train alone for {self.outer.every} steps, then an outer step joins them"
                f" (lr {self.outer.lr:g}, momentum {self.outer.momentum:g})"
            )
        return found


def _even(layers: int, parts: int) -> tuple[tuple[int, int], ...]:
    if layers < parts:
        raise BadInput(
            f"has fewer layers than the {parts} parts", field="model", value=layers, remedy="use fewer stages"
        )
    ends = [(k + 1) * (layers // parts) + min(k + 1, layers % parts) for k in range(parts)]
    return tuple(zip([0, *ends], ends, strict=False))


def short(value: object) -> str:
    """A value as it is shown in a message."""
    text = json.dumps(value, default=str)
    return text if len(text) < 80 else text[:77] + "..."
