"""What the stages of a run take, from what its ranks wrote. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unidle.span.model.profile import Median, median_of

OPERATIONS: Final = {"F": "forward", "B": "backward", "W": "weight", "R": "recompute"}


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One stage of an attempt, over all its pipelines: nanoseconds for one microbatch, ``None`` where none was seen.

    ``joined``: both backward parts ran as one, and ``backward`` is both. ``layers``: ranges from the first to before the
    last, if the plan has them. ``sends_bytes``: of one microbatch's activations to the next stage.
    """

    stage: int
    site: str
    layers: tuple[tuple[int, int], ...]
    forward: Median | None
    backward: Median | None
    weight: Median | None
    recompute: Median | None
    sends_bytes: int | None
    microbatches: int
    joined: bool


def stage_times(
    plan: Mapping[str, Any], records: Iterable[tuple[str, Mapping[str, Any]]]
) -> list[StageTimes]:
    """Of each stage of the run plan; ``records``: what devices wrote, each with the device's name.

    The first step of the attempt, in which PyTorch warms up, does not count where there is another. Chunks of a stage are added up.
    """
    devices = {str(device["device"]): device for device in plan["devices"]}
    times: dict[tuple[str, int, int, str], int] = {}
    sent: dict[int, int] = {}
    for name, body in records:
        if body.get("kind") != "row" or name not in devices:
            continue
        op, step = str(body["op"]), int(body["step"])
        if op in OPERATIONS:
            key = (name, step, int(body["microbatch"]), op)
            times[key] = times.get(key, 0) + int(body["end_ns"]) - int(body["start_ns"])
        elif op == "send" and body.get("of") == "F":
            stage = int(devices[name]["stage"])
            sent[stage] = max(sent.get(stage, 0), int(body.get("bytes") or 0))
    first = min((step for _, step, _, _ in times), default=0)
    if any(step > first for _, step, _, _ in times):
        times = {key: ns for key, ns in times.items() if key[1] > first}
    return [_of_stage(plan, list(devices.values()), stage, times, sent) for stage in _stages(plan)]


def _stages(plan: Mapping[str, Any]) -> Sequence[int]:
    return sorted({int(device["stage"]) for device in plan["devices"]})


def _of_stage(
    plan: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], stage: int,
    times: Mapping[tuple[str, int, int, str], int], sent: Mapping[int, int],
) -> StageTimes:  # fmt: skip
    own = [device for device in devices if int(device["stage"]) == stage]
    names = {str(device["device"]) for device in own}
    samples: dict[str, list[int]] = {op: [] for op in OPERATIONS}
    for (name, _, _, op), ns in times.items():
        if name in names:
            samples[op].append(ns)
    found = {OPERATIONS[op]: median_of(taken) if taken else None for op, taken in samples.items()}
    cut = plan["model"].get("cut")
    parts = range(stage, len(cut), len(_stages(plan))) if cut else ()
    return StageTimes(
        stage, str(own[0]["site"]), tuple((int(cut[k][0]), int(cut[k][1])) for k in parts), **found,
        sends_bytes=sent.get(stage), microbatches=len(samples["F"]),
        joined=bool(own[0].get("joined")) or not samples["W"],
    )  # fmt: skip
