"""The same as the first screen for machines: what ``--json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from unidle.scope.bottlenecks import Bottleneck
from unidle.scope.budget import Budgets, ThreadBudget, percentages
from unidle.scope.call_counts import counts_json
from unidle.scope.device_use import device_json
from unidle.scope.line_times import LineTime
from unidle.scope.memory import memory_json
from unidle.scope.rules import is_user_file
from unidle.scope.summary import ProfileReport, doubts, first_to_tell, interval_pct, training_lines


def answer(report: ProfileReport) -> dict[str, Any]:
    """What ``--json`` prints. ``budget`` sums to 100 over all categories: the training threads of all ranks together."""
    profile, budgets, steps = report.profile, report.budgets, report.steps
    quality = profile.quality
    threads = budgets.training
    return {
        "tier": profile.tier,
        "quality": {
            "samples": quality.samples, "drops": quality.drops, "rooted_pct": quality.rooted_pct,
            "symbolised_pct": quality.symbolised_pct, "merge_mismatch_pct": quality.merge_mismatch_pct,
            "bpf_cpu_pct": quality.bpf_cpu_pct, "agent_cpu_pct": quality.agent_cpu_pct,
            "attach_cpu_s": quality.attach_cpu_s,
            "spans_dropped": quality.spans_dropped, "first_sample_ns": quality.first_sample_ns,
            "notes": [*quality.notes, *doubts(budgets)],
        },
        "seconds": round(profile.seconds, 3),
        "misses": list(profile.misses),
        "budget": percentages(budgets.total_ns),
        "budget_interval_pct": interval_pct(threads),
        "steps": {
            "count": steps.count, "p50_ms": steps.quantile_ms(0.5), "p99_ms": steps.quantile_ms(0.99),
            "of": next((one.of for one in steps.ranks.values()), None), "why_not": steps.why_not or None,
        },
        "serving": report.serving.to_json(), "serving_why_not": report.serving.why_not or None,
        "ranks": [_rank(report, one) for one in threads],
        "verdict": report.comparison.text if report.comparison else None,
        "findings": [
            _finding(one) for thread in first_to_tell(report) for one in report.findings(thread)
        ],
        "lines": [_line(one, threads) for one in training_lines(profile, budgets)[:50]],
        "memory": memory_json(profile, report.steps_s),
        "devices": device_json(profile),
        "calls": counts_json(profile),
        "threads": [_thread(budgets, one) for _, one in sorted(budgets.threads.items())],
    }  # fmt: skip


def _rank(report: ProfileReport, one: ThreadBudget) -> dict[str, Any]:
    profile, budgets, steps = report.profile, report.budgets, report.steps
    own = steps.ranks.get((one.pid, one.tid))
    subject = next(s for s in budgets.roles.subjects if (s.pid, s.tid) == (one.pid, one.tid))
    process = next((p for p in profile.processes if p.pid == one.pid), None)
    rows = report.comparison.to_json() if report.comparison else []
    blame = next((row for row in rows if row.get("pid") == one.pid), None)
    return {
        **(blame or {}),
        "rank": subject.rank, "rank_is_inferred": subject.rank_is_inferred, "pid": one.pid, "tid": one.tid,
        "job": process.job if process else "", "ended": bool(process and process.ended), "wall_ns": one.wall_ns,
        "samples": one.samples, "budget": percentages(one.ns), "late": blame is not None and bool(blame.get("late")),
        "steps": {
            "count": own.count if own else None, "p50_ms": own.quantile_ms(0.5) if own else None,
            "p99_ms": own.quantile_ms(0.99) if own else None,
        },
    }  # fmt: skip


def _thread(budgets: Budgets, one: ThreadBudget) -> dict[str, Any]:
    return {
        "pid": one.pid, "tid": one.tid, "name": one.name, "process": budgets.roles.kinds.get(one.pid),
        "training": (one.pid, one.tid) in budgets.roles.training, "wall_ns": one.wall_ns, "samples": one.samples,
        "ns": dict(one.ns), "budget": percentages(one.ns),
    }  # fmt: skip


def _finding(one: Bottleneck) -> dict[str, Any]:
    return {
        "cause": one.cause, "category": one.category, "pct": round(100 * one.share, 2), "rank": one.rank, "says": one.says,
        "details": list(one.details), "do": one.do, "lines": [asdict(line.place) for line in one.lines],
    }  # fmt: skip


def _line(one: LineTime, threads: Sequence[ThreadBudget]) -> dict[str, Any]:
    wall = sum(thread.wall_ns for thread in threads) or 1
    return {
        **asdict(one.place), "own": is_user_file(one.place.file), "pct": round(100 * one.ns / wall, 2),
        "on_cpu_pct": round(100 * one.on_ns / wall, 2),
        "by_category": {name: round(100 * ns / wall, 2) for name, ns in one.by_category},
    }  # fmt: skip
