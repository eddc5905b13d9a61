"""A run compared with others: the same training in one process, and the same links under gloo with 1F1B."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from unidle.errors import CannotRun
from unidle.span.rank.member import dashed
from unidle.span.replan.observed import batch_loss, summary
from unidle.span.run.hosts import RunHosts
from unidle.span.simulate.uneven import microbatches_of
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.span.replan.observed import SpanAttempt

_LIMIT_S: Final = 3600.0
PEER_STEPS: Final = 8  # enough for a median: the peer trains nothing that is kept


def compare_with(
    mode: str,
    hosts: RunHosts,
    attempts: list[SpanAttempt],
    place: Path,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Figures, and ``text`` in one line. Errors: :class:`CannotRun` where the other could not be run."""
    out = place / mode
    out.mkdir(exist_ok=True)
    return (
        _single(attempts, place, out, tell) if mode == "single" else _gloo(hosts, attempts, place, out, tell)
    )


def _single(
    attempts: list[SpanAttempt], place: Path, out: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    tell("the same in one process ...")
    plan = json.loads((place / f"plan-{attempts[-1].number}.json").read_text())
    path = out / "plan.json"
    alone = {**plan, "resume": 0, "attempt": 0, "pace": None, "earlier": _earlier(attempts)}
    path.write_text(json.dumps(alone))
    command = [sys.executable, "-P", "-m", "unidle.span.rank", str(path), "--single", "--out", str(out)]
    if plan["checkpoint"] is not None:
        command += ["--against", plan["checkpoint"]["directory"]]
    _run([command], "the training in one process")
    told = [json.loads(line) for line in (out / "single.jsonl").read_text().splitlines()]
    ours, counts = {}, {}
    for step in (step for attempt in attempts for step in attempt.steps.values()):
        counts[step.number] = step.microbatches
        if step.loss is not None:
            ours[step.number] = step.loss
    losses = {
        int(each["step"]): batch_loss(dict(enumerate(each["losses"])), counts[int(each["step"])])
        for each in told
        if each["kind"] == "step" and int(each["step"]) in counts
    }
    shared = sorted(losses.keys() & ours.keys())
    difference = max((abs(losses[k] - ours[k]) for k in shared), default=float("nan"))
    found: dict[str, Any] = {
        "loss_difference": difference,
        "steps": len(shared),
        "losses": {str(k): losses[k] for k in shared},
    }
    text = f"largest difference of {counted(len(shared), 'loss')} {difference:.3g}"
    for end in (each for each in told if each["kind"] == "compared"):
        found |= {name: end[name] for name in ("parameters", "parameter_difference")}
        text += f", of {found['parameters']:,} parameters {found['parameter_difference']:.3g}"
    return {**found, "text": text}


def _earlier(attempts: list[SpanAttempt]) -> list[dict[str, Any]]:
    """Up to which step what pipelines did was that of an attempt before the last one; what was done again does not count."""
    return [
        {"until": after.resumed, "microbatches": list(microbatches_of(attempt.simulation))}
        for attempt, after in pairwise(attempts)
    ]


def _gloo(
    hosts: RunHosts, attempts: list[SpanAttempt], place: Path, out: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    attempt = attempts[-1]
    plan = json.loads((place / f"plan-{attempt.number}.json").read_text())
    if plan["chunks"] > 1:
        raise CannotRun(
            "1F1B has no chunks", field="--against", value="gloo", remedy="compare a schedule without chunks"
        )
    plan["steps"] = min(PEER_STEPS, plan["steps"])
    tell(f"the same links under gloo send/recv with 1F1B, {plan['steps']} steps ...")
    path = out / "plan.json"
    path.write_text(json.dumps(plan))
    commands, devices = [], [each["device"] for each in plan["devices"]]
    for device in devices:
        inside = [] if hosts.lab is None else ["ip", "netns", "exec", hosts.lab.space(dashed(device))]
        commands.append(
            [*inside, sys.executable, "-P", "-m", "unidle.span.rank.gloo_peer", str(path), device, str(out)]
        )
    interface = "lo" if hosts.lab is None else "eth0"
    _run(commands, "the run under gloo", {"GLOO_SOCKET_IFNAME": interface})
    told = [json.loads((out / f"{dashed(device)}.json").read_text()) for device in devices]
    ends = [max(each["ends"][k] for each in told) for k in range(plan["steps"] + 1)]
    took = [b - a for a, b in pairwise(ends)]
    peer = round(statistics.median(took[1:] or took))
    ours = summary(attempt.simulation.setting, attempt.steps.values()).step_ns or 0
    losses = [loss for each in told for loss in each["losses"] if loss is not None]
    return {
        "step_ns": peer, "ratio": peer / ours if ours else None, "first_loss": losses[0] if losses else None,
        "text": f"{peer / 1e6:.1f} ms a step under gloo send/recv and 1F1B: {peer / ours:.2f} times as long as here" if ours else "no step here was measured",
    }  # fmt: skip


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """That of a process that computes with one thread and finds the same packages."""
    path = os.pathsep.join(
        str(Path(part).absolute()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part
    )
    return {**os.environ, "OMP_NUM_THREADS": "1", **({"PYTHONPATH": path} if path else {}), **(more or {})}


def _run(commands: list[list[str]], what: str, more: Mapping[str, str] | None = None) -> None:
    """Run all at once, to their end. Errors: :class:`CannotRun` with the last error line of the first that failed."""
    running = [
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(more)
        )
        for command in commands
    ]
    try:
        said = [one.communicate(timeout=_LIMIT_S)[1] for one in running]
    finally:
        for one in running:
            if one.poll() is None:
                one.kill()
                one.communicate()
    bad = [text for one, text in zip(running, said, strict=True) if one.returncode]
    if bad:
        lines = bad[0].strip().splitlines()
        raise CannotRun(
            f"{what} failed: {lines[-1] if lines else 'no output'}", remedy="run it without --against"
        )
