"""The first screen, and the same as JSON: the biggest cause in plain words, the budget, the lines, the ranks, how far to trust it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from unidle.scope.budget import FEW_SAMPLES, Budgets, ThreadBudget, budgets_of, percentages
from unidle.scope.counts import counts_json, counts_lines
from unidle.scope.findings import Finding, Machine, compared, findings_of, late_rank, rank_of
from unidle.scope.lines import Line, lines_of
from unidle.scope.memory import memory_json, memory_lines
from unidle.scope.model import Profile, Sample
from unidle.scope.ranks import Comparison
from unidle.scope.rules import CATEGORIES, Category, Rules, is_user_file
from unidle.scope.steps import StepReport, steps_of
from unidle.words import counted

Source = Callable[[str, int], str | None]  # the text of a line of a file

WIDTH: Final = 80
MEANING: Final[Mapping[Category, str]] = {
    "checkpoint_io": "saves and restores checkpoints", "collective": "peers and collectives",
    "copy": "copies between host and device", "device_sync": "waits for the device", "data": "waits for and makes batches",
    "compute": "operators, kernels, native code", "python": "the interpreter", "cpu_contention": "ready, but gets no CPU",
    "lock": "locks and Python's GIL", "idle": "sleeps, has no work", "other": "something else",
}  # fmt: skip
_COLOURS: Final[Mapping[Category, int]] = {
    "checkpoint_io": 133, "collective": 68, "copy": 73, "device_sync": 110, "data": 172, "compute": 36, "python": 143,
    "cpu_contention": 167, "lock": 161, "idle": 246, "other": 250,
}  # fmt: skip
_PARTS: Final = " ▏▎▍▌▋▊▉█"
_MOST_FINDINGS: Final = 3
_MOST_LINES: Final = 6
_MOST_RANKS: Final = 16


@dataclass(frozen=True, slots=True)
class Report:
    """A profile and all that follows from it."""

    profile: Profile
    budgets: Budgets
    steps: StepReport
    comparison: Comparison | None  # of the ranks, where there are several
    machine: Machine

    def findings(self, thread: ThreadBudget) -> list[Finding]:
        """Causes of a training thread's time, biggest first."""
        return findings_of(self.profile, self.budgets, thread, self.machine, self.comparison)


def category_of(report: Report) -> Callable[[Profile, Sample], str]:
    """Names the category that a sample's time was put into."""
    known = {
        (one.pid, one.tid, cell.stack, cell.state): cell.rule.category
        for one in report.budgets.threads.values()
        for cell in one.cells
    }
    return lambda _, sample: known.get((sample.pid, sample.tid, sample.stack, sample.state), "other")


def report_of(profile: Profile, rules: Rules, machine: Machine | None = None) -> Report:
    """Pure. ``machine``: what else was there while the look lasted, where that is known."""
    budgets = budgets_of(profile, rules)
    steps = steps_of(profile, budgets.shape)
    return Report(profile, budgets, steps, compared(profile, budgets), machine or Machine())


def answer(report: Report) -> dict[str, Any]:
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
            "notes": [*quality.notes, *_doubts(budgets)],
        },
        "seconds": round(profile.seconds, 3),
        "misses": list(profile.misses),
        "budget": percentages(budgets.total_ns),
        "budget_interval_pct": _interval(threads),
        "steps": {
            "count": steps.count, "p50_ms": steps.quantile_ms(0.5), "p99_ms": steps.quantile_ms(0.99),
            "of": next((one.of for one in steps.ranks.values()), None), "why_not": steps.why_not or None,
        },
        "ranks": [_rank(report, one) for one in threads],
        "verdict": report.comparison.text if report.comparison else None,
        "findings": [
            _finding(one) for thread in _first_to_tell(report) for one in report.findings(thread)
        ],
        "lines": [_line(one, threads) for one in _lines(profile, budgets)[:50]],
        "memory": memory_json(profile),
        "calls": counts_json(profile),
        "threads": [_thread(budgets, one) for _, one in sorted(budgets.threads.items())],
    }  # fmt: skip


def screen(
    report: Report, *, colour: bool = False, source: Source | None = None, width: int = WIDTH
) -> list[str]:
    """The first screen, as lines of at most ``width`` columns."""
    profile, budgets, steps = report.profile, report.budgets, report.steps
    if not budgets.training:
        return ["nothing was seen of these processes", *_trust(profile, budgets, width)]
    parts = [
        _title(profile, budgets, width),
        [""],
        *[_told(one, source, width, colour) for one in _to_tell(report)],
        _bars(budgets, width, colour),
        _top_lines(profile, budgets, width),
        _ranks(report, width),
        _steps(steps, width),
        counts_lines(profile, steps.count, width),
        memory_lines(profile, width),
        _trust(profile, budgets, width),
    ]
    return [line for part in parts for line in part]


def _first_to_tell(report: Report) -> list[ThreadBudget]:
    """Of a gang with a late rank one that waits for it, and the late one. Else the first one."""
    threads = report.budgets.training
    late = late_rank(report.budgets, report.comparison)
    if late is None:
        return list(threads[:1])
    waiting = max((one for one in threads if one is not late[0]), key=lambda one: one.share("collective"))
    return [waiting, late[0]]


def _to_tell(report: Report) -> list[Finding]:
    """The biggest causes of the thread to look at. Of a gang with a late rank: that the others wait, then what it does."""
    threads = _first_to_tell(report)
    found = report.findings(threads[0])
    if len(threads) > 1:
        late = [one for one in report.findings(threads[1]) if one.category != "collective"]
        found = [one for one in found if one.category == "collective"][:1] + late[:2]
    lost = next((one.share for one in found if one.cause == "no-cpu-of-others"), 0.0)
    told = [one for one in found if one.share >= 0.08 * (1 - lost)][:_MOST_FINDINGS]
    return told or found[:1]


def _title(profile: Profile, budgets: Budgets, width: int) -> list[str]:
    threads = budgets.training
    first = threads[0]
    process = next((p for p in profile.processes if p.pid == first.pid), None)
    command = _clip(_script(profile, first.pid), width - 30)
    python = f", Python {process.python}" if process and process.python else ""
    who = f"pid {first.pid}" if len(threads) == 1 else counted(len(threads), "rank")
    main = "" if first.tid == first.pid else f", its thread {first.name or ''} ({first.tid}) trains"
    return [_clip(f"{command}: {who}{python}, {profile.seconds:.1f} s{main}", width)]


def _told(finding: Finding, source: Source | None, width: int, colour: bool) -> list[str]:
    who = f"rank {finding.rank}" if finding.rank is not None else "it"
    head = f"{100 * finding.share:.0f} % of the time {who} {finding.says}"
    lines = [_bold(text, colour) for text in textwrap.wrap(head, width, subsequent_indent="     ")]
    for detail in finding.details:
        lines += textwrap.wrap(detail, width - 5, initial_indent="     ", subsequent_indent="     ")
    for n, line in enumerate(one for one in finding.lines if one.place.file):
        lead = f"     {finding.lines_are} " if n == 0 else " " * (6 + len(finding.lines_are))
        lines.append(_clip(f"{lead}{line.place.text}", width))
        text = source(line.place.file, line.place.line) if source and n == 0 else None
        if text and text.strip():
            lines.append(_clip(f"         > {text.strip()}", width))
    if not any(line.place.file for line in finding.lines) and finding.lines:
        lines.append(_clip(f"     {finding.lines_are} {finding.lines[0].place.text}", width))
    if finding.do:
        lines += textwrap.wrap(
            f"try: {finding.do}", width - 5, initial_indent="     ", subsequent_indent="          "
        )
    return [*lines, ""]


def _bars(budgets: Budgets, width: int, colour: bool) -> list[str]:
    shares = percentages(budgets.total_ns, places=1)
    interval = _interval(budgets.training)
    of = "the training threads'" if len(budgets.training) > 1 else "the training thread's"
    lines = [f"Where {of} time goes"]
    room = width - 34
    most = max(shares.values())
    for category in sorted(CATEGORIES, key=lambda one: (-shares[one], one)):
        if shares[category] < 0.5:
            continue
        bar = _bar(shares[category] / most, room)
        shown = f"\x1b[38;5;{_COLOURS[category]}m{bar}\x1b[0m" if colour else bar
        lines.append(
            f"  {category:<14} {shares[category]:5.1f} % ±{interval[category]:<4.1f} {shown}".rstrip()
        )
    rest = [category for category in CATEGORIES if 0 < shares[category] < 0.5]
    if rest:
        lines.append(_clip(f"  under 0.5 %: {', '.join(rest)}", width))
    return [*lines, ""]


def _bar(share: float, room: int) -> str:
    eighths = round(share * room * 8)
    return "█" * (eighths // 8) + (_PARTS[eighths % 8] if eighths % 8 else "")


def _lines(profile: Profile, budgets: Budgets) -> list[Line]:
    return lines_of(profile, (cell for one in budgets.training for cell in one.cells))


def _top_lines(profile: Profile, budgets: Budgets, width: int) -> list[str]:
    wall = sum(one.wall_ns for one in budgets.training) or 1
    rows = []
    for line in _lines(profile, budgets)[:_MOST_LINES]:
        if line.ns < wall * 0.01:
            break
        by = ", ".join(f"{name} {100 * ns / wall:.0f}" for name, ns in line.by_category if ns * 100 >= wall)
        rows.append((f"{100 * line.ns / wall:5.1f} %", line.place.text, by))
    if not rows:
        return []
    room = min(max(len(row[1]) for row in rows), width - 40)
    head = "Lines of code (share of the time, by category in percent)"
    return [head, *(_clip(f"  {a}  {_middle(b, room):<{room}}  {c}", width) for a, b, c in rows), ""]


def _ranks(report: Report, width: int) -> list[str]:
    budgets = report.budgets
    threads = budgets.training
    if len(threads) < 2:
        return _workers(report.profile, budgets, width)
    most = sorted(CATEGORIES, key=lambda c: (-max(one.share(c) for one in threads), c))
    used = [c for c in most if any(one.share(c) >= 0.02 for one in threads)]
    while sum(len(c) + 2 for c in used) > width - 22:
        used.pop()
    blames = {one.pid: one for one in report.comparison.ranks} if report.comparison else {}
    lines = [
        "Ranks (percent of each one's time)",
        f"  {'rank':>5} {'pid':>8}" + "".join(f"  {c}" for c in used),
    ]
    shown = sorted(threads, key=lambda one: not (one.pid in blames and blames[one.pid].is_late))[:_MOST_RANKS]
    for one in (thread for thread in threads if thread in shown):
        rank = rank_of(budgets, one)
        cells = "".join(f"  {100 * one.share(c):>{len(c)}.1f}" for c in used)
        mark = "  late" if one.pid in blames and blames[one.pid].is_late else ""
        lines.append(_clip(f"  {'-' if rank is None else rank:>5} {one.pid:>8}{cells}{mark}", width))
    if len(threads) > _MOST_RANKS:
        lines.append(f"  and {len(threads) - _MOST_RANKS} more: --json has all")
    if any(subject.rank_is_inferred for subject in budgets.shape.subjects):
        lines.append("  the ranks are numbered in the order in which they were started")
    if report.comparison is not None:
        lines += textwrap.wrap(report.comparison.text, width, initial_indent="  ", subsequent_indent="  ")
    return [*lines, ""]


def _workers(profile: Profile, budgets: Budgets, width: int) -> list[str]:
    """Other threads that were busy: of the process, and of those below it."""
    training = {(one.pid, one.tid) for one in budgets.training}
    rows = []
    for key, one in budgets.threads.items():
        work = one.wall_ns - one.rest_ns - one.ns.get("idle", 0)
        if key in training or work * 10 < one.wall_ns or not one.wall_ns:
            continue
        shares = sorted(((one.share(c), c) for c in CATEGORIES if c != "idle"), reverse=True)
        by = ", ".join(f"{c} {100 * share:.0f}" for share, c in shares[:3] if share >= 0.02)
        lines = lines_of(profile, (cell for cell in one.cells if not cell.rule.rest))
        rows.append(
            (
                -work,
                f"  {budgets.shape.kinds.get(one.pid, ''):<8} {one.pid:>8} {one.name[:15]:<15} {by}",
                lines[:1],
            )
        )
    if not rows:
        return []
    rows.sort(key=lambda row: (row[0], row[1]))
    shown = [
        _clip(text + (f"  {lines[0].place.text}" if lines else ""), width) for _, text, lines in rows[:5]
    ]
    more = [f"  and {len(rows) - 5} more"] if len(rows) > 5 else []
    return ["Other busy threads (percent of each one's time)", *shown, *more, ""]


def _steps(steps: StepReport, width: int) -> list[str]:
    if not steps.count:
        return []
    p50, p99 = steps.quantile_ms(0.5), steps.quantile_ms(0.99)
    pace = (
        f", median {p50:.4g} ms, 99th percentile {p99:.4g} ms" if p50 is not None and p99 is not None else ""
    )
    of = next(iter(steps.ranks.values())).of
    return [_clip(f"{counted(steps.count, 'step')} (calls of {of}){pace}", width), ""]


def _trust(profile: Profile, budgets: Budgets, width: int) -> list[str]:
    quality = profile.quality
    cost = [
        f"{name} {value:.2g} % of a CPU" for name, value in (("probes", quality.bpf_cpu_pct), ("agent", quality.agent_cpu_pct))
        if value is not None
    ]  # fmt: skip
    parts = [
        counted(quality.samples, "sample"), f"{quality.drops} lost", f"{quality.rooted_pct:.4g} % reach the root",
        f"{quality.symbolised_pct:.3g} % of frames have names", *cost,
    ]  # fmt: skip
    text = f"{profile.tier}: {', '.join(parts)}"
    lines = textwrap.wrap(text, width, subsequent_indent="    ")
    for note in [*quality.notes, *_doubts(budgets)]:
        lines += textwrap.wrap(note, width, initial_indent="    ", subsequent_indent="    ")
    if profile.misses:
        missing = f"not seen in tier {profile.tier}: {'; '.join(profile.misses)}"
        lines += textwrap.wrap(missing, width, initial_indent="    ", subsequent_indent="    ")
    return lines


def _doubts(budgets: Budgets) -> list[str]:
    few = [one for one in budgets.training if one.few]
    if not few:
        return []
    least = min(one.samples for one in few)
    return [
        f"too few samples ({least}, {FEW_SAMPLES} are wanted) to split the time well: look for longer (--seconds)"
    ]


def _interval(threads: Sequence[ThreadBudget]) -> dict[str, float]:
    """Of the shares of several threads together: they are sampled apart, so variances add."""
    wall = sum(one.wall_ns for one in threads)
    if not wall:
        return dict.fromkeys(CATEGORIES, 0.0)
    return {
        category: round(
            sum((one.interval_pct[category] * one.wall_ns / wall) ** 2 for one in threads) ** 0.5, 2
        )
        for category in CATEGORIES
    }


def _rank(report: Report, one: ThreadBudget) -> dict[str, Any]:
    profile, budgets, steps = report.profile, report.budgets, report.steps
    own = steps.ranks.get((one.pid, one.tid))
    subject = next(s for s in budgets.shape.subjects if (s.pid, s.tid) == (one.pid, one.tid))
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
        "pid": one.pid, "tid": one.tid, "name": one.name, "process": budgets.shape.kinds.get(one.pid),
        "training": (one.pid, one.tid) in budgets.shape.training, "wall_ns": one.wall_ns, "samples": one.samples,
        "ns": dict(one.ns), "budget": percentages(one.ns),
    }  # fmt: skip


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "cause": one.cause, "category": one.category, "pct": round(100 * one.share, 2), "rank": one.rank, "says": one.says,
        "details": list(one.details), "do": one.do, "lines": [asdict(line.place) for line in one.lines],
    }  # fmt: skip


def _line(one: Line, threads: Sequence[ThreadBudget]) -> dict[str, Any]:
    wall = sum(thread.wall_ns for thread in threads) or 1
    return {
        **asdict(one.place), "own": is_user_file(one.place.file), "pct": round(100 * one.ns / wall, 2),
        "on_cpu_pct": round(100 * one.on_ns / wall, 2),
        "by_category": {name: round(100 * ns / wall, 2) for name, ns in one.by_category},
    }  # fmt: skip


def _script(profile: Profile, pid: int) -> str:
    """The script that a process runs, or that the one runs which started it."""
    processes = {process.pid: process for process in profile.processes}
    at, seen = processes.get(pid), {0}
    while at is not None and at.pid not in seen:
        if any(word.endswith(".py") for word in at.command.split()):
            return _program(at.command)
        seen.add(at.pid)
        at = processes.get(at.parent)
    return _program(processes[pid].command) if pid in processes else f"pid {pid}"


def _program(command: str) -> str:
    """The script of a Python command, else the command."""
    words = command.split()
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    if script:
        return script.rpartition("/")[2]
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else "?"


def _clip(text: str, width: int) -> str:
    text = text.rstrip()
    return text if len(text) <= width else text[: width - 1] + "…"


def _middle(text: str, room: int) -> str:
    """Text cut in the middle, so that its file and line stay."""
    if len(text) <= room:
        return text
    back = room * 2 // 3
    return text[: room - back - 1] + "…" + text[-back:]


def _bold(text: str, colour: bool) -> str:
    return f"\x1b[1m{text}\x1b[0m" if colour else text
