"""Bytes of a training step or a server on one device, each with its arithmetic. Pure.

Activations are what autograd saves with fused attention ("Reducing Activation Recomputation", arXiv 2205.05198, without dropout and
scores). States of optimizers and their sharding are those of "ZeRO" (arXiv 1910.02054). Checked against PyTorch by bench/tune_fit.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from unidle.tune.fit.model import GROUP, VALUE_BYTES, WEIGHT_BITS, DecoderModel, ShardedOver, Use

_STATES: Final = {"adamw": 8, "momentum": 4, "sgd": 0}
"""Bytes for each parameter, in FP32."""
RESERVED_BYTES: Final = 1 << 30
"""Of a device, for its context and libraries."""
USABLE: Final = 0.95
"""Of the rest: an allocator cannot use it all."""
DEVICES: Final = {
    "T4 16 GB": 15.0, "RTX 4090 24 GB": 23.9, "A100 40 GB": 40.0, "L40S 48 GB": 45.0, "A100 80 GB": 80.0, "H100 80 GB": 79.6,
    "H200 141 GB": 140.4, "MI300X 192 GB": 192.0, "B200 192 GB": 179.0,
}  # fmt: skip
"""GiB that the driver reports."""
MOST_BATCH: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Bytes on the fullest device. ``peak``: the most at one moment. ``arithmetic``: a line for each part."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    kv: int
    other: int
    peak: int
    arithmetic: tuple[str, ...]

    def parts(self) -> dict[str, int]:
        """All but the peak."""
        return {
            name: getattr(self, name)
            for name in ("weights", "gradients", "optimizer", "activations", "kv", "other")
        }


def memory_of(model: DecoderModel, use: Use, cut: ShardedOver | None = None) -> MemoryFit:
    """Bytes on the fullest device of those that the model is cut over."""
    cut = cut or ShardedOver()
    layers = math.ceil(model.layers / cut.pipeline)
    own = math.ceil((layers * model.layer_parameters + model.embedding_parameters) / cut.tensor)
    lines = [
        f"parameters here: ({layers} layers x {model.layer_parameters:,} + {model.embedding_parameters:,}) / tensor {cut.tensor} = {own:,}"
    ]
    shards = [cut.data if cut.zero > level else 1 for level in range(3)]  # optimizer, gradients, weights
    weights = _weights(own, use, shards[2], lines)
    gradients = optimizer = 0
    if use.training:
        size = VALUE_BYTES[use.precision]
        gradients = math.ceil(own * size / shards[1])
        lines.append(f"gradients: {own:,} x {size} B / {shards[1]} = {gradients:,} B")
        master = 0 if use.precision == "fp32" else 4
        optimizer = math.ceil(own * (_STATES[use.optimizer] + master) / shards[0])
        lines.append(
            f"optimizer ({use.optimizer}): {own:,} x ({_STATES[use.optimizer]} B states + {master} B master) / {shards[0]} = {optimizer:,} B"
        )
    kept, layer = _activations(model, use, cut, layers, lines)
    activations = kept + (layer if use.training and use.recompute else 0)
    kv = 0 if use.training else _kv(model, use, cut, layers, lines)
    logits = _loss(model, use, cut, lines)
    other = logits + _gathered(model, use, cut, lines)
    peak = weights + activations + kv + other
    if use.training:
        static, left, largest = weights + optimizer, other - 3 * (logits // 4), 4 * _largest(model, cut)
        update = static + gradients + left + 2 * largest // shards[0]
        moments = {
            "begin of the backward pass (no gradients yet)": static + kept + other,
            "its last layer (gradients, one layer, logits)": static + gradients + layer + left,
            "update (gradients, logits, two copies of the largest tensor)": update,
        }
        if use.recompute:
            moments["first layer computed again"] = static + kept + layer + left + largest // shards[1]
        peak = max(moments.values())
        lines += [f"{moment}: {size:,} B" for moment, size in moments.items()]
    return MemoryFit(weights, gradients, optimizer, activations, kv, other, peak, tuple(lines))


def largest_batch(model: DecoderModel, use: Use, cut: ShardedOver, device_bytes: int) -> int:
    """The most sequences that fit a device; 0 where not one does."""
    room = (device_bytes - RESERVED_BYTES) * USABLE

    def fits(batch: int) -> bool:
        sized = Use(batch, use.sequence, use.precision, use.training, use.optimizer, use.recompute)
        return memory_of(model, sized, cut).peak <= room

    low, high = 0, 1
    while high <= MOST_BATCH and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _weights(own: int, use: Use, shards: int, lines: list[str]) -> int:
    bits = WEIGHT_BITS[use.precision]
    scales = math.ceil(own / GROUP) * 2 if use.precision in ("int8", "int4") else 0
    weights = math.ceil((own * bits / 8 + scales) / shards)
    more = f" + {scales:,} B of scales" if scales else ""
    lines.append(f"weights: ({own:,} x {bits} bits{more}) / {shards} = {weights:,} B")
    return weights


def _activations(
    model: DecoderModel, use: Use, cut: ShardedOver, layers: int, lines: list[str]
) -> tuple[int, int]:
    """What is kept until the backward pass, and what one layer needs then."""
    tokens, size = use.batch * use.sequence, VALUE_BYTES[use.precision]
    if not use.training:
        total = tokens * size * (2 * model.hidden + math.ceil(model.intermediate * 2 / cut.tensor))
        lines.append(f"activations of one layer, of a whole prompt: {tokens:,} tokens = {total:,} B")
        return total, total
    ends = tokens * size * model.hidden * (4 if model.gated else 3)
    inner = math.ceil((model.layer_values - 2 * model.hidden) / cut.tensor)
    layer = tokens * (size * (2 * model.hidden + inner) + 4 * math.ceil(model.layer_statistics / cut.tensor))
    each = tokens * size * model.hidden if use.recompute else layer
    total = cut.pipeline * layers * each + ends
    what = "inputs alone" if use.recompute else "all that the backward pass needs"
    lines.append(
        f"activations: {cut.pipeline} microbatches x {layers} layers x {each:,} B ({what}) + ends {ends:,} B = {total:,} B"
        + (f"; one layer computed again {layer:,} B" if use.recompute else "")
    )
    return total, layer


def _kv(model: DecoderModel, use: Use, cut: ShardedOver, layers: int, lines: list[str]) -> int:
    heads, size = (
        math.ceil(model.kv_heads / cut.tensor),
        1 if use.precision == "fp8" else 2 if use.precision != "fp32" else 4,
    )
    kv = 2 * layers * heads * model.head_dim * size * use.batch * use.sequence
    lines.append(
        f"KV cache: 2 x {layers} layers x {heads} heads x {model.head_dim} x {size} B x {use.batch} x {use.sequence} tokens = {kv:,} B"
    )
    return kv


def _loss(model: DecoderModel, use: Use, cut: ShardedOver, lines: list[str]) -> int:
    """Logits; in training also their logarithm, and both gradients, in FP32."""
    values = math.ceil(model.vocabulary / cut.tensor)
    if not use.training:
        size = use.batch * values * 4
        lines.append(f"other: logits of the last token, {use.batch} x {values:,} x 4 B = {size:,} B")
        return size
    size = 4 * use.batch * use.sequence * values * 4
    lines.append(
        f"other: logits, log-softmax and two gradients, 4 x {use.batch * use.sequence:,} tokens x {values:,} x 4 B = {size:,} B"
    )
    return size


def _gathered(model: DecoderModel, use: Use, cut: ShardedOver, lines: list[str]) -> int:
    """With sharded weights, two layers are whole at one moment: the one that computes, and the next."""
    if cut.zero < 3 or cut.data == 1 or not use.training:
        return 0
    size = 2 * math.ceil(model.layer_parameters / cut.tensor) * VALUE_BYTES[use.precision]
    lines.append(
        f"other: two whole layers, 2 x {model.layer_parameters:,} x {VALUE_BYTES[use.precision]} B / tensor {cut.tensor} = {size:,} B"
    )
    return size


def _largest(model: DecoderModel, cut: ShardedOver) -> int:
    return math.ceil(max(model.vocabulary * model.hidden, model.hidden * model.intermediate) / cut.tensor)
