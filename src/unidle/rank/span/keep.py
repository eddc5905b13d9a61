"""Checkpoints of a run over several ranks, in the format of ``unidle.checkpoint``: any cut reads what any other wrote.

One rank of each stage writes a shard with its layers, their optimizer state and settings; names are the whole model's. Shards go
into a directory with an unfinished name; when all are on storage the manifest is written and the directory gets its name. Where
sites do not share the directory, those that do make a checkpoint of their own with their layers. ``unidle checkpoint
list|verify|prune`` read them. :mod:`unidle.rank.span.saving` does this beside the training.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
    partial_name,
    read_manifest,
    shard_name,
    step_name,
    sync_directory,
    write_durably,
)
from unidle.errors import BadInput
from unidle.rank.checkpoint.stage import DTYPES
from unidle.rank.span.model import Layer, names_of
from unidle.rank.span.optimize import OuterStep
from unidle.rank.span.plan import Keep
from unidle.rank.span.wire import bytes_of, on_host


class Gather(Protocol):
    """Every device's value, on every device. Calls under one tag are made by all at the same time."""

    def __call__(self, value: Any, tag: str = ...) -> list[Any]: ...


@dataclass(slots=True)
class State:
    """What of a rank is kept. ``digest``: of the whole model. ``pipeline``: its own optimizer state, where pipelines train alone; else 0."""

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
        """All that is saved as tensors."""
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
        """What is no tensor: settings of the optimizer, and plain values of its state by name."""
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
        """Take over what was read; ``pipeline``: whose optimizer state."""
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


class Keeper:
    """Saves and restores one rank's part. Calls are made by all ranks at the same step.

    ``index``: of this device; ``writes``: whether it saves at all. ``{site}`` in the directory stands for ``site``.
    """

    def __init__(self, keep: Keep, index: int, site: str, writes: bool, gather: Gather) -> None:
        self._keep, self._index, self.writes, self._gather = keep, index, writes, gather
        self.directory = os.path.abspath(keep.directory.replace("{site}", site))
        problem = ""
        try:
            os.makedirs(self.directory, exist_ok=True)
        except OSError as error:
            problem = f"{error.strerror}"
        if problem or not os.access(self.directory, os.W_OK | os.X_OK):
            raise BadInput(
                f"cannot be written: {problem or 'no permission'}", field="checkpoint.directory", value=self.directory,
                remedy="name a directory that every rank may write",
            )  # fmt: skip
        self._session = str(gather(secrets.token_hex(6))[0])
        self._group = self._who_shares()
        self.apart = "" if "{site}" in keep.directory else self._who_is_apart(site)

    def _who_is_apart(self, site: str) -> str:
        """What to say where not all ranks see the same directory."""
        told = self._gather([site, self._group])
        shared: dict[str, set[str]] = {}
        for name, group in told:
            shared.setdefault(str(group), set()).add(name)
        if len(shared) == 1:
            return ""
        groups = "; ".join(", ".join(sorted(names)) for names in shared.values())
        return str(
            BadInput(
                "is not the same storage at all sites, so each keeps only its own layers: a site that is lost takes them along,"
                " and layers cannot move to another", field="checkpoint.directory", value=f"{self.directory}: {groups}",
                remedy="name storage that all sites share, or {site} in it to keep them apart on purpose",
            )
        )  # fmt: skip

    def _who_shares(self) -> list[int]:
        """The writers that see this directory, by a file of each."""
        mine = os.path.join(self.directory, f".span-{self._session}.{self._index}.tmp")
        if self.writes:
            write_durably(mine, b"")
        self._gather(None)
        start = f".span-{self._session}."
        seen = [n[len(start) :].split(".")[0] for n in os.listdir(self.directory) if n.startswith(start)]
        self._gather(None)
        if self.writes:
            os.unlink(mine)
        return sorted(map(int, seen))

    def write(
        self, step: int, tensors: Mapping[str, Tensor], own: Mapping[str, Any], whole: Callable[[str], None]
    ) -> tuple[str, bool]:
        """Write this rank's shard, and where it is the first of its group the manifest. Errors: WanError.

        ``whole`` is told the path once all parts of all groups are on storage, at the first of each group. Returns why the step was not
        saved, if so, and whether this rank is the one to say it; older checkpoints are as they were then.
        """
        partial = os.path.join(self.directory, partial_name(step, self._session))
        shard, problem = self._shard(partial, tensors, own) if self.writes else (None, "")
        told = self._gather([shard, problem], "saved")
        lead, path = bool(self._group) and self._index == self._group[0], ""
        if lead and not any(each[1] for each in told):
            shards = tuple(Shard(n, r, b, tuple(c)) for n, r, b, c in (told[k][0] for k in self._group))
            manifest = Manifest(step, len(shards), time.time_ns(), self._session, shards)
            try:
                path = finish(self.directory, partial, manifest)
            except OSError as error:
                problem = f"{partial}: {error.strerror}"
        problems = self._gather(problem, "saved")
        if (first := next((k for k, each in enumerate(problems) if each), None)) is not None:
            if lead:
                shutil.rmtree(partial, ignore_errors=True)
            return f"step {step} was not saved: {problems[first]}", first == self._index
        if lead:
            whole(path)
            _prune(self.directory, self._keep.keep, self._session)  # none before all sites have the new one
        return "", False

    def _shard(
        self, partial: str, tensors: Mapping[str, Tensor], own: Mapping[str, Any]
    ) -> tuple[list[Any] | None, str]:
        """What the manifest says of this rank's shard, or why it could not be written."""
        try:
            os.makedirs(partial, exist_ok=True)
            shard = write_shard(partial, self._group.index(self._index), len(self._group), tensors, own)
        except OSError as error:
            return None, f"{partial}: {error.strerror}"
        return [shard.name, shard.rank, shard.size_bytes, list(shard.crcs)], ""

    def restore(self, resume: int | None, state: State, tell: Callable[[str], None]) -> int:
        """The newest step that every rank can read, read into ``state``; 0 where there is none.

        Errors: BadInput where a checkpoint is of another model, or the one that is wanted cannot be read.
        """
        if resume == 0:
            return 0
        here = steps_in(self.directory)
        every = self._gather(sorted(here))
        common = sorted(set.intersection(*map(set, every)), reverse=True)
        if resume is None and not common and any(every):
            raise BadInput(
                "has checkpoints that not every rank sees", field="checkpoint.directory", value=self.directory,
                remedy="name a directory that all sites share, or start the sites that have them; resume 0 begins anew",
            )  # fmt: skip
        wanted = common if resume is None else [resume]
        for step in wanted:
            problem, found = "", None
            try:
                found = read(here.get(step, os.path.join(self.directory, step_name(step))), state)
            except (Damaged, OSError) as error:
                problem = str(error)
            except BadInput as error:
                problem = f"!{error}"
            problems = [p for p in self._gather(problem) if p]
            if not problems:
                assert found is not None
                state.accept(*found)
                return step
            for p in problems:
                if p.startswith("!"):
                    raise BadInput(
                        p[1:], remedy="restore into the model that was saved, or name another directory"
                    )
            tell(f"the checkpoint of step {step} is left out: {problems[0]}")
        if wanted:
            raise BadInput(
                "no checkpoint in it can be read by every rank", field="checkpoint.directory", value=self.directory,
                remedy="`unidle checkpoint verify` says why; resume 0 begins anew",
            )  # fmt: skip
        return 0


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
    """Make a checkpoint whole whose shards are all there: its manifest, then its name."""
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
    """Steps with a manifest, and where."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if re.fullmatch(r"step_\d{10}", name) and os.path.exists(os.path.join(path, MANIFEST)):
                found[int(name[5:])] = path
    return found


def _prune(directory: str, keep: int, session: str) -> None:
    """All but the newest go, and what runs that were killed left unfinished."""
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
    from unidle.rank.checkpoint.reader import ShardSet, Stored

    manifest = read_manifest(path)
    shards = ShardSet([Stored(path, shard) for shard in manifest.shards])
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
