"""What no order of operations can beat, and whether an iteration that is under way can still end before a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Flags, Ints, Program
from unidle.span.simulate.routes import UnitTimes, parts, widest

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


class Foresight:
    """For programs of one chunk. What a device has left follows from its order; after its last backward comes the way
    back to the first stage at its fastest, as in :func:`unidle.span.simulate.bound.lower_bound_ns`."""

    def __init__(
        self, setting: Setting, programs: Sequence[Program], times: UnitTimes, limit_ns: int
    ) -> None:
        self._limit_ns, many = limit_ns, len(programs)
        chain = chain_of(setting)
        left, weights = zip(*(_left(program, times) for program in programs), strict=True)
        self._left, self._weights = np.concatenate(left), np.concatenate(weights)
        reduces = [setting.reduce_ns(s) for s in range(len(setting.stages))]
        tail = np.array(chain.back_ns, dtype=np.int64) + int(times.weight[0, 0]) + reduces[0]
        self._weight: Ints = np.tile(times.weight[:, 0], many)
        self._reduce: Ints = np.tile(np.array(reduces, dtype=np.int64), many)
        self._tail: Ints = np.tile(tail, many)
        self._there: Ints = np.tile(np.array(chain.there_ns, dtype=np.int64), many)

    def too_long(self, row: Ints, at: Ints, free: Ints, waiting: Ints) -> Flags:
        """For each device whether its iteration takes at least the limit.

        ``row``: of its tables, ``at``: its next operation, ``free``: when it may begin it, ``waiting``: gradients of
        weights put off.
        """
        alone = self._weights[row, at] + waiting * self._weight[row] + self._reduce[row]
        tail = np.where(at < self._left.shape[1] - 1, self._tail[row], 0)
        end = np.maximum(free, self._there[row]) + self._left[row, at] + np.maximum(alone, tail)
        found: Flags = end >= self._limit_ns
        return found


def _left(program: Program, times: UnitTimes) -> tuple[Ints, Ints]:
    """Nanoseconds of forwards, backwards and recompute, and of gradients of weights, from each operation on."""
    backward = program.order >= program.units
    rows = np.arange(len(program.order))[:, None]
    again = np.where(backward & program.again[rows, program.order % program.units], times.again[:, :1], 0)
    weights = _suffix(backward.astype(np.int64)) * times.weight[:, :1]
    if program.filler is None:  # those of backwards that were done may be done, too
        weights[:] = 0
    return _suffix(np.where(backward, times.backward[:, :1], times.forward[:, :1]) + again), weights


def _suffix(each: Ints) -> Ints:
    """The sums of what is left from each place on, with a last column of zeros."""
    total = np.cumsum(each[:, ::-1], axis=1)[:, ::-1]
    found: Ints = np.concatenate([total, np.zeros((len(each), 1), dtype=np.int64)], axis=1)
    return found
