"""Slow and fast forms of what the rules of `unidle tune` find, small enough for two CPU cores."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

Form = Callable[[], object]
Pair = tuple[Form, Form]

torch.set_num_threads(1)


def torch_version() -> str:
    """Such as 2.13.0."""
    return str(torch.__version__).partition("+")[0]


class Slept(Dataset[Any]):
    """Samples that take 2 ms of waiting each, as from a disk or a network."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, k: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.zeros(16)


def workers() -> Pair:
    warnings.filterwarnings("ignore", message="This DataLoader will create")

    def run(count: int) -> Form:
        return lambda: sum(
            len(x) for x in DataLoader(Slept(), batch_size=32, shuffle=True, num_workers=count)
        )

    return run(0), run(4)


def persistent() -> Pair:
    data = TensorDataset(torch.zeros(512, 8))

    def run(keep: bool) -> Form:
        loader = DataLoader(data, batch_size=64, num_workers=2, persistent_workers=keep)
        return lambda: [sum(len(x) for (x,) in loader) for _ in range(4)]

    return run(False), run(True)


def whole_file() -> Pair:
    folder = Path(tempfile.mkdtemp(prefix="unidle-bench-"))
    np.savetxt(folder / "t.csv", np.arange(2000.0).reshape(-1, 4))
    path = folder / "t.csv"
    table = np.loadtxt(path)
    return (lambda: [np.loadtxt(path)[k] for k in range(20)]), (lambda: [table[k] for k in range(20)])


def arrays() -> Pair:
    rows = [np.random.default_rng(0).standard_normal(1000) for _ in range(64)]

    def slow() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.tensor(rows)  # noqa: UDL103

    return slow, (lambda: torch.from_numpy(np.stack(rows)))


def copies() -> Pair:
    wave = np.zeros(100_000)
    return (lambda: [torch.tensor(wave) for _ in range(100)]), (
        lambda: [torch.from_numpy(wave) for _ in range(100)]
    )


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


def each_step(action: Callable[[nn.Module], object], every: int = 20, layers: int = 4) -> Pair:
    """Something in each step, and in one step of ``every``."""
    count = [0]

    def seldom(model: nn.Module, _optimizer: object, _loss: object) -> None:
        count[0] += 1
        if count[0] % every == 0:
            action(model)

    return stepped(lambda m, _o, _l: action(m), model=small_model(layers=layers)), stepped(
        seldom, model=small_model(layers=layers)
    )


def printed() -> Pair:
    sink = Path(os.devnull).open("w", buffering=1)  # noqa: SIM115
    count = [0]

    def always(_m: object, _o: object, loss: torch.Tensor) -> None:
        print(f"loss {loss.item():.4f}", file=sink, flush=True)

    def seldom(m: object, o: object, loss: torch.Tensor) -> None:
        count[0] += 1
        if count[0] % 100 == 0:
            always(m, o, loss)

    return stepped(always), stepped(seldom)


def saved() -> Pair:
    folder = Path(tempfile.mkdtemp(prefix="unidle-bench-"))
    return each_step(lambda model: torch.save(model.state_dict(), folder / "a.pt"))


def iterators() -> Pair:
    loader = DataLoader(TensorDataset(torch.zeros(50_000, 8)), batch_size=32, shuffle=True)

    def fast() -> None:
        batches = iter(loader)
        for _ in range(20):
            next(batches)

    return (lambda: [next(iter(loader)) for _ in range(20)]), fast  # noqa: UDL110


def padding() -> Pair:
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
    chance = np.random.default_rng(0)
    longest = [int(chance.integers(20, 60, 16).max()) for _ in range(4)]

    def run(length: int | None) -> Form:
        @torch.no_grad()
        def inner() -> None:
            for most in longest:
                layer(torch.zeros(16, length or most, 64))

        return inner

    return run(128), run(None)


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
        lambda: torch.stack([model(x[i : i + 1]).square().mean() for i in range(64)]).mean().backward()
    ), (lambda: model(x).square().mean().backward())


def cells() -> Pair:
    cell, whole, x = nn.LSTMCell(32, 64), nn.LSTM(32, 64, batch_first=True), torch.randn(16, 100, 32)

    def slow() -> None:
        h = c = torch.zeros(16, 64)
        for t in range(100):
            h, c = cell(x[:, t], (h, c))
        h.sum().backward()

    return slow, (lambda: whole(x)[0][:, -1].sum().backward())


def attention() -> Pair:
    q, k, v = (torch.randn(4, 4, 512, 32) for _ in range(3))

    @torch.no_grad()
    def slow() -> torch.Tensor:
        return F.softmax(q @ k.transpose(-2, -1) / 32**0.5, dim=-1) @ v

    @torch.no_grad()
    def fast() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

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
    return (lambda: F.one_hot(words, 5000).float() @ table), (lambda: table[words])


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
    return (lambda: torch.cat([head(x) for head in many], -1).sum().backward()), (
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
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)  # type: ignore[call-overload]  # noqa: SLF001

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
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=past is None))
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


PAIRS: tuple[tuple[str, str, Callable[[], Pair]], ...] = (
    ("UDL101", "256 samples of 2 ms of waiting, without workers and with four", workers),
    ("UDL102", "a table of 500 rows read for each of 20 samples, and once", whole_file),
    ("UDL103", "64 arrays of 1,000 numbers", arrays),
    ("UDL104", "arrays of 100,000 numbers; the ratio is that of the conversion alone", copies),
    ("UDL107", "four epochs of eight batches with two workers", persistent),
    ("UDL109", "a transformer layer on texts of 20 to 60 tokens, padded to 128 and to the longest of each batch", padding),
    ("UDL110", "20 batches of a shuffled dataset of 50,000 samples in memory", iterators),
    ("UDL203", "steps of 0.5 ms whose loss is printed to a file, each and every 100th", printed),
    ("UDL206", "a collection in each step of a small model, and in every 20th", lambda: each_step(lambda _: gc.collect())),
    ("UDL207", "a model of 16,000 parameters saved in each step, and in every 20th", saved),
    ("UDL211", "60 small parameters on the CPU, where nothing has to be moved", moved),
    ("UDL301", "40 steps of a model with 8 layers; the memory is the larger cost", graph),
    ("UDL302", "a model of 8 small layers", without_graph),
    ("UDL303", "steps of a small model", anomaly),
    ("UDL304", "400 rounds of 800 numbers", grown),
    ("UDL305", "400 rounds of 800 numbers", array_grown),
    ("UDL306", "forward and backward of 4 layers on the CPU", precision),
    ("UDL307", "the state of a model of 16,000 parameters copied in each step, and in every 20th", lambda: each_step(lambda m: copy.deepcopy(m.state_dict()))),
    ("UDL309", "8 layers of 256 by 256, on the CPU", zeroed),
    ("UDL401", "64 samples through 4 small layers, with backward", per_sample),
    ("UDL402", "100 time steps of an LSTM, with backward", cells),
    ("UDL403", "512 tokens and 4 heads, without backward", attention),
    ("UDL404", "a causal mask of 512 by 512", constants),
    ("UDL405", "256 rows of 64 numbers", rows),
    ("UDL406", "256 words of 5,000", one_hot),
    ("UDL407", "512 rows of 1,000 numbers, without backward", log_softmax),
    ("UDL410", "256 samples in batches of 1 and of 32", batches),
    ("UDL411", "8 heads of 64 by 64, with backward", heads),
    ("UDL501", "one step of AdamW on an embedding of 20,000 by 64", fused),
    ("UDL502", "SGD for 8 small parameters; the lost state is the larger cost", new_optimizer),
    ("UDL505", "120 small parameters", averages),
    ("UDL506", "120 small parameters", clipped),
    ("UDL508", "120 small parameters", norms),
    ("UDL702", "20 steps of a small model with stacks", profiled),
    ("UDL705", "100 tokens of a layer of width 128", cache),
    ("UDL706", "16 prompts of 20 tokens through 4 layers", prompts),
)  # fmt: skip
