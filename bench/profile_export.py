"""What each file that `unidle profile` writes costs: seconds of one CPU, and its size, from a profile made by a rule."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator

from _table import Row, main
from unidle.scope.export import FORMATS
from unidle.scope.model import Frame, Process, Profile, Quality, Sample

STATES = ("on", "off", "runq")
THREADS = 16


def rows(given: argparse.Namespace) -> Iterator[Row]:
    profile = made(given.stacks, given.samples, random.Random(given.seed))
    how = f"measured here, {given.samples:,} samples of {given.stacks:,} stacks, CPU time, one run"
    for name, form in FORMATS.items():
        started = time.process_time()
        content = form.write(profile)
        seconds = time.process_time() - started
        yield Row(f"{name}: time to write", "s", round(seconds, 2), how=how)
        yield Row(f"{name}: size", "MB", round(len(content) / 1e6, 2), how=how)


def made(stacks: int, samples: int, chance: random.Random) -> Profile:
    """Stacks that branch like those of a program: each goes on where an earlier one left off."""
    frames = tuple(_frame(k) for k in range(max(stacks // 2, 1)))
    paths: list[tuple[int, ...]] = [(0,)]
    while len(paths) < stacks:
        trunk = paths[chance.randrange(len(paths) // 2, len(paths))]
        kept = trunk[: chance.randrange(len(trunk)) + 1][:60]
        paths.append((*kept, *(chance.randrange(len(frames)) for _ in range(chance.randrange(1, 12)))))
    seen = tuple(
        Sample(1, 1 + k % THREADS, k % stacks, STATES[k % 3], 1, chance.randrange(1, 20_000_000))  # type: ignore[arg-type]
        for k in range(samples)
    )
    return Profile(
        tier="T0", start_ns=0, end_ns=10_000_000_000, frames=frames, stacks=tuple(paths), samples=seen,
        processes=(Process(1, "python train.py", rank=0),), quality=Quality(samples=samples),
    )  # fmt: skip


def _frame(k: int) -> Frame:
    if k % 4 == 0:
        return Frame("python", f"function_{k}", f"file_{k % 97}.py", k % 900)
    return Frame("kernel" if k % 4 == 3 else "native", f"function_{k}", module=f"lib{k % 31}.so")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stacks", type=int, default=200_000)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)


if __name__ == "__main__":
    main("profile_export", rows, add_arguments)
