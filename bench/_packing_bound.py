"""A linear program over classes of pods and shapes of nodes: what no policy can exceed, and prices.

Pods are split freely over nodes of one shape, so the optimum is an upper bound of what can be
allocated; its duals say what CPU, memory and GPU of each shape are worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from unidle.jobs.packing import NodeSize, PodDemand
from unidle.place.pack.packer import WHOLE_MILLI, Floats

if TYPE_CHECKING:
    from highspy import HighsLp

# Dual feasible functions u_k (Fekete and Schepers, 2001): of the pieces on one GPU, at most k are larger
# than 1 / (k + 1) of it, and so on; each is one more row that every packing keeps.
_PIECES: Final = (1, 2, 3, 4, 5, 6)
_ROWS: Final = 3 + len(_PIECES)  # of a shape: GPU, CPU, memory, then one for each of those


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The optimum: ``placed_milli`` GPU, and ``duals`` (s, rows) of the rows of each shape."""

    placed_milli: float
    shapes: tuple[NodeSize, ...]
    duals: Floats

    def price(self, demand: PodDemand) -> Floats:
        """What the resources of one such pod are worth on each shape, in milli GPU: (s,)."""
        price: Floats = self.duals @ np.array(_amounts(demand))
        return price


def relax(nodes: Sequence[NodeSize], pods: Mapping[PodDemand, float]) -> Relaxation:
    """Solve it for so many pods of each demand (expected numbers may be fractions)."""
    from highspy import Highs  # not needed to place anything, and slow to import

    counts = Counter(node._replace(name="") for node in nodes if node.gpus)
    demands = [demand for demand, number in pods.items() if number > 0]
    program = _program(counts, demands, [float(pods[demand]) for demand in demands])
    solver = Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(program)
    solver.run()
    duals = np.array(solver.getSolution().row_dual)[len(demands) :].reshape(len(counts), _ROWS)
    return Relaxation(solver.getInfo().objective_function_value, tuple(sorted(counts)), duals)


def _program(counts: Mapping[NodeSize, int], demands: Sequence[PodDemand], numbers: list[float]) -> HighsLp:
    """Columns: pods of one demand on one shape. Rows: pods of each demand, then ``_ROWS`` of each shape."""
    from highspy import HighsLp, MatrixFormat, ObjSense

    cost: list[float] = []
    start, index, value = [0], [], []
    shapes = sorted(counts)
    for k, demand in enumerate(demands):
        amounts = _amounts(demand)
        for s, shape in enumerate(shapes):
            if not _fits(demand, shape):
                continue
            cost.append(demand.total_gpu_milli)
            used = [r for r in range(_ROWS) if amounts[r]]
            index += [k, *(len(demands) + s * _ROWS + r for r in used)]
            value += [1.0, *(amounts[r] for r in used)]
            start.append(len(index))
    upper = list(numbers)
    for shape in shapes:
        n = counts[shape]
        upper += [n * shape.gpus * WHOLE_MILLI, n * shape.cpu_milli, n * shape.memory_mib]
        upper += [n * shape.gpus] * len(_PIECES)
    program = HighsLp()
    program.sense_ = ObjSense.kMaximize
    program.num_col_, program.num_row_ = len(cost), len(upper)
    program.col_cost_, program.col_lower_ = np.array(cost), np.zeros(len(cost))
    program.col_upper_ = np.full(len(cost), np.inf)
    program.row_lower_, program.row_upper_ = np.full(len(upper), -np.inf), np.array(upper)
    program.a_matrix_.format_ = MatrixFormat.kColwise
    program.a_matrix_.start_ = np.array(start)
    program.a_matrix_.index_ = np.array(index)
    program.a_matrix_.value_ = np.array(value)
    return program


def _fits(demand: PodDemand, shape: NodeSize) -> bool:
    return (
        (not demand.models or shape.model in demand.models)
        and shape.gpus >= demand.gpus
        and shape.cpu_milli >= demand.cpu_milli
        and shape.memory_mib >= demand.memory_mib
    )


def _amounts(demand: PodDemand) -> list[float]:
    """What one pod takes of a shape's rows: GPU, CPU, memory, then one row for each of ``_PIECES``."""
    pieces = []
    for k in _PIECES:
        parts, rest = divmod((k + 1) * demand.gpu_milli, WHOLE_MILLI)
        share = demand.gpu_milli / WHOLE_MILLI if rest == 0 else parts / k
        pieces.append(demand.gpus * share)
    return [float(demand.total_gpu_milli), float(demand.cpu_milli), float(demand.memory_mib), *pieces]
