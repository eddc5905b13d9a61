"""What no schedule can beat: a bound from compute, bandwidth and latency."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from unidle.span.model.setting import Setting
from unidle.span.simulate.routes import parts, widest

_PIECES = 64  # more than a transfer is ever cut into; each may be rounded down by less than a nanosecond


@dataclass(frozen=True, slots=True)
class Chain:
    """The way of one microbatch over all virtual stages, at its fastest.

    ``there_ns``: when the forward of each may begin; ``back_ns``: from the end of its backward to the end of the first
    one's.
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
    chain = chain_of(setting, chunks)
    m = setting.microbatches
    first_weight = setting.stages[0].weight_ns // chunks  # the least of its parts
    rest = first_weight + setting.reduce_ns(0)
    sizes = {stage.gradient_bytes: s for s, stage in enumerate(setting.stages)}
    reduces = {size: setting.reduce_ns(s) for size, s in sizes.items()}
    best = 0
    for s, stage in enumerate(setting.stages):
        begin = chain.there_ns[s]
        last = n - stages + s  # the virtual stage of this device whose backward comes first
        turned = chain.whole_ns - chain.back_ns[last] - chain.backward[last]
        after = max(stage.weight_ns * m + reduces[stage.gradient_bytes], chain.back_ns[s] + rest)
        both = stage.forward_ns + stage.backward_ns
        best = max(best, begin + m * both + after, turned + m * stage.backward_ns + after)
    for following in accumulate(site.stages for site in setting.sites[:-1]):
        s = following - 1
        wan = _least_wan_ns(setting, s, following, m * chunks)
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


def chain_of(setting: Setting, chunks: int = 1) -> Chain:
    """The way over the stages, ``chunks`` times."""
    stages = len(setting.stages)
    ahead, behind = [s.forward_ns for s in setting.stages], [s.backward_ns for s in setting.stages]
    hops = _hops(setting)
    if chunks > 1:
        ahead, behind = (
            [parts(whole, chunks)[chunk] for chunk in range(chunks) for whole in each]
            for each in (ahead, behind)
        )
        around = hop_ns(setting, stages - 1, 0)
        hops = ([*hops, around] * chunks)[:-1]
    there = list(accumulate((f + hop for f, hop in zip(ahead, hops, strict=False)), initial=0))
    back = list(accumulate((b + hop for b, hop in zip(behind, hops, strict=False)), initial=0))
    return Chain(ahead, behind, there, back, there[-1] + ahead[-1] + behind[-1] + back[-1])


def _hops(setting: Setting) -> list[int]:
    """The least time of a transfer behind each stage but the last."""
    found, last = list[int](), 0
    for site in setting.sites:
        if found or last:
            found.append(hop_ns(setting, last - 1, last))
        if site.stages > 1 and not setting.even:
            found += [hop_ns(setting, s, s + 1) for s in range(last, last + site.stages - 1)]
        elif site.stages > 1:
            found += [hop_ns(setting, last, last + 1)] * (site.stages - 1)
        last += site.stages
    return found


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
