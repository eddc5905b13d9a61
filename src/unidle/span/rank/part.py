"""One part of the model on its device: forward, forward again, backward and weights of each microbatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from unidle.errors import BadInput
from unidle.span.rank.backward import Gradients, joined, split
from unidle.span.rank.model import Layer, Values, as_values, parameters_of, part_seed, seed_random

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(slots=True)
class _Kept:
    """Of one microbatch, from its forward to its last backward part."""

    inputs: Values
    outputs: Values = ()
    edges: list[GradientEdge] = field(default_factory=list)
    weights: Callable[[], Gradients] | None = None


class Part:
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
