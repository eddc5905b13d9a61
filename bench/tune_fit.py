"""The peak of memory that `unidle tune fit` predicts, and the one that PyTorch's allocator counts in a real training step on the CPU."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from _table import Row, main
from _tune_fit_models import measured
from unidle.tune.fit.memory import memory_of
from unidle.tune.fit.model import DecoderModel, Use


def gpt2(*sizes: int, positions: int, tied: bool = True) -> DecoderModel:
    """In the form of GPT-2."""
    layers, hidden, heads, inner, vocabulary = sizes
    return DecoderModel(
        layers,
        hidden,
        heads,
        heads,
        hidden // heads,
        inner,
        vocabulary,
        positions,
        gated=False,
        bias=True,
        tied=tied,
    )


CASES = (  # name, model, batch, sequence, recompute
    ("GPT-2 form, small", gpt2(4, 128, 4, 512, 1000, positions=256), 4, 128, False),
    ("GPT-2 form, recompute", gpt2(8, 128, 4, 512, 1000, positions=256), 4, 128, True),
    ("Llama form", DecoderModel(4, 128, 4, 4, 32, 344, 1000), 4, 128, False),
    ("Llama form, grouped heads", DecoderModel(6, 192, 6, 2, 32, 512, 2000), 4, 96, False),
    ("Llama form, recompute", DecoderModel(8, 128, 4, 4, 32, 344, 1000), 8, 128, True),
    ("GPT-2 form, large vocabulary", gpt2(3, 160, 5, 640, 8000, positions=128), 2, 64, False),
    ("GPT-2 form, wide, one sequence", gpt2(2, 512, 8, 2048, 500, positions=64), 1, 32, False),
    ("Llama form, deep and narrow", DecoderModel(16, 64, 2, 2, 32, 172, 300, tied=True), 16, 64, False),
    ("Llama form, wide MLP", DecoderModel(3, 256, 8, 4, 32, 2048, 1500), 3, 160, False),
    ("Llama form, recompute, grouped", DecoderModel(10, 192, 6, 3, 32, 512, 700), 6, 120, True),
    # not seen before the arithmetic was final
    ("held out: GPT-2 form, recompute, long", gpt2(12, 96, 3, 384, 2500, positions=512), 2, 384, True),
    (
        "held out: Llama form, narrow heads",
        DecoderModel(5, 240, 15, 5, 16, 900, 3100, tied=True),
        5,
        80,
        False,
    ),
    ("held out: GPT-2 form, untied", gpt2(7, 224, 7, 700, 400, positions=128, tied=False), 9, 100, False),
    ("held out: Llama form, recompute, vocabulary", DecoderModel(4, 128, 8, 2, 16, 640, 6000), 3, 128, True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The option of this benchmark."""
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th shape")


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """One row for each shape."""
    torch.set_num_threads(1)
    for name, model, batch, sequence, recompute in CASES[:: arguments.every]:
        parameters, peak = measured(model, batch, sequence, recompute)
        assert parameters == model.parameters, (name, parameters, model.parameters)
        wanted = memory_of(model, Use(batch, sequence, "fp32", recompute=recompute)).peak
        off = 100 * (wanted / peak - 1)
        yield Row(
            f"{name}: error of the peak", "%", off, goal="within 5 %", holds=abs(off) <= 5,
            how=f"measured here, {wanted / 1e6:.2f} MB predicted, {peak / 1e6:.2f} MB by the allocator, {parameters:,} parameters",
        )  # fmt: skip


if __name__ == "__main__":
    main("tune_fit", rows, add_arguments)
