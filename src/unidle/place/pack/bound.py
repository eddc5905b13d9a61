"""A linear program over classes of pods and shapes of nodes: what no policy can exceed, and prices.

Pods are split freely over nodes of one shape, so the optimum is an upper bound of what can be
allocated; its duals say what CPU, memory and GPU of each shape are worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.fleet.size import NodeSize
from unidle.jobs.demand import Demand
from unidle.place.pack.request import WHOLE_MILLI, Floats

# Dual feasible functions u_k (Fekete and Schepers, 2001): of the pieces on one GPU, at most k are larger
# than 1 / (k + 1) of it, and so on; each is one more row that every packing keeps.
_PIECES: Final = (1, 2, 3, 4, 5, 6)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The optimum: ``placed_milli`` GPU, and ``duals`` (s, rows) of the rows of each shape."""

    placed_milli: float
    shapes: tuple[NodeSize, ...]
    duals: Floats

    def price(self, demand: Demand) -> Floats:
        """What the resources of one such pod are worth on each shape, in milli GPU: (s,)."""
        price: Floats = self.duals @ np.array(_amounts(demand))
        return price


def relax(
    nodes: Sequence[NodeSize], pods: Mapping[Demand, float], worth: Mapping[Demand, float] | None = None
) -> Relaxation:
    """Solve it for so many pods of each demand; ``worth`` of one pod if it is not its GPU share."""
    from highspy import Highs, HighsLp, MatrixFormat, ObjSense

    counts = Counter(node._replace(name="") for node in nodes if node.gpus)
    shapes = tuple(sorted(counts))
    demands = [d for d in pods if pods[d] > 0]
    rows_per_shape = 3 + len(_PIECES)
    cost: list[float] = []
    start, index, value = [0], [], []
    for k, demand in enumerate(demands):
        for s, shape in enumerate(shapes):
            if not _fits(demand, shape):
                continue
            cost.append(demand.total_gpu_milli if worth is None else worth[demand])
            column = [(k, 1.0)]
            first = len(demands) + s * rows_per_shape
            for r, amount in enumerate(_amounts(demand)):
                if amount:
                    column.append((first + r, amount))
            index += [row for row, _ in column]
            value += [amount for _, amount in column]
            start.append(len(index))
    upper = [float(pods[d]) for d in demands]
    for shape in shapes:
        n = counts[shape]
        upper += [n * shape.gpus * WHOLE_MILLI, n * shape.cpu_milli, n * shape.memory_mib]
        upper += [n * shape.gpus] * len(_PIECES)
    program = HighsLp()
    program.num_col_, program.num_row_ = len(cost), len(upper)
    program.col_cost_ = np.array(cost)
    program.col_lower_ = np.zeros(len(cost))
    program.col_upper_ = np.full(len(cost), np.inf)
    program.row_lower_ = np.full(len(upper), -np.inf)
    program.row_upper_ = np.array(upper)
    program.a_matrix_.format_ = MatrixFormat.kColwise
    program.a_matrix_.start_ = np.array(start)
    program.a_matrix_.index_ = np.array(index)
    program.a_matrix_.value_ = np.array(value)
    program.sense_ = ObjSense.kMaximize
    solver = Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(program)
    solver.run()
    dual = np.array(solver.getSolution().row_dual)[len(demands) :].reshape(len(shapes), rows_per_shape)
    return Relaxation(solver.getInfo().objective_function_value, shapes, dual)


def _fits(demand: Demand, shape: NodeSize) -> bool:
    return (
        (not demand.models or shape.model in demand.models)
        and shape.gpus >= demand.gpus
        and shape.cpu_milli >= demand.cpu_milli
        and shape.memory_mib >= demand.memory_mib
    )


def _amounts(demand: Demand) -> list[float]:
    """What one pod takes of a shape's rows: GPU, CPU, memory, then one row for each of ``_PIECES``."""
    pieces = []
    for k in _PIECES:
        parts, rest = divmod((k + 1) * demand.gpu_milli, WHOLE_MILLI)
        share = demand.gpu_milli / WHOLE_MILLI if rest == 0 else parts / k
        pieces.append(demand.gpus * share)
    return [float(demand.total_gpu_milli), float(demand.cpu_milli), float(demand.memory_mib), *pieces]
