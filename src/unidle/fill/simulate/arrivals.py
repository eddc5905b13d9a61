"""When prompts arrive, and how long they are: drawn from a stated process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from unidle.fill.policy.requests import PrefillRequest


class TracedPrompt(NamedTuple):
    """A prompt of a trace. ``slo_ttft_ms``: None for that of all."""

    arrival_s: float
    tokens: int
    priority: int = 0
    slo_ttft_ms: float | None = None


@dataclass(frozen=True, slots=True)
class PromptProcess:
    """``poisson``: independent arrivals. ``burst``: bursts of ``burst`` prompts at once. ``trace``: as ``traced``.

    Lengths are from ``least`` to ``most`` tokens, with a uniform logarithm, or drawn from ``lengths``.
    """

    process: Literal["poisson", "burst", "trace"]
    rate_per_s: float = 0.0
    least: int = 1
    most: int = 1
    lengths: tuple[int, ...] = ()
    traced: tuple[TracedPrompt, ...] = ()
    slo_ttft_ms: float | None = None
    burst: int = 8


def arrivals(
    process: PromptProcess, seconds: float, chance: np.random.Generator
) -> tuple[PrefillRequest, ...]:
    """All requests of the first ``seconds``, in the order of their arrival."""
    found: Sequence[TracedPrompt] = (
        process.traced if process.process == "trace" else [*_drawn(process, seconds, chance)]
    )
    requests = []
    for number, each in enumerate(
        sorted((each for each in found if each.arrival_s < seconds), key=lambda each: each.arrival_s)
    ):
        slo = process.slo_ttft_ms if each.slo_ttft_ms is None else each.slo_ttft_ms
        arrival = round(each.arrival_s * 1e9)
        deadline = None if slo is None else arrival + round(slo * 1e6)
        requests.append(PrefillRequest(number, arrival, each.tokens, deadline, each.priority))
    return tuple(requests)


def _drawn(process: PromptProcess, seconds: float, chance: np.random.Generator) -> Iterator[TracedPrompt]:
    together = process.burst if process.process == "burst" else 1
    now = 0.0
    while True:
        now += float(chance.exponential(together / process.rate_per_s))
        if now >= seconds:
            return
        for _ in range(together):
            if process.lengths:
                tokens = process.lengths[int(chance.integers(len(process.lengths)))]
            else:
                tokens = _log_uniform(process.least, process.most, chance)
            yield TracedPrompt(now, tokens)


def _log_uniform(least: int, most: int, chance: np.random.Generator) -> int:
    found = math.exp(chance.uniform(math.log(least), math.log(most)))
    return min(max(round(found), least), most)
