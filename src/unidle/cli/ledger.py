"""``unidle ledger`` and ``unidle report``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli import complete
from unidle.cli.common import (
    JobArgument,
    JsonOption,
    ModeOption,
    StoreOption,
    cannot_write,
    clock_time,
    data_dir,
    mode_of,
    need_job,
    print_json,
    read_store,
    read_view,
    say,
    say_whole,
    store_address,
    table,
)
from unidle.cli.option_set import with_options
from unidle.cli.output import whole_file
from unidle.cli.times import moment
from unidle.errors import BadInput
from unidle.ledger.taxonomy import OTHER_POD

if TYPE_CHECKING:
    from unidle.ledger.select import TimeRange
    from unidle.view.state import View

_MFU_ENDED = 10  # jobs that ended whose MFU is printed if no job is given
FORMATS = ("table", "json", "jsonl", "csv", "parquet", "perfetto")


def _filter(what: str, offered: Callable[..., list[str]]) -> Any:
    text = f"Only rows of this {what}; may be repeated."
    return typer.Option(metavar="NAME", show_default=False, autocompletion=offered, help=text)


Names = list[str] | None
_TIME = "nanoseconds, 2026-01-31T12:00:00, or 90s, 15m, 2h, 1d before the end"
SinceOption = Annotated[
    str | None,
    typer.Option("--since", "--start", metavar="TIME", show_default=False, help=f"Start of the window: {_TIME}."),
]  # fmt: skip
UntilOption = Annotated[
    str | None,
    typer.Option("--until", "--end", metavar="TIME", show_default=False, help="End of the window, in the same forms."),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command("ledger")(ledger)
    app.command("report")(report)


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Options of the command, in the order of its help."""

    # fmt: off
    store: StoreOption = None
    by: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            show_default=False,
            help="Group by leaf, group, code (of slow code), job, attempt, queue, user, node, device and others, separated by commas.",
        ),
    ] = None
    since: SinceOption = None
    until: UntilOption = None
    job: Annotated[Names, _filter("job", complete.jobs)] = None
    device: Annotated[Names, _filter("device", complete.devices)] = None
    node: Annotated[Names, _filter("node", complete.nodes)] = None
    queue: Annotated[Names, _filter("queue", complete.queues)] = None
    user: Annotated[Names, _filter("user", complete.users)] = None
    leaf: Annotated[Names, _filter("leaf", complete.leaves)] = None
    group: Annotated[Names, _filter("group", complete.groups)] = None
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="Form of the output.")
    ] = "table"
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="File for the output; default: standard output.",
        ),
    ] = None
    check: Annotated[
        bool,
        typer.Option("--check", help="Check that the rows cover all time of every slice exactly once."),
    ] = False
    as_json: JsonOption = False
    # fmt: on


@with_options(options=LedgerOptions)
def ledger(options: LedgerOptions) -> None:
    """Show where every second of every device went. Each second has exactly one cause, and the causes sum to the capacity."""
    from unidle.view.source import ledger_source, prices

    form = options.form
    if form not in FORMATS:
        raise BadInput("is not a format", field="--format", value=form, remedy=", ".join(FORMATS))
    opened = read_store(options.store)
    view = read_view(opened)
    source = ledger_source(opened, view)
    window = window_of(source.extent(), options.since, options.until)
    where = _where(view, options)
    if options.check:
        _check(source, window)
    elif form not in ("table", "json"):
        _export(view, source, form, options.out, window, where)
    else:
        from unidle.ledger.query import summary

        by = _dimensions(options.by)
        if "code" in by:
            from unidle.cli.ledger_codes import summary_by_code

            answer = summary_by_code(opened, source, window, by, where, prices(view))
        else:
            answer = summary(source, window, by, where=where, prices=prices(view))
        mfu = _mfu(view, source, window, where)
        with whole_file(options.out, "--out") as stream:
            as_json = options.as_json or form == "json"
            text = _json(answer, mfu) if as_json else _text(opened, view, answer, where, options)
            stream.write(text.encode())
            if not as_json:
                stream.write(_mfu_text(mfu).encode())
                stream.write(_footnotes(view, source, window, where).encode())


def _dimensions(by: str | None) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in (by or "").split(",") if name.strip()))


def _json(answer: Any, mfu: dict[str, Any]) -> str:
    import json

    return json.dumps(answer.as_json() | {"mfu": mfu}, ensure_ascii=False) + "\n"


def _mfu(view: View, source: Any, window: TimeRange, where: dict[str, list[str]]) -> dict[str, Any]:
    """By job, of those of the selection that give ``flops``: the MFU of its steps, and of all the time that it held devices."""
    from unidle.control.queries.find import last_ended

    asked = where.get("job")
    jobs = [*last_ended(view, _MFU_ENDED), *(view.jobs[name] for name in sorted(view.live))] if asked is None else [
        view.jobs[name] for name in asked if name in view.jobs
    ]  # fmt: skip
    if not (jobs := [job for job in jobs if job.spec.flops is not None]):
        return {}
    from unidle.control.queries.mfu import job_mfu
    from unidle.ledger.query import summary

    known = {job.id: mfu for job in jobs if (mfu := job_mfu(view, job)) is not None}
    goodput = summary(source, window, ["job"], where={**where, "job": list(known)}).ettr if known else {}
    return {
        name: mfu.as_json() | {"goodput": part, "mfu_of_held": mfu.value * part}
        for name, mfu in known.items()
        if name in goodput and (part := goodput[name].value) is not None
    }


def _mfu_text(mfu: dict[str, Any]) -> str:
    return "".join(
        f"{name}: MFU of steps {100 * it['mfu']:.1f} %, x goodput {100 * it['goodput']:.1f} % = {100 * it['mfu_of_held']:.1f} % "
        f"of the peak of what it held\n"
        for name, it in mfu.items()
    )


def _text(opened: Any, view: View, answer: Any, where: dict[str, Any], options: LedgerOptions) -> str:
    if by := _dimensions(options.by):
        rows = [
            [*(str(label) if label is not None else "-" for label in g.labels), f"{g.ns / 1e9:.3f}",
             f"{100 * g.ns / answer.capacity_ns:.2f}" if answer.capacity_ns else "-"]
            for g in answer.groups
        ]  # fmt: skip
        return "\n".join(table([*by, "seconds", "percent"], rows)) + "\n"
    from unidle.report.write import picture_of

    return picture_of(opened, view, answer, where, store_address(options.store)) + "\n"


def _footnotes(view: View, source: Any, window: TimeRange, where: dict[str, list[str]]) -> str:
    """Rows that the clocks of hosts make uncertain."""
    from unidle.view.host_clocks import node_errors

    if not (errors := node_errors(view)):
        return ""
    from unidle.ledger.clock_footnotes import clock_footnotes

    return "".join(f"note: {line}\n" for line in clock_footnotes(source, window, where, errors))


def _where(view: View, options: LedgerOptions) -> dict[str, list[str]]:
    filters = ("device", "node", "queue", "user", "leaf", "group")
    where = {name: values for name in filters if (values := getattr(options, name))}
    _check_names(view, where)
    if options.job:
        where["job"] = [
            name if name.startswith(OTHER_POD) else need_job(view, name, removed=True).id
            for name in options.job
        ]
    return where


def _check_names(view: View, where: dict[str, list[str]]) -> None:
    """A device, node, queue or user that the store never saw is a slip, not an empty answer."""
    for field in ("device", "node"):
        for name in where.get(field, ()):
            if not any(getattr(ref, field) == name for ref in view.book.slices):
                raise BadInput(
                    f"the store has no such {field}", field=f"--{field}", value=name,
                    remedy=f"`unidle ledger --by {field}` lists them",
                )  # fmt: skip
    for field in ("queue", "user"):
        for name in where.get(field, ()):
            if not any(getattr(job.spec, field) == name for job in view.jobs.values()):
                raise BadInput(
                    f"no job of this store has such a {field}", field=f"--{field}", value=name,
                    remedy=f"`unidle ledger --by {field}` lists them",
                )  # fmt: skip


def window_of(
    whole: TimeRange, start: str | None, end: str | None, options: tuple[str, str] = ("--since", "--until")
) -> TimeRange:
    """The part of a ledger between two moments as the user writes them, with ``options``."""
    from unidle.ledger.select import TimeRange

    end_ns = whole.end_ns if end is None else moment(options[1], end, whole.end_ns, plain="ns")
    start_ns = whole.start_ns if start is None else moment(options[0], start, end_ns, plain="ns")
    if end_ns < start_ns:
        raise BadInput(
            "the window ends before it starts", field=options[1], value=end, remedy="give a later time"
        )
    return TimeRange(start_ns, end_ns)


def _export(
    view: View, source: Any, form: str, out: str | None, window: TimeRange, where: dict[str, list[str]]
) -> None:
    from unidle.ledger import export, perfetto
    from unidle.view.host_clocks import node_errors

    if form == "parquet" and out is None and sys.stdout.isatty():
        raise BadInput(
            "Parquet is binary and is not printed on a terminal",
            field="--format",
            value=form,
            remedy="add --out FILE.parquet",
        )
    write = {"jsonl": export.write_jsonl, "csv": export.write_csv, "parquet": export.write_parquet}
    with whole_file(out, "--out") as stream:
        if form == "perfetto":
            perfetto.write_perfetto(source, stream, window, where, node_errors(view))
        else:
            write[form](source, stream, window, where)


def _check(source: Any, window: TimeRange) -> None:
    from unidle.ledger.current import check_batches

    problems = check_batches(source.batches(window))
    for problem in problems:
        say(problem)
    if problems:
        raise typer.Exit(1)
    say("the rows cover all time of every slice exactly once: no gap, no overlap")


def report(
    job: JobArgument = None,
    store: StoreOption = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="File for the page; default: next to the store.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Report on all jobs of the store.")] = False,
    mode: ModeOption = "0600",
    as_json: JsonOption = False,
) -> None:
    """Write an HTML report of a job, or of a whole store. The page needs no other file."""
    from unidle.api.rank_output import rank_output
    from unidle.cli.ledger_codes import code_lines
    from unidle.control.inbox import NOT_TAKEN_UP
    from unidle.report.write import write_report
    from unidle.view.source import prices

    if everything and job is not None:
        raise BadInput("cannot be used together", field="JOB, --all", remedy="leave one out")
    opened = read_store(store)
    view = read_view(opened)
    found = None if everything else need_job(view, job, started=True)
    if found is not None and found.verdict is NOT_TAKEN_UP:
        raise BadInput(
            "there is nothing to report yet: no controller has read the job", field="JOB", value=found.id,
            remedy="`unidle up` runs the jobs of a store",
        )  # fmt: skip
    job_id = None if found is None else found.id
    try:
        with rank_output(opened, data_dir(), job_id) as output:
            path = write_report(
                opened, Path(out) if out else None, output, job_id, data_dir(), mode_of(mode),
                lambda source, window: code_lines(opened, source, window, {"job": [job_id]} if job_id else {}, prices(view)),
            )  # fmt: skip
    except OSError as error:
        raise cannot_write("--out", out or str(error.filename), error) from error
    if as_json:
        print_json({"report": str(path), "job": job_id, "until": clock_time(view.time_ns)})
    else:
        say_whole(str(path))
