"""How many lines of a kernel log are read each second, and how many real lines are understood.

The log for speed is made here: lines of the kernel's daily talk, with a fault in every thousandth line, and one that is
nothing but faults. Recall and precision are on labelled real lines: `faults/kernel_log_samples.tsv` in the directory that
UNIDLE_DATA names (default: `../shared/data` next to the checkout); without it those rows are left out, with a note.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from _table import Row, main
from unidle.guard.log import NEEDLES, Finding, LogLine, Reader, Splitter

SAMPLES = (
    Path(os.environ.get("UNIDLE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    / "faults"
    / "kernel_log_samples.tsv"
)
TALK = (
    "usb 1-1.{k}: new high-speed USB device number {k} using xhci_hcd",
    "audit: type=1400 audit(1700000000.{k}:1): apparmor=ALLOWED operation=open profile=snap",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{k}: link becomes ready",
    "docker0: port 1(veth{k}) entered forwarding state",
    " ? srso_alias_return_thunk+0x5/0xfbef{k}",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode. Quota mode: none.",
)
FAULT = "NVRM: Xid (PCI:0000:{k:02x}:00): 31, pid=14292, name=python, Ch 00000030, intr 00000000. MMU Fault: ENGINE HOST0"
GOAL = 100_000
BLOCK = 1 << 18


def log(lines: int, every: int) -> bytes:
    """A log in which each ``every``-th line is a fault."""
    texts = (
        f"[{k // 1000:6}.{k % 1000:06}] "
        + (FAULT if k % every == 0 else TALK[k % len(TALK)]).format(k=k % 250)
        for k in range(lines)
    )
    return "".join(f"{text}\n" for text in texts).encode()


def speed(data: bytes) -> tuple[float, int]:
    """Seconds of processor, and how many findings."""
    reader, splitter, found = Reader(), Splitter(needles=NEEDLES), 0
    start = time.process_time()
    for at in range(0, len(data), BLOCK):
        for line in splitter.feed(data[at : at + BLOCK]):
            found += reader.consider(line) is not None
    return time.process_time() - start, found


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    for what, every, goal in (
        ("kernel log with a fault in every 1,000th line", 1000, GOAL),
        ("kernel log of nothing but faults", 1, None),
    ):
        data = log(arguments.lines, every)
        runs = [speed(data) for _ in range(arguments.tries)]
        assert all(found == -(-arguments.lines // every) for _, found in runs)
        rates = [arguments.lines / seconds for seconds, _ in runs]
        rate = statistics.median(rates)
        yield Row(
            what, "lines/s of one processor", rate, goal=f"at least {goal:,}" if goal else None,
            holds=rate >= goal if goal else None,
            how=f"measured here, median of {len(runs)} ({min(rates):,.0f} to {max(rates):,.0f})",
        )  # fmt: skip
    if not SAMPLES.exists():
        print(f"classify: no labelled lines at {SAMPLES.name}: set UNIDLE_DATA", file=sys.stderr)
        return
    yield from quality()


def quality() -> Iterator[Row]:
    """Recall and precision of Xid and SXid on labelled real lines, each line on its own."""
    hits = wrong = missed = 0
    labelled = [
        line.rstrip("\n").split("\t", 2) for line in SAMPLES.read_text().splitlines() if line[0] != "#"
    ]
    for code, _, text in labelled:
        found = Reader().read(LogLine(1, text.encode()))
        said = named(found)
        hits += said == code != "-"
        wrong += said not in (code, "-")
        missed += code not in (said, "-")
    how = f"measured here, {len(labelled)} labelled real lines"
    recall, precision = hits / (hits + missed), hits / (hits + wrong)
    yield Row("Xid and SXid: recall", "share", recall, goal="1", holds=recall == 1, how=how)
    yield Row("Xid and SXid: precision", "share", precision, goal="1", holds=precision == 1, how=how)


def named(finding: Finding | None) -> str:
    """The label that the finding would have: ``79``, ``S12028``, ``-``."""
    if finding is None or finding.kind not in ("xid", "sxid"):
        return "-"
    return f"{'S' if finding.kind == 'sxid' else ''}{finding.code}"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--tries", type=int, default=5)


if __name__ == "__main__":
    main("classify", rows, _arguments)
