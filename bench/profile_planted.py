"""How many planted causes are named first: the scripts of examples/profile, run with several seeds, each looked at once by the command.

A cause is named when the first finding has its category and shows one of its lines (examples/profile/answers.yaml). The same looks say how
good stacks are of scripts with loader workers, ranks, threads and programs of their own. With --seeds 1 2 3 other data and sizes are drawn.
"""

from __future__ import annotations

import argparse
import json
import linecache
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from _process import environment, started, until
from _profiled import answer
from _table import Row, main

SCRIPTS = Path(__file__).resolve().parent.parent / "examples" / "profile"
WARM_LIMIT_S = 90  # for the first line of output, which follows some steps
ROOTED_GOAL, SYMBOLISED_GOAL, MISMATCH_GOAL = 99.0, 95.0, 0.1


@dataclass(frozen=True, slots=True)
class Looked:
    """One script with one seed: what was reported, and whether that was the answer."""

    name: str
    seed: int
    told: dict[str, Any]
    profile: dict[str, Any]
    category: bool
    line: bool

    @property
    def label(self) -> str:
        return f"{self.name} --seed {self.seed}"

    def quality(self, name: str) -> float:
        return float(self.told["quality"][name])


def rows(given: argparse.Namespace) -> Iterator[Row]:
    answers = yaml.safe_load((SCRIPTS / "answers.yaml").read_text())
    if unknown := sorted({*given.names} - {*answers}):
        sys.exit(f"no script {', '.join(unknown)}; known: {', '.join(answers)}")
    looks = []
    for seed in given.seeds[:1] if given.quick else given.seeds:
        for name in given.names or answers:
            looks.append(_looked(name, seed, answers[name], given.seconds))
            if given.save:
                _save(looks[-1], given.save)
            if not (looks[-1].category and looks[-1].line):
                print(f"{looks[-1].label}: {_first(looks[-1].told)}", file=sys.stderr)
    how = f"measured here, {len(looks)} looks of {given.seconds:g} s"
    right = [look for look in looks if look.category and look.line]
    missed = [f"{one.label}: {_first(one.told)}" for one in looks if one not in right]
    text = f"{how}; missed: {'; '.join(missed)}" if missed else how
    yield Row(f"planted causes named first, with their line, of {len(looks)}", "causes", len(right), goal="all", holds=not missed, how=text)  # fmt: skip
    named = sum(look.category for look in looks)
    yield Row(f"planted causes whose category is reported first, of {len(looks)}", "causes", named, how=how)
    yield from _quality(looks, how)


def _quality(looks: Sequence[Looked], how: str) -> Iterator[Row]:
    for name, what, goal in (
        ("rooted_pct", "stacks that reach the root", ROOTED_GOAL),
        ("symbolised_pct", "frames with a name", SYMBOLISED_GOAL),
    ):
        worst = min(looks, key=lambda look: look.quality(name))
        middle = statistics.median(look.quality(name) for look in looks)
        value = worst.quality(name)
        yield Row(f"{what}: the worst script", "%", round(value, 2), goal=f">= {goal:g} %", holds=value >= goal, how=f"{how}; {worst.label}, median {middle:.2f}")  # fmt: skip
    # One stack in a hundred thousand is no share of a single look: all stacks of all looks together.
    stacks = sum(look.quality("samples") for look in looks)
    wrong = sum(look.quality("merge_mismatch_pct") * look.quality("samples") for look in looks) / max(stacks, 1)  # fmt: skip
    worst = max(looks, key=lambda look: look.quality("merge_mismatch_pct"))
    text = f"{how}, {stacks:.0f} samples; most {worst.quality('merge_mismatch_pct'):.3f} of {worst.label}"
    yield Row("stacks whose Python and native parts do not fit", "%", round(wrong, 4), goal="<= 0.1 %", holds=wrong <= MISMATCH_GOAL, how=text)  # fmt: skip
    lost = sum(look.quality("drops") for look in looks)
    yield Row("samples lost", "samples", lost, goal="0", holds=lost == 0, how=f"{how}, {stacks:.0f} samples")


def _looked(name: str, seed: int, wanted: dict[str, list[str]], seconds: float) -> Looked:
    script = SCRIPTS / f"{name}.py"
    with tempfile.TemporaryDirectory(prefix="unidle-planted-") as place:
        command = (sys.executable, str(script), "--seed", str(seed))
        with started(command, Path(place), environment(OMP_NUM_THREADS="1")) as process:
            out = Path(place) / "out"
            until(lambda: out.stat().st_size > 0 or process.poll() is not None, WARM_LIMIT_S)
            if process.poll() is not None:
                sys.exit(f"{script.name} ended: {(Path(place) / 'err').read_text()[-300:]}")
            told, profile = answer(process.pid, seconds)
    first = told["findings"][0] if told["findings"] else {"category": None, "lines": []}
    category = first["category"] in wanted["category"]
    line = not wanted["at"] or any(_is(at, line) for at in wanted["at"] for line in first["lines"])
    return Looked(name, seed, told, profile, category, line)


def _is(wanted: str, line: dict[str, Any]) -> bool:
    """Whether a finding's line is the wanted one: ``function`` or ``function: text``."""
    function, _, text = wanted.partition(": ")
    at = line["function"]
    return (at == function or at.endswith(f".{function}")) and text in linecache.getline(line["file"], line["line"])  # fmt: skip


def _first(told: dict[str, Any]) -> str:
    if not told["findings"]:
        return "nothing"
    first = told["findings"][0]
    at = ", ".join(f"{line['function']}:{line['line']}" for line in first["lines"][:2])
    return f"{first['category']} {first['pct']:.0f} % ({first['cause']}) at {at or 'no line'}"


def _save(look: Looked, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    stem = place / f"{look.name}-{look.seed}-{time.time_ns()}"
    stem.with_suffix(".json").write_text(json.dumps(look.profile))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="SCRIPT", help="of examples/profile; none means all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the profiles there")
    parser.add_argument("--quick", action="store_true", help="the first seed only")


if __name__ == "__main__":
    main("profile_planted", rows, add_arguments)
