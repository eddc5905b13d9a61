"""What no schedule can beat: a bound from compute, bandwidth and latency."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from unidle.span.program import Ints
from unidle.span.routes import times_of, widest
from unidle.span.setting import Setting
from unidle.span.timeline import reduce_ns

_PIECES = 64  # more than a transfer is ever cut into; each may be rounded down by less than a nanosecond


@dataclass(frozen=True, slots=True)
class _Chain:
    """The way of one microbatch over all virtual stages, at its fastest.

    ``hop_ns``: of the cut behind each virtual stage; ``there_ns``: when its forward may begin; ``back_ns``: from the
    end of its backward to the end of the first one's.
    """

    forward: list[int]
    backward: list[int]
    there_ns: list[int]
    back_ns: list[int]
    whole_ns: int


def lower_bound_ns(setting: Setting, chunks: int = 1) -> int:
    """No schedule with so many chunks ends an iteration sooner, whatever memory it has.

    Each device has its own work, cannot begin before the first microbatch comes, and its last backward has the way
    back before it; each link between sites carries all its bytes, with all the flows and nodes that it has.
    """
    stages, n = len(setting.stages), len(setting.stages) * chunks
    times = times_of(setting, chunks)
    chain = _chain(setting, times.forward, times.backward, chunks)
    m = setting.microbatches
    first_weight = int(times.weight[0].min())
    best = 0
    for s in range(stages):
        stage, begin = setting.stages[s], chain.there_ns[s]
        last = n - stages + s  # the virtual stage of this device whose backward comes first
        turned = chain.whole_ns - chain.back_ns[last] - chain.backward[last]
        tail = chain.back_ns[s] + first_weight + reduce_ns(setting, 0)
        alone = stage.weight_ns * m + reduce_ns(setting, s)
        best = max(
            best,
            begin + m * (stage.forward_ns + stage.backward_ns) + max(alone, tail),
            turned + m * stage.backward_ns + max(alone, tail),
        )
    rest = first_weight + reduce_ns(setting, 0)
    for s in range(stages - 1):
        wan = _least_wan_ns(setting, s, s + 1, m * chunks)
        if wan is None:
            continue
        busy, latency = wan
        # The first bytes leave when the first forward ends; the last arrive with the rest of a way before them.
        last = n - stages + s
        after = chain.whole_ns - chain.there_ns[last + 1] + rest
        best = max(best, chain.there_ns[s] + chain.forward[s] + busy + latency + after)
        gone = chain.whole_ns - chain.back_ns[last + 1]
        best = max(best, gone + busy + latency + chain.back_ns[s] + chain.backward[s] + rest)
    return best


def _chain(setting: Setting, forward: Ints, backward: Ints, chunks: int) -> _Chain:
    stages = len(setting.stages)
    ahead = [int(forward[k % stages, k // stages]) for k in range(stages * chunks)]
    behind = [int(backward[k % stages, k // stages]) for k in range(stages * chunks)]
    hops = [hop_ns(setting, k % stages, (k + 1) % stages) for k in range(stages * chunks - 1)]
    there = list(accumulate((f + hop for f, hop in zip(ahead, hops, strict=False)), initial=0))
    back = list(accumulate((b + hop for b, hop in zip(behind, hops, strict=False)), initial=0))
    return _Chain(ahead, behind, there, back, there[-1] + ahead[-1] + behind[-1] + back[-1])


def hop_ns(setting: Setting, stage: int, to: int) -> int:
    """The least time of one transfer, with all nodes and flows that may take part."""
    path = setting.path(stage, to)
    if path is None:
        local = setting.local
        return 0 if local is None or stage == to else int(setting.crossing_bytes(stage, to) * 8 / local)
    rate = path.rate_gbps(None) * setting.cell * widest(setting, stage, to)
    return path.latency_ns + max(int(setting.crossing_bytes(stage, to) * 8 / rate) - _PIECES, 0)


def _least_wan_ns(setting: Setting, stage: int, to: int, transfers: int) -> tuple[int, int] | None:
    """How long a cut is busy with so many transfers of each pipeline, and its latency."""
    path = setting.path(stage, to)
    if path is None:
        return None
    nodes = setting.cell * widest(setting, stage, to)
    exact = int(setting.crossing_bytes(stage, to) * 8 * setting.cell / (path.rate_gbps(None) * nodes))
    rounded = _PIECES * setting.cell if nodes > 1 else 0
    return max(exact - rounded, 0) * transfers, path.latency_ns
