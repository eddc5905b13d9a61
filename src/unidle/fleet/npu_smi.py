"""Ascend NPUs and their links, from the output of ``npu-smi info`` and ``npu-smi info -t topo``.

The table has two lines for each chip: the first begins with the card's number and the model, the second with the
chip's number on the card, on some products also its number on the node, and the PCI address. (npu-smi command
reference of Atlas A2 and A3.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from unidle.errors import BadInput
from unidle.fleet.links import GpuLinks, parse_topo
from unidle.fleet.model import FoundGpu
from unidle.fleet.pci import cpus_beside, numa_node

INFO: Final = ("npu-smi", "info")
TOPO: Final = ("npu-smi", "info", "-t", "topo")
_CARD: Final = re.compile(r"([0-9]+)\s+(\S+)")
_CHIP: Final = re.compile(r"([0-9]+)(?:\s+([0-9]+|NA))?")
_BUS: Final = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|NA")
_PAIR: Final = re.compile(r"([0-9]+)\s*/\s*([0-9]+)")
_REMEDY: Final = "see what npu-smi info prints, or declare the fleet in a file"


def parse_info(text: str) -> tuple[tuple[FoundGpu, ...], tuple[int, ...]]:
    """The NPUs, numbered as ASCEND_RT_VISIBLE_DEVICES does, and of each the number that the topology has.

    Errors: :class:`BadInput` naming the line, for text that is no such table.
    """
    found: list[FoundGpu] = []
    shown: list[int] = []
    card: tuple[int, str] | None = None
    for number, cells in _rows(text):
        if card is None:
            match = _CARD.fullmatch(cells[0])
            if match is None or _BUS.fullmatch(cells[1]):
                raise _bad(number, "not the first line of a chip", cells[0])
            card = (int(match[1]), match[2])
            continue
        match = _CHIP.fullmatch(cells[0])
        if match is None or not _BUS.fullmatch(cells[1]):
            raise _bad(number, "not the second line of a chip", cells[0])
        totals = [int(pair[2]) for pair in _PAIR.finditer(cells[2])]  # of memory and HBM, in MiB
        bus = "" if cells[1] == "NA" else cells[1].lower()
        model = card[1] if card[1].startswith("Ascend") else f"Ascend {card[1]}"
        found.append(FoundGpu(len(found), model, "", max(totals, default=0) << 20, bus))
        shown.append(int(match[2]) if match[2] and match[2] != "NA" else card[0])
        card = None
    if card is not None:
        raise _bad(len(text.splitlines()), "the table ends within a chip", card[1])
    return tuple(found), tuple(shown)


def parse_npu_topo(
    text: str, gpus: Sequence[FoundGpu], shown: Sequence[int], sysfs: Path = Path("/sys")
) -> GpuLinks:
    """The links of these NPUs, by their number. NUMA nodes come from ``sysfs``.

    Errors: :class:`BadInput` for text that is no matrix of just these NPUs.
    """
    links = parse_topo(text, " ".join(TOPO))
    if sorted(links.gpus) != sorted(shown):
        raise BadInput(
            f"it has NPUs {sorted(links.gpus)}, and npu-smi info has {sorted(shown)}",
            field=" ".join(TOPO),
            remedy=_REMEDY,
        )
    at = [links.gpus.index(number) for number in shown]
    numa = tuple(numa_node(gpu.bus_id, sysfs) if gpu.bus_id else None for gpu in gpus)
    ways = tuple(tuple(links.ways[i][k] for k in at) for i in at)
    cpus = tuple(cpus_beside(node, sysfs) or links.cpus[i] for node, i in zip(numa, at, strict=True))
    return GpuLinks(tuple(gpu.number for gpu in gpus), ways, numa, cpus)


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of the table of chips, each as its three cells."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "Bus-Id" in cells:
            inside = True
        elif any(cell.startswith("Process id") for cell in cells):
            return
        elif inside and len(cells) == 3:
            yield number, cells
    if not inside:
        raise _bad(1, "there is no table of NPUs", text.splitlines()[0] if text.strip() else None)


def _bad(line: int, problem: str, value: object) -> BadInput:
    return BadInput(problem, field=f"{' '.join(INFO)}:{line}", value=value, remedy=_REMEDY)
