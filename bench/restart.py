"""Does a gang come back when one of its ranks is killed? unidle compared with torchrun.

Each try runs 4 gloo ranks, of which a seeded one gets SIGKILL at a seeded step. It succeeds when every
rank has then done all its steps within the limit. Each contestant sees the same tries.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from _process import TORCHRUN, UNIDLE, environment, started
from _table import Row, main

JOB = Path(__file__).resolve().parent / "jobs" / "allreduce.py"
STEPS = 60
RESTARTS = 3
FIXED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


@dataclass(frozen=True, slots=True)
class Try:
    """How one try ended, and when after the kill rank 0 began again and had done a step."""

    succeeded: bool
    entered_s: float | None
    resumed_s: float | None


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    chance = random.Random(arguments.seed)
    tries = [
        (chance.randrange(arguments.ranks), chance.randint(5, STEPS - 10)) for _ in range(arguments.tries)
    ]
    contestants = {"unidle": {}, "torchrun": {}, f"torchrun, {FIXED}=1": {FIXED: "1"}}
    ended = {}
    for name, changes in contestants.items():
        count = arguments.tries if name == "unidle" else arguments.peer_tries
        ended[name] = [
            attempt(name == "unidle", arguments.ranks, victim, step, changes, arguments.limit_s)
            for victim, step in tries[:count]
        ]
    ours = ended.pop("unidle")
    for name, theirs in ended.items():
        yield _success(name, ours, theirs, arguments)
    for name, theirs in ended.items():
        for what, figure in (
            ("from the kill to rank 0's first line again", attrgetter("entered_s")),
            ("from the kill to the first step after it, imports of torch included", attrgetter("resumed_s")),
        ):
            yield from _time(what, name, list(map(figure, ours)), list(map(figure, theirs)))


def attempt(
    by_unidle: bool, ranks: int, victim: int, step: int, changes: dict[str, str], limit_s: float
) -> Try:
    """One gang of which one rank is killed."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        job = [str(JOB), str(place), str(STEPS), str(victim), str(step)]
        env = environment(OMP_NUM_THREADS="1", **changes)
        command = _unidle(place, ranks, job) if by_unidle else _torchrun(ranks, job)
        with started(command, place, env) as process:
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
        done = all((place / f"done.{rank}").exists() for rank in range(ranks))
        if not (place / "killed").exists():
            sys.exit(
                f"the gang did not come to step {step} within {limit_s:g} s: {_last_line(place / 'err')}"
            )
        return Try(code == 0 and done, _since_kill_s(place, "entered"), _since_kill_s(place, "resumed"))


def _unidle(place: Path, ranks: int, job: list[str]) -> Sequence[str]:
    restart = {"max": RESTARTS, "backoff_s": 0}  # as torchrun, which does not wait either
    spec = {"command": [sys.executable, *job], "ranks": ranks, "restart": restart}
    (place / "job.json").write_text(json.dumps(spec))
    return (*UNIDLE, "run", "job.json", "--store", "store.db", "--json")


def _torchrun(ranks: int, job: list[str]) -> Sequence[str]:
    return (*TORCHRUN, f"--nproc-per-node={ranks}", f"--max-restarts={RESTARTS}", *job)


def _since_kill_s(place: Path, what: str) -> float | None:
    if not (place / what).exists():
        return None
    return (int((place / what).read_text()) - int((place / "killed").read_text())) / 1e9


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no error was printed"


def _success(name: str, ours: list[Try], theirs: list[Try], arguments: argparse.Namespace) -> Row:
    mine, others = sum(t.succeeded for t in ours), sum(t.succeeded for t in theirs)
    return Row(
        what=f"gangs of {arguments.ranks} that came back after one rank was killed",
        unit=f"of {len(ours)}",
        ours=mine,
        peer=others,
        peer_name=f"of {len(theirs)}, {name}",
        ratio=(mine / len(ours)) / (others / len(theirs)) if others else None,
        goal="all",
        holds=mine == len(ours),
        how=f"measured here, seed {arguments.seed}, at most {arguments.limit_s:g} s each, {RESTARTS} restarts allowed",
    )


def _time(what: str, name: str, ours: list[float | None], theirs: list[float | None]) -> Iterator[Row]:
    mine, others = ([t for t in times if t is not None] for times in (ours, theirs))
    if not mine:
        return
    peer = statistics.median(others) if others else None
    yield Row(
        what=what,
        unit="s",
        ours=statistics.median(mine),
        peer=peer,
        peer_name=name if others else f"{name}: never",
        ratio=peer / statistics.median(mine) if peer else None,
        how=f"measured here, median of {len(mine)} ({min(mine):.2f} to {max(mine):.2f}); peer of {len(others)}",
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--peer-tries", type=int, default=3, help="tries of each form of torchrun")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=60.0)


if __name__ == "__main__":
    main("restart", rows, _arguments)
