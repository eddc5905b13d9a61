"""Links between the GPUs of one node: NVLink, xGMI, HCCS, PCIe switch, host bridge, socket.

Words are those of ``nvidia-smi topo -m`` and ``npu-smi info -t topo`` (see their legends), and ``XGMI`` with
the number of links between two GPUs of AMD that have some. The same picture comes from NVML in
:mod:`unidle.fleet.nvml` and from the kernel in :mod:`unidle.fleet.amd`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from unidle.errors import BadInput
from unidle.words import counted

SELF: Final = "X"
UNKNOWN: Final = "NA"
# Best first. Links made for GPUs come before all of them, the more the better.
PCIE: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")
# Of Ascend: in one package, from one to the other, over a switch.
HCCS: Final = ("SIO", "HCCS", "HCCS_SW")
WORD: Final = "|".join((r"(?:NV|XGMI)[1-9][0-9]?", "XGMI", *HCCS, *PCIE, UNKNOWN))
WORDS: Final = f"NV1 and up, XGMI1 and up, XGMI, {', '.join((*HCCS, *PCIE))} or {UNKNOWN}"
_NUMBERED: Final = re.compile(r"(?:NV|XGMI)([1-9][0-9]?)")
_WORD: Final = re.compile(WORD)
_ROUTED: Final = "XGMI"  # over other GPUs, or over an unknown number of links
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE: Final = re.compile(r"NIC[0-9]+|mlx[0-9]+_[0-9]+(?:_bond)?[0-9]*|[a-z]+[0-9]*_?[a-z0-9]*")
_GPU: Final = re.compile(r"(?:GPU|NPU|Phy-ID)([0-9]{1,6})")
_NIC_NAME: Final = re.compile(r"\s*(NIC[0-9]+)\s*:\s*(\S+)")
_REMEDY: Final = "give the whole output of nvidia-smi topo -m or npu-smi info -t topo"


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """The links of one node. ``ways[i][k]`` is the word for GPUs ``gpus[i]`` and ``gpus[k]``.

    ``numa`` is each GPU's NUMA node (None: unknown), ``cpus`` the CPUs next to it as the kernel writes a
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

    def of(self, numbers: dict[int, int]) -> GpuLinks:
        """The same links with some GPUs only, under other indices: ``numbers`` has the new one by the old."""
        kept = [at for at, gpu in enumerate(self.gpus) if gpu in numbers]
        return GpuLinks(
            tuple(numbers[self.gpus[at]] for at in kept),
            tuple(tuple(self.ways[i][k] for k in kept) for i in kept),
            tuple(self.numa[at] for at in kept) if self.numa else (),
            tuple(self.cpus[at] for at in kept) if self.cpus else (),
            {nic: tuple(ways[at] for at in kept) for nic, ways in self.nics.items()},
        )


def beside(parts: Sequence[GpuLinks]) -> GpuLinks:
    """The links of one node that has several kinds of GPU: links between two kinds are unknown."""
    if len(parts) == 1:
        return parts[0]
    size = sum(len(part.gpus) for part in parts)
    ways: list[tuple[str, ...]] = []
    for part in parts:
        before = len(ways)
        after = size - before - len(part.gpus)
        ways += [(UNKNOWN,) * before + row + (UNKNOWN,) * after for row in part.ways]
    gpus = tuple(gpu for part in parts for gpu in part.gpus)
    numa = tuple(node for part in parts for node in part.numa or (None,) * len(part.gpus))
    cpus = tuple(cpu for part in parts for cpu in part.cpus or ("",) * len(part.gpus))
    return GpuLinks(gpus, tuple(ways), numa, cpus)


def closeness(way: str) -> int:
    """The closeness of a link type: from 1,000 on a link made for GPUs (with its number of links), else 5 (PIX)
    to 1 (SYS).

    0: unknown. Errors: :class:`BadInput` for a word that is in no legend.
    """
    found = _NUMBERED.fullmatch(way)
    if found:
        return 1_000 + int(found[1])
    if way == _ROUTED:
        return 1_000
    if way in HCCS:
        return 1_000 + len(HCCS) - HCCS.index(way)
    if way in PCIE:
        return len(PCIE) - PCIE.index(way)
    if way == UNKNOWN:
        return 0
    raise BadInput("not a kind of link between GPUs", field="link", value=way, remedy=WORDS)


def is_word(way: str) -> bool:
    """Whether ``closeness`` accepts the word."""
    return _WORD.fullmatch(way) is not None


def describe(links: GpuLinks) -> str:
    """In words: ``8 GPUs, NV18 between all, 2 NUMA nodes``."""
    size = len(links.gpus)
    ways = {links.ways[i][k] for i in range(size) for k in range(i)}
    best, worst = (max(ways, key=closeness), min(ways, key=closeness)) if ways else ("", "")
    between = f", {worst} between all" if best == worst else f", {best} at best and {worst} at worst"
    numa = {node for node in links.numa if node is not None}
    on = f", {counted(len(numa), 'NUMA node')}" if numa else ""
    return f"{counted(size, 'GPU')}{between if ways else ''}{on}"


def parse_topo(text: str, source: str = "nvidia-smi topo -m") -> GpuLinks:
    """The matrix that ``nvidia-smi topo -m`` or ``npu-smi info -t topo`` prints, with or without NICs and affinity.

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
            raise _bad(
                source,
                number,
                f"{counted(len(cells), 'link')} for {counted(len(columns), 'column')}",
                words[0],
            )
        for cell in cells:
            if cell != SELF and not is_word(cell):
                raise _bad(source, number, "not a kind of link", cell)
        rows[words[0]] = (cells, words[len(columns) + 1 :])
    missing = [name for name in columns if name not in rows]
    if missing:
        raise _bad(source, len(lines), "the row of a column is missing", missing[0])
    return _links(columns, rows, _nic_names(lines), source)


def _header(lines: list[str], source: str) -> tuple[int, list[str]]:
    for at, line in enumerate(lines):
        words = line.split()
        if words and _GPU.fullmatch(words[0]) and SELF not in words:
            columns = []
            for word in words:
                if word in ("CPU", "NUMA"):
                    break
                if not (_GPU.fullmatch(word) or _DEVICE.fullmatch(word)):
                    raise _bad(source, at + 1, "not the name of a GPU or NIC", word)
                columns.append(word)
            return at, columns
    raise _bad(source, 1, "there is no line with the names of the GPUs", None)


def _nic_names(lines: list[str]) -> dict[str, str]:
    found = (_NIC_NAME.fullmatch(line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def _links(
    columns: list[str],
    rows: dict[str, tuple[list[str], list[str]]],
    nic_names: dict[str, str],
    source: str,
) -> GpuLinks:
    numbers = {name: int(found[1]) for name in columns if (found := _GPU.fullmatch(name))}
    gpus = list(numbers)
    where = [columns.index(name) for name in gpus]
    ways = tuple(tuple(rows[name][0][k] for k in where) for name in gpus)
    for i, name in enumerate(gpus):
        for k, other in enumerate(gpus):
            if (i == k) != (ways[i][k] == SELF) or ways[i][k] != ways[k][i]:
                raise BadInput(
                    f"{name} and {other} disagree on their link",
                    field=source,
                    value=f"{ways[i][k]} and {ways[k][i]}",
                    remedy=_REMEDY,
                )
    return GpuLinks(
        tuple(numbers.values()),
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
