"""The demo of span: four sites train a real GPT over links with real limits, compared with its model, one process, and gloo.

    make demo-span
    make demo-span ARGS="--steps 20"

As root each site is a network namespace, its links have 20 ms and 50 Mbit/s. Otherwise all is on loopback, and it says so.
Everything is done by ``unidle span run``; a directory below .cache/demo has what it wrote.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from demo import ROOT, tell


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo_span.py", description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="training steps (default 12)")
    arguments = parser.parse_args()
    place = ROOT / ".cache" / "demo" / time.strftime("span-%Y%m%d-%H%M%S")
    place.mkdir(parents=True)
    for name in ("train.yaml", "model.py"):
        shutil.copy(ROOT / "examples" / "span" / name, place)
    begun = time.monotonic()
    if os.geteuid() != 0:
        tell(
            "not root: no namespaces, so links have neither latency nor limits, and are faster than their model"
        )
    tell("the plan, before anything runs: all schedules at equal memory (modelled)")
    if code := unidle("simulate", str(place / "train.yaml")):
        sys.exit(code)
    tell("four sites train it")
    code = unidle(
        "run", str(place / "train.yaml"), "--steps", str(arguments.steps), "--store", str(place / "span.db"),
        "--against", "single,gloo", "--gantt", str(place / "step.svg"), "--perfetto", str(place / "trace.json"),
    )  # fmt: skip
    shown = place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
    tell(
        f"{time.monotonic() - begun:.0f} s. A measured step compared with the modelled one: {shown / 'step.svg'};"
    )
    tell(f"for ui.perfetto.dev: {shown / 'trace.json'}; where each device's time went: {shown / 'span.db'}")
    sys.exit(code)


def unidle(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "unidle", "span", *words], check=False).returncode


if __name__ == "__main__":
    main()
