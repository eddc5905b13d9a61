"""How faults of a real PyTorch job are named, and how fast it goes on: drills of examples/drill, compared with other launchers.

Four gloo ranks (DDP, float64) on three nodes with networks of their own, copies of their state in memory at each step.
Each kind of fault has a run; after a fault, the next comes some steps after the gang is back. What is hurt, when and
how much is drawn by the seed, which is a new one each time unless it is given. Needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from _launchers import Launcher, ft_launcher, kill_to_step_s, torchrun, torchrun_own_store
from _table import Row, main
from unidle.drill import fail
from unidle.drill.conduct import DrillReport, conduct
from unidle.drill.end_state import Cache
from unidle.drill.phases import DrillOutcome
from unidle.files.drill import Drill, Fault, load_drill
from unidle.jobs import Restart

EXAMPLE: Final = Path(__file__).resolve().parent.parent / "examples" / "drill"
RANKS: Final = 4
NODES: Final = ("n1", "n2", "n3")
FIRST: Final = 20  # steps before the first fault
OURS: Final = "torchrun, ft_launcher, nvrx: 0"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: how many steps apart, how one is drawn, and within how many seconds it has to be named."""

    name: str
    apart: int
    draw: Callable[[random.Random], Fault]
    limit_s: float
    spread: int = 0  # steps by which its time is drawn
    peer: str | None = None
    usual: bool = False  # the bound is one of the median


KINDS: Final = (
    Kind("a killed rank", 13, lambda c: fail.rank(c.randrange(RANKS)).at_step(0), 1.0, 3),
    Kind("a stopped rank", 13, lambda c: fail.rank(c.randrange(RANKS)).stop().at_step(0), 5.0, 3, OURS),
    Kind("a node that is cut off", 13, lambda c: fail.node(c.choice(NODES[1:])).cut().at_step(0), 10.0, 3, OURS),
    Kind("a link that is cut", 13, lambda c: fail.link(*c.sample(NODES, 2)).cut().at_step(0), 10.0, 3, OURS),
    Kind(
        "a rank 25 % slower or more", 130,
        lambda c: fail.rank(c.randrange(RANKS)).slow(c.uniform(1.25, 2.0)).for_s(14).at_step(0), 5.0, 20, usual=True,
    ),
    Kind(
        "a link with a delay or a bound", 130,
        lambda c: (
            fail.link(*c.sample(NODES, 2)).delay(c.uniform(15, 40)) if c.random() < 0.5
            else fail.link(*c.sample(NODES, 2)).rate(c.uniform(1, 4))
        ).for_s(14).at_step(0), 5.0, 20, usual=True,
    ),
)  # fmt: skip


def rows(given: argparse.Namespace) -> Iterator[Row]:
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(3))
    print(f"seed {seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as place:  # runs with equal steps share one undisturbed run
        yield from _all(given, Cache(Path(place)), random.Random(seed), f"measured here, seed {seed}")


def _all(given: argparse.Namespace, cache: Cache, chance: random.Random, how: str) -> Iterator[Row]:
    reports: list[DrillReport] = []
    if given.only and not any(word in kind.name for kind in KINDS for word in given.only):
        raise SystemExit(
            f"--only {' '.join(given.only)}: no kind has it; kinds: {', '.join(k.name for k in KINDS)}"
        )
    for kind in KINDS:
        if given.only and not any(word in kind.name for word in given.only):
            continue
        tries = given.tries if kind.apart < 100 else given.slow_tries
        report = drilled(cache, drawn(kind, tries, chance), kind.apart)
        reports.append(report)
        if kind is KINDS[0]:
            yield from _kills(report, how)
        yield from _named(kind, report, how)
    yield from _together(reports, how)
    if not given.only:
        yield _quiet(cache, given.clean, how)
        yield from _warm(cache, reports[0], given, how)


def drawn(kind: Kind, tries: int, chance: random.Random) -> list[Fault]:
    """Faults of one kind at rising steps."""
    return [
        replace(kind.draw(chance), at_step=FIRST + k * kind.apart + chance.randint(0, kind.spread))
        for k in range(tries)
    ]


def drilled(
    cache: Cache, faults: Sequence[Fault], apart: int, *, warm: bool = True, steps: int = 0
) -> DrillReport:
    """One run of the example with these faults."""
    base = load_drill(EXAMPLE / "drill.yaml")
    total = steps or FIRST + apart * (len(faults) + 1)
    words = list(base.job.command)
    words[words.index("--steps") + 1] = str(total)
    job = replace(base.job, command=tuple(words), restart=Restart(1000, 0.0, ("any",), warm))
    drill = Drill(job, base.nodes, base.devices, tuple(faults), result=base.result, timeout_s=3000)
    report = conduct(drill, cache, lambda text: print(text, file=sys.stderr))
    for one in report.outcomes:
        if not one.correct:
            print(
                f"not named: {one.fault.kind} {one.fault.target}: {one.named}: {one.because}", file=sys.stderr
            )
    for said in report.misnamed:
        print(f"no fault hurt {said}", file=sys.stderr)
    print(f"{report.state}, {report.result.text if report.result else 'no result'}", file=sys.stderr)
    return report


def _kills(report: DrillReport, how: str) -> Iterator[Row]:
    back = [one for one in report.outcomes if one.ns.caught_up is not None]
    tries = len(report.outcomes)
    result = report.result.text if report.result else "missing"
    yield Row(
        "gangs that came back after a rank was killed", f"of {tries}", len(back), goal="all, with the result of an undisturbed run",
        holds=report.survived and len(back) == tries, how=f"{how}, in one run; result {result}",
    )  # fmt: skip
    lost = report.lost_steps / tries
    yield Row("steps done again per killed rank", "steps", lost, goal="at most 1", holds=lost <= 1, how=how)


def _named(kind: Kind, report: DrillReport, how: str) -> Iterator[Row]:
    right, count = sum(one.correct is True for one in report.outcomes), len(report.outcomes)
    words = f"{how}; of the peers none named it in an earlier run" if kind.peer else how
    yield Row(
        f"{kind.name}: named right", f"of {count}", right, peer_name=kind.peer, goal="all", holds=right == count, how=words
    )  # fmt: skip
    taken = seconds(report, lambda one: one.ns.verdict)
    if taken:
        middle, worst = statistics.median(taken), max(taken)
        shown = middle if kind.usual else worst
        yield Row(
            f"{kind.name}: onset to verdict, {'median' if kind.usual else 'worst'}", "s", shown, goal=f"at most {kind.limit_s:g} s",
            holds=shown <= kind.limit_s, how=f"{how}, {len(taken)} tries, median {middle:.2f} s, worst {worst:.2f} s",
        )  # fmt: skip


def _together(reports: Sequence[DrillReport], how: str) -> Iterator[Row]:
    """Of all faults: who was named, and who else."""
    faults = [one for report in reports for one in report.outcomes]
    right, wrong = sum(one.correct is True for one in faults), sum(len(report.misnamed) for report in reports)
    recall, precision = right / len(faults), right / (right + wrong) if right + wrong else 0.0
    how = f"{how}, {len(faults)} faults; {wrong} verdicts on others"
    yield Row(
        "who is faulty: recall",
        "",
        recall,
        0.883,
        "Minder",
        recall / 0.883,
        "at least 0.90",
        recall >= 0.9,
        how,
    )
    yield Row(
        "who is faulty: precision", "", precision, 0.904, "Minder", precision / 0.904, "at least 0.95", precision >= 0.95, how
    )  # fmt: skip


def _quiet(cache: Cache, steps: int, how: str) -> Row:
    report = drilled(cache, [], 0, steps=steps)
    return Row(
        f"verdicts in {steps} steps without a fault", "", len(report.misnamed), goal="none", holds=not report.misnamed, how=how
    )  # fmt: skip


def _warm(cache: Cache, kills: DrillReport, given: argparse.Namespace, how: str) -> Iterator[Row]:
    """From the kill to the first step after it: warm, cold, and with other launchers."""
    faults = [fail.rank(k % RANKS).at_step(FIRST + 13 * k) for k in range(given.cold)]
    warm, cold = (
        seconds(report, lambda one: one.ns.first_step)
        for report in (kills, drilled(cache, faults, 13, warm=False))
    )
    if not warm or not cold:
        return
    middle, beside = statistics.median(warm), statistics.median(cold)
    words = f"{how}, median of {len(warm)} ({min(warm):.2f} to {max(warm):.2f}), peer of "
    yield Row(
        "warm restart, kill to first step", "s", middle, beside, "cold restart", beside / middle, "at most 2 s and 10 times faster",
        middle <= 2 and beside / middle >= 10, words + str(len(cold)),
    )  # fmt: skip
    for launcher in filter(None, [torchrun(), torchrun_own_store(), ft_launcher()]):
        yield _beside(launcher, middle, given, words)


def _beside(launcher: Launcher, ours: float, given: argparse.Namespace, words: str) -> Row:
    script = [str(EXAMPLE / "train.py"), "--steps", "200", "--checkpoints", "checkpoints"]
    tries = [kill_to_step_s(launcher, script, RANKS, FIRST, given.limit_s) for _ in range(given.peer)]
    theirs = [taken for taken in tries if taken is not None]
    peer = statistics.median(theirs) if theirs else None
    judged = peer is not None and "ft_launcher" in launcher.name
    return Row(
        "warm restart, kill to first step", "s", ours, peer, launcher.name if theirs else f"{launcher.name}: never",
        peer / ours if peer else None, "10 times faster" if judged else None, peer / ours >= 10 if peer and judged else None,
        f"{words}{len(theirs)} of {given.peer} that came back",
    )  # fmt: skip


def seconds(report: DrillReport, stamp: Callable[[DrillOutcome], int | None]) -> list[float]:
    """From each injection to a stamp, for those that have it."""
    stamps = [(one.ns.inject, stamp(one)) for one in report.outcomes]
    return [(t - begun) / 1e9 for begun, t in stamps if begun is not None and t is not None]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", type=int, help="what is hurt, when and how much; a new one if none is given"
    )
    parser.add_argument("--tries", type=int, default=20, help="faults of each kind that ends the attempt")
    parser.add_argument("--slow-tries", type=int, default=8, help="faults of each kind that slows the gang")
    parser.add_argument("--clean", type=int, default=400, help="steps of a run without a fault")
    parser.add_argument("--cold", type=int, default=3, help="restarts without warm processes")
    parser.add_argument("--peer", type=int, default=3, help="tries with each other launcher")
    parser.add_argument("--limit-s", type=float, default=90.0)
    parser.add_argument(
        "--only", action="append", metavar="WORD", help="only kinds of faults with this word in their name"
    )


if __name__ == "__main__":
    if os.geteuid() != 0 or subprocess.run(["ip", "netns"], capture_output=True, check=False).returncode:
        sys.exit("bench/drill.py needs root and iproute2")
    main("drill", rows, options)
