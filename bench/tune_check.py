"""`unidle tune check` on generated scripts: precision, recall, false alarms on decoys, and speed; with TorchFix and ruff.

Scripts come from a seed (`bench/_tune_programs.py`): five kinds, with slow-downs and decoys in places and names by chance. A
finding is right if it has the code and the line of a slow-down that was put in. Peers have other codes, so any finding of
theirs on such a line is right.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _peers import program as peer_program
from _table import Row, main
from _tune_programs import TuneProgram, program

Places = set[tuple[int, int, str]]  # number of the script, line, code


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the benchmark."""
    parser.add_argument("--seed", type=int, default=7_000, help="first of the seeds")
    parser.add_argument("--programs", type=int, default=400, help="number of scripts")
    parser.add_argument("--show", action="store_true", help="print what is missed and what is false")


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """The figures of unidle, with those of a peer where they can be compared."""
    programs = [program(given.seed + k) for k in range(given.programs)]
    with tempfile.TemporaryDirectory(prefix="unidle-bench-") as folder:
        for number, one in enumerate(programs):
            ast.parse(one.text)
            (Path(folder) / f"p{number:04}.py").write_text(one.text)
        found = ours(folder)
        if given.show:
            show(programs, found)
        yield from quality(programs, found, peers(folder))
        yield speed(folder)


def quality(programs: list[TuneProgram], found: Places, others: dict[str, Places]) -> Iterator[Row]:
    """Precision and recall, next to those of each peer."""
    how = f"measured here, {len(programs)} scripts, {sum(len(one.slow) for one in programs)} slow-downs"
    precise, recalled, alarms, _ = judged(programs, found, codes=True)
    by_others = {name: judged(programs, places, codes=False) for name, places in others.items()}
    for place, what, ours_, goal, holds in (
        (0, "precision", precise, ">= 0.95", precise >= 0.95),
        (1, "recall", recalled, ">= 0.90", recalled >= 0.90),
        (2, "false alarms per line of a decoy", alarms, "<= 0.02", alarms <= 0.02),
    ):
        yield Row(what, "share", ours_, goal=goal, holds=holds, how=how)
        for name, figures in by_others.items():
            yield Row(
                what, "share", ours_, figures[place], name, how=f"{how}; {figures[3]} findings of the peer"
            )


def judged(programs: list[TuneProgram], found: Places, *, codes: bool) -> tuple[float, float, float, int]:
    """Precision, recall, false alarms per line of a decoy, and the number of findings."""
    truth = {
        (number, line, code if codes else "")
        for number, one in enumerate(programs)
        for line, code in one.slow.items()
    }
    seen = {(number, line, code if codes else "") for number, line, code in found}
    decoys = {(number, line) for number, one in enumerate(programs) for line in one.decoys}
    alarms = {(number, line) for number, line, _ in seen} & decoys
    right = len(seen & truth)
    return right / max(1, len(seen)), right / max(1, len(truth)), len(alarms) / max(1, len(decoys)), len(seen)


def ours(folder: str) -> Places:
    """The findings of the command."""
    command = [sys.executable, "-m", "unidle", "tune", "check", "--json", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {(number_of(one["file"]), one["line"], one["code"]) for one in json.loads(done.stdout)}


def number_of(file: str) -> int:
    """The number in the name of a script."""
    return int(re.sub(r"\D", "", Path(file).stem))


def peers(folder: str) -> dict[str, Places]:
    """The findings of TorchFix and of ruff's rules for performance, where they are here."""
    found = {}
    if torchfix := peer_program("torchfix"):
        found["TorchFix"] = read(
            subprocess.run(
                [torchfix, "--select", "ALL", folder], capture_output=True, text=True, check=False
            ).stdout
        )
    ruff = Path(sys.executable).with_name("ruff")
    if ruff.exists():
        words = [
            ruff,
            "check",
            "--isolated",
            "--select",
            "PERF,NPY,FURB",
            "--output-format",
            "concise",
            folder,
        ]
        found["ruff PERF"] = read(
            subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False).stdout
        )
    return found


def read(text: str) -> Places:
    """Findings of the form ``file:line:column: code message``."""
    matches = re.finditer(r"^(\S+\.py):(\d+):\d+:? (\w+)", text, re.MULTILINE)
    return {(number_of(one[1]), int(one[2]), one[3]) for one in matches}


def show(programs: list[TuneProgram], found: Places) -> None:
    """What is missed, and what is found where nothing was put in."""
    truth = {(number, line, code) for number, one in enumerate(programs) for line, code in one.slow.items()}
    for word, places in (("missed", truth - found), ("false", found - truth)):
        for number, line, code in sorted(places, key=lambda place: place[2]):
            print(word, number, code, programs[number].text.splitlines()[line - 1].strip(), file=sys.stderr)


def speed(folder: str) -> Row:
    """Processor time of the command on 100 files, the start of Python included; the best of three."""
    files = [str(path) for path in sorted(Path(folder).glob("*.py"))[:100]]
    lines = sum(len(Path(file).read_text().splitlines()) for file in files)
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "unidle", "tune", "check", *files], capture_output=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return Row(
        f"{len(files)} files", "s of CPU", min(times), goal="<= 2 s", holds=min(times) <= 2,
        how=f"measured here, {lines:,} lines, best of 3, with the start of Python",
    )  # fmt: skip


if __name__ == "__main__":
    main("tune_check", rows, arguments)
