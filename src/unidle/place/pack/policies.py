"""The packing policies by name, made ready for one fleet and one workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from unidle.place.pack.unidle import Unidle
from unidle.place.pack.workload import target_workload

_PLAIN: Final[dict[str, Callable[[], Scorer]]] = {
    "bestfit": classic.BestFit,
    "dotprod": classic.DotProduct,
    "packing": classic.Packing,
    "clustering": classic.Clustering,
    "firstfit": classic.FirstFit,
}
POLICIES: Final = ("unidle", "fgd", *_PLAIN, "random")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A policy with what it derived from fleet and workload; ``scorer`` makes one for a run."""

    name: str
    scorer: Callable[[Pool, np.random.Generator], Scorer]
    file_order: bool = False  # ties go to the first node of the file, not of the seed's order


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
    return Prepared(name, partial(_unidle, fragments, Copies(target), Pressure(nodes, demands)))


# Functions of modules, so that a policy can be sent to another process.
def _plain(name: str, _pool: Pool, _chance: np.random.Generator) -> Scorer:
    return _PLAIN[name]()


def _random(_pool: Pool, chance: np.random.Generator) -> Scorer:
    return classic.Random(chance)


def _fgd(fgd: Fgd, _pool: Pool, _chance: np.random.Generator) -> Scorer:
    return fgd


def _unidle(
    fragments: Fragments, copies: Copies, pressure: Pressure, pool: Pool, _chance: np.random.Generator
) -> Scorer:
    return Unidle(pool, fragments, copies, pressure)
