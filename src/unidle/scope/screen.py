"""The first screen: the biggest cause in plain words, the budget, the lines, the ranks, how far to trust it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Final

from unidle.scope.bottlenecks import Bottleneck, rank_of
from unidle.scope.budget import Budgets, percentages
from unidle.scope.call_counts import counts_lines
from unidle.scope.device_use import device_lines
from unidle.scope.line_times import LineTime, lines_of
from unidle.scope.memory import memory_lines
from unidle.scope.model import Profile
from unidle.scope.rules import CATEGORIES, Category
from unidle.scope.serving_view import view_lines
from unidle.scope.steps import StepReport
from unidle.scope.summary import ProfileReport, doubts, first_to_tell, interval_pct, training_lines
from unidle.words import counted

Source = Callable[[str, int], str | None]  # the text of a line of a file

WIDTH: Final = 80
_COLOURS: Final[Mapping[Category, int]] = {
    "checkpoint_io": 133, "collective": 68, "copy": 73, "device_sync": 110, "data": 172, "compute": 36, "python": 143,
    "cpu_contention": 167, "lock": 161, "idle": 246, "other": 250,
}  # fmt: skip
_MOST_FINDINGS: Final = 3
_MOST_LINES: Final = 6
_MOST_RANKS: Final = 16
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def screen(
    report: ProfileReport, *, colour: bool = False, source: Source | None = None, width: int = WIDTH, rows: int | None = None
) -> list[str]:  # fmt: skip
    """The first screen, as lines of at most ``width`` columns.

    Where it has more than ``rows`` lines, causes are reported by their first lines only, so that the budget is among those.
    """
    lines = _screen(report, colour, source, width, brief=False)
    return lines if rows is None or len(lines) <= rows else _screen(report, colour, source, width, brief=True)


def _screen(
    report: ProfileReport, colour: bool, source: Source | None, width: int, *, brief: bool
) -> list[str]:
    profile, budgets, steps = report.profile, report.budgets, report.steps
    if not budgets.training:
        return ["there are no samples of these processes", *_trust(profile, budgets, width)]
    parts = [
        _title(profile, budgets, width, serves=report.serving.serving is not None),
        [""],
        view_lines(report.serving, width),
        device_lines(profile, width),
        *[(_in_short if brief else _told)(one, source, width, colour) for one in _to_tell(report)],
        [""] if brief else [],
        _bars(budgets, width, colour),
        _top_lines(profile, budgets, width),
        _ranks(report, width),
        _steps(steps, width),
        counts_lines(profile, steps.count, width),
        memory_lines(profile, width, report.steps_s, source),
        _trust(profile, budgets, width),
    ]
    return [line for part in parts for line in part]


def _title(profile: Profile, budgets: Budgets, width: int, *, serves: bool) -> list[str]:
    threads = budgets.training
    first = threads[0]
    process = next((p for p in profile.processes if p.pid == first.pid), None)
    command = clip(_script(profile, first.pid), width - 30)
    python = f", Python {process.python}" if process and process.python else ""
    who = f"pid {first.pid}" if len(threads) == 1 else counted(len(threads), "rank")
    main = (
        ""
        if first.tid == first.pid
        else f", its thread {first.name or ''} ({first.tid}) {'serves' if serves else 'trains'}"
    )
    return [clip(f"{command}: {who}{python}, {profile.seconds:.1f} s{main}", width)]


def _script(profile: Profile, pid: int) -> str:
    """The script that a process runs, or that the one runs which started it."""
    processes = {process.pid: process for process in profile.processes}
    at, seen = processes.get(pid), {0}
    while at is not None and at.pid not in seen:
        if any(word.endswith(".py") for word in at.command.split()):
            return program(at.command)
        seen.add(at.pid)
        at = processes.get(at.parent)
    return program(processes[pid].command) if pid in processes else f"pid {pid}"


def _to_tell(report: ProfileReport) -> list[Bottleneck]:
    """The biggest causes of the thread to look at. Of a gang with a late rank: that the others wait, then what it does."""
    threads = first_to_tell(report)
    found = report.findings(threads[0])
    if len(threads) > 1:
        late = [one for one in report.findings(threads[1]) if one.category != "collective"]
        found = [one for one in found if one.category == "collective"][:1] + late[:2]
    lost = next((one.share for one in found if one.cause == "no-cpu-of-others"), 0.0)
    told = [one for one in found if one.share >= 0.08 * (1 - lost)][:_MOST_FINDINGS]
    return told or found[:1]


def _head(finding: Bottleneck, width: int, colour: bool) -> list[str]:
    who = f"rank {finding.rank}" if finding.rank is not None else "it"
    head = f"{100 * finding.share:.0f} % of the time {who} {finding.says}"
    return [bold(text, colour) for text in textwrap.wrap(head, width, subsequent_indent="     ")]


def _in_short(finding: Bottleneck, _: Source | None, width: int, colour: bool) -> list[str]:
    lines = _head(finding, width, colour)
    if finding.lines:
        place = middle(finding.lines[0].place.text, width - len(finding.lines_are) - 6)
        lines.append(f"     {finding.lines_are} {place}")
    return lines


def _told(finding: Bottleneck, source: Source | None, width: int, colour: bool) -> list[str]:
    lines = _head(finding, width, colour)
    for detail in finding.details:
        lines += textwrap.wrap(detail, width - 5, initial_indent="     ", subsequent_indent="     ")
    for n, line in enumerate(one for one in finding.lines if one.place.file):
        lead = f"     {finding.lines_are} " if n == 0 else " " * (6 + len(finding.lines_are))
        lines.append(clip(f"{lead}{line.place.text}", width))
        text = source(line.place.file, line.place.line) if source and n == 0 else None
        if text and text.strip():
            lines.append(clip(f"         > {text.strip()}", width))
    if not any(line.place.file for line in finding.lines) and finding.lines:
        lines.append(clip(f"     {finding.lines_are} {finding.lines[0].place.text}", width))
    if finding.do:
        lines += textwrap.wrap(
            f"try: {finding.do}", width - 5, initial_indent="     ", subsequent_indent="          "
        )
    return [*lines, ""]


def _bars(budgets: Budgets, width: int, colour: bool) -> list[str]:
    shares = percentages(budgets.total_ns, places=1)
    interval = interval_pct(budgets.training)
    of = "the training threads'" if len(budgets.training) > 1 else "the training thread's"
    lines = [f"Where {of} time goes"]
    room = width - 34
    most = max(shares.values())
    for category in sorted(CATEGORIES, key=lambda one: (-shares[one], one)):
        if shares[category] < 0.5:
            continue
        blocks = bar(shares[category] / most, room)
        shown = f"\x1b[38;5;{_COLOURS[category]}m{blocks}\x1b[0m" if colour else blocks
        lines.append(
            f"  {category:<14} {shares[category]:5.1f} % ±{interval[category]:<4.1f} {shown}".rstrip()
        )
    rest = [category for category in CATEGORIES if 0 < shares[category] < 0.5]
    if rest:
        lines.append(clip(f"  under 0.5 %: {', '.join(rest)}", width))
    return [*lines, ""]


def _top_lines(profile: Profile, budgets: Budgets, width: int) -> list[str]:
    wall = sum(one.wall_ns for one in budgets.training) or 1
    rows = []
    for line in training_lines(profile, budgets)[:_MOST_LINES]:
        if line.ns < wall * 0.01:
            break
        by = ", ".join(f"{name} {100 * ns / wall:.0f}" for name, ns in line.by_category if ns * 100 >= wall)
        rows.append((f"{100 * line.ns / wall:5.1f} %", line.place.text, by))
    if not rows:
        return []
    room = min(max(len(row[1]) for row in rows), width - 40)
    head = "Lines of code (share of the time, by category in percent)"
    return [head, *(clip(f"  {a}  {middle(b, room):<{room}}  {c}", width) for a, b, c in rows), ""]


def _ranks(report: ProfileReport, width: int) -> list[str]:
    """A row for each rank, the late ones among them; of one rank its other threads instead."""
    budgets = report.budgets
    threads = budgets.training
    if len(threads) < 2:
        return _workers(report.profile, budgets, width)
    lines = ["Ranks (percent of each one's time)", *_rank_rows(report, width)]
    if len(threads) > _MOST_RANKS:
        lines.append(f"  and {len(threads) - _MOST_RANKS} more: --json has all")
    if any(subject.rank_is_inferred for subject in budgets.roles.subjects):
        lines.append("  the ranks are numbered in the order in which they were started")
    if report.comparison is not None:
        lines += textwrap.wrap(report.comparison.text, width, initial_indent="  ", subsequent_indent="  ")
    return [*lines, ""]


def _rank_rows(report: ProfileReport, width: int) -> list[str]:
    threads = report.budgets.training
    most = sorted(CATEGORIES, key=lambda c: (-max(one.share(c) for one in threads), c))
    used = [c for c in most if any(one.share(c) >= 0.02 for one in threads)]
    while sum(len(c) + 2 for c in used) > width - 22:
        used.pop()
    late = {one.pid for one in report.comparison.ranks if one.is_late} if report.comparison else set()
    shown = sorted(threads, key=lambda one: one.pid not in late)[:_MOST_RANKS]
    rows = [f"  {'rank':>5} {'pid':>8}" + "".join(f"  {c}" for c in used)]
    for one in (thread for thread in threads if thread in shown):
        rank = rank_of(report.budgets, one)
        cells = "".join(f"  {100 * one.share(c):>{len(c)}.1f}" for c in used)
        mark = "  late" if one.pid in late else ""
        rows.append(clip(f"  {'-' if rank is None else rank:>5} {one.pid:>8}{cells}{mark}", width))
    return rows


def _workers(profile: Profile, budgets: Budgets, width: int) -> list[str]:
    """Other threads that were busy: of the process, and of those below it."""
    training = {(one.pid, one.tid) for one in budgets.training}
    rows = []
    for key, one in budgets.threads.items():
        work = one.wall_ns - one.rest_ns - one.ns.get("idle", 0)
        if key in training or work * 10 < one.wall_ns or not one.wall_ns:
            continue
        shares = sorted(((one.share(c), c) for c in CATEGORIES if c != "idle"), reverse=True)
        by = ", ".join(f"{c} {100 * share:.0f}" for share, c in shares[:2] if share >= 0.02)
        lines = lines_of(profile, (cell for cell in one.cells if not cell.rule.rest))
        rows.append(
            (
                -work,
                f"  {budgets.roles.kinds.get(one.pid, ''):<8} {one.pid:>8} {one.name[:15]:<15} {by}",
                lines[:1],
            )
        )
    if not rows:
        return []
    rows.sort(key=lambda row: (row[0], row[1]))
    shown = [_with_place(text, lines, width) for _, text, lines in rows[:5]]
    more = [f"  and {len(rows) - 5} more"] if len(rows) > 5 else []
    return ["Other busy threads (percent of each one's time)", *shown, *more, ""]


def _with_place(text: str, lines: list[LineTime], width: int) -> str:
    """The row with its line of code behind it: whole, or file and number, as there is room."""
    if not lines:
        return clip(text, width)
    place = lines[0].place
    short = f"{place.file.rpartition('/')[2]}:{place.line}" if place.file else place.text
    whole = (f"{text}  {told}" for told in (place.text, short))
    return next((row for row in whole if len(row) <= width), clip(f"{text}  {short}", width))


def _steps(steps: StepReport, width: int) -> list[str]:
    if not steps.count:
        return []
    p50, p99 = steps.quantile_ms(0.5), steps.quantile_ms(0.99)
    pace = (
        f", median {p50:.4g} ms, 99th percentile {p99:.4g} ms" if p50 is not None and p99 is not None else ""
    )
    of = next(iter(steps.ranks.values())).of
    how = "as the profiler marked them" if of == "step" else f"calls of {of}"
    return [clip(f"{counted(steps.count, 'step')} ({how}){pace}", width), ""]


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
    for note in [*quality.notes, *doubts(budgets)]:
        lines += textwrap.wrap(note, width, initial_indent="    ", subsequent_indent="    ")
    if profile.misses:
        missing = f"not seen in tier {profile.tier}: {'; '.join(profile.misses)}"
        lines += textwrap.wrap(missing, width, initial_indent="    ", subsequent_indent="    ")
    return lines


# -- text that fits its columns


def clip(text: str, width: int) -> str:
    """Text cut at its end."""
    text = text.rstrip()
    return text if len(text) <= width else text[: width - 1] + "…"


def middle(text: str, room: int) -> str:
    """Text cut in the middle, so that its file and line stay."""
    if len(text) <= room:
        return text
    back = room * 2 // 3
    return text[: room - back - 1] + "…" + text[-back:]


def bold(text: str, colour: bool) -> str:
    """Bold on a terminal that has colours."""
    return f"\x1b[1m{text}\x1b[0m" if colour else text


def bar(share: float, room: int) -> str:
    """A bar of ``room`` columns for a share of 1, in eighths of a column."""
    eighths = round(share * room * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def program(command: str) -> str:
    """The script of a Python command, else the command."""
    words = command.split()
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    if script:
        return script.rpartition("/")[2]
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else "?"
