"""``unidle ledger`` and ``unidle report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import (
    JsonOption,
    StoreOption,
    cannot_write,
    clock_time,
    data_dir,
    need_job,
    print_json,
    read_store,
    read_view,
    say,
    store_address,
    table,
)
from unidle.cli.output import whole_file
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.ledger.select import Window
    from unidle.view.state import View

FORMATS = ("table", "json", "jsonl", "csv", "parquet", "perfetto")

Filter = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", show_default=False, help="Only this; may be given again."),
]
Moment = Annotated[
    str | None,
    typer.Option(metavar="TIME", show_default=False, help="ns since 1970, 2026-01-31T12:00:00, or 90s/15m/2h/1d before the end."),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command("ledger")(ledger)
    app.command("report")(report)


def ledger(
    store: StoreOption = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            show_default=False,
            help="Group by leaf, group, job, queue, user, node, device, ...",
        ),
    ] = None,
    start: Annotated[str | None, Moment.__metadata__[0]] = None,
    end: Annotated[str | None, Moment.__metadata__[0]] = None,
    job: Filter = None,
    device: Filter = None,
    node: Filter = None,
    queue: Filter = None,
    user: Filter = None,
    leaf: Filter = None,
    group: Filter = None,
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="How to print it.")
    ] = "table",
    out: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Default: standard output."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Prove that the rows tile every slice's time; print what does not."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Where every second of every device went: each has exactly one cause, and they sum to the capacity."""
    from unidle.view.source import ledger_source, prices

    if form not in FORMATS:
        raise BadInput("is not a format", field="--format", value=form, remedy=", ".join(FORMATS))
    opened = read_store(store)
    view = read_view(opened)
    source = ledger_source(opened, view)
    window = window_of(source.extent(), start, end)
    where = _where(view, job, device=device, node=node, queue=queue, user=user, leaf=leaf, group=group)
    if check:
        _check(source, window)
    elif form in ("jsonl", "csv", "parquet", "perfetto"):
        _export(source, form, out, window, where)
    else:
        from unidle.ledger.query import summary

        dimensions = list(dict.fromkeys(name.strip() for name in (by or "").split(",") if name.strip()))
        answer = summary(source, window, dimensions, where=where, prices=prices(view))
        with whole_file(out, "--output") as stream:
            text = (
                _json(answer)
                if as_json or form == "json"
                else _text(opened, view, answer, where, dimensions, store)
            )
            stream.write(text.encode())
    opened.close()


def _json(answer: Any) -> str:
    import json

    return json.dumps(answer.as_json(), ensure_ascii=False) + "\n"


def _text(
    opened: Any, view: View, answer: Any, where: dict[str, Any], by: list[str], store: str | None
) -> str:
    if by:
        rows = [
            [*(str(label) if label is not None else "-" for label in g.labels), f"{g.ns / 1e9:.3f}",
             f"{100 * g.ns / answer.capacity_ns:.2f}" if answer.capacity_ns else "-"]
            for g in answer.groups
        ]  # fmt: skip
        return "\n".join(table([*by, "seconds", "percent"], rows)) + "\n"
    from unidle.report.write import picture_of

    return picture_of(opened, view, answer, where, store_address(store)) + "\n"


def _where(view: View, jobs: list[str] | None, **filters: list[str] | None) -> dict[str, list[str]]:
    where = {name: values for name, values in filters.items() if values}
    _check_names(view, where)
    if jobs:
        where["job"] = [need_job(view, name).id for name in jobs]
    return where


def _check_names(view: View, where: dict[str, list[str]]) -> None:
    """A device, node, queue or user that the store never saw is a slip, not an empty answer."""
    for field in ("device", "node"):
        for name in where.get(field, ()):
            if not any(getattr(ref, field) == name for ref in view.book.slices):
                raise BadInput(
                    f"the store never saw such a {field}", field=f"--{field}", value=name,
                    remedy="`unidle ledger --by device` shows them",
                )  # fmt: skip
    for field in ("queue", "user"):
        for name in where.get(field, ()):
            if not any(getattr(job.spec, field) == name for job in view.jobs.values()):
                raise BadInput(
                    f"no job of this store has such a {field}", field=f"--{field}", value=name,
                    remedy=f"`unidle ledger --by {field}` shows them",
                )  # fmt: skip


def window_of(
    whole: Window, start: str | None, end: str | None, options: tuple[str, str] = ("--start", "--end")
) -> Window:
    """The part of a ledger between two moments as the user writes them, with ``options``."""
    from unidle.ledger.select import Window

    end_ns = whole.end_ns if end is None else _moment(end, whole.end_ns, options[1])
    start_ns = whole.start_ns if start is None else _moment(start, end_ns, options[0])
    if end_ns < start_ns:
        raise BadInput(
            "the window ends before it starts", field=options[1], value=end, remedy="give a later time"
        )
    return Window(start_ns, end_ns)


def _moment(text: str, end_ns: int, field: str) -> int:
    import datetime as dt

    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if text.isdigit():
        return int(text)
    if text[-1:] in units and text[:-1].replace(".", "", 1).isdigit():
        return end_ns - int(float(text[:-1]) * units[text[-1]] * 1e9)
    try:
        return int(dt.datetime.fromisoformat(text).timestamp() * 1_000_000) * 1000
    except ValueError:
        raise BadInput(
            "is not a time", field=field, value=text, remedy="nanoseconds, 2026-01-31T12:00:00, or 15m before the end"
        ) from None  # fmt: skip


def _export(source: Any, form: str, out: str | None, window: Window, where: dict[str, list[str]]) -> None:
    from unidle.ledger import export, perfetto

    if form == "parquet" and out is None and sys.stdout.isatty():
        raise BadInput(
            "Parquet does not belong on a terminal", field="--format", value=form, remedy="-o FILE.parquet"
        )
    write = {"jsonl": export.write_jsonl, "csv": export.write_csv, "parquet": export.write_parquet,
             "perfetto": perfetto.write_perfetto}[form]  # fmt: skip
    with whole_file(out, "--output") as stream:
        write(source, stream, window, where)


def _check(source: Any, window: Window) -> None:
    from unidle.ledger.current import check_batches

    problems = check_batches(source.batches(window))
    for problem in problems:
        say(problem)
    if problems:
        raise typer.Exit(1)
    say("every slice's time is tiled: no gap, no overlap, every nanosecond has one cause")


def report(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", show_default=False, help="Only this job; default: all of the store."),
    ] = None,
    store: StoreOption = None,
    out: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Where to write the page."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report: one self-contained HTML page."""
    from unidle.control.session import state_dir
    from unidle.report.write import write_report

    opened = read_store(store)
    view = read_view(opened)
    job_id = need_job(view, job).id if job else None
    path = Path(out) if out else state_dir(opened, data_dir()) / "reports" / f"{job_id or 'all'}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_report(opened, path, job_id)
    except OSError as error:
        raise cannot_write("--output", str(path), error) from error
    opened.close()
    if as_json:
        print_json({"report": str(path.absolute()), "job": job_id, "until": clock_time(view.time_ns)})
    else:
        say(str(path.absolute()))
