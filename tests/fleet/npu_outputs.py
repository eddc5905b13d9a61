"""Outputs of ``npu-smi``, written from the documented format: no machine printed them."""

from __future__ import annotations

_BAR = "+" + "=" * 27 + "+" + "=" * 15 + "+" + "=" * 52 + "+"
_LINE = "+" + "-" * 96 + "+"
LEGEND = """
Legend:

  X    = Self
  SYS  = Path traversing PCIe and NUMA nodes. Nodes are connected through SMP, such as QPI, UPI.
  PHB  = Path traversing PCIe and the PCIe host bridge of a CPU.
  PIX  = Path traversing a single PCIe switch
  PXB  = Path traversing multiple PCIe switches
  HCCS = Connection traversing HCCS.
  SIO  = Path traversing the SIO bus
  HCCS_SW = Connection traversing HCCS through a switch
  NA   = Unknown relationship.
"""


def row(a: str, b: str, c: str) -> str:
    return f"| {a:<26}| {b:<14}| {c:<51}|"


def info(chips: list[tuple[int, str, str, str]], second: str = "Chip") -> str:
    """``chips``: card, model, the cell of the second line, PCI address; each with 64 GiB of HBM."""
    out = [
        _LINE, f"| {'npu-smi 24.1.rc3':<33}{'Version: 24.1.rc3':<62}|", _LINE,
        row("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"),
        row(second, "Bus-Id", "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)"), _BAR,
    ]  # fmt: skip
    for card, model, chip, bus in chips:
        out.append(row(f"{card:<6}{model}", "OK", "93.6        40                0    / 0"))
        out += [row(chip, bus, "0           0    / 0          3161 / 65536"), _BAR]
    out += [
        row("NPU     Chip", "Process id", "Process name             Process memory(MB)"), _BAR,
        f"| {'No running processes found in NPU 0':<95}|", _BAR,
    ]  # fmt: skip
    return "\n".join(out) + "\n"


def topo(names: list[str], way: dict[tuple[int, int], str], cpus: list[str]) -> str:
    out = ["".join(f"{cell:<11}" for cell in ("", *names, "CPU Affinity"))]
    for i, name in enumerate(names):
        cells = ["X" if i == k else way[min(i, k), max(i, k)] for k in range(len(names))]
        out.append("".join(f"{cell:<11}" for cell in (name, *cells, cpus[i])))
    return "\n".join(out) + "\n" + LEGEND


PAIRS = [(a, b) for b in range(8) for a in range(b)]
# Atlas A2: eight cards of one chip, each linked to each other one.
A2_INFO = info(
    [
        (k, "910B3", "0", f"0000:{bus}:00.0")
        for k, bus in enumerate(["C1", "C2", "81", "82", "01", "02", "41", "42"])
    ]
)
A2_TOPO = topo(
    [f"NPU{k}" for k in range(8)],
    dict.fromkeys(PAIRS, "HCCS"),
    [f"{(3 - k // 2) * 48}-{(3 - k // 2) * 48 + 23}" for k in range(8)],
)
# Atlas A3: two cards of two chips, that a container sees of eight.
A3_INFO = info(
    [(6 + k // 2, "Ascend910", f"{k % 2}     {12 + k}", f"0000:{0x95 + 2 * k:02X}:00.0") for k in range(4)],
    "Chip  Phy-ID",
)
A3_TOPO = topo(
    [f"Phy-ID{12 + k}" for k in range(4)],
    {(a, b): "SIO" if a // 2 == b // 2 else "HCCS_SW" for a, b in PAIRS},
    ["0-39"] * 4,
)
