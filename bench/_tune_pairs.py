"""Slow and fast forms of what the rules of `unidle tune` find, small enough for two CPU cores."""

from __future__ import annotations

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
from torch.utils.data import DataLoader, Dataset, TensorDataset

from _tune_kernel_pairs import (
    anomaly,
    array_grown,
    attention,
    averages,
    batches,
    cache,
    cells,
    clipped,
    constants,
    fused,
    graph,
    grown,
    heads,
    log_softmax,
    moved,
    new_optimizer,
    norms,
    one_hot,
    open_sequences,
    per_sample,
    precision,
    prefill,
    profiled,
    prompts,
    rows,
    without_graph,
    zeroed,
)
from _tune_steps import Form, Pair, small_model, stepped


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
    ("UDL710", "a prompt of 128 tokens through a layer of width 128", prefill),
    ("UDL711", "8 tokens of each of 16 sequences through a layer of width 128", open_sequences),
)  # fmt: skip
