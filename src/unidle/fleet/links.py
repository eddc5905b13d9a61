"""How the GPUs of one node reach each other: NVLink, PCIe switch, host bridge, socket.

Words and their order are those of ``nvidia-smi topo -m`` (see its legend); the same picture comes from
NVML in :mod:`unidle.fleet.nvml`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from unidle.errors import BadInput

SELF: Final = "X"
# Best first. NVLink comes before all of them, the more links the better.
PCIE: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NVLINK: Final = re.compile(r"NV([1-9][0-9]?)")
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE: Final = re.compile(r"GPU[0-9]+|NIC[0-9]+|mlx[0-9]+_[0-9]+(?:_bond)?[0-9]*|[a-z]+[0-9]*_?[a-z0-9]*")
_GPU: Final = re.compile(r"GPU([0-9]+)")
_NIC_NAME: Final = re.compile(r"\s*(NIC[0-9]+)\s*:\s*(\S+)")
_REMEDY: Final = "give the whole output of nvidia-smi topo -m"


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """The links of one node. ``ways[i][k]`` is the word for GPUs ``gpus[i]`` and ``gpus[k]``.

    ``numa`` is each GPU's NUMA node (None: unknown), ``cpus`` the CPUs beside it as the kernel writes a
    list, ``nics`` the way from each NIC to each GPU.
    """

    gpus: tuple[int, ...]
    ways: tuple[tuple[str, ...], ...]
    numa: tuple[int | None, ...] = ()
    cpus: tuple[str, ...] = ()
    nics: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def way(self, a: int, b: int) -> str:
        """The word for two GPUs, by their indices on the node."""
        return self.ways[self.gpus.index(a)][self.gpus.index(b)]


def closeness(way: str) -> int:
    """How good a way is: above 1,000 an NVLink (with its number of links), else 5 (PIX) to 1 (SYS).

    Errors: :class:`BadInput` for a word that is in no legend.
    """
    found = _NVLINK.fullmatch(way)
    if found:
        return 1_000 + int(found[1])
    if way not in PCIE:
        raise BadInput(
            "not a kind of link between GPUs",
            field="link",
            value=way,
            remedy=f"NV1 and up, {', '.join(PCIE)}",
        )
    return len(PCIE) - PCIE.index(way)


def parse_topo(text: str, source: str = "nvidia-smi topo -m") -> GpuLinks:
    """The matrix that ``nvidia-smi topo -m`` prints, with or without NICs and affinity columns.

    Errors: :class:`BadInput` naming ``source`` and the line, for text that is no such matrix.
    """
    lines = _STYLE.sub("", text).splitlines()
    at, columns = _header(lines, source)
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for number, line in enumerate(lines[at + 1 :], at + 2):
        words = line.split()
        if not words or words[0] not in columns:
            if words and rows:
                break  # the legend
            continue
        if words[0] in rows:
            raise _bad(source, number, "a row comes twice", words[0])
        cells = words[1 : len(columns) + 1]
        if len(cells) < len(columns):
            raise _bad(source, number, f"{len(cells)} links for {len(columns)} columns", words[0])
        for cell in cells:
            if cell != SELF and cell not in PCIE and not _NVLINK.fullmatch(cell):
                raise _bad(source, number, "not a kind of link", cell)
        rows[words[0]] = (cells, words[len(columns) + 1 :])
    missing = [name for name in columns if name not in rows]
    if missing:
        raise _bad(source, len(lines), "the row of a column is missing", missing[0])
    return _links(columns, rows, _nic_names(lines))


def _header(lines: list[str], source: str) -> tuple[int, list[str]]:
    for at, line in enumerate(lines):
        words = line.split()
        if words and _GPU.fullmatch(words[0]) and SELF not in words:
            columns = []
            for word in words:
                if word in ("CPU", "NUMA"):
                    break
                if not (_DEVICE.fullmatch(word) or _GPU.fullmatch(word)):
                    raise _bad(source, at + 1, "not the name of a GPU or NIC", word)
                columns.append(word)
            return at, columns
    raise _bad(source, 1, "there is no line with the names of the GPUs", None)


def _nic_names(lines: list[str]) -> dict[str, str]:
    found = (_NIC_NAME.fullmatch(line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def _links(
    columns: list[str], rows: dict[str, tuple[list[str], list[str]]], nic_names: dict[str, str]
) -> GpuLinks:
    gpus = [name for name in columns if _GPU.fullmatch(name)]
    where = [columns.index(name) for name in gpus]
    ways = tuple(tuple(rows[name][0][k] for k in where) for name in gpus)
    for i, name in enumerate(gpus):
        for k, other in enumerate(gpus):
            if (i == k) != (ways[i][k] == SELF) or ways[i][k] != ways[k][i]:
                raise BadInput(
                    f"{name} and {other} disagree on their link",
                    value=(ways[i][k], ways[k][i]),
                    remedy=_REMEDY,
                )
    return GpuLinks(
        tuple(int(name[3:]) for name in gpus),
        ways,
        tuple(_number(rows[name][1], 1) for name in gpus),
        tuple(rows[name][1][0] if rows[name][1] else "" for name in gpus),
        {
            nic_names.get(name, name): tuple(rows[name][0][k] for k in where)
            for name in columns
            if name not in gpus
        },
    )


def _number(cells: list[str], at: int) -> int | None:
    """The first number of an affinity cell: ``0``, ``0-1``, ``N/A``."""
    found = re.match(r"[0-9]+", cells[at]) if len(cells) > at else None
    return int(found[0]) if found else None


def _bad(source: str, line: int, problem: str, value: object) -> BadInput:
    return BadInput(problem, field=f"{source}:{line}", value=value, remedy=_REMEDY)
