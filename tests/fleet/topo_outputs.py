"""Outputs of ``nvidia-smi topo -m``, written from the documented format: no machine printed them."""

from __future__ import annotations

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def table(names: list[str], rows: list[list[str]], tail: list[str], head: str) -> str:
    """As the tool prints it: cells divided by tabs, column names underlined."""
    lines = ["\t\x1b[4m" + "\t".join([*names, head]) + "\x1b[0m"]
    lines += [
        "\t".join([name, *(c if c != "X" else " X " for c in row), end])
        for name, row, end in zip(names, rows, tail, strict=True)
    ]
    return "\n".join(lines) + "\n"


def switched(links: str, cpus: tuple[str, str], nics: bool) -> str:
    """8 GPUs on NVSwitches, two sockets; with a NIC beside each GPU where wanted."""
    names = [f"GPU{k}" for k in range(8)] + ([f"NIC{k}" for k in range(8)] if nics else [])
    rows = []
    for i, a in enumerate(names):
        row = []
        for k, b in enumerate(names):
            same_socket = (i % 8 < 4) == (k % 8 < 4)
            if i == k:
                row.append("X")
            elif a[0] == b[0] == "G":
                row.append(links)
            elif i % 8 == k % 8:
                row.append("PXB")
            else:
                row.append("NODE" if same_socket else "SYS")
        rows.append(row)
    tail = [f"{cpus[k > 3]}\t{int(k > 3)}\t\tN/A" for k in range(8)] + [""] * (8 if nics else 0)
    text = table(names, rows, tail, "CPU Affinity\tNUMA Affinity\tGPU NUMA ID") + LEGEND
    if nics:
        text += "\nNIC Legend:\n\n" + "".join(f"  NIC{k}: mlx5_{k}\n" for k in range(8))
    return text


A100_X8 = switched("NV12", ("0-63,128-191", "64-127,192-255"), nics=False)
H100_X8 = switched("NV18", ("0-55,112-167", "56-111,168-223"), nics=True)

# Two pairs behind a PCIe switch each on socket 0, four GPUs on socket 1 behind host bridges of their own.
PCIE_X8 = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tPIX\tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\t0-23\t0\n"
    "GPU1\tPIX\t X \tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\t0-23\t0\n"
    "GPU2\tPXB\tPXB\t X \tPIX\tSYS\tSYS\tSYS\tSYS\t0-23\t0\n"
    "GPU3\tPXB\tPXB\tPIX\t X \tSYS\tSYS\tSYS\tSYS\t0-23\t0\n"
    "GPU4\tSYS\tSYS\tSYS\tSYS\t X \tPHB\tNODE\tNODE\t24-47\t1\n"
    "GPU5\tSYS\tSYS\tSYS\tSYS\tPHB\t X \tNODE\tNODE\t24-47\t1\n"
    "GPU6\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\t X \tPHB\t24-47\t1\n"
    "GPU7\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPHB\t X \t24-47\t1\n" + LEGEND
)

# Four cards, two of them bridged, and two NICs; the old format without NUMA columns of its own for GPUs.
MIXED = (
    "        GPU0    GPU1    GPU2    GPU3    mlx5_0  mlx5_1  CPU Affinity    NUMA Affinity\n"
    "GPU0     X      NV4     NODE    SYS     PIX     SYS     0-15,32-47      0\n"
    "GPU1    NV4      X      NODE    SYS     PXB     SYS     0-15,32-47      0\n"
    "GPU2    NODE    NODE     X      SYS     NODE    SYS     0-15,32-47      0\n"
    "GPU3    SYS     SYS     SYS      X      SYS     PHB     16-31,48-63     1\n"
    "mlx5_0  PIX     PXB     NODE    SYS      X      SYS\n"
    "mlx5_1  SYS     SYS     SYS     PHB     SYS      X\n" + LEGEND
)
