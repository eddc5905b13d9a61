"""The step of a stage's optimizer, the norm over all stages, and outer steps between pipelines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unidle.errors import BadInput
from unidle.span.rank.model import load
from unidle.span.rank.plan import Outer

_KNOWN = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def make(
    name: str, arguments: Mapping[str, Any], parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer | None:
    """The optimizer of some parameters; None without parameters. Errors: BadInput."""
    if not parameters:
        return None
    function = _KNOWN.get(name) or load(name)
    try:
        found = function(list(parameters.values()), **arguments)
    except Exception as error:
        raise BadInput(
            f"fails: {type(error).__name__}: {error}", field="optimizer", value=name,
            remedy="sgd, adamw, or /path.py:function of parameters and arguments",
        ) from None  # fmt: skip
    if not isinstance(found, torch.optim.Optimizer):
        raise BadInput(
            "gives no torch.optim.Optimizer", field="optimizer", value=type(found).__name__, remedy="return one"
        )  # fmt: skip
    return found


def squares(gradients: Mapping[str, Tensor]) -> dict[str, float]:
    """The square of the norm of each gradient, in double precision."""
    return {name: float(g.double().square().sum()) for name, g in gradients.items()}


def clip_factor(parts: list[dict[str, float]], most: float) -> float:
    """What gradients are multiplied by. ``parts``: squares of each part in the order of the model, which is the order of the sum."""
    total = 0.0
    for part in parts:
        for value in part.values():
            total += value
    return min(1.0, most / (math.sqrt(total) + 1e-6))


class OuterStep:
    """The outer step of pipelines that train independently: Nesterov's step on the mean of their changes (as in
    DiLoCo, arXiv 2311.08105).
    """

    def __init__(self, outer: Outer, parameters: Mapping[str, nn.Parameter]) -> None:
        self._outer, self._parameters = outer, parameters
        self.start = {name: p.detach().clone() for name, p in parameters.items()}
        self.momentum = {name: torch.zeros_like(p) for name, p in self.start.items()}

    def due(self, step: int) -> bool:
        return step % self._outer.every == 0

    def moved(self, into: Mapping[str, Tensor]) -> None:
        """Write into ``into`` how far this pipeline's parameters went from where they began (begin less now)."""
        for name, p in self._parameters.items():
            torch.sub(self.start[name], p.detach(), out=into[name])

    @torch.no_grad()
    def step(self, mean: Mapping[str, Tensor]) -> None:
        """Apply the mean of ``moved`` over the pipelines."""
        for name, p in self._parameters.items():
            self.momentum[name].mul_(self._outer.momentum).add_(mean[name])
            direction = mean[name].add(self.momentum[name], alpha=self._outer.momentum)
            p.copy_(self.start[name].sub_(direction, alpha=self._outer.lr))
