"""A small model and its training steps, for `_tune_pairs.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Form = Callable[[], object]
Pair = tuple[Form, Form]

torch.set_num_threads(1)


def small_model(width: int = 64, layers: int = 4) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))


def stepped(
    after: Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor], object],
    steps: int = 20,
    model: nn.Module | None = None,
) -> Form:
    """A run of training steps with something at the end of each."""
    model = model or small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(64, next(model.parameters()).size(1))

    def run() -> None:
        for _ in range(steps):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            after(model, optimizer, loss)
            optimizer.step()

    return run


def nothing(_model: object, _optimizer: object, _loss: object) -> None:
    """The step alone."""
