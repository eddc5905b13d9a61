"""The same plan in one process: the reference that a run over sites is compared with.

Same model, same microbatches, same order of sums; no cut, no transport, no recompute, no compression. It writes the same
records, as device ``single``, and at the end a checkpoint of the same format below its output directory. With
``--against DIR`` a last record, ``compared``, has the distance of that checkpoint from the one of the same step in DIR.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from unidle.checkpoint.layout import Manifest, partial_name, read_manifest
from unidle.errors import BadInput, CannotRun
from unidle.rank.checkpoint.reader import ShardSet, StoredShard
from unidle.span.rank.model import Layer
from unidle.span.rank.optimizer import clip_factor, squares
from unidle.span.rank.plan import RunPlan
from unidle.span.rank.records import Records
from unidle.span.rank.shards import State, finish, read, steps_in, write_shard
from unidle.span.rank.trainer import Batches, Trainer, built, mean_loss


class Single:
    """One process; with outer steps one copy of the model for each pipeline."""

    def __init__(self, plan: RunPlan, records: Records, directory: str) -> None:
        self.plan, self._records, self._directory = plan, records, directory
        self._whole = plan
        layers, self._digest = built(plan)
        copies = plan.pipelines if plan.outer else 1
        groups: list[list[Layer]] = [layers, *(copy.deepcopy(layers) for _ in range(copies - 1))]
        self._trainers = [Trainer(plan, {0: group}, 0) for group in groups]
        self._batches = Batches(plan, "cpu")

    def run(self) -> None:
        """All steps, and the final state."""
        first = self._trainers[0]
        begin = self._restore()
        self._records.write(
            "ready", ns=time.monotonic_ns(), wall_ns=time.time_ns(), parameters=sum(p.numel() for p in first.parameters.values()),
            digest=self._digest, resumed=begin, changes_semantics=self.plan.semantics(),
        )  # fmt: skip
        for step in range(begin + 1, self.plan.steps + 1):
            begun, self.plan = time.monotonic_ns(), self._whole.at(step)
            losses = self._one(step)
            self._records.write(
                "step", step=step, begin_ns=begun, end_ns=time.monotonic_ns(), loss=mean_loss(dict(enumerate(chain(*losses)))),
                losses=[mean_loss(dict(enumerate(each))) for each in losses], exposed_wan_ns=0, wait_ns=0, wan_bytes=0,
            )  # fmt: skip
        partial = os.path.join(self._directory, partial_name(self.plan.steps, "single"))
        os.makedirs(partial, exist_ok=True)
        shards = tuple(
            write_shard(partial, k, len(self._trainers), s.tensors(), s.own())
            for k, s in enumerate(self._states())
        )
        manifest = Manifest(self.plan.steps, len(shards), time.time_ns(), "single", shards)
        path = finish(self._directory, partial, manifest)
        self._records.write("checkpoint", step=self.plan.steps, path=path)

    def _states(self) -> list[State]:
        return [
            State(t.parts[0].layers, t.parameters, t.optimizer, self._digest, t.outer, k)
            for k, t in enumerate(self._trainers)
        ]

    def _restore(self) -> int:
        """Resumes from the checkpoint of the plan; the newest only if it is asked for by number."""
        keep = self.plan.checkpoint
        if keep is None or not self.plan.resume:
            return 0
        path = steps_in(keep.directory).get(self.plan.resume)
        if path is None:
            raise BadInput(
                "has no such checkpoint", field="resume", value=self.plan.resume,
                remedy=f"choose one that is in {keep.directory}, or 0",
            )  # fmt: skip
        for state in self._states():
            state.accept(*read(path, state))
        return self.plan.resume

    def _one(self, step: int) -> list[list[torch.Tensor]]:
        plan, losses = self.plan, []
        totals: list[torch.Tensor] | None = None
        for pipeline in range(plan.pipelines):
            trainer = self._trainers[pipeline if plan.outer else 0]
            losses.append(self._pipeline(step, pipeline, trainer))
            flats = list(trainer.sums.flats.values())
            if plan.outer is not None:
                trainer.step(plan.microbatches[pipeline], self._clip(trainer))
                continue
            if totals is None:
                totals = [flat.clone() for flat in flats]
            else:
                for total, flat in zip(totals, flats, strict=True):
                    total += flat
            trainer.sums.clear()
        if plan.outer is not None:
            self._outer(step)
        elif totals is not None:
            trainer = self._trainers[0]
            for flat, total in zip(trainer.sums.flats.values(), totals, strict=True):
                flat.copy_(total)
            trainer.step(sum(plan.microbatches), self._clip(trainer))
        return losses

    def _pipeline(self, step: int, pipeline: int, trainer: Trainer) -> list[torch.Tensor]:
        """One pipeline's microbatches, in their order. Buffers follow the first pipeline, as the checkpoints of ranks do."""
        part, losses = trainer.parts[0], []
        buffers = [b for layer in part.layers for b in layer.module.buffers()]
        before = [b.clone() for b in buffers]
        for microbatch in range(self.plan.microbatches[pipeline]):
            index = self.plan.first_index(pipeline) + microbatch
            inputs, target = self._batches(step, index)
            (loss,) = part.forward(step, microbatch, index, inputs, target, keep=True)
            losses.append(loss.detach())
            part.backward(microbatch, [None], whole=True)
            trainer.sums.add(0, microbatch, part.weights(microbatch))
        if pipeline and not self.plan.outer:
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
        return losses

    def _clip(self, trainer: Trainer) -> Callable[[], float] | None:
        most = self.plan.clip_norm
        if most is None:
            return None
        return lambda: clip_factor([squares(trainer.gradients_of(0))], most)

    def _outer(self, step: int) -> None:
        trainers = self._trainers
        if trainers[0].outer is None or not trainers[0].outer.due(step):
            return
        for trainer in trainers:
            assert trainer.outer is not None
            trainer.outer.moved(trainer.sums.views)
        totals = [flat.clone() for flat in trainers[0].sums.flats.values()]
        for trainer in trainers[1:]:
            for total, flat in zip(totals, trainer.sums.flats.values(), strict=True):
                total += flat
        for trainer in trainers:
            for flat, total in zip(trainer.sums.flats.values(), totals, strict=True):
                flat.copy_(total)
            trainer.sums.divide(len(trainers))
            assert trainer.outer is not None
            trainer.outer.step(trainer.sums.views)
            trainer.sums.clear()


def states(directory: str, step: int) -> dict[str, torch.Tensor]:
    """The model's tensors of the checkpoint of ``step``, by name. Errors: :class:`CannotRun` without such a checkpoint."""
    path = steps_in(directory).get(step)
    if path is None:
        raise CannotRun(
            f"the final states cannot be compared: no checkpoint of step {step} is in {directory}"
        )
    shards = ShardSet([StoredShard(path, shard) for shard in read_manifest(path).shards])
    return {
        name: shards.tensor(name, next(iter(places)))
        for name, places in shards.pieces.items()
        if name.startswith("model.")
    }


def compared(one: str, other: str, step: int) -> dict[str, Any]:
    """How many parameters the checkpoints of ``step`` in two directories have, and their largest difference.

    Errors: :class:`CannotRun` where one is missing, or they hold other names.
    """
    a, b = states(one, step), states(other, step)
    if a.keys() != b.keys():
        names = ", ".join(sorted(a.keys() ^ b.keys())[:5])
        raise CannotRun(f"the final states cannot be compared: they hold different names: {names}")
    differences = [float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel()]
    count = sum(value.numel() for value in a.values())
    return {"parameters": count, "parameter_difference": max(differences, default=0.0)}
