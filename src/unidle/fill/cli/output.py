"""What ``unidle fill simulate`` writes: rows of the timeline, an object for machines, a page for people."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

from unidle.cli.common import figures, say, show_table
from unidle.fill.simulate.accounts import LEAF_OF
from unidle.fill.simulate.rules import FillPolicy
from unidle.fill.simulate.run import FillOutcome
from unidle.span.model.setting import Setting

COLUMNS: Final = (
    "device_or_link",
    "op",
    "pipeline",
    "stage",
    "microbatch",
    "start_ns",
    "end_ns",
    "chunk",
    "bytes",
    "of",
    "schedule",
)
_FILL: Final = ("fill", "discarded")


def quantile_ns(values: Sequence[int], part: float) -> int | None:
    """The smallest value that so large a part of all does not exceed; None without any."""
    ranked = sorted(values)
    return ranked[min(int(part * len(ranked)), len(ranked) - 1)] if ranked else None


def _pair(values: Sequence[int]) -> dict[str, float | None]:
    found = {name: quantile_ns(values, part) for name, part in (("p50", 0.5), ("p99", 0.99))}
    return {name: None if ns is None else ns / 1e6 for name, ns in found.items()}


def as_object(outcome: FillOutcome, policy: FillPolicy, schedule: str) -> dict[str, Any]:
    """The outcome for machines. Times to the first token are of all answered prompts; ``routes`` has them by route."""
    error = outcome.forecast
    leaves = dict[str, dict[str, int]]()
    for cause, ns in outcome.spent.items():
        leaves.setdefault(LEAF_OF[cause], {})[cause] = ns
    return {
        "utilisation_before": outcome.utilisation_before,
        "utilisation_after": outcome.utilisation_after,
        "training_slowdown_pct": outcome.slowdown_pct,
        "ttft_ms": _pair([*outcome.ttft_ns, *outcome.dedicated_ttft_ns]),
        "tpot_ms": _pair(outcome.token_ns),
        "accepted": outcome.accepted,
        "spilled": outcome.spilled,
        "rejected": outcome.rejected,
        "discarded_ns": outcome.spent["discarded prefill"],
        "late": outcome.late,
        "routes": {"bubbles": {"ttft_ms": _pair(outcome.ttft_ns)}, "dedicated": {"ttft_ms": _pair(outcome.dedicated_ttft_ns)}},
        "not_placed": outcome.reasons,
        "inference_pipelines": len(outcome.pipelines),
        "iterations": outcome.iterations,
        "end_ns": outcome.end_ns,
        "ledger": {"ns": leaves},
        "forecast": {
            "waits": error.waits, "ended_early": error.early, "mean_error_ms": error.mean_ns / 1e6,
        },
        "policy": policy.name,
        "reconstructed": policy.reconstructed,
        "schedule": schedule,
        "how": "modelled",
    }  # fmt: skip


def show_outcome(outcome: FillOutcome, policy: FillPolicy, schedule: str) -> None:
    """The same as a page."""
    capacity = sum(outcome.spent.values())
    say(
        f"{outcome.iterations} iterations of {schedule}, {outcome.end_ns / 1e9:,.3f} s; policy {policy.name}:"
        f" {policy.what}."
    )
    say()
    before, after = outcome.unfilled_spent, outcome.spent
    rows = [
        [LEAF_OF[cause], cause, *(f"{100 * each[cause] / sum(each.values()):.2f}" for each in (before, after)),
         f"{after[cause] / 1e9:,.3f}"]
        for cause in after
    ]  # fmt: skip
    rows.append(["all", "", "100.00", "100.00", f"{capacity / 1e9:,.3f}"])
    show_table(["leaf", "cause", "before %", "after %", "device seconds"], rows)
    say()
    say(
        f"Utilisation {100 * outcome.utilisation_before:.1f} % before, {100 * outcome.utilisation_after:.1f} % after;"
        f" training takes {outcome.slowdown_pct:.3f} % longer."
    )
    _show_prompts(outcome)
    error = outcome.forecast
    if error.waits:
        say(
            f"Forecast of {error.waits:,} waits: mean error {error.mean_ns / 1e6:,.3f} ms, {error.early:,} ended early."
        )
    notes = "All figures are modelled."
    if policy.reconstructed:
        notes += " This policy is reconstructed from a paper."
    say(notes)


def _show_prompts(outcome: FillOutcome) -> None:
    say(
        f"Prompts: {outcome.accepted:,} in bubbles, {outcome.spilled:,} on dedicated devices,"
        f" {outcome.rejected:,} rejected; {outcome.late:,} late."
    )
    for what, values in (
        ("Time to first token", [*outcome.ttft_ns, *outcome.dedicated_ttft_ns]),
        ("Time per token, decoded elsewhere", outcome.token_ns),
    ):
        middle, high = quantile_ns(values, 0.5), quantile_ns(values, 0.99)
        if middle is not None and high is not None:
            say(f"{what}: p50 {figures(middle / 1e6)} ms, p99 {figures(high / 1e6)} ms.")
    for reason, count in sorted(outcome.reasons.items()):
        say(f"Not placed in a bubble: {count:,}: {reason}.")


def write_timeline(
    stream: BinaryIO, outcome: FillOutcome, setting: Setting, schedule: str, *, lines: bool
) -> None:
    """Every operation of training and of the filler as a row of :data:`COLUMNS`, in order of time."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    if not lines:
        writer.writerow(COLUMNS)
    for cells in _cells(outcome, setting, schedule):
        if lines:
            text.write(json.dumps(dict(zip(COLUMNS, cells, strict=True))) + "\n")
        else:
            writer.writerow(cells)
    text.detach()


def _cells(outcome: FillOutcome, setting: Setting, schedule: str) -> Iterator[tuple[object, ...]]:
    stages = len(setting.stages)
    found = list[tuple[object, ...]]()
    for row in outcome.rows:
        place = divmod(row.device, stages)
        of = "prefill" if row.op in _FILL else ""
        name = setting.device(*place) + (":ring" if row.op == "allreduce" else "")
        size = setting.stages[place[1]].gradient_bytes if row.op == "allreduce" else 0
        size = 2 * (setting.pipelines - 1) * size // setting.pipelines
        found.append(
            (name, row.op, *place, row.unit, row.start_ns, row.end_ns, row.chunk, size, of, schedule)
        )
    for link in outcome.links:
        place = divmod(link.device, stages)
        found.append((link.link, link.op, *place, *link[3:], schedule))
    yield from sorted(found, key=lambda cells: (cells[5], cells[6], cells[0]))
