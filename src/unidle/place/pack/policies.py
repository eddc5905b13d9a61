"""The packing policies by name, made ready for one fleet and one workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from unidle.errors import BadInput
from unidle.fleet.size import NodeSize
from unidle.jobs.demand import Demand
from unidle.place.pack.classic import BestFit, Clustering, DotProduct, FirstFit, Packing, Random
from unidle.place.pack.copies import Copies
from unidle.place.pack.engine import Scorer
from unidle.place.pack.fgd import Fgd
from unidle.place.pack.fragments import Fragments
from unidle.place.pack.pool import Pool
from unidle.place.pack.pressure import Pressure
from unidle.place.pack.rehearse import rehearsed
from unidle.place.pack.replay import Prepared
from unidle.place.pack.unidle import Mix, Unidle
from unidle.place.pack.workload import target_workload

_PLAIN: Final[dict[str, Callable[[], Scorer]]] = {
    "bestfit": BestFit,
    "dotprod": DotProduct,
    "packing": Packing,
    "clustering": Clustering,
    "firstfit": FirstFit,
}
# The first two do best where models are asked for or CPU is short, the next where pods take many GPUs, then
# those where few pods can do without their model, and the fleet is small or has many shapes; the last where
# what a node runs out of first is memory.
MIXES: Final = (
    Mix(50, 50), Mix(70, 50), Mix(60, 30), Mix(100, 100), Mix(50, 50, 3), Mix(100, 400, 10), Mix(10, 50, 3),
)  # fmt: skip
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
    fgd = Prepared("fgd", partial(_fgd, Fgd(fragments)))
    if name == "fgd":
        return fgd
    plain = [fgd, prepare("firstfit", nodes, demands)]
    made = partial(_unidle, fragments, Copies(target), Pressure(nodes, demands))
    mixes = [Prepared(name, partial(made, mix)) for mix in MIXES]
    return replace(rehearsed([*plain, *mixes], nodes, demands, len(plain)), name=name)


# Functions of modules, so that a policy can be sent to another process.
def _plain(name: str, _pool: Pool, _chance: np.random.Generator) -> Scorer:
    return _PLAIN[name]()


def _random(_pool: Pool, chance: np.random.Generator) -> Scorer:
    return Random(chance)


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
