"""Reads the node and pod lists of Alibaba's openb traces (CSV).

Columns are found by name. Nodes need ``sn,cpu_milli,memory_mib,gpu`` and, where they have GPUs, a ``model``;
pods need ``name,cpu_milli,memory_mib,num_gpu,gpu_milli`` and may have ``gpu_spec``, models joined by ``|``.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from unidle.files.document import BadFile
from unidle.files.load import read_text, source_name
from unidle.jobs.packing import NodeSize, PodDemand
from unidle.words import counted

LIMIT_BYTES: Final = 256 << 20
MOST_NODES: Final = 1_000_000
MOST_GPUS: Final = 64  # of one node
_WHOLE_MILLI: Final = 1000
_LARGEST: Final = 1 << 40
_DIGITS: Final = 20  # Python reads no number of thousands
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class Pods(NamedTuple):
    """Names and demands of a trace's pods, in the order of the file."""

    names: tuple[str, ...]
    demands: tuple[PodDemand, ...]


class _Row(NamedTuple):
    """One line of a file: its place for errors, and its cells by column."""

    place: str
    cells: dict[str, str]

    def text(self, column: str) -> str:
        return self.cells[column].strip()

    def count(self, column: str, most: int = _LARGEST) -> int:
        """A whole number from 0 to ``most``; a fraction is allowed where it is ``.0``."""
        written = self.text(column)
        number = written.removesuffix(".0")
        if number.isascii() and number.isdigit() and len(number) < _DIGITS and int(number) <= most:
            return int(number)
        remedy = (
            f"give a whole number from 0 to {most:,}" if most < _LARGEST else "give a whole number, 0 or more"
        )
        raise self.error(column, "is not an amount", written, remedy)

    def new_name(self, column: str, seen: set[str]) -> str:
        """A name that is not in ``seen`` and is put there."""
        name = self.text(column)
        if not name or name in seen:
            problem = "is there twice" if name else "is empty"
            raise self.error(column, problem, name, "give each line a name of its own")
        seen.add(name)
        return name

    def error(self, column: str, problem: str, value: object, remedy: str) -> BadFile:
        return BadFile(self.place, problem, field=column, value=value, remedy=remedy)


def read_nodes(path: str | os.PathLike[str]) -> tuple[NodeSize, ...]:
    """The nodes of the file. Errors: :class:`BadFile` with file, line, column, value and remedy."""
    nodes: list[NodeSize] = []
    seen: set[str] = set()
    for row in _rows(path, "node", _NODE_COLUMNS, ("model",)):
        name, gpus, model = row.new_name("sn", seen), row.count("gpu", MOST_GPUS), row.text("model")
        if gpus and not model:
            raise row.error(
                "model", "is empty, and the node has GPUs", model, "name the GPU model, for instance T4"
            )
        nodes.append(
            NodeSize(name, row.count("cpu_milli"), row.count("memory_mib"), gpus, model if gpus else "")
        )
        if len(nodes) > MOST_NODES:
            raise row.error("sn", f"is node {len(nodes):,}", name, f"at most {MOST_NODES:,} nodes are read")
    if not any(node.gpus for node in nodes):
        raise BadFile(
            source_name(path), "no node has a GPU", field="gpu", remedy="check that it is the right file"
        )
    return tuple(nodes)


def read_pods(path: str | os.PathLike[str], nodes: Sequence[NodeSize]) -> Pods:
    """The pods of the file; each must fit on some empty node of ``nodes``.

    Errors: :class:`BadFile` with file, line, column, value and remedy.
    """
    models = {node.model for node in nodes if node.model}
    shapes = {node._replace(name="") for node in nodes}
    names: list[str] = []
    demands: list[PodDemand] = []
    known: dict[PodDemand, None] = {}
    seen: set[str] = set()
    for row in _rows(path, "pod", _POD_COLUMNS, ("gpu_spec",)):
        name = row.new_name("name", seen)
        demand = _demand(row, models)
        if demand not in known:
            _check_fits(row, demand, shapes)
            known[demand] = None
        names.append(name)
        demands.append(demand)
    if not any(demand.total_gpu_milli for demand in demands):
        raise BadFile(
            source_name(path),
            "no pod requests a GPU",
            field="num_gpu",
            remedy="check that it is the right file",
        )
    return Pods(tuple(names), tuple(demands))


def _demand(row: _Row, models: set[str]) -> PodDemand:
    gpus, milli = row.count("num_gpu", MOST_GPUS), row.count("gpu_milli", _WHOLE_MILLI)
    if gpus and not milli:
        raise row.error(
            "gpu_milli", "is 0, and the pod requests GPUs", milli, "give 1 to 1000 thousandths of each GPU"
        )
    spec = frozenset(filter(None, (part.strip() for part in row.text("gpu_spec").split("|"))))
    for model in sorted(spec - models):
        raise row.error(
            "gpu_spec", "names a GPU model that no node has", model,
            f"known are {', '.join(sorted(models)[:20])}",
        )  # fmt: skip
    return PodDemand(
        row.count("cpu_milli"),
        row.count("memory_mib"),
        gpus,
        milli if gpus else 0,
        spec if gpus else frozenset(),
    )


def _check_fits(row: _Row, demand: PodDemand, shapes: set[NodeSize]) -> None:
    """Errors: the pod is larger than any node; the column named is the first that rules the rest out.

    Its models are left aside: the published traces have pods too large for every node of theirs, which
    no policy can place.
    """
    left = list(shapes)
    checks: tuple[tuple[str, int, Callable[[NodeSize], int]], ...] = (
        ("num_gpu", demand.gpus, lambda node: node.gpus),
        ("cpu_milli", demand.cpu_milli, lambda node: node.cpu_milli),
        ("memory_mib", demand.memory_mib, lambda node: node.memory_mib),
    )
    for column, wanted, size in checks:
        largest = max((size(node) for node in left), default=0)
        left = [node for node in left if size(node) >= wanted]
        if not left:
            raise row.error(
                column, "requests more than any node has in addition to the rest of the pod", wanted,
                f"the most there is {largest:,}: leave the pod out, or add such a node",
            )  # fmt: skip


def _rows(
    path: str | os.PathLike[str], what: str, needed: Sequence[str], optional: Sequence[str]
) -> Iterator[_Row]:
    source = source_name(path)
    reader = csv.reader(io.StringIO(read_text(path, what=what, limit_bytes=LIMIT_BYTES)), strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        for column in needed:
            if column not in header:
                raise BadFile(
                    f"{source}:1", "the column is missing", field=column,
                    remedy=f"an openb {what} list begins with {','.join(needed)}",
                )  # fmt: skip
        twice = next((column for column in header if column and header.count(column) > 1), None)
        if twice is not None:
            raise BadFile(
                f"{source}:1", "the column is there twice", field=twice, remedy="keep one of the two"
            )
        lacking = dict.fromkeys((c for c in optional if c not in header), "")
        any_row = False
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise BadFile(
                    f"{source}:{reader.line_num}", f"has {counted(len(cells), 'column')}, the header {len(header)}",
                    remedy="complete the line",
                )  # fmt: skip
            any_row = True
            yield _Row(f"{source}:{reader.line_num}", lacking | dict(zip(header, cells, strict=True)))
        if not any_row:
            raise BadFile(source, f"holds no {what}", remedy="check that it is the right file")
    except csv.Error as error:
        raise BadFile(f"{source}:{reader.line_num}", f"not CSV: {error}", remedy="quote the cell") from None
