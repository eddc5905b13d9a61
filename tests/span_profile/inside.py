"""What the process that measures finds in models whose figures are known by hand: facts as JSON, for the tests beside it.

One process for all of them, since importing PyTorch takes longest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unidle.span.measure.cut import Tape, chain_of
from unidle.span.measure.load import ProfileJob, ProfileRefused, ProfileRequest, load
from unidle.span.measure.profiler import LayerProfiler
from unidle.span.measure.split_layer import graph_of, input_gradient, weight_gradients

HERE = Path(__file__).parent
ROWS, NARROW, WIDE = 6, 16, 48


class Block(nn.Module):
    """Linear and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(NARROW, WIDE), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.act(self.linear(x))
        return made


class Skips(nn.Module):
    """The last layer takes what entered the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        one = self.layers[0](x)
        return self.layers[2](self.layers[1](one)) + one


class Twice(nn.Module):
    """A layer runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.layers[0](self.layers[0](x)))  # type: ignore[no-any-return]


class Pairs(nn.Module):
    """A layer gives two tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Again(nn.Module):
    """One weight used twice in a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear(self.linear(x))
        return made


class Spared(nn.Module):
    """Makes its activations again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = checkpoint(lambda y: self.linear(torch.tanh(y)), x, use_reentrant=False)
        return made


class Opaque(nn.Module):
    """No list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.one(x)
        return made


def measured(model: nn.Module, given: Tensor, optimizer: str = "none", repeats: int = 3) -> dict[str, Any]:
    job = ProfileJob(model, given, None, torch.device("cpu"))
    profile = LayerProfiler(ProfileRequest("here.py:build", repeats=repeats, optimizer=optimizer), job)
    profile.warm_up()
    return profile.run()


def refused(model: nn.Module) -> dict[str, Any]:
    try:
        measured(model, torch.randn(2, 4))
    except ProfileRefused as error:
        return error.told
    return {}


def split_is_equal() -> dict[str, bool]:
    """The two halves of the backward pass against the whole, to the bit."""
    torch.manual_seed(0)
    found: dict[str, bool] = {}
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    convolution = nn.Sequential(nn.Conv1d(5, 5, 3), nn.BatchNorm1d(5), nn.ReLU()).double()
    for name, module in (("attention", layer), ("convolution", convolution)):
        x = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
        end = module(x)
        flowing = torch.randn_like(end)
        graph = graph_of(end, x)
        given = input_gradient(end, x, graph.forks or [], flowing)
        weights = {id(w): g for w, g in weight_gradients(graph.forks or [])}
        whole = torch.autograd.grad(end, [x, *module.parameters()], flowing)
        pairs = zip(module.parameters(), whole[1:], strict=True)
        found[name] = given is not None and torch.equal(given, whole[0])
        found[name] &= all(torch.equal(weights[id(p)], g) for p, g in pairs)
    return found


def cut_is_equal() -> bool:
    """A cut model gives what the model gives."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    given = torch.randn(3, 4, dtype=torch.float64)
    tape = Tape(lambda: 0)
    tape.run(model, chain_of(model), given, None)
    return torch.equal(tape.ends[-1], model(given)) and not model[0]._forward_pre_hooks


def load_of(file: str, **more: Any) -> dict[str, Any]:
    try:
        load(ProfileRequest(**{"build": f"{HERE}/models.py:{file}", **more}))
    except ProfileRefused as error:
        return error.told
    return {}


def main() -> None:
    torch.manual_seed(0)
    small, large = nn.Linear(8, 8), nn.Linear(1024, 1024)
    given = torch.randn(ROWS, NARROW)
    facts = {
        "block": measured(nn.Sequential(Block(), nn.Linear(WIDE, 3)), given, "adamw"),
        "single": measured(nn.Sequential(nn.Linear(NARROW, WIDE), nn.GELU(), nn.Linear(WIDE, 3)), given, "sgd"),
        "relu": measured(nn.Sequential(nn.Linear(NARROW, WIDE), nn.ReLU(), nn.Linear(WIDE, 3)), given),
        "sizes": measured(
            nn.Sequential(nn.Linear(1024, 8), small, nn.Linear(8, 1024), large), torch.randn(256, 1024), repeats=9
        ),
        "frozen": measured(nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)), torch.randn(2, 4)),
        "again": measured(nn.Sequential(nn.Linear(4, 4), Again()), torch.randn(2, 4)),
        "spared": measured(nn.Sequential(nn.Linear(4, 4), Spared()), torch.randn(2, 4)),
        "split": split_is_equal(),
        "cut": cut_is_equal(),
        "refused": {
            "opaque": refused(Opaque()), "skips": refused(Skips()), "twice": refused(Twice()),
            "pairs": refused(nn.Sequential(Pairs(), nn.Linear(4, 4))),
            "in place": refused(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))),
        },
        "load": {
            "number": load_of("number"), "raises": load_of("raises"), "nowhere": load_of("nowhere"),
            "no batch": load_of("build", data=f"{HERE}/models.py:no_batch"),
            "arguments": load_of("build", arguments={"depth": 3}), "list": load_of("layers"),
            "device": load_of("build", device="tpu"), "cuda": load_of("build", device="cuda:77"),
        },
    }  # fmt: skip
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
