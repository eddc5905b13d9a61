"""The packing policies by name, made ready for one fleet and one workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from unidle.errors import BadInput
from unidle.fleet.size import NodeSize
from unidle.jobs.demand import Demand
from unidle.place.pack import classic
from unidle.place.pack.copies import Copies
from unidle.place.pack.engine import Scorer
from unidle.place.pack.fgd import Fgd
from unidle.place.pack.fragments import Fragments
from unidle.place.pack.pool import Pool
from unidle.place.pack.pressure import Pressure
from unidle.place.pack.replay import WHOLE_FLEET, Outcome, Prepared, replay
from unidle.place.pack.unidle import Mix, Unidle
from unidle.place.pack.workload import target_workload

_PLAIN: Final[dict[str, Callable[[], Scorer]]] = {
    "bestfit": classic.BestFit,
    "dotprod": classic.DotProduct,
    "packing": classic.Packing,
    "clustering": classic.Clustering,
    "firstfit": classic.FirstFit,
}
# The first two do best where models are asked for or CPU is short, the next where pods take many GPUs,
# the last two where few pods can do without their model, and the fleet is small or has many shapes.
MIXES: Final = (Mix(50, 50), Mix(70, 50), Mix(60, 30), Mix(100, 100), Mix(50, 50, 3), Mix(100, 400, 10))
_PLAIN_MIX: Final = 3  # FGD's own measure: taken unless another one is surely better
_UNSURE_POINTS: Final = 0.05  # of the capacity, per rehearsal
_ROUNDS: Final = (2, 3)  # rehearsals
_BEHIND_POINTS: Final = 0.15  # of the capacity, per rehearsal
_REHEARSED: Final = 1.3  # times the capacity
_AT_THE_END: Final = 3  # times as much as what is packed when the capacity has been requested
_REHEARSAL_SEED: Final = 1 << 40  # far from seeds that anyone would name
_STAGE: Final = 1_500  # nodes
POLICIES: Final = ("unidle", "fgd", *_PLAIN, "random")


def prepare(name: str, nodes: Sequence[NodeSize], demands: Sequence[Demand]) -> Prepared:
    """The policy ``name``; what it may know of the workload is the distribution of ``demands``.

    Errors: :class:`BadInput` for an unknown name.
    """
    if name in _PLAIN:
        return Prepared(name, partial(_plain, name), file_order=name == "firstfit")
    if name == "random":
        return Prepared(name, _random)
    if name not in POLICIES:
        raise BadInput("is not a policy", field="--policy", value=name, remedy=", ".join(POLICIES))
    pool = Pool(nodes)
    target = target_workload(map(pool.request, demands), len(pool.model_names))
    fragments = Fragments(target, pool.widest)
    if name == "fgd":
        return Prepared(name, partial(_fgd, Fgd(fragments)))
    pressure = Pressure(nodes, demands)
    made = partial(_unidle, fragments, Copies(target), pressure)
    return rehearsed([Prepared(name, partial(made, mix)) for mix in MIXES], nodes, demands, _PLAIN_MIX)


def rehearsed(
    candidates: Sequence[Prepared], nodes: Sequence[NodeSize], demands: Sequence[Demand], plain: int = 0
) -> Prepared:
    """The candidate that packs most in rehearsals: pods of the same distribution in another order.

    Each is judged by the same arrivals; those well behind after the first round leave. ``plain`` (an index)
    is preferred where the others are hardly better. A large fleet is represented by every k-th of its nodes.
    """
    stage = nodes[:: -(-len(nodes) // _STAGE)]
    if not any(node.gpus for node in stage):
        return candidates[0]
    packed = dict.fromkeys(range(len(candidates)), 0.0)
    packed[plain] = _UNSURE_POINTS * sum(_ROUNDS)
    seed = _REHEARSAL_SEED
    for seeds in _ROUNDS:
        for k in packed:
            for shift in range(seeds):
                outcome = replay(candidates[k], stage, demands, _REHEARSED, seed + shift)
                packed[k] += _worth(outcome)
        seed += seeds
        least = max(packed.values()) - _BEHIND_POINTS * seeds
        packed = {k: points for k, points in packed.items() if points >= least}
        if len(packed) == 1:
            break
    return candidates[max(packed, key=lambda k: packed[k])]


def _worth(outcome: Outcome) -> float:
    """Percent of the capacity, over both marks; 0 where no pod asks for a GPU."""
    shares = outcome.allocated_pct
    if not shares:
        return 0.0
    return (shares[WHOLE_FLEET] + _AT_THE_END * shares[_REHEARSED]) / (1 + _AT_THE_END)


# Functions of modules, so that a policy can be sent to another process.
def _plain(name: str, _pool: Pool, _chance: np.random.Generator) -> Scorer:
    return _PLAIN[name]()


def _random(_pool: Pool, chance: np.random.Generator) -> Scorer:
    return classic.Random(chance)


def _fgd(fgd: Fgd, _pool: Pool, _chance: np.random.Generator) -> Scorer:
    return fgd


def _unidle(
    fragments: Fragments,
    copies: Copies,
    pressure: Pressure,
    mix: Mix,
    pool: Pool,
    _chance: np.random.Generator,
) -> Scorer:
    return Unidle(pool, fragments, copies, pressure, mix)
