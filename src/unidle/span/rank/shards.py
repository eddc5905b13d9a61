"""Checkpoints of a run over several ranks, in the format of ``unidle.checkpoint``: any cut reads what any other wrote.

One rank of each stage writes a shard with its layers, their optimizer state and settings; names are the whole model's. Shards go
into a directory with an unfinished name; when all are on storage the manifest is written and the directory gets its name. Where
sites do not share the directory, those that do make a checkpoint of their own with their layers. ``unidle checkpoint
list|verify|prune`` read them. :mod:`unidle.span.rank.runner` does this during the training.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unidle.checkpoint.layout import (
    CHUNK_BYTES,
    MANIFEST,
    Damaged,
    Manifest,
    Shard,
    encode_header,
    is_partial,
    read_manifest,
    shard_name,
    step_name,
    sync_directory,
    write_durably,
)
from unidle.errors import BadInput
from unidle.rank.checkpoint.stage import DTYPES
from unidle.span.rank.model import Layer, names_of
from unidle.span.rank.optimizer import OuterStep
from unidle.span.rank.tensors import bytes_of, on_host


@dataclass(slots=True)
class State:
    """The state of a rank that is saved. ``digest``: of the whole model. ``pipeline``: its own optimizer state,
    where pipelines train alone; else 0.
    """

    layers: Sequence[Layer]
    parameters: Mapping[str, nn.Parameter]
    optimizer: torch.optim.Optimizer | None
    digest: str
    outer: OuterStep | None = None
    pipeline: int = 0

    def model(self) -> dict[str, Tensor]:
        """Parameters and buffers by name."""
        return {
            f"model.{names[name]}": value
            for layer in self.layers
            for names in [names_of(layer)]
            for name, value in layer.module.state_dict().items()
            if isinstance(value, Tensor)
        }

    def _prefix(self, pipeline: int) -> str:
        return f"optimizer@{pipeline}." if pipeline else "optimizer."

    def tensors(self) -> dict[str, Tensor]:
        """All saved tensors."""
        found = self.model() if not self.pipeline else {}
        for name, value in (self.outer.momentum if self.outer and not self.pipeline else {}).items():
            found[f"outer.{name}"] = value
        prefix = self._prefix(self.pipeline)
        for name, parameter in self.parameters.items():
            for key, value in self._of(parameter).items():
                if isinstance(value, Tensor):
                    found[f"{prefix}{name}.{key}"] = value
        return {name: value.detach() for name, value in found.items()}

    def _of(self, parameter: nn.Parameter) -> dict[str, Any]:
        return self.optimizer.state.get(parameter, {}) if self.optimizer is not None else {}

    def own(self) -> dict[str, Any]:
        """Values that are not tensors: settings of the optimizer, and plain values of its state by name."""
        values = {
            f"{name}.{key}": value
            for name, parameter in self.parameters.items()
            for key, value in self._of(parameter).items()
            if not isinstance(value, Tensor)
        }
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        settings = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        return {"settings": settings, "values": values, "pipeline": self.pipeline, "digest": self.digest}

    @torch.no_grad()
    def accept(self, read: Mapping[str, Tensor], owns: Sequence[Mapping[str, Any]], pipeline: int) -> None:
        """Load the read state; ``pipeline``: whose optimizer state."""
        for name, target in self.model().items():
            target.copy_(read[name])
        if self.outer is not None:
            for name, p in self.parameters.items():
                self.outer.start[name].copy_(p)
                if f"outer.{name}" in read:
                    self.outer.momentum[name].copy_(read[f"outer.{name}"])
        if self.optimizer is None:
            return
        mine = [own for own in owns if own["pipeline"] == pipeline]
        for settings in [own["settings"] for own in mine if own["settings"]][:1]:
            for group, old in zip(self.optimizer.param_groups, settings, strict=False):
                group.update(old)
        values = {name: value for own in mine for name, value in own["values"].items()}
        prefix = self._prefix(pipeline)
        for name, parameter in self.parameters.items():
            state: dict[str, Any] = {k[len(name) + 1 :]: v for k, v in values.items() if _is_of(k, name)}
            for key, value in read.items():
                if key.startswith(prefix) and _is_of(key[len(prefix) :], name):
                    on_device = value.dim() > 0  # counters stay on the host, as optimizers keep them
                    state[key[len(prefix) + len(name) + 1 :]] = (
                        value.to(parameter.device) if on_device else value
                    )
            if state:
                self.optimizer.state[parameter] = state


def _is_of(key: str, name: str) -> bool:
    return key.startswith(f"{name}.") and "." not in key[len(name) + 1 :]


def write_shard(
    partial: str, rank: int, world: int, tensors: Mapping[str, Tensor], own: Mapping[str, Any]
) -> Shard:
    """One shard, on storage. Errors: ``OSError``."""
    into = io.BytesIO()
    torch.save(dict(own), into)
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    head, _ = encode_header(
        {
            name: (DTYPES[t.dtype], tuple(t.shape), name, (0,) * t.dim(), tuple(t.shape))
            for name, t in ordered
        },
        into.tell(),
    )
    name = shard_name(rank, world)
    crcs: list[int] = []
    size = room = crc = 0
    with open(os.path.join(partial, name), "wb") as file:
        for data in (head, *(bytes_of(on_host(t)) for _, t in ordered), into.getvalue()):
            view = memoryview(data)
            size += len(view)
            file.write(view)
            while len(view):
                piece = view[: CHUNK_BYTES - room]
                crc, room, view = zlib.crc32(piece, crc), room + len(piece), view[len(piece) :]
                if room == CHUNK_BYTES:
                    crcs.append(crc)
                    crc = room = 0
        if room:
            crcs.append(crc)
        file.flush()
        os.fsync(file.fileno())
    return Shard(name, rank, size, tuple(crcs))


def finish(directory: str, partial: str, manifest: Manifest) -> str:
    """Complete a checkpoint whose shards are all written: write its manifest, then rename it."""
    write_durably(os.path.join(partial, MANIFEST), manifest.to_bytes())
    path = os.path.join(directory, step_name(manifest.step))
    old = os.path.join(directory, f".{step_name(manifest.step)}.pruned")
    shutil.rmtree(old, ignore_errors=True)
    if os.path.isdir(path):
        os.rename(path, old)
    os.rename(partial, path)
    sync_directory(directory)
    shutil.rmtree(old, ignore_errors=True)
    return path


def steps_in(directory: str) -> dict[int, str]:
    """Steps with a manifest, and their paths."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if re.fullmatch(r"step_\d{10}", name) and os.path.exists(os.path.join(path, MANIFEST)):
                found[int(name[5:])] = path
    return found


def prune(directory: str, keep: int, session: str) -> None:
    """Remove all but the newest checkpoints, and unfinished ones of killed runs."""
    steps = steps_in(directory)
    for step in sorted(steps)[:-keep]:
        gone = os.path.join(directory, f".{step_name(step)}.pruned")
        os.rename(steps[step], gone)
        shutil.rmtree(gone, ignore_errors=True)
    for name in os.listdir(directory):
        if is_partial(name) and not name.endswith(f".{session}"):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)


def read(path: str, state: State) -> tuple[dict[str, Tensor], list[dict[str, Any]], int]:
    """What :meth:`State.accept` takes, each byte checked. Errors: ``Damaged``, ``OSError``; BadInput for another model."""
    from unidle.rank.checkpoint.reader import ShardSet, StoredShard

    manifest = read_manifest(path)
    shards = ShardSet([StoredShard(path, shard) for shard in manifest.shards])
    wholes = shards.wholes()
    owns = [
        torch.load(io.BytesIO(shards.own(k)), weights_only=True, map_location="cpu")
        for k in range(shards.world)
    ]
    for name, target in state.model().items():
        shape = wholes.get(name, (None,))[0]
        if shape is None and all(own["digest"] == state.digest for own in owns):
            raise Damaged(f"{name} is not in {path}: it lies on another site")
        if shape is None:
            raise BadInput(f"{path} is of another model: it has no {name[6:]} {tuple(target.shape)}")
        if shape != tuple(target.shape):
            raise BadInput(
                f"{path} is of another model: {name[6:]} has shape {shape} there, {tuple(target.shape)} here"
            )
    saved = 1 + max((own["pipeline"] for own in owns), default=0)
    pipeline = state.pipeline % saved
    prefixes = [f"{kind}.{name}." for name in state.parameters for kind in (f"optimizer@{pipeline}" if pipeline else "optimizer",)]  # fmt: skip
    wanted = {*state.model(), *(f"outer.{name}" for name in state.parameters)}
    return (
        {
            name: shards.tensor(name, next(iter(places)))
            for name, places in shards.pieces.items()
            if name in wanted or any(name.startswith(prefix) for prefix in prefixes)
        },
        owns,
        pipeline,
    )
