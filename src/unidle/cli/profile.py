"""``unidle profile``: where the time of running, unmodified processes goes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from unidle.cli.common import (
    JsonOption,
    StoreOption,
    data_dir,
    need_job,
    print_json,
    read_store,
    read_view,
    show,
    warn,
)
from unidle.errors import BadInput, CannotRun, TargetEnded

if TYPE_CHECKING:
    from unidle.cli.profile_history import Question
    from unidle.scope.findings import Machine
    from unidle.scope.model import Profile
    from unidle.scope.rules import Rules
    from unidle.scope.targets import Target
    from unidle.scope.tiers import Watch

_PROGRESS_S: Final = 0.2
Form = Literal["html", "speedscope", "pprof", "folded", "perfetto", "chrome", "otlp", "json"]


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("profile")(profile)


def profile(
    target: Annotated[
        str | None,
        typer.Argument(metavar="PID|JOB", show_default=False, help="A process (with those below it), or a job that runs on this machine."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", min=0.1, max=86400, help="How long to look.")
    ] = 10,
    hz: Annotated[int, typer.Option("--hz", metavar="N", min=1, max=1000, help="Samples a second.")] = 99,
    off_cpu: Annotated[
        bool, typer.Option("--off-cpu/--no-off-cpu", help="Look at waiting threads too.")
    ] = True,
    top: Annotated[
        bool, typer.Option("--top", help="Show the last N seconds again and again until Ctrl-C.")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Follow allocations (probes; dearer).")] = False,
    operators: Annotated[bool, typer.Option("--operators", help="Count operators (probes; dearer).")] = False,
    tier: Annotated[
        Literal["T0", "T1", "T2", "T3"] | None,
        typer.Option("--tier", show_default=False, help="How to look; default: the best that works here."),
    ] = None,
    rules: Annotated[
        str | None, typer.Option("--rules", metavar="FILE", show_default=False, help="Rules of your own, asked before unidle's.")
    ] = None,
    form: Annotated[
        Form | None, typer.Option("--format", show_default=False, help="Write a file for another tool.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", show_default=False, help="Where to write it; default: standard output. Its suffix may name the format.")
    ] = None,
    saved: Annotated[
        str | None, typer.Option("--from", metavar="FILE", show_default=False, help="Show a profile that was written with --format json, or one of another tool (torch.profiler, nsys, NCCL Inspector, py-spy, austin, perf script).")
    ] = None,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="FILE", show_default=False, help="Add what such a file tells of devices in the same time; may be repeated."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="K", min=0, show_default=False, help="Of a job only this rank.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", show_default=False, help="Of a job what was kept (`unidle up --profile`) from then on: 1h, 2026-01-31T12:00."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", show_default=False, help="And until then; default: now.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, show_default=False, help="What was kept of this attempt.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="TIME..TIME", show_default=False, help="What changed since another window: 2h..1h.")
    ] = None,
    against_rank: Annotated[
        int | None, typer.Option("--against-rank", metavar="K", min=0, show_default=False, help="What --rank does otherwise than this one.")
    ] = None,
    against_attempt: Annotated[
        int | None, typer.Option("--against-attempt", metavar="N", min=1, show_default=False, help="What --attempt does otherwise than this one.")
    ] = None,
    children: Annotated[
        bool, typer.Option("--children/--no-children", help="Look at the processes below it too.")
    ] = True,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show where the time of a running process or job goes, without a change to it. Exit codes: 0 shown, 2 bad input,
    3 not permitted or not possible here, 5 it ended before anything was seen."""
    from unidle.cli.profile_file import Destination
    from unidle.cli.profile_history import Question
    from unidle.scope.rules import all_rules

    wanted = Destination.of(form, out)
    wanted.check()
    book = all_rules(*([rules] if rules is not None else []))
    if saved is not None:
        if target is not None:
            raise BadInput("do not go together", field="PID|JOB, --from", remedy="leave one out")
        _tell(_joined(_read(saved), imports), book, None, wanted, as_json)
        return
    if target is None:
        raise BadInput("say whose time it is about", field="PID|JOB", remedy="for instance `unidle profile 4242`, or a job of `unidle list`")  # fmt: skip
    past = Question(target, store, since, until, attempt, rank, against, against_rank, against_attempt)
    if past.asked:
        _tell_past(past, book, wanted, as_json)
        return
    if top:
        from unidle.cli.profile_top import check_terminal

        check_terminal()
    found = _found(target, store, rank, children)
    how = {"hz": hz, "off_cpu": off_cpu, "operators": operators, "memory": memory, "tier": tier}
    machine = None
    if top:
        seen = _top(found, book, seconds, children, **how)
    else:
        seen, machine = _look(found, seconds, children, **how)
    _tell(_joined(seen, imports), book, machine, wanted, as_json)


def _joined(profile: Profile, files: list[str] | None) -> Profile:
    """With what other tools' files tell of devices. Errors: BadInput."""
    if not files:
        return profile
    from unidle.scope.tiers import imported

    for file in files:
        profile = imported.merge(profile, file)
    return profile


def _found(target: str, store: str | None, rank: int | None, children: bool) -> Target:
    """The processes that the user means."""
    from unidle.control.session import run_root
    from unidle.scope.targets import of_process, of_ranks

    if target.isdecimal() and len(target) < 10:
        if rank is not None:
            raise BadInput("is for jobs", field="--rank", value=rank, remedy="leave it out, or name the job")
        return of_process(int(target), children=children)
    opened = read_store(store)
    try:
        job = need_job(read_view(opened), target)
        root = run_root(opened, data_dir())
    finally:
        opened.close()
    if job.live is None:
        raise CannotRun(f"the job does not run: it is {job.state}", field="JOB", value=job.id, remedy="`unidle list` shows what runs")  # fmt: skip
    ranks = range(len(job.live.ranks))
    if rank is not None and rank not in ranks:
        raise BadInput(
            "the job has no such rank", field="--rank", value=rank, remedy=f"0 to {len(ranks) - 1}"
        )
    return of_ranks(root, job.id, job.live.number, ranks if rank is None else [rank], children=children)


def _look(target: Target, seconds: float, children: bool, **wanted: Any) -> tuple[Profile, Machine]:
    """The look itself. Ctrl-C ends it early and keeps what was seen."""
    import time

    from unidle.cli.profile_live import Progress
    from unidle.scope.targets import Beside, any_lives

    with Progress(seconds) as progress, _watched(target, children, wanted) as watched:
        beside = Beside(target)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and progress.goes_on():
            if not watched.run(min(left, _PROGRESS_S)):
                break
        seen = target.named(watched.take())
        machine = beside.machine([process.pid for process in seen.processes])
    if not seen.samples and not any_lives(target.pids):
        raise _ended(target)
    return seen, machine


def _top(target: Target, rules: Rules, seconds: float, children: bool, **wanted: Any) -> Profile:
    """The same, drawn again and again; what was seen last is returned."""
    from unidle.cli.profile_top import top

    with _watched(target, children, wanted) as watched:
        seen = top(watched, target, rules, seconds)
    if seen is None:
        raise _ended(target)
    return seen


def _watched(target: Target, children: bool, wanted: dict[str, Any]) -> Watch:
    from unidle.scope.targets import any_lives
    from unidle.scope.tiers import watch

    try:
        return watch(target.roots, follow=children, **wanted)
    except BadInput:
        if any_lives(target.pids):
            raise
        raise _ended(target) from None


def _ended(target: Target) -> TargetEnded:
    return TargetEnded(
        "it ended before anything was seen", field="JOB" if target.job else "PID", value=target.job or target.pids[0],
        remedy="start the look while it runs",
    )  # fmt: skip


def _tell_past(question: Question, rules: Rules, wanted: Any, as_json: bool) -> None:
    """What was kept of a job, or what changed between two parts of it."""
    from unidle.cli.profile_history import answer_of, difference_json, difference_lines
    from unidle.cli.profile_live import safe

    answer = answer_of(question)
    if answer.other is None or wanted.form is not None:
        if not (as_json or wanted.to_stdout):
            show(safe(answer.source))
        page = {"before": answer.other, "before_name": answer.other_source} if answer.other else None
        _tell(answer.profile, rules, None, wanted, as_json, page)
    elif as_json:
        print_json(difference_json(answer, rules))
    else:
        for line in difference_lines(answer, rules):
            show(safe(line))


def _tell(
    profile: Profile,
    rules: Rules,
    machine: Machine | None,
    wanted: Any,
    as_json: bool,
    page: dict[str, Any] | None = None,
) -> None:
    """The first screen or its JSON, and the file that was asked for; ``page``: what only a page shows."""
    from unidle.cli.profile_live import line_of_source, safe
    from unidle.scope.summary import answer, category_of, report_of, screen

    report = report_of(profile, rules, machine)
    if wanted.to_stdout:
        pass  # the file is all that belongs there
    elif as_json:
        print_json(answer(report))
    else:
        colour = sys.stdout.isatty() and not _plain()
        for line in screen(report, colour=colour, source=line_of_source(profile)):
            show(safe(line))
    if wanted.form is not None:
        place = wanted.write(
            profile, lambda: answer(report), {"category": category_of(report), **(page or {})}
        )
        if place:
            warn(f"wrote {place}")


def _plain() -> bool:
    import os

    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def _read(path: str) -> Profile:
    """A profile that was saved, by unidle or another tool. Errors: BadInput."""
    from unidle.scope.tiers import imported

    return imported.read(path)
