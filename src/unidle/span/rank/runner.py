"""One rank: runs its operations in order, step after step, and saves checkpoints during the training.

The state is copied at the end of a step, a thread writes the copy. ``unidle.rank.checkpoint`` does the same for ranks of one
process group: its copies go to a holder per node that outlives them, and it speaks over that group. Ranks of a span have no
group, and their peers are on other sites; format, header and checksums are the same code.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes  # else the first backward pass imports it, and is measured with that
from torch import Tensor

from unidle.errors import CannotRun
from unidle.rank.waits import made as made_board
from unidle.span.rank.checkpoint import CheckpointKeeper, Courier
from unidle.span.rank.gradients import reduce
from unidle.span.rank.mesh import Mesh
from unidle.span.rank.model import Layer, Values
from unidle.span.rank.optimizer import clip_factor, squares
from unidle.span.rank.plan import Op, PlanDevice, RunPlan
from unidle.span.rank.records import Records
from unidle.span.rank.shards import State
from unidle.span.rank.tensors import host_buffer, shape_of
from unidle.span.rank.trainer import Batches, Trainer, mean_loss
from unidle.span.rank.transfer import StagePeers, Transfers
from unidle.span.wan import WanError


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete checkpoint. ``begin_ns`` to ``end_ns``: from the copy on; ``stall_ns``: how long training was
    blocked.
    """

    step: int
    path: str
    begin_ns: int
    end_ns: int
    stall_ns: int


class Saver:
    """At most one save is in progress; the next one waits. Calls are made by all ranks at the same step.

    ``saved`` is called for each whole checkpoint by one rank of those that share a directory, ``failed`` of a step and why by one rank;
    both in a thread.
    """

    def __init__(
        self, keeper: CheckpointKeeper, saved: Callable[[Saved], None], failed: Callable[[int, str], None]
    ) -> None:
        self._keeper, self._saved, self._failed = keeper, saved, failed
        self._held: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._problem = ""
        self._error: BaseException | None = None

    def save(self, step: int, state: State) -> None:
        """Start a save; the state may change after this returns. Errors: those of the previous save, except for a
        full disk.
        """
        begun = time.monotonic_ns()
        self.wait()
        tensors: dict[str, Tensor] = {}
        own: dict[str, Any] = {}
        if self._keeper.writes:
            tensors, own = self._copied(state.tensors()), copy.deepcopy(state.own())
        stall = time.monotonic_ns() - begun
        self._thread = threading.Thread(
            target=self._work, args=(step, tensors, own, begun, stall), name=f"span-save-{step}", daemon=True
        )
        self._thread.start()

    def wait(self) -> str:
        """Wait until no save is in progress; return why the last save failed, if it did. Errors: WanError."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error
        return self._problem

    def close(self) -> None:
        """The last one is on storage. Errors: CannotRun where it is not, WanError."""
        if problem := self.wait():
            raise CannotRun(
                f"{problem}; it was the last", field="checkpoint.directory", value=self._keeper.directory,
                remedy="make room there, and resume from the one before",
            )  # fmt: skip

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """In host memory, which is used again for each save."""
        found, on_gpu = {}, None
        for name, tensor in tensors.items():
            held = self._held.get(name)
            if held is None or shape_of(held) != shape_of(tensor):
                held = host_buffer(shape_of(tensor), tensor.device.type)
            held.copy_(tensor, non_blocking=True)
            on_gpu = tensor.device if tensor.is_cuda else on_gpu
            found[name] = held
        if on_gpu is not None:
            torch.cuda.current_stream(on_gpu).synchronize()
        self._held = found
        return found

    def _work(
        self, step: int, tensors: dict[str, Tensor], own: dict[str, Any], begun: int, stall: int
    ) -> None:
        def whole(path: str) -> None:
            self._saved(Saved(step, path, begun, time.monotonic_ns(), stall))

        try:
            self._problem, mine = self._keeper.write(step, tensors, own, whole)
            if mine:
                self._failed(step, self._problem)
        except BaseException as error:  # the thread that trains has to know
            self._error = error


class Runner:
    """Trains one device's parts of the plan. ``layers``: those of the whole model; layers of other devices are
    released.
    """

    def __init__(
        self, plan: RunPlan, me: PlanDevice, mesh: Mesh, layers: list[Layer], digest: str, records: Records
    ) -> None:
        self.plan, self.me, self._mesh, self._records = plan, me, mesh, records
        places = range(me.stage, plan.parts, plan.stages)
        self._layers, cuts = len(layers), plan.cuts(len(layers))
        self._trainer = Trainer(
            plan, {k: layers[slice(*cuts[k])] for k in places}, plan.parts - 1, me.torch_device
        )
        state = State(
            [layer for part in self._trainer.parts for layer in part.layers], self._trainer.parameters,
            self._trainer.optimizer, digest, self._trainer.outer, me.pipeline if plan.outer else 0,
        )  # fmt: skip
        self._state, self._keeper, self._saver = state, None, None
        if plan.checkpoint is not None:
            writes = me.pipeline == 0 or plan.outer is not None
            index = plan.devices.index(me)
            self._keeper = CheckpointKeeper(
                plan.checkpoint, index, me.site, writes, mesh.gather, Courier(mesh.aside)
            )
            self._saver = Saver(self._keeper, self._stored, self._unsaved)
        self._batches = Batches(plan, me.torch_device)
        self._again = {(op.microbatch, op.chunk) for op in me.order if op.kind == "R"}
        self._weighed = {(op.microbatch, op.chunk) for op in me.order if op.kind == "W"}
        self._targets: dict[int, Tensor] = {}
        self._losses: dict[int, Tensor] = {}
        self._later: dict[tuple[int, int], Values] = {}  # gradients that leave after W
        self._times = plan.pace.of(me.pipeline) if plan.pace else None
        self._step = 0
        self._filled = (0, 0)
        self._saved = 0
        self._work = {"F": self._forward, "R": self._recompute, "B": self._backward, "W": self._weights}

    def run(self, tell: Callable[[str], None]) -> None:
        """All steps. Errors: WanError where a peer is lost."""
        self._tell, begin = tell, self._restore(tell)
        self._transfers = Transfers(
            self.plan, self.me, self._mesh, self.plan.steps - begin, self._sent if self.plan.trace else None
        )
        self._peers = StagePeers(self.plan, self.me, self._mesh, self._transfers.waits)
        for step in range(begin + 1, self.plan.steps + 1):
            self._one(step)
            self._checkpoint(step)
        if self._saver is not None:
            self._saver.close()
        self._mesh.stop_clocks()
        self._mesh.gather("done")
        with contextlib.suppress(
            WanError
        ):  # who leaves takes a cell's links with it: not before all know that all are done
            self._mesh.gather("leaves")

    def _restore(self, tell: Callable[[str], None]) -> int:
        begin = self._keeper.restore(self.plan.resume, self._state, tell) if self._keeper else 0
        self._saved = begin
        self._records.write(
            "ready", ns=time.monotonic_ns(), wall_ns=time.time_ns(), parameters=sum(p.numel() for p in self._trainer.parameters.values()),
            digest=self._state.digest, resumed=begin, layers=self._layers, changes_semantics=self.plan.semantics(),
        )  # fmt: skip
        return begin

    def _one(self, step: int) -> None:
        self._step, waits = step, self._transfers.waits
        waits.wait_ns = waits.exposed_wan_ns = waits.wan_bytes = 0
        self._losses.clear()
        begun = time.monotonic_ns()
        for op in self.me.order:
            self._work[op.kind](op)
        self._update(step)
        told: dict[str, object] = {"loss": mean_loss(self._losses)} if self._losses else {}
        told |= self._fill()
        self._records.write(
            "step", step=step, begin_ns=begun, end_ns=time.monotonic_ns(), **told, exposed_wan_ns=waits.exposed_wan_ns,
            wait_ns=waits.wait_ns, wan_bytes=waits.wan_bytes,
        )  # fmt: skip

    def _fill(self) -> dict[str, object]:
        """What a filler did in this step's waits, as the record of the step has it; and the step's end, for the filler."""
        board = made_board()
        if board is None:
            return {}
        board.step(self._step)
        filled, before = board.filled_ns(), self._filled
        self._filled = filled
        if filled == before:
            return {}
        return {"filled_ns": filled[0] - before[0], "discarded_ns": filled[1] - before[1]}

    # -- operations ----------------------------------------------------------------------------------

    def _place(self, op: Op) -> int:
        return op.chunk * self.plan.stages + self.me.stage

    def _index(self, op: Op) -> int:
        return self.plan.first_index(self.me.pipeline) + op.microbatch

    def _forward(self, op: Op) -> None:
        place, part = self._place(op), self._trainer.parts[op.chunk]
        last = place == self.plan.parts - 1
        waited = self._transfers.waits.wait_ns
        inputs: Values = ()
        target = None
        if place == 0 or last:
            inputs, target = self._batches(self._step, self._index(op))
        if place:
            inputs = self._transfers.get("F", place, op.microbatch)
        if last:
            assert target is not None
            self._targets[op.microbatch] = target
        begun = time.monotonic_ns()
        keep = (op.microbatch, op.chunk) not in self._again
        outputs = part.forward(
            self._step, op.microbatch, self._index(op), inputs, target if last else None, keep
        )
        self._over(op, begun, waited, self._times.forward if self._times else None)
        if last:
            self._losses[op.microbatch] = outputs[0].detach()
        else:
            self._transfers.know(place, outputs)
            self._transfers.put("F", place + 1, op.microbatch, outputs, self._step)

    def _recompute(self, op: Op) -> None:
        begun = time.monotonic_ns()
        target = self._targets.get(op.microbatch) if self._place(op) == self.plan.parts - 1 else None
        self._trainer.parts[op.chunk].again(self._step, op.microbatch, self._index(op), target)
        self._over(op, begun, self._transfers.waits.wait_ns, self._times.recompute if self._times else None)

    def _backward(self, op: Op) -> None:
        place, part = self._place(op), self._trainer.parts[op.chunk]
        waited = self._transfers.waits.wait_ns
        gradients: Sequence[Tensor | None] = [None]
        if place < self.plan.parts - 1:
            gradients = self._transfers.get("B", place, op.microbatch)
        else:
            self._targets.pop(op.microbatch)
        begun = time.monotonic_ns()
        found = part.backward(op.microbatch, gradients, self.me.joined)
        unit = (op.microbatch, op.chunk)
        self._over(op, begun, waited, self._times.backward if self._times else None)
        if unit not in self._weighed:
            self._trainer.sums.add(op.chunk, op.microbatch, part.weights(op.microbatch))
            if self._times:
                self._pace(time.monotonic_ns(), self._times.weight)
        if self.me.joined and unit in self._weighed:
            self._later[unit] = found
        elif place:
            self._transfers.put("B", place - 1, op.microbatch, found, self._step)

    def _weights(self, op: Op) -> None:
        begun, part = time.monotonic_ns(), self._trainer.parts[op.chunk]
        self._trainer.sums.add(op.chunk, op.microbatch, part.weights(op.microbatch))
        self._over(op, begun, self._transfers.waits.wait_ns, self._times.weight if self._times else None)
        found = self._later.pop((op.microbatch, op.chunk), None)
        if found is not None and self._place(op):
            self._transfers.put("B", self._place(op) - 1, op.microbatch, found, self._step)

    def _over(self, op: Op, begun: int, waited: int, pace: Sequence[int] | None) -> None:
        """An operation is done: on the device, too, and not before its stated time."""
        if self.me.torch_device != "cpu":
            torch.cuda.current_stream(self.me.torch_device).synchronize()
        if pace is not None:
            self._pace(begun, pace)
        if self.plan.trace:
            self._records.write(
                "row", step=self._step, op=op.kind, microbatch=op.microbatch, chunk=op.chunk, start_ns=begun,
                end_ns=time.monotonic_ns(), bytes=0, waited_ns=self._transfers.waits.wait_ns - waited,
            )  # fmt: skip

    def _pace(self, begun: int, pace: Sequence[int]) -> None:
        left = begun + pace[self.me.stage] // self.plan.chunks - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)

    def _sent(self, step: int, kind: str, microbatch: int, part: int, begun: int, size: int) -> None:
        """A send is over; in a thread of the transport."""
        chunk = (part - 1 if kind == "F" else part + 1) // self.plan.stages
        self._records.write(
            "row", step=step, op="send", microbatch=microbatch, chunk=chunk, start_ns=begun,
            end_ns=time.monotonic_ns(), bytes=size, of=kind,
        )  # fmt: skip

    # -- the end of a step ---------------------------------------------------------------------------

    def _update(self, step: int) -> None:
        plan, trainer = self.plan, self._trainer
        count = plan.microbatches[self.me.pipeline]
        if plan.outer is None:
            count = sum(plan.microbatches)
            self._reduce(f"G.{step % 2}")
        trainer.step(count, self._clip if plan.clip_norm is not None else None)
        if trainer.outer is not None and trainer.outer.due(step):
            trainer.outer.moved(trainer.sums.views)
            self._reduce(f"O.{step % 2}")
            trainer.sums.divide(plan.pipelines)
            trainer.outer.step(trainer.sums.views)
            trainer.sums.clear()

    def _reduce(self, tag: str) -> None:
        begun, before = time.monotonic_ns(), self._peers.sent_bytes
        reduce(list(self._trainer.sums.flats.values()), self._peers, tag)
        if self.plan.trace and self.plan.pipelines > 1:
            self._records.write(
                "row", step=self._step, op="allreduce", microbatch=-1, chunk=0, start_ns=begun,
                end_ns=time.monotonic_ns(), bytes=self._peers.sent_bytes - before,
            )  # fmt: skip

    def _clip(self) -> float:
        """The same factor everywhere: squares of all stages, added in the order of the model."""
        trainer, plan = self._trainer, self.plan
        mine = {str(k): squares(trainer.gradients_of(c)) for c, k in enumerate(trainer.places)}
        told = self._mesh.gather(mine)
        found: dict[str, dict[str, float]] = {}
        for device, values in zip(plan.devices, told, strict=True):
            if device.pipeline == self.me.pipeline:
                found |= values
        assert plan.clip_norm is not None
        return clip_factor([found[str(k)] for k in range(plan.parts)], plan.clip_norm)

    def _checkpoint(self, step: int) -> None:
        if self._saver is None or self.plan.checkpoint is None:
            return
        last = step == self.plan.steps
        due = step // self.plan.checkpoint.every > self._saved // self.plan.checkpoint.every
        if self.plan.outer is not None and step % self.plan.outer.every:
            due = False  # pipelines differ between outer steps
        if due or last:
            self._saver.save(step, self._state)
            self._saved = step

    def _stored(self, saved: Saved) -> None:
        """All parts are on storage; in a thread."""
        if self._keeper is not None and self._keeper.notice and self.me is self.plan.devices[0]:
            self._records.write("apart", because=self._keeper.notice)
            self._tell(self._keeper.notice)
            self._keeper.notice = ""
        self._records.write(
            "checkpoint", step=saved.step, path=saved.path, begin_ns=saved.begin_ns, end_ns=saved.end_ns, stall_ns=saved.stall_ns,
        )  # fmt: skip

    def _unsaved(self, step: int, problem: str) -> None:
        """Training is worth more than one checkpoint; in a thread."""
        if step < self.plan.steps:
            self._records.write("unsaved", step=step, because=problem)
            self._tell(f"{problem}; training continues")
