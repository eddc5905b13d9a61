"""Spot or not, and what to train in a budget of GPU-hours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from unidle.tune.advice.answer import Value, WorkedAdvice

PEAK_TFLOPS: Final = {
    "T4 16 GB": 65, "RTX 4090 24 GB": 165, "A100 40 GB": 312, "L40S 48 GB": 362, "A100 80 GB": 312, "H100 80 GB": 989, "H200 141 GB": 989,
    "MI300X 192 GB": 1307, "B200 192 GB": 2250,
}  # fmt: skip
"""Of dense products in half precision, by the makers' data sheets."""
TOKENS_PER_PARAMETER: Final = 20.0
"""Of the least loss for its compute ("Training Compute-Optimal Large Language Models", arXiv 2203.15556)."""
_ASPECT: Final = 128
"""Width of a layer for each layer, as in common decoders."""


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """Prices of a GPU-hour, mean hours between interruptions, and seconds of a blocking save, of a restart, and of repair by own failures."""

    price: float
    spot_price: float
    hours_between: float
    save_s: float
    restart_s: float
    on_demand_hours_between: float = 24 * 30


def spot_or_not(market: SpotMarket) -> WorkedAdvice:
    """What an hour of useful work costs on each, with checkpoints as often as is best (Young 1974)."""
    lines: list[str] = []
    spot = _useful(market.hours_between, market, "spot", lines)
    own = _useful(market.on_demand_hours_between, market, "on demand", lines)
    costs = {"spot": market.spot_price / spot if spot else math.inf, "on demand": market.price / own if own else math.inf}  # fmt: skip
    even = market.price / own * spot if own else 0.0
    lines += [
        f"a useful GPU-hour on spot: {market.spot_price:g} / {spot:.4f} = {costs['spot']:.4f}",
        f"a useful GPU-hour on demand: {market.price:g} / {own:.4f} = {costs['on demand']:.4f}",
        f"spot is cheaper below {market.price:g} / {own:.4f} x {spot:.4f} = {even:.4f} an hour",
    ]
    values: dict[str, Value] = {
        "choice": min(costs, key=lambda name: costs[name]), "spot_useful": spot, "spot_cost": _finite(costs["spot"]),
        "on_demand_cost": _finite(costs["on demand"]), "even_price": even,
    }  # fmt: skip
    return WorkedAdvice(values, tuple(lines))


def _useful(hours: float, market: SpotMarket, name: str, lines: list[str]) -> float:
    """The part of the time that is work that counts."""
    mean = hours * 3600
    every = math.sqrt(2 * market.save_s * mean)
    lost = (market.restart_s + every / 2) / mean
    useful = (
        max(0.0, (1 - lost) / (1 + market.save_s / every)) if every else max(0.0, 1 - market.restart_s / mean)
    )
    lines += [
        f"{name}: a checkpoint each sqrt(2 x {market.save_s:g} s x {mean:g} s) = {every:.0f} s",
        f"{name}: useful (1 - ({market.restart_s:g} + {every:.0f} / 2) / {mean:g}) / (1 + {market.save_s:g} / {every:.0f}) = {useful:.4f}",
    ]
    return useful


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class TrainingBudget:
    """GPU-hours on a device with a peak in TFLOPS, the part of the peak that training reaches, and what is trained with."""

    gpu_hours: float
    device: str
    peak_tflops: float
    mfu: float = 0.35
    tokens_per_parameter: float = TOKENS_PER_PARAMETER
    sequence: int = 2048
    batch_tokens: int = 524_288


def fixed_budget(budget: TrainingBudget) -> WorkedAdvice:
    """Parameters, tokens, shape and steps of a decoder for so many GPU-hours: 6 FLOP for each parameter and token."""
    flops = budget.gpu_hours * 3600 * budget.peak_tflops * 1e12 * budget.mfu
    parameters = math.sqrt(flops / (6 * budget.tokens_per_parameter))
    tokens = parameters * budget.tokens_per_parameter
    layers = max(1, round((parameters / (12 * _ASPECT**2)) ** (1 / 3)))
    hidden = max(64, 64 * round(math.sqrt(parameters / (12 * layers)) / 64))
    steps = max(1, math.ceil(tokens / budget.batch_tokens))
    lines = [
        f"compute: {budget.gpu_hours:g} GPU-h x 3600 s x {budget.peak_tflops:g} TFLOPS ({budget.device}) x {budget.mfu:g} = {flops:.3g} FLOP",
        f"parameters: sqrt({flops:.3g} / (6 x {budget.tokens_per_parameter:g})) = {parameters:.3g}",
        f"tokens: {budget.tokens_per_parameter:g} x {parameters:.3g} = {tokens:.3g}",
        f"layers: ({parameters:.3g} / (12 x {_ASPECT}^2))^(1/3) = {layers}; width sqrt({parameters:.3g} / (12 x {layers})), in multiples of 64 = {hidden}",
        f"steps: {tokens:.3g} / {budget.batch_tokens:,} tokens = {steps:,}, of {budget.batch_tokens // budget.sequence:,} sequences of {budget.sequence:,}",
        "smaller models with more tokens for each parameter cost less to serve: see --tokens-per-parameter",
    ]  # fmt: skip
    values = {
        "flops": flops, "parameters": round(parameters), "tokens": round(tokens), "layers": layers, "hidden": hidden, "heads": hidden // 64, "steps": steps,
        "batch_sequences": budget.batch_tokens // budget.sequence,
    }  # fmt: skip
    return WorkedAdvice(values, tuple(lines))
