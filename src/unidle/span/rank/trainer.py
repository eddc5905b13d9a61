"""What trains one device's parts of the model, in the order of its caller: the ranks of a plan, or the single process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from unidle.errors import BadInput
from unidle.span.rank import model as models
from unidle.span.rank.backward import Gradients, joined, split
from unidle.span.rank.gradients import Sums
from unidle.span.rank.model import DTYPES, Layer, Values, as_values, parameters_of, part_seed, seed_random
from unidle.span.rank.optimizer import OuterStep, make
from unidle.span.rank.plan import RunPlan

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(slots=True)
class _Kept:
    """Of one microbatch, from its forward to its last backward part."""

    inputs: Values
    outputs: Values = ()
    edges: list[GradientEdge] = field(default_factory=list)
    weights: Callable[[], Gradients] | None = None


class TrainedPart:
    """Some layers in a row. ``target`` is given to :meth:`forward` of the last part, which then gives the loss.

    Random numbers of a layer come from a seed of run, step, microbatch and layer, so that they are the same in every cut and
    when activations are made again.
    """

    def __init__(
        self, layers: Sequence[Layer], seed: int, *, first: bool, loss: Loss | None, device: str = "cpu"
    ) -> None:
        self.layers, self._seed, self.first, self._loss = list(layers), seed, first, loss
        self._device = device
        for layer in layers:
            layer.module.to(device)
        self.parameters: dict[str, nn.Parameter] = dict(parameters_of(layers))
        self._buffers = [b for layer in layers for b in layer.module.buffers()]
        self._kept: dict[int, _Kept] = {}

    def forward(
        self, step: int, microbatch: int, index: int, inputs: Values, target: Tensor | None, keep: bool
    ) -> Values:
        """The part's outputs, or its loss. ``index``: of the microbatch in the whole batch. Without ``keep`` only the inputs stay."""
        kept = self._kept[microbatch] = _Kept(inputs)
        if keep:
            return self._run(kept, step, index, target)
        versions = [value._version for value in inputs]  # noqa: SLF001 - PyTorch documents it
        with torch.no_grad():
            found = self._run(_Kept(inputs), step, index, target)
        if [value._version for value in inputs] != versions:  # noqa: SLF001
            raise BadInput(
                "changes its input in place, which is needed again", field=f"layer {self.layers[0].name}",
                remedy="make it inplace=False, or use a schedule that keeps activations",
            )  # fmt: skip
        return found

    def again(self, step: int, microbatch: int, index: int, target: Tensor | None) -> None:
        """Make the activations of a microbatch again."""
        before = [buffer.clone() for buffer in self._buffers]
        self._run(self._kept[microbatch], step, index, target)
        with torch.no_grad():
            for buffer, value in zip(self._buffers, before, strict=True):
                buffer.copy_(value)

    def _run(self, kept: _Kept, step: int, index: int, target: Tensor | None) -> Values:
        if not self.first and torch.is_grad_enabled():
            for value in kept.inputs:
                if value.is_floating_point():
                    value.requires_grad_()
        values = kept.inputs
        for k, layer in enumerate(self.layers):
            seed_random(part_seed(self._seed, step, index, layer.number), self._device)
            single = len(values) == 1
            values = as_values(
                layer.module(*values) if single or layer.spread else layer.module(values),
                layer.name or str(layer.number),
            )
            if self.first and k == 0 and len(self.layers) > 1:
                kept.edges = [get_gradient_edge(v) for v in values if v.requires_grad]
        if self._loss is not None:
            assert target is not None
            seed_random(part_seed(self._seed, step, index), self._device)
            values = (self._loss(values[0] if len(values) == 1 else values, target),)  # type: ignore[arg-type]
        kept.outputs = values
        return values

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None], whole: bool) -> Values:
        """The gradients of the inputs that are floating point; none in the first part.

        ``gradients``: of the outputs that are floating point. ``whole``: those of the weights at the same time.
        """
        kept = self._kept[microbatch]
        outputs = [v for v in kept.outputs if v.is_floating_point()]
        inputs = [] if self.first else [v for v in kept.inputs if v.is_floating_point()]
        weights = list(self.parameters.values())
        done = None
        if not whole:
            done = split(outputs, gradients, inputs or kept.edges, weights)
        if done is not None:
            found, kept.weights = done
        else:
            found, of_weights = joined(outputs, gradients, inputs, weights)
            kept.weights = lambda: of_weights
        kept.outputs, kept.edges, kept.inputs = (), [], ()
        return tuple(
            torch.zeros_like(v) if g is None else g.detach() for v, g in zip(inputs, found, strict=False)
        )

    def weights(self, microbatch: int) -> Gradients:
        """The gradients of the weights, in the order of ``parameters``; the microbatch is done."""
        make = self._kept.pop(microbatch).weights
        assert make is not None
        return make()


class Batches:
    """The user's data, by step and number of the microbatch."""

    def __init__(self, plan: RunPlan, device: str) -> None:
        self._plan, self._device, self._make = plan, device, models.load(plan.data)

    def __call__(self, step: int, index: int) -> tuple[Values, Tensor]:
        """Inputs in the model's type, and the target. Errors: BadInput."""
        seed = part_seed(self._plan.seed, step, index, -1)
        seed_random(seed)
        found = self._make(step, index, self._plan.microbatch, seed)
        if not (isinstance(found, (tuple, list)) and len(found) == 2):
            raise BadInput(
                "must give (input, target)", field="data", value=type(found).__name__, remedy=f"see {self._plan.data}"
            )  # fmt: skip
        values = models.as_values(found[0], "data")
        dtype = DTYPES[self._plan.model.dtype]
        inputs = tuple(v.to(self._device, dtype if v.is_floating_point() else None) for v in values)
        return inputs, found[1].to(self._device)


def built(plan: RunPlan, device: str = "cpu") -> tuple[list[Layer], str]:
    """The layers of the plan's model, and the digest of it. Errors: BadInput."""
    made = models.build(plan.model.build, plan.model.arguments, plan.model.dtype, plan.seed, device)
    example = None
    if not isinstance(made, (torch.nn.Sequential, torch.nn.ModuleList)):
        example = Batches(plan, "cpu")(1, 0)[0]
    layers = models.layers_of(made, example)
    if not layers:
        raise BadInput("has no layers", field="model.build", value=plan.model.build, remedy="give it some")
    return layers, models.check_digest(plan.model.digest, models.shapes_of(layers))


class Trainer:
    """Parts of the model with their gradients and optimizer. ``groups``: the layers of each part by its number; ``last``: the
    number of the one that has the loss."""

    def __init__(
        self, plan: RunPlan, groups: Mapping[int, Sequence[Layer]], last: int, device: str = "cpu"
    ) -> None:
        self.places = list(groups)
        loss: Callable[[Tensor, Tensor], Tensor] = models.load(plan.loss)
        self.parts = [
            TrainedPart(
                group, plan.seed, first=place == 0, loss=loss if place == last else None, device=device
            )
            for place, group in groups.items()
        ]
        self.parameters = {name: p for part in self.parts for name, p in part.parameters.items()}
        self.optimizer = make(plan.optimizer, plan.optimizer_arguments, self.parameters)
        self.sums = Sums([part.parameters for part in self.parts])
        self.outer = OuterStep(plan.outer, self.parameters) if plan.outer else None

    def step(self, count: int, factor: Callable[[], float] | None) -> None:
        """From sums over ``count`` microbatches to new parameters. ``factor``: what clipping multiplies gradients by."""
        self.sums.divide(count)
        if factor is not None and (by := factor()) < 1.0:
            for flat in self.sums.flats.values():
                flat.mul_(by)
        if self.optimizer is not None:
            for name, parameter in self.parameters.items():
                parameter.grad = self.sums.views[name]
            self.optimizer.step()
        self.sums.clear()

    def gradients_of(self, part: int) -> Mapping[str, Tensor]:
        """Of one part, by name."""
        return {name: self.sums.views[name] for name in self.parts[part].parameters}


def mean_loss(losses: Mapping[int, Any]) -> float:
    """Mean over microbatches, added in their order."""
    total = 0.0
    for microbatch in sorted(losses):
        total += float(losses[microbatch])
    return total / len(losses)
