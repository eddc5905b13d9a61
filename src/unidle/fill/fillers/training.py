"""A population of small trainings: a piece is the forward and backward pass of one microbatch, or one step of an optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unidle.fill.fillers.lengths import Lengths
from unidle.fill.fillers.load import of_function
from unidle.fill.fillers.results import Results
from unidle.fill.fillers.share import share
from unidle.fill.sliced import FillPiece, Room


class SmallTraining:
    """``trials``: of each its arguments of ``build`` and, as ``lr`` and ``seed``, of its training (SGD). They are trained one after another.

    ``data`` (step, index, size, seed) and ``loss`` (output, target) are as in a span file. ``out``: a line of JSON for each trial, with its last loss. A
    trial that was begun and not ended is trained again; the same trial has the same result wherever it runs.
    """

    def __init__(
        self,
        build: str,
        data: str,
        loss: str,
        out: str,
        trials: list[dict[str, Any]],
        *,
        steps: int = 100,
        microbatches: int = 1,
        size: int = 8,
    ) -> None:
        torch.set_num_threads(1)
        self._build, self._data, self._loss = of_function(build), of_function(data), of_function(loss)
        self._trials, self._steps, self._microbatches, self._size = trials, steps, microbatches, size
        self._out, self._lengths = Results(out, "trial"), Lengths()
        index, parts = share()
        self._left = [number for number in range(index, len(trials), parts) if number not in self._out.done][
            ::-1
        ]
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._step = self._microbatch = self._spent_ns = 0
        self._last = 0.0

    @property
    def finished(self) -> bool:
        return not self._left

    def next_piece(self, _room: Room) -> FillPiece | None:
        if not self._left:
            return None
        last = self._step == self._steps - 1 and self._kind() == "step_of"
        return FillPiece(self._lengths.of(self._kind()), 0, int(last))

    def run(self) -> None:
        kind = self._kind()
        self._spent_ns += self._lengths.timed(kind, getattr(self, f"_{kind}"))

    def give_up(self) -> int:
        lost = self._spent_ns
        self._model, self._optimizer = None, None
        self._step = self._microbatch = self._spent_ns = 0
        return lost

    def _kind(self) -> str:
        if self._model is None:
            return "begin"
        return "step_of" if self._microbatch == self._microbatches else "pass_of"

    def _begin(self) -> None:
        trial = dict(self._trials[self._left[-1]])
        torch.manual_seed(trial.pop("seed", 0))
        rate = trial.pop("lr", 0.01)
        made = self._build(**trial)
        self._model = made if isinstance(made, nn.Module) else nn.Sequential(*made)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=rate)

    def _pass_of(self) -> None:
        assert self._model is not None
        index = self._step * self._microbatches + self._microbatch
        x, target = self._data(self._step + 1, self._microbatch, self._size, index)
        found: Tensor = self._loss(self._model(x), target)
        (found / self._microbatches).backward()  # type: ignore[no-untyped-call]
        self._last = float(found.detach())
        self._microbatch += 1

    def _step_of(self) -> None:
        assert self._optimizer is not None
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._microbatch, self._step = 0, self._step + 1
        if self._step < self._steps:
            return
        number = self._left.pop()
        self._out.add({"trial": number, "loss": self._last})
        self.give_up()
