"""`unidle tune run`: how much faster programs become, next to what somebody who knows would have written; and what is accepted wrongly.

Programs come from a seed (`bench/_tune_run_programs.py`): scripts that train, with one to three slow-downs of rules that have an edit. Each is
tuned within a budget of minutes; then the slow, the tuned and the oracle's program are measured next to each other, with all edits applied.

    python bench/tune_run.py --programs 30 --minutes 3 --equal 200    # whole: about two hours on two quiet cores
    python bench/tune_run.py --programs 3 --minutes 2 --equal 20 --mutants 20
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _table import Row, main
from _tune_run_programs import Mutant, RunProgram, mutants, plain_program, run_program
from unidle.tune.edits import Edit
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.forks import fork_plan
from unidle.tune.trial.marks import StepWatch, times_between
from unidle.tune.trial.race import Race, Racer, TimedSteps, window_of
from unidle.tune.trial.verify import verify
from unidle.tune.trial.workshop import Workshop

PYTHON = (sys.executable, "train.py")
AT_ONCE = 8
"""Equal programs in one race."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the benchmark."""
    parser.add_argument("--seed", type=int, default=40_000, help="first of the seeds")
    parser.add_argument("--programs", type=int, default=6, help="programs with slow-downs")
    parser.add_argument("--minutes", type=float, default=3, help="budget of each")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of the measuring afterwards")
    parser.add_argument("--equal", type=int, default=40, help="races of a program with itself")
    parser.add_argument(
        "--mutants", type=int, default=1000, help="at most so many changes of what is computed"
    )


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Speed-ups, equal programs, mutants."""
    if given.programs:
        yield from speed_ups(given)
    if given.equal:
        yield equal_programs(given)
    if given.mutants:
        yield wrong_changes(given)


# -- speed-ups


@dataclass(frozen=True, slots=True)
class Tuned:
    """How many times faster a program became, how many times the oracle's is, and which of its slow-downs were kept."""

    name: str
    planted: tuple[str, ...]
    kept: tuple[str, ...]
    tuned: float
    oracle: float


def speed_ups(given: argparse.Namespace) -> Iterator[Row]:
    """Of the generated programs."""
    found = []
    for number in range(given.programs):
        one = tuned(run_program(given.seed + number), given)
        found.append(one)
        print(f"{one.name} {','.join(one.planted)}: kept {','.join(one.kept) or '-'}, {one.tuned:.2f}x, oracle {one.oracle:.2f}x", file=sys.stderr)  # fmt: skip
    ours = statistics.geometric_mean(one.tuned for one in found)
    oracle = statistics.geometric_mean(one.oracle for one in found)
    planted = sum(len(one.planted) for one in found)
    kept = sum(len(set(one.planted) & set(one.kept)) for one in found)
    how = f"measured here, {len(found)} programs with {planted} slow-downs, {kept} of them kept, {given.minutes:g} min each, {given.pairs} pairs after it"
    yield Row("speed-up of injected programs, geometric mean", "x", ours, oracle, "oracle's form", ours / oracle, ">= 2", ours >= 2, how)  # fmt: skip
    yield Row("part of the oracle's speed-up", "share", ours / oracle, goal=">= 0.90", holds=ours >= 0.9 * oracle, how=how)  # fmt: skip
    slowest = min(one.tuned for one in found)
    yield Row("slowest tuned program", "x", slowest, goal=">= 1.0 within the noise of pairs", holds=slowest >= 0.97, how=how)  # fmt: skip


def tuned(program: RunProgram, given: argparse.Namespace) -> Tuned:
    """Tune one program by the command, and measure what came of it."""
    with tempfile.TemporaryDirectory(prefix="unidle-bench-") as place:
        trees = {name: Path(place, name) for name in ("slow", "tuned", "oracle")}
        for name, tree in trees.items():
            tree.mkdir()
            (tree / "train.py").write_text(program.oracle if name == "oracle" else program.text)
        document = tune(trees["slow"], given.minutes)
        patch = document["stack"]["patch"]
        if patch:
            subprocess.run(["git", "apply", "-"], cwd=trees["tuned"], input=patch, text=True, check=True)
        kept = tuple(one["code"] for one in document["tried"] if one["verdict"] == "kept")
        times = measured([*trees.values()], Path(place), given.pairs)
    slow, fast, best = times
    return Tuned(
        program.name, program.codes, kept,
        statistics.geometric_mean(a / b for a, b in zip(slow, fast, strict=True)), statistics.geometric_mean(a / b for a, b in zip(slow, best, strict=True)),
    )  # fmt: skip


def tune(tree: Path, minutes: float) -> dict[str, Any]:
    """The JSON of the command."""
    words = [
        sys.executable,
        "-P",
        "-m",
        "unidle",
        "tune",
        "run",
        "--minutes",
        str(minutes),
        "--json",
        "--",
        *PYTHON,
    ]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("UNIDLE_TUNE_")}
    done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"tune run ended with {done.returncode}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(trees: Sequence[Path], scratch: Path, pairs: int) -> list[list[float]]:
    """Of each tree the quiet seconds of a step, in rounds whose order changes."""
    found: list[list[float]] = [[] for _ in trees]
    for number in range(pairs):
        order = [*range(len(trees))] if number % 2 == 0 else [*range(len(trees))][::-1]
        for at in order:
            found[at].append(step_s(trees[at], scratch))
    return found


def step_s(tree: Path, scratch: Path) -> float:
    """The time of a step after the first two, without that in the queue for a CPU."""
    shop = Workshop(tree, PYTHON, scratch, time.monotonic() + 3600)
    done = shop.run(tree, None, StepWatch(scratch))
    if done.failed:
        raise SystemExit(f"{tree}: {done.failed}")
    return times_between(next(one for one in done.marks if one.step >= 2), done.marks[-1]).step_s


# -- equal programs


def equal_programs(given: argparse.Namespace) -> Row:
    """Changes that change nothing, in races of a program."""
    wrong = raced = 0
    chance = random.Random(given.seed)
    while raced < given.equal:
        count = min(AT_ONCE, given.equal - raced)
        with bench_shop(run_program(chance.randrange(10**6)).text) as (shop, window):
            racers = [Racer(shop.copy([comment(number)])) for number in range(count)]
            Race(shop, shop.copy(()), window).run(racers, time.monotonic() + 3600)
        wrong += sum(one.verdict == "faster" for one in racers)
        raced += count
        print(f"{raced} equal programs, {wrong} taken for faster", file=sys.stderr)
    return Row(
        "equal programs taken for faster", "share", wrong / raced, goal="<= 0.01", holds=wrong <= 0.01 * raced,
        how=f"measured here, {wrong} of {raced}, in races of up to {AT_ONCE}",
    )  # fmt: skip


def comment(number: int) -> TuneChange:
    """A change without effect."""
    edits = (Edit("train.py", "model.eval()\n", f"model.eval()  # {number}\n"),)
    return TuneChange("UDL206", "train.py", 1, "same", "a comment", edits)


@contextlib.contextmanager
def bench_shop(text: str) -> Iterator[tuple[Workshop, TimedSteps]]:
    """A workshop for a program, whose runs are forked, and the steps that races measure."""
    with tempfile.TemporaryDirectory(prefix="unidle-bench-") as place:
        tree, scratch = Path(place, "tree"), Path(place, "scratch")
        tree.mkdir()
        scratch.mkdir()
        (tree / "train.py").write_text(text)
        shop = Workshop(tree, PYTHON, scratch, time.monotonic() + 24 * 3600)
        modules = scratch / "modules"
        first = shop.run(shop.copy(()), {"TUNE_TRIAL_MODULES": str(modules)}, StepWatch(scratch))
        if first.failed:
            raise SystemExit(f"the program {first.failed}\n{first.errors}")
        shop.plan = fork_plan(shop.command, modules, (shop.tree, shop.scratch))
        with contextlib.closing(shop):
            yield shop, window_of(first)


# -- changes of what is computed


def wrong_changes(given: argparse.Namespace) -> Row:
    """Each mutant is verified as a change is; the rules against cheats are not asked."""
    chosen = mutants()
    random.Random(given.seed).shuffle(chosen)
    chosen = chosen[: given.mutants]
    accepted: list[Mutant] = []
    undecided = 0
    for name in sorted({one.program for one in chosen}):
        with bench_shop(plain_program(name)) as (shop, _):
            unchanged, why = verify(shop, [comment(0)])
            if unchanged != "kept":
                raise SystemExit(f"{name}: a comment is not accepted: {why}")
            for one in (each for each in chosen if each.program == name):
                edits = (Edit("train.py", one.old, one.new),)
                verdict, _ = verify(shop, [TuneChange("UDL206", "train.py", 1, "same", "a mutant", edits)])
                undecided += verdict == "inconclusive"
                if verdict == "kept":
                    accepted.append(one)
                    print(f"accepted: {one}", file=sys.stderr)
    return Row(
        "semantic mutants accepted", "changes", len(accepted), goal="0", holds=not accepted,
        how=f"measured here, {len(chosen)} mutants, {undecided} inconclusive, the others rejected; a comment was accepted in each program",
    )  # fmt: skip


if __name__ == "__main__":
    main("tune_run", rows, arguments)
