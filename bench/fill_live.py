"""Real fillers next to real training: what training notices of them, and how much of its waits they use. Needs root.

Prefill of a transformer runs in the waits of a pipeline of four paced stages, of two stages with a core each, and next to a gang of DDP whose second rank
has less to do. The slow-down is from pairs of blocks of steps in random order, with and without fillers, in one run; its upper bound is that of the 95 %
interval. Losses are compared with those of the same training without fillers. Fillers give way to everything on the machine, so
other load takes their time: run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from _table import Row, main

ROOT: Final = Path(__file__).parents[1]
MODEL: Final = ROOT / "examples" / "span" / "model.py"
UNIDLE: Final = (sys.executable, "-P", "-m", "unidle")
PREFILL: Final = {"tokens": 512, "chunk": 32, "model": {"layers": 4, "width": 192, "heads": 4}}
PACED_US: Final = 1900.0  # of a piece on a paced device; it computes about a quarter of that here
SLOWER_MOST, FILLED_LEAST = 2.0, 80.0

DDP = """
import os
import torch
import torch.distributed as dist
import unidle.rank as rank
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
me = dist.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with rank.waiting():  # so that steps are shown
    pass
for step in range(1, int(os.environ["STEPS"]) + 1):
    x = torch.randn(512 if me == 0 else 128, 512, generator=torch.Generator().manual_seed(step * 2 + me))
    found = model(x).square().mean()
    found.backward()
    optimizer.step()
    optimizer.zero_grad()
    rank.step(step)
    if me == 0:
        print(f"step {step} loss {found.item()!r}", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one filled job: the answer of ``fill run`` and that of ``fill proof``."""

    run: dict[str, Any]
    proof: dict[str, Any]


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    settings = {"paced": _paced, "own-cores": _own_cores, "ddp": _ddp}
    for name, setting in settings.items():
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="unidle-bench-fill-") as place:
            yield from setting(Path(place), arguments)


def _paced(place: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    # a piece has a share of its stated time in real computation, as the stages have
    file = _span(place, stages=4, steps=arguments.steps, pace=True, width=64, microbatches=4)
    yield from _rows("four paced stages", _of_span(place, file, pace=True), FILLED_LEAST)


def _own_cores(place: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    if (os.cpu_count() or 1) < 2:
        return
    file = _span(place, stages=2, steps=4 * arguments.steps, pace=False, width=192, microbatches=2)
    yield from _rows("two stages with a core each", _of_span(place, file, pace=False), FILLED_LEAST)


def _ddp(place: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    script, job = place / "ddp.py", place / "job.json"
    script.write_text(DDP)
    given = {
        "name": "ddp", "command": [sys.executable, str(script)], "ranks": 2,
        "env": {"OMP_NUM_THREADS": "1", "STEPS": str(20 * arguments.steps), "PYTHONPATH": str(ROOT / "src")},
    }  # fmt: skip
    job.write_text(json.dumps(given))
    command = ("run", str(job), "--store", str(place / "a.db"), "--cpu-devices", "2")
    yield from _rows(
        "a gang of DDP, filled by the kernel", _filled(place, command, {"windows": "kernel"}), None
    )


def _rows(what: str, found: Outcome, least: float | None) -> Iterator[Row]:
    proof, run = found.proof, found.run
    known, high = proof["slowdown_pct"] is not None, proof["high"]
    how = f"measured here, {proof['pairs']} pairs of blocks"
    if high is not None:
        how += f", 95 % interval {proof['low']:.2f} to {high:.2f} %"
    if not known:
        how += ": too few or too wide, not known"
    yield Row(
        f"{what}: slow-down of training, upper bound", "%", math.inf if high is None else high,
        goal=f"at most {SLOWER_MOST:g} %", holds=known and high <= SLOWER_MOST, how=how,
    )  # fmt: skip
    yield Row(
        f"{what}: steps whose loss differs from the unfilled run", "steps", 0 if proof["loss_equal"] else 1, goal="0",
        holds=proof["loss_equal"], how="measured here, all steps of both runs",
    )  # fmt: skip
    if least is not None and run["filled"] is not None:
        yield Row(
            f"{what}: waits turned into useful work", "%", 100 * run["filled"], goal=f"at least {least:g} %",
            holds=100 * run["filled"] >= least, how=f"measured here, waits of {run['waited_ns'] / 1e9:.0f} device seconds in which fillers were admitted;"
            f" {100 * run['late_ns'] / run['waited_ns']:.1f} % passed before the first piece, {100 * run['delayed_ns'] / run['waited_ns']:.1f} % while"
            " a piece had no free core",
        )  # fmt: skip
    yield Row(f"{what}: prefilled tokens", "tokens", run["units"], how="measured here")
    if (error := run["forecast"]["mean_error_ms"]) is not None:
        yield Row(
            f"{what}: mean error of the forecast of waits",
            "ms",
            error,
            how=f"measured here, {run['forecast']['waits']:,} waits",
        )


def _span(place: Path, *, stages: int, steps: int, pace: bool, width: int, microbatches: int) -> Path:
    file = place / "span.json"
    stage = {"forward": 40_000_000, "backward": 40_000_000, "weight": 40_000_000}
    train = {
        "model": {"build": f"{MODEL}:build", "arguments": {"blocks": 6, "width": width}}, "data": f"{MODEL}:batch",
        "loss": f"{MODEL}:loss", "microbatch": 8, "optimizer": {"name": "adamw", "arguments": {"lr": 0.001}},
        "steps": steps, "schedule": "1f1b", "pace": pace,
    }  # fmt: skip
    content = {
        "stage_ns": stage, "activation_bytes": 131072, "pipelines": 1, "stages": stages, "microbatches": microbatches,
        "sites": [{"name": "oregon", "stages": stages}], "train": train,
    }  # fmt: skip
    file.write_text(json.dumps(content))
    return file


def _of_span(place: Path, file: Path, *, pace: bool) -> Outcome:
    command = ("span", "run", str(file), "--no-namespaces", "--store", str(place / "a.db"))
    return _filled(place, command, {"pace": pace}, {"length_us": PACED_US} if pace else {})


def _filled(
    place: Path, command: tuple[str, ...], extra: dict[str, Any], more: dict[str, Any] | None = None
) -> Outcome:
    """Train with fillers, then once more without, and compare."""
    filler = place / "filler.json"
    arguments = PREFILL | {"out": str(place / "answers-{index}.jsonl")} | (more or {})
    filler.write_text(json.dumps({"filler": "prefill", "arguments": arguments} | extra))
    store = ("--store", str(place / "a.db"))
    training = subprocess.Popen([*UNIDLE, *command], stdout=subprocess.DEVNULL, cwd=place)
    try:
        _until_listed(store, training)
        done = subprocess.run(
            [*UNIDLE, "fill", "run", str(filler), *store, "--json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=place,
        )
        if done.returncode != 0:
            sys.exit(f"fill run: {done.stderr}{done.stdout}")
        if training.wait() != 0:
            sys.exit("training failed")
    finally:
        if training.poll() is None:
            training.send_signal(signal.SIGTERM)
            training.wait()
    subprocess.run([*UNIDLE, *command], stdout=subprocess.DEVNULL, check=True, cwd=place)
    jobs = sorted(json.loads(_answer("list", "--all", "--json", *store)), key=lambda job: job["submitted_ns"])
    proof = json.loads(
        _answer("fill", "proof", jobs[0]["job"], "--against", jobs[-1]["job"], "--json", *store)
    )
    return Outcome(json.loads(done.stdout), proof)


def _until_listed(store: tuple[str, ...], training: subprocess.Popen[bytes]) -> None:
    while training.poll() is None:
        found = subprocess.run(
            [*UNIDLE, "list", "--json", *store], capture_output=True, text=True, check=False
        )
        if found.returncode == 0 and json.loads(found.stdout or "[]"):
            return


def _answer(*command: str) -> str:
    return subprocess.run([*UNIDLE, *command], capture_output=True, text=True, check=True).stdout


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=int, default=150, help="steps of the paced pipeline; the others do a multiple of it"
    )
    parser.add_argument("--only", choices=("paced", "own-cores", "ddp"), help="one setting")


if __name__ == "__main__":
    main("fill_live", rows, _arguments)
