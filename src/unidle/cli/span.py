"""``unidle span``: train one model across data centres."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, figures, print_json, say, show, table
from unidle.cli.span_changes import (
    SlowOption,
    Weather,
    WithoutOption,
    as_json_of,
    changed,
    outcomes_of,
    show_outcomes,
)
from unidle.cli.span_plan import expected_line, expected_object, plan
from unidle.cli.span_unequal import groups_object, only_alike, show_groups
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.span.result import Result
    from unidle.span.unequal import Modelled

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
    from unidle.cli.span_profile import profile
    from unidle.cli.span_run import run

    span_app.command("simulate")(simulate)
    span_app.command("plan")(plan)
    span_app.command("probe")(probe)
    span_app.command("profile")(profile)
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
        typer.Option(
            "--perfetto", metavar="FILE", show_default=False, help="Write a trace for ui.perfetto.dev: the first cell."
        ),
    ] = None,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Also say where each nanosecond of each device goes.")
    ] = False,
    jitter: Annotated[
        float | None,
        typer.Option(
            "--jitter", metavar="PERCENT", min=0, max=300, show_default=False,
            help="Also let every operation and transfer vary (log-normal): the fixed order beside one found while it runs.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the jitter.")] = 0,
    tries: Annotated[int, typer.Option("--tries", metavar="K", min=1, max=100_000, help="Iterations with jitter.")] = 100,
    without: WithoutOption = None,
    slow: SlowOption = None,
    ledger_rows: Annotated[
        str | None,
        typer.Option(
            "--ledger-rows", metavar="FILE", show_default=False,
            help="Write the first schedule's ledger: rows as `unidle ledger` exports them; .csv, .jsonl or .parquet.",
        ),
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
    from unidle.files.span import load_pipelines
    from unidle.files.span_schedule import schedules_named
    from unidle.span.simulate import simulate as simulated
    from unidle.span.unequal import together

    chosen = schedules_named(schedule)
    base, groups = load_pipelines(file)
    if groups:
        alone = {"--jitter": jitter, "--without-link": without, "--slow-site": slow}
        only_alike([name for name, given in alone.items() if given is not None])
    setting = changed(base, without, slow)
    alike = [] if groups else [simulated(setting, each, checked=check) for each in chosen]
    found: list[Modelled] = (
        [together(base, groups, each, checked=check) for each in chosen] if groups else [*alike]
    )
    weather = None
    if jitter is not None or setting is not base:
        weather = Weather(jitter or 0.0, seed, tries if jitter else 1, setting is not base)
        planned = alike if setting is base else [simulated(base, each, checked=False) for each in chosen]
        outcomes = outcomes_of(planned, setting, weather)
    _write(found, timeline, gantt, perfetto, ledger_rows)
    if as_json:
        told = {each.result.schedule: as_object(each, ledger=ledger) for each in found}
        if weather:
            told = {name: each | as_json_of(outcomes[name], weather) for name, each in told.items()}
        print_json(told)
        return
    show_groups(groups)
    _show(found)
    if weather:
        show_outcomes(outcomes, alike, weather)
    if ledger:
        for each in found:
            _show_ledger(each)


def _write(
    found: list[Modelled], timeline: str | None, gantt: str | None, perfetto: str | None, ledger_rows: str | None
) -> None:  # fmt: skip
    """The files that were asked for."""
    from unidle.cli.output import whole_file
    from unidle.cli.span_files import picture_of, write_ledger, write_rows, write_svg

    if timeline is not None:
        with whole_file(timeline, "--timeline") as stream:
            write_rows(stream, found, lines=timeline.endswith((".jsonl", ".ndjson")))
    if gantt is not None:
        with whole_file(gantt, "--gantt") as stream:
            write_svg(stream, [picture_of(found[0])])
    if perfetto is not None:
        from unidle.cli.span_trace import write_trace

        with whole_file(perfetto, "--perfetto") as stream:
            write_trace(stream, found)
    if ledger_rows is not None:
        write_ledger(ledger_rows, found[0])


def as_object(simulation: Modelled, *, ledger: bool = False) -> dict[str, Any]:
    """The result for machines; ``ledger``: with the nanoseconds of all devices by leaf and cause."""
    from dataclasses import asdict

    from unidle.span.unequal import Together

    told = (
        asdict(simulation.result)
        | expected_object(simulation.setting, simulation.result)
        | {"how": "modelled"}
    )
    del told["schedule"]
    if isinstance(simulation, Together):
        told["groups"] = groups_object(simulation.groups)
    if ledger:
        from unidle.span.ledger import LEAF_OF, causes

        leaves = dict[str, dict[str, int]]()
        for cause, ns in causes(simulation).items():
            leaves.setdefault(LEAF_OF[cause], {})[cause] = ns
        told["ledger"] = {"devices": simulation.setting.devices, "ns": leaves}
    return told


def _show_ledger(simulation: Modelled) -> None:
    """All devices of an iteration: each nanosecond once."""
    from unidle.span.ledger import LEAF_OF, causes

    devices, length = simulation.setting.devices, simulation.result.iteration_ns
    rows = [
        [LEAF_OF[cause], cause, f"{ns / 1e9 / devices:.6f}", f"{100 * ns / (devices * length):.2f}"]
        for cause, ns in causes(simulation).items()
    ]
    rows.append(["all", "", f"{length / 1e9:.6f}", "100.00"])
    say()
    say(
        f"{simulation.result.schedule}: where the {counted(devices, 'device')} spend an iteration, in the mean"
    )
    for line in table(["leaf", "cause", "seconds", "%"], rows):
        say(line)


def show_table(found: Iterable[Result]) -> None:
    """Schedules side by side."""
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


def _show(found: list[Modelled]) -> None:
    from unidle.cli.span_files import strip

    show_table(each.result for each in found)
    best = min(found, key=lambda each: each.result.iteration_ns)
    say()
    for line in strip(best):
        show(line)
    notes = [
        f"{each.result.schedule}: {line}"
        for each in found
        if (line := expected_line(each.setting, each.result))
    ]
    notes.append("All figures are modelled.")
    if any(each.result.reconstructed for each in found):
        notes.append(
            "* reconstructed from papers: ATLAS published no code, and Varuna decides while it runs."
        )
    if unchecked := [each.result.schedule for each in found if not each.result.checked]:
        notes.append(f"Not looked over, for their size (--check does): {', '.join(unchecked)}.")
    say()
    for note in notes:
        say(note)


def _lines(found: Iterable[Result]) -> Iterable[list[str]]:
    for told in found:
        yield [
            told.schedule + ("*" if told.reconstructed else ""), figures(told.iteration_ns / 1e6),
            figures(told.lower_bound_ns / 1e6), f"{100 * told.utilisation:.1f}", figures(told.exposed_wan_ns / 1e6),
            figures(told.peak_memory_bytes / 1e9), figures(told.wan_bytes / 1e9), figures(told.cost_per_iteration),
            told.chosen,
        ]  # fmt: skip
