"""Pairs of `_tune_pairs.py` that are about graphs, kernels, optimizers and generation."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from _tune_steps import Form, Pair, nothing, small_model, stepped


def graph() -> Pair:
    model, x = small_model(256, 8), torch.randn(256, 256)

    def slow() -> float:
        total: Any = 0.0
        for _ in range(40):
            total = total + model(x).square().mean()
        return float(total.detach())

    def fast() -> float:
        total: Any = 0.0
        for _ in range(40):
            total = total + model(x).square().mean().detach()
        return float(total)

    return slow, fast


def without_graph() -> Pair:
    model, x = small_model(64, 8), torch.randn(64, 64)

    def fast() -> None:
        with torch.inference_mode():
            for _ in range(50):
                model(x)

    return (lambda: [model(x) for _ in range(50)]), fast


def anomaly() -> Pair:
    run = stepped(nothing)

    def slow() -> None:
        with contextlib.suppress(RuntimeError), torch.autograd.detect_anomaly(check_nan=True):
            run()

    return slow, run


def grown() -> Pair:
    parts = [torch.zeros(100, 8) for _ in range(400)]

    def slow() -> torch.Tensor:
        found = torch.empty(0, 8)
        for part in parts:
            found = torch.cat([found, part])  # noqa: UDL304
        return found

    return slow, (lambda: torch.cat(list(parts)))


def array_grown() -> Pair:
    parts = [np.zeros(800) for _ in range(400)]

    def slow() -> Any:
        found = np.empty(0)
        for part in parts:
            found = np.append(found, part)  # noqa: UDL305
        return found

    return slow, (lambda: np.concatenate(parts))


def precision() -> Pair:
    def run(kind: torch.dtype) -> Form:
        model = small_model(256, 4).to(kind)
        x = torch.randn(256, 256, dtype=kind)
        return lambda: model(x).square().mean().backward()

    return run(torch.float64), run(torch.float32)


def per_sample() -> Pair:
    model, x = small_model(64, 4), torch.randn(64, 64)
    return (
        lambda: torch.stack([model(x[i : i + 1]).square().mean() for i in range(64)]).mean().backward()  # type: ignore[no-untyped-call]
    ), (lambda: model(x).square().mean().backward())


def cells() -> Pair:
    cell, whole, x = nn.LSTMCell(32, 64), nn.LSTM(32, 64, batch_first=True), torch.randn(16, 100, 32)

    def slow() -> None:
        h = c = torch.zeros(16, 64)
        for t in range(100):
            h, c = cell(x[:, t], (h, c))
        h.sum().backward()  # type: ignore[no-untyped-call]

    return slow, (lambda: whole(x)[0][:, -1].sum().backward())


def attention() -> Pair:
    q, k, v = (torch.randn(4, 4, 512, 32) for _ in range(3))

    @torch.no_grad()
    def slow() -> torch.Tensor:
        return functional.softmax(q @ k.transpose(-2, -1) / 32**0.5, dim=-1) @ v

    @torch.no_grad()
    def fast() -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    return slow, fast


def constants() -> Pair:
    n, scores = 512, torch.randn(1, 512, 512)
    mask = torch.tril(torch.ones(n, n)) == 0
    return (lambda: [scores.masked_fill(torch.tril(torch.ones(n, n)) == 0, -1e9) for _ in range(20)]), (
        lambda: [scores.masked_fill(mask, -1e9) for _ in range(20)]
    )


def rows() -> Pair:
    x, w = torch.randn(256, 64), torch.randn(256, 1)

    def slow() -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.size(0)):
            out[i] = x[i] * w[i]
        return out

    return slow, (lambda: x * w)


def one_hot() -> Pair:
    words, table = torch.randint(5000, (256,)), torch.randn(5000, 64)
    return (lambda: functional.one_hot(words, 5000).float() @ table), (lambda: table[words])


def log_softmax() -> Pair:
    x = torch.randn(512, 1000)
    return (lambda: torch.log(torch.softmax(x, -1))), (lambda: torch.log_softmax(x, -1))  # noqa: UDL407


def batches() -> Pair:
    model, data = small_model(64, 4), TensorDataset(torch.randn(256, 64))

    def run(size: int) -> Form:
        return lambda: [model(x).square().mean().backward() for (x,) in DataLoader(data, batch_size=size)]

    return run(1), run(32)


def heads() -> Pair:
    one, many, x = nn.Linear(64, 8 * 64), [nn.Linear(64, 64) for _ in range(8)], torch.randn(16, 64)
    return (lambda: torch.cat([head(x) for head in many], -1).sum().backward()), (  # type: ignore[no-untyped-call]
        lambda: one(x).sum().backward()
    )


def fused() -> Pair:
    def run(on: bool) -> Form:
        model = nn.Embedding(20_000, 64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=on)
        model.weight.grad = torch.randn_like(model.weight)
        return optimizer.step

    return run(False), run(True)


def new_optimizer() -> Pair:
    def make(model: nn.Module, *_: object) -> None:
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    return stepped(make), stepped(nothing)


def averages() -> Pair:
    model = small_model(16, 60)
    average = copy.deepcopy(model)

    @torch.no_grad()
    def slow() -> None:
        for a, p in zip(average.parameters(), model.parameters(), strict=True):
            a.mul_(0.999).add_(p, alpha=0.001)

    @torch.no_grad()
    def fast() -> None:
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)

    return slow, fast


def many_gradients() -> nn.Module:
    model = small_model(16, 60)
    model(torch.randn(4, 16)).sum().backward()
    return model


def clipped() -> Pair:
    model = many_gradients()
    return (lambda: [nn.utils.clip_grad_norm_(p, 1e9) for p in model.parameters()]), (
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    )


def norms() -> Pair:
    model = many_gradients()
    return (lambda: torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()), (
        lambda: nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    )


def zeroed() -> Pair:
    def run(drop: bool) -> Form:
        model = small_model(256, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(8, 256)
        model(x).sum().backward()

        def inner() -> None:
            for _ in range(10):
                if drop:
                    optimizer.zero_grad()
                else:
                    for p in model.parameters():
                        if p.grad is not None:
                            p.grad.zero_()
                model(x).sum().backward()

        return inner

    return run(False), run(True)


def profiled() -> Pair:
    run = stepped(nothing)

    def slow() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True):
            run()

    return slow, run


class Cached(nn.Module):
    """One layer of attention over tokens, with or without a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
        self.mlp = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))

    def forward(self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None = None) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=past is None))
        return x + self.mlp(x), (k, v)


def cache() -> Pair:
    layer = Cached()

    @torch.no_grad()
    def slow() -> None:
        x = torch.zeros(1, 16, 128)
        for _ in range(100):
            y, _ = layer(x)
            x = torch.cat([x, y[:, -1:]], 1)

    @torch.no_grad()
    def fast() -> None:
        new, past = torch.zeros(1, 16, 128), None
        for _ in range(100):
            y, past = layer(new, past)
            new = y[:, -1:]

    return slow, fast


def prefill() -> Pair:
    layer, x = Cached(), torch.zeros(1, 128, 128)

    @torch.no_grad()
    def slow() -> None:
        past = None
        for at in range(x.size(1)):
            _, past = layer(x[:, at : at + 1], past)  # noqa: UDL710

    @torch.no_grad()
    def fast() -> None:
        layer(x)

    return slow, fast


def open_sequences() -> Pair:
    layer, count = Cached(), 16
    _, past = layer(torch.zeros(count, 64, 128))
    each = [(past[0][k : k + 1], past[1][k : k + 1]) for k in range(count)]
    new = torch.zeros(count, 1, 128)

    @torch.no_grad()
    def slow() -> None:
        for _ in range(8):
            for k in range(count):
                layer(new[k : k + 1], each[k])

    @torch.no_grad()
    def fast() -> None:
        for _ in range(8):
            layer(new, past)

    return slow, fast


def prompts() -> Pair:
    model = small_model(256, 4)
    x = torch.randn(16, 256)

    @torch.no_grad()
    def slow() -> None:
        for one in x:
            for _ in range(20):
                model(one[None])

    @torch.no_grad()
    def fast() -> None:
        for _ in range(20):
            model(x)

    return slow, fast


def moved() -> Pair:
    return stepped(lambda m, _o, _l: m.to("cpu"), model=small_model(16, 30)), stepped(
        nothing, model=small_model(16, 30)
    )
