"""The peer of a comparison: the same model under 1F1B with plain gloo send and receive. ``python -m unidle.span.rank.gloo_peer``.

What helps it is done for it: receives are posted ahead of the computation, sends do not block, gradients of weights are
computed with those of inputs. One process for each device of a run's plan; needs PyTorch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unidle.span.rank.model import DTYPES, load
from unidle.span.rank.optimizer import make
from unidle.span.rank.plan import RunPlan
from unidle.span.rank.read_plan import read_plan
from unidle.span.rank.trainer import Batches, built


class GlooPeer:
    """One stage of one pipeline."""

    def __init__(self, plan: RunPlan, device: str) -> None:
        self.plan = plan
        me = plan.named(device)
        self.stage, self.pipeline, self.stages = me.stage, me.pipeline, plan.stages
        self.count = plan.microbatches[self.pipeline]
        layers, _ = built(plan)
        self.part = nn.Sequential(
            *(layer.module for layer in layers[slice(*plan.cuts(len(layers))[self.stage])])
        )
        self.optimizer = make(plan.optimizer, plan.optimizer_arguments, dict(self.part.named_parameters()))
        self.data, self.loss = Batches(plan, "cpu"), load(plan.loss)
        self.shape: tuple[int, ...] = ()
        self.next_shape: tuple[int, ...] = ()
        self.dtype = DTYPES[plan.model.dtype]
        self.rank = dist.get_rank()
        self.first, self.last = self.stage == 0, self.stage == self.stages - 1
        self.held: list[Any] = []
        self.arrived: list[Any] = []
        self.returned: list[Any] = []
        self.outputs: dict[int, Tensor] = {}
        self.ring: Any = None

    def learn_shape(self) -> None:
        """Learn the shape of what crosses each cut, by one forward pass: each stage sends the shape of its result to the next."""
        size = torch.zeros(8, dtype=torch.int64)
        if self.first:
            (x,), _ = self.data(1, 0)
        else:
            dist.recv(size, self.rank - 1)
            self.shape = tuple(int(n) for n in size[1 : 1 + int(size[0])])
            x = torch.zeros(self.shape, dtype=self.dtype)
        with torch.no_grad():
            y = self.part(x)
        if not self.last:
            self.next_shape = tuple(y.shape)
            size[0] = len(y.shape)
            size[1 : 1 + len(y.shape)] = torch.tensor(y.shape)
            dist.send(size, self.rank + 1)

    def step(self, number: int) -> float | None:
        """One step under 1F1B; the mean loss of this pipeline on its last stage."""
        m, ahead = self.count, min(self.stages - 1 - self.stage, self.count)
        inputs = [torch.empty(self.shape, dtype=self.dtype) for _ in range(0 if self.first else m)]
        grads = [torch.empty(self.next_shape, dtype=self.dtype) for _ in range(0 if self.last else m)]
        self.arrived = [dist.irecv(x, self.rank - 1, tag=2 * k) for k, x in enumerate(inputs)]
        self.returned = [dist.irecv(g, self.rank + 1, tag=2 * k + 1) for k, g in enumerate(grads)]
        self.inputs, self.grads = inputs, grads
        self.total = 0.0
        order = [("F", k) for k in range(ahead)]
        for k in range(m):
            order += ([("F", k + ahead)] if k + ahead < m else []) + [("B", k)]
        for op, k in order:
            self.forward(number, k) if op == "F" else self.backward(k)
        if self.plan.pipelines > 1:
            for parameter in self.part.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self.ring)
        for sent in self.held:
            sent[0].wait()
        self.held = []
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.total / m if self.last else None

    def forward(self, step: int, k: int) -> None:
        x, target = torch.empty(0), torch.empty(0)
        if self.first or self.last:
            (x, *_), target = self.data(step, self.plan.first_index(self.pipeline) + k)
        if not self.first:
            self.arrived[k].wait()
            x = self.inputs[k].requires_grad_()
        begun = time.monotonic_ns()
        y = self.part(x)
        if self.last:
            found = self.loss(y, target)
            self.total += found.item()
            y = found / sum(self.plan.microbatches)
        self.paced(begun, "forward")
        self.outputs[k] = y
        if not self.last:
            self.send(y.detach(), self.rank + 1, 2 * k)

    def backward(self, k: int) -> None:
        y: Tensor = self.outputs.pop(k)
        if not self.last:
            self.returned[k].wait()
        begun = time.monotonic_ns()
        y.backward(None if self.last else self.grads[k])  # type: ignore[no-untyped-call]
        self.paced(begun, "backward", "weight")
        if not self.first:
            grad = self.inputs[k].grad
            assert grad is not None
            self.send(grad, self.rank - 1, 2 * k + 1)

    def send(self, value: Tensor, to: int, tag: int) -> None:
        value = value.contiguous()
        self.held.append((dist.isend(value, to, tag=tag), value))

    def paced(self, begun: int, *names: str) -> None:
        if self.plan.pace is None:
            return
        times = self.plan.pace.of(self.pipeline)
        left = begun + sum(getattr(times, name)[self.stage] for name in names) - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)


def main(path: str, device: str, out: str) -> None:
    plan = read_plan(path)
    devices = [each.name for each in plan.devices]
    host, port = plan.devices[0].address
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{host}:{port + 7}", rank=devices.index(device), world_size=len(devices)
    )
    peer = GlooPeer(plan, device)
    for stage in range(peer.stages):
        ranks = [k for k, each in enumerate(plan.devices) if each.stage == stage]
        ring = dist.new_group(ranks)
        if stage == peer.stage:
            peer.ring = ring
    peer.learn_shape()
    dist.barrier()
    ends, losses = [time.monotonic_ns()], []
    for number in range(1, plan.steps + 1):
        losses.append(peer.step(number))
        ends.append(time.monotonic_ns())
    told = {"ends": ends, "losses": losses}
    Path(out, f"{device.replace('/', '-')}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(*sys.argv[1:4])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # unloading PyTorch takes half a second of CPU for nothing
