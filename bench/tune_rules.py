"""What each rule of `unidle tune` costs: slow and fast form of a small program, run in turn.

Each row is a rule. A pair runs the slow and the fast form, the next pair the other way round. The ratio is the median over all
pairs, with its interval from a bootstrap; on a loaded machine both forms are slowed, so the ratio counts, not the times.
Rules whose cost shows only on a GPU, between ranks or with other libraries have no row.

    python bench/tune_rules.py --pairs 15 --write    # also writes the figures into the pages of the rules
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from _table import Row, main
from _tune_pairs import PAIRS, torch_version

PAGES = Path(__file__).resolve().parent.parent / "src" / "unidle" / "tune" / "pages"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the benchmark."""
    parser.add_argument("--pairs", type=int, default=7, help="pairs of runs for each rule")
    parser.add_argument("--write", action="store_true", help="write the figures into the pages of the rules")
    parser.add_argument("--only", default="", help="codes, with commas between")


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one run."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measured(slow: Callable[[], object], fast: Callable[[], object], pairs: int) -> tuple[list[float], float]:
    """The ratios of all pairs, and the median time of the slow form in seconds. Each form runs once first."""
    slow(), fast()
    ratios, times = [], []
    for number in range(pairs):
        if number % 2:
            b, a = seconds(fast), seconds(slow)
        else:
            a, b = seconds(slow), seconds(fast)
        ratios.append(a / b)
        times.append(a)
    return ratios, statistics.median(times)


def interval(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(1000))
    return medians[25], medians[974]


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """A row for each rule that can be measured here."""
    wanted = [code for code in given.only.split(",") if code]
    for code, what, make in PAIRS:
        if wanted and code not in wanted:
            continue
        slow, fast = make()
        ratios, slow_s = measured(slow, fast, given.pairs)
        low, high = interval(ratios)
        ratio = statistics.median(ratios)
        if given.write:
            write(code, what, ratio, (low, high), given.pairs)
        yield Row(
            f"{code} {what}", "ms", slow_s * 1e3, slow_s * 1e3 / ratio, "fast form", ratio,
            how=f"measured here, {given.pairs} pairs in turn, 95 % [{low:.2f}, {high:.2f}]",
        )  # fmt: skip


def figure(value: float) -> str:
    """Two or three digits: 1.27, 8.7, 127."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def write(code: str, what: str, ratio: float, bounds: tuple[float, float], pairs: int) -> None:
    """Replace the section on cost of a page."""
    page = PAGES / f"{code}.md"
    low, high = map(figure, bounds)
    words = (
        f"The slow form took {figure(ratio)} times as long as the fast one (95 %: {low} to {high}). The program: {what}. "
        f"Measured on {datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} {platform.machine()} CPU cores with PyTorch {torch_version()}, {pairs} pairs in turn: "
        f"`python bench/tune_rules.py --only {code}`. The machine had other work."
    )
    text = re.sub(
        r"(?<=\n## Cost\n\n).*?(?=\n\n## )",
        lambda _: words,
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main("tune_rules", rows, arguments)
