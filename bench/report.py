"""The HTML report at 1,000,000 bars of 10,000 devices: time to build, size, first paint, a frame."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _table import Row, main

# The sample and the browser of the tests; `report` itself is this file's name.
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "report"))

from browser import Browser  # type: ignore[import-not-found]
from sample import large  # type: ignore[import-not-found]

from unidle.report.html import render

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
FRAMES = """new Promise(done => {
  const page = window.page, times = [];
  const next = k => {
    const began = performance.now();
    if (k % 2) page.chart.zoom(k % 4 === 1 ? 0.8 : 1.25, page.report.length / 3);
    else page.chart.pan(k % 4 ? 0.02 : -0.02);
    times.push(performance.now() - began);
    if (k < 60) requestAnimationFrame(() => next(k + 1)); else done(times);
  };
  next(0);
})"""


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    data = large(arguments.devices, arguments.bars)
    what = f"report of {arguments.bars:,} bars, {arguments.devices:,} devices"
    times, page = [], ""
    for _ in range(arguments.runs):
        began = time.process_time()
        page = render(data)
        times.append(time.process_time() - began)
    how = f"measured here, median of {arguments.runs}, {min(times):.2f} to {max(times):.2f}"
    yield limit(f"{what}: build", "CPU s", statistics.median(times), 5.0, how)
    yield limit(f"{what}: file", "MB", len(page.encode()) / 1e6, 10.0, "measured here")
    program = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    if program is None:
        print("no Chromium here: nothing is opened", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield from opened(program, Path(scratch), page, what, arguments.runs)


def opened(program: str, scratch: Path, page: str, what: str, runs: int) -> Iterator[Row]:
    path = scratch / "report.html"
    path.write_text(page, encoding="utf-8")
    paints, ready, frames = [], [], []
    with Browser(program, scratch / "profile") as browser:
        for _ in range(runs):
            began = time.perf_counter()
            browser.open_report(path)
            ready.append(time.perf_counter() - began)
            paints.append(browser.run(PAINT) / 1_000)
        frames = json.loads(browser.run(f"{FRAMES}.then(JSON.stringify)"))
    chromium = f"measured here, Chromium from file://, median of {runs}"
    yield limit(f"{what}: first paint", "s", statistics.median(paints), 1.0, chromium)
    yield limit(f"{what}: chart ready", "s", statistics.median(ready), 2.0, chromium)
    worst = statistics.quantiles(frames, n=20)[-1]
    how = "measured here, 95th percentile of 61 frames that zoom and pan, without a GPU"
    yield limit(f"{what}: frame", "ms", worst, 33.0, how)


def limit(what: str, unit: str, ours: float, most: float, how: str) -> Row:
    return Row(what, unit, round(ours, 3), goal=f"at most {most:g} {unit}", holds=ours <= most, how=how)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bars", type=int, default=1_000_000)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)


if __name__ == "__main__":
    main("report", rows, add_arguments)
