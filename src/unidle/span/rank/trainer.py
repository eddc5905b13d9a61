"""What trains one device's parts, in the order of its caller: the ranks of a plan, or the single process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unidle.errors import BadInput
from unidle.span.rank import model as models
from unidle.span.rank.gradients import Sums
from unidle.span.rank.model import DTYPES, Layer, Values, part_seed, seed_random
from unidle.span.rank.optimizer import OuterStep, make
from unidle.span.rank.part import Part
from unidle.span.rank.plan import Plan


class Batches:
    """The user's data, by step and number of the microbatch."""

    def __init__(self, plan: Plan, device: str) -> None:
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


def built(plan: Plan, device: str = "cpu") -> tuple[list[Layer], str]:
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
        self, plan: Plan, groups: Mapping[int, Sequence[Layer]], last: int, device: str = "cpu"
    ) -> None:
        self.places = list(groups)
        loss: Callable[[Tensor, Tensor], Tensor] = models.load(plan.loss)
        self.parts = [
            Part(group, plan.seed, first=place == 0, loss=loss if place == last else None, device=device)
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
