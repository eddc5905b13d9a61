"""``unidle span``: train one model across data centres."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, figures, print_json, say, show, table
from unidle.cli.span_plan import plan

if TYPE_CHECKING:
    from unidle.span.simulate import Simulation

ALL = "gpipe,1f1b,interleaved,zb-h1,varuna,atlas,unidle"

span_app = typer.Typer(
    help="Train one model across data centres: which sites, which schedule, what the links carry.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    from unidle.cli.span_probe import probe
    from unidle.cli.span_run import run

    span_app.command("simulate")(simulate)
    span_app.command("plan")(plan)
    span_app.command("probe")(probe)
    span_app.command("run")(run)
    app.add_typer(span_app, name="span")


@span_app.callback()
def _room() -> None:
    """Train one model across data centres."""


def simulate(
    file: Annotated[
        str, typer.Argument(metavar="FILE", show_default=False, help="Span file; `-` reads standard input.")
    ],
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule", metavar="NAME[,NAME...]",
            help="Schedules, side by side; FILE.py:FUNCTION is one of your own.",
        ),
    ] = ALL,
    timeline: Annotated[
        str | None,
        typer.Option(
            "--timeline", metavar="FILE", show_default=False,
            help="Write every operation as a row: CSV, or JSON lines where it ends in .jsonl.",
        ),
    ] = None,
    gantt: Annotated[
        str | None,
        typer.Option("--gantt", metavar="FILE.svg", show_default=False, help="Draw the first schedule's timeline."),
    ] = None,
    perfetto: Annotated[
        str | None,
        typer.Option("--perfetto", metavar="FILE.json", show_default=False, help="Write it as a trace for ui.perfetto.dev."),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", metavar="FILE.jsonl", show_default=False, help="Write it as rows of the ledger, which say `modelled`."),
    ] = None,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check", show_default=False,
            help="Look the timeline over by the rules alone; by default where it is not large.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Simulate pipeline schedules across sites, exactly, at equal memory: time, use, waits, memory, bytes, cost."""
    import json

    from unidle.cli.output import whole_file
    from unidle.cli.span_files import picture_of, write_rows, write_svg
    from unidle.cli.span_trace import write_trace
    from unidle.files.span import load_span
    from unidle.files.span_schedule import schedules_named
    from unidle.span.leaves import ledger_rows
    from unidle.span.simulate import simulate as simulated

    chosen = schedules_named(schedule)
    setting = load_span(file)
    found = [simulated(setting, each, checked=check) for each in chosen]
    if timeline is not None:
        with whole_file(timeline, "--timeline") as stream:
            write_rows(stream, found, lines=timeline.endswith((".jsonl", ".ndjson")))
    if gantt is not None:
        with whole_file(gantt, "--gantt") as stream:
            write_svg(stream, [picture_of(found[0])])
    if perfetto is not None:
        with whole_file(perfetto, "--perfetto") as stream:
            write_trace(stream, [(found[0].result.schedule, found[0].rows())])
    if ledger is not None:
        with whole_file(ledger, "--ledger") as stream:
            for row in ledger_rows(found[0]):
                stream.write(json.dumps(row._asdict()).encode() + b"\n")
    if as_json:
        print_json({each.result.schedule: as_object(each) for each in found})
    else:
        _show(found)


def as_object(simulation: Simulation) -> dict[str, Any]:
    """The result for machines."""
    from dataclasses import asdict

    told = asdict(simulation.result)
    del told["schedule"]
    return {**told, "how": "modelled"}


def _show(found: list[Simulation]) -> None:
    from unidle.cli.span_files import strip

    header = [
        "schedule",
        "iteration ms",
        "bound ms",
        "use %",
        "WAN wait ms",
        "memory GB",
        "WAN GB",
        "cost",
        "chosen",
    ]
    for line in table(header, list(_lines(found))):
        say(line)
    best = min(found, key=lambda each: each.result.iteration_ns)
    say()
    for line in strip(best):
        show(line)
    notes = ["All figures are modelled."]
    if any(each.result.reconstructed for each in found):
        notes.append(
            "* reconstructed from papers: ATLAS published no code, and Varuna decides while it runs."
        )
    if unchecked := [each.result.schedule for each in found if not each.result.checked]:
        notes.append(f"Not looked over, for their size (--check does): {', '.join(unchecked)}.")
    say()
    for note in notes:
        say(note)


def _lines(found: Iterable[Simulation]) -> Iterable[list[str]]:
    for each in found:
        told = each.result
        yield [
            told.schedule + ("*" if told.reconstructed else ""), figures(told.iteration_ns / 1e6),
            figures(told.lower_bound_ns / 1e6), f"{100 * told.utilisation:.1f}", figures(told.exposed_wan_ns / 1e6),
            figures(told.peak_memory_bytes / 1e9), figures(told.wan_bytes / 1e9), figures(told.cost_per_iteration),
            told.chosen,
        ]  # fmt: skip
