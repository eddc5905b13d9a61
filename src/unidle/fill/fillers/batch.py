"""Batch inference and evaluation: a piece is one layer of a model over one item."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unidle.errors import BadInput
from unidle.fill.fillers.lengths import Lengths
from unidle.fill.fillers.load import of_function
from unidle.fill.fillers.results import Results
from unidle.fill.fillers.share import share
from unidle.fill.sliced import FillPiece, Room


class BatchInference:
    """``build`` makes the model (an ``nn.Sequential``, or a list of modules), ``data`` item number n: an input, or an input and its target.

    ``weights``: a file of ``torch.save`` with the model's state. With ``loss`` (output, target) the item's loss is kept, which is an evaluation; else the
    greatest output of the last row, as a class or token. ``out``: a line of JSON for each of ``count`` items; those that it has already are left out. All
    names of functions are FILE.py:NAME or module:NAME.
    """

    def __init__(
        self,
        build: str,
        data: str,
        out: str,
        count: int,
        *,
        loss: str | None = None,
        weights: str | None = None,
        arguments: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        model = of_function(build)(**(arguments or {}))
        layers = list(model.children()) if isinstance(model, nn.Sequential) else model
        if not isinstance(layers, list) or not all(isinstance(layer, nn.Module) for layer in layers):
            raise BadInput(
                "gives no list of layers",
                field="arguments.build",
                value=build,
                remedy="return an nn.Sequential",
            )
        self._model = nn.Sequential(*layers).eval()
        if weights is not None:
            self._model.load_state_dict(torch.load(weights, weights_only=True))
        self._item, self._loss = of_function(data), of_function(loss) if loss else None
        self._out, self._lengths = Results(out, "item"), Lengths()
        index, parts = share()
        self._left = [number for number in range(index, count, parts) if number not in self._out.done][::-1]
        self._x: Tensor | None = None
        self._target: Tensor | None = None
        self._layer = self._spent_ns = 0

    @property
    def finished(self) -> bool:
        return not self._left

    def next_piece(self, _room: Room) -> FillPiece | None:
        if not self._left:
            return None
        return FillPiece(self._lengths.of(self._layer), 0, int(self._layer == len(self._model) - 1))

    def run(self) -> None:
        self._spent_ns += self._lengths.timed(self._layer, self._run)

    def give_up(self) -> int:
        lost = self._spent_ns
        self._x, self._layer, self._spent_ns = None, 0, 0
        return lost

    def _run(self) -> None:
        with torch.no_grad():
            if self._x is None:
                found = self._item(self._left[-1])
                self._x, self._target = found if isinstance(found, tuple) else (found, None)
            self._x = self._model[self._layer](self._x)
            self._layer += 1
            if self._layer < len(self._model):
                return
            number = self._left.pop()
            if self._loss is not None:
                answer = {"item": number, "loss": float(self._loss(self._x, self._target))}
            else:
                answer = {"item": number, "output": int(self._x.reshape(-1, self._x.shape[-1])[-1].argmax())}
        self._out.add(answer)
        self._x, self._layer, self._spent_ns = None, 0, 0
