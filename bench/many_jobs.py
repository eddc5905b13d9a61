"""Commands on a store with many jobs: what each takes, and how much of the store it reads.

The store is what the loop writes while it drives simulated gangs: every job has been submitted, placed, run and ended, and
as many events as the loop keeps at most between two snapshots follow the last snapshot. Each command is a process of its
own; what Python needs to start is part of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from _process import UNIDLE, environment
from _table import Row, main
from unidle.clock import RealClock, VirtualClock
from unidle.control.inbox import SubmitRequest
from unidle.control.loop import Controller
from unidle.control.services import ControllerTiming
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import seeded
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec
from unidle.place.policy import Unidle
from unidle.store.open import open_store

JOBS, DEVICES = 50_000, 256
TURN_EVERY = 64  # jobs between two turns: as many events go into one transaction
GOAL_S, TURN_S = 0.3, 0.1
STEP_NS = 10_000_000_000


def fleet() -> Fleet:
    devices = tuple(Device(f"n1/{i}", "n1", i, "gpu") for i in range(DEVICES))
    return Fleet(nodes=(Node("n1", "", devices),))


def make(path: Path, ended: int, waiting: int = 0) -> None:
    """A store in which so many jobs have ended, and so many more wait or run, as devices are free. Its controller was killed."""
    store = open_store(str(path), create=True)
    clock = VirtualClock(1_700_000_000 * 1_000_000_000)
    engine = SimEngine(fleet(), clock, seeded(1, mean_work_s=5, step_s=1))
    controller = Controller(
        store, store.acquire("bench"), engine, Unidle(), clock, timing=ControllerTiming(inbox_every_ns=None)
    )
    controller.start("bench")
    spec = JobSpec(("train",), name="many")
    for number in range(ended):
        controller.submit(f"many-{number:06d}", spec, "ann")
        if number % TURN_EVERY == 0:
            _turn(controller, clock)
    while not controller.idle():
        _turn(controller, clock)
    for number in range(ended, ended + waiting):
        controller.submit(f"many-{number:06d}", spec, "ann")
        if number % TURN_EVERY == 0:
            controller.turn()
    controller.turn()
    store.close()


def _turn(controller: Controller, clock: VirtualClock) -> None:
    controller.turn()
    clock.advance_to(clock.now_ns() + STEP_NS)


def took(path: Path, *command: str, runs: int) -> tuple[list[float], int]:
    """Seconds of each run, in order, and the exit code."""
    found, code = [], 0
    env = environment(UNIDLE_STORE=str(path))
    for _ in range(runs):
        begin = time.perf_counter()
        code = subprocess.run([*UNIDLE, *command], env=env, capture_output=True, check=False).returncode
        found.append(time.perf_counter() - begin)
    return sorted(found), code


def turns(path: Path, requests: int) -> list[float]:
    """The seconds of each turn of a controller with so many requests in its inbox, in order of length."""
    store = open_store(str(path), create=True)
    spec = JobSpec(("train",), name="many")
    with store.transaction():
        for number in range(requests):
            store.request("submit", msgspec.json.encode(SubmitRequest(f"many-{number:06d}", spec)))
    clock = RealClock()
    engine = SimEngine(fleet(), VirtualClock(1), seeded(1, mean_work_s=1e6))
    controller = Controller(store, store.acquire("bench"), engine, Unidle(), clock)
    controller.start("bench")
    spent = []
    while len(controller.view.jobs) < requests:
        begin = time.perf_counter()
        controller.turn()
        spent.append(time.perf_counter() - begin)
    store.close()
    return sorted(spent)


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Every figure in turn."""
    with tempfile.TemporaryDirectory(prefix="unidle-bench-", dir=given.directory) as place:
        path = Path(place) / "store"
        make(path, given.jobs, 1)
        size = path.stat().st_size / 2**20
        last = f"many-{given.jobs:06d}"
        name = f"many-{given.jobs // 2:06d}"
        spent = turns(Path(place) / "inbox", given.jobs)
        for what, took_s in (("median", spent[len(spent) // 2]), ("longest", spent[-1])):
            yield Row(
                f"{what} turn of a controller, {given.jobs:,} requests in the inbox", "s", took_s,
                goal=f"at most {TURN_S:g} s", holds=took_s <= TURN_S, how=f"measured here, {len(spent)} turns",
            )  # fmt: skip
        what = f"{given.jobs:,} ended jobs"
        start, _ = took(path, "--version", runs=given.runs)
        yield _row("the program alone: `unidle --version`", start, f"store of {size:.0f} MiB")
        commands: tuple[tuple[str, ...], ...] = (
            ("list",), ("list", "--all"), ("explain",), ("show",), ("show", name), ("logs",), ("queue",), ("cancel", "--no-wait", last),
        )  # fmt: skip
        for command in commands:
            runs = 1 if command[0] == "cancel" else given.runs
            spent, code = took(path, *command, runs=runs)
            shown = " ".join(command).replace(name, "JOB").replace(last, "JOB")
            yield _row(
                f"`unidle {shown}`, {what}", spent, f"exit {code}", GOAL_S if "--all" not in command else None
            )
        many = Path(place) / "waiting"
        make(many, 10, given.jobs)
        for command in (("list",), ("show",), ("explain",)):
            spent, code = took(many, *command, runs=given.runs)
            yield _row(f"`unidle {command[0]}`, {given.jobs:,} waiting jobs", spent, f"exit {code}", GOAL_S)


def _row(what: str, spent: list[float], about: str, goal_s: float | None = None) -> Row:
    took_s = spent[len(spent) // 2]
    how = f"measured here, median of {len(spent)} ({spent[0]:.2f} to {spent[-1]:.2f}), {about}"
    if goal_s is None:
        return Row(what, "s", took_s, how=how)
    return Row(what, "s", took_s, goal=f"at most {goal_s:g} s", holds=took_s <= goal_s, how=how)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--directory", default=os.environ.get("TMPDIR", "/var/tmp"), help="where the files go"
    )


if __name__ == "__main__":
    main("many_jobs", rows, add_arguments)
