"""``unidle span simulate``: pipeline schedules, compared in a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, figures, print_json, say, show, show_table
from unidle.errors import BadInput
from unidle.span.cli.plan import expected_line, expected_object
from unidle.span.cli.what_if import (
    SlowOption,
    Weather,
    WithoutOption,
    as_json_of,
    changed,
    outcomes_of,
    show_outcomes,
)
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.span.simulate.iteration import ScheduleResult, Simulation
    from unidle.span.simulate.uneven import Modelled, PipelineGroup


def only_alike(options: Sequence[str]) -> None:
    """Errors: :class:`unidle.errors.BadInput` for an option that requires equal pipelines."""
    if options:
        raise BadInput(
            "needs equal pipelines",
            field=options[0],
            remedy="leave it out, or give one number of microbatches",
        )


def groups_object(groups: Sequence[PipelineGroup]) -> list[dict[str, Any]]:
    """The groups for machines."""
    return [
        {"pipelines": list(g.pipelines), "microbatches": g.setting.microbatches, "speed": g.speed}
        for g in groups
    ]


def show_groups(groups: Sequence[PipelineGroup]) -> None:
    """A line for each group; nothing otherwise."""
    for g in groups:
        say(
            f"{counted(len(g.pipelines), 'pipeline')} at {g.speed:g} times the speed:"
            f" {counted(g.setting.microbatches, 'microbatch')} each"
        )
    if groups:
        say()


ALL = "gpipe,1f1b,interleaved,zb-h1,varuna,atlas,atlas-keep,unidle"


def simulate(
    file: Annotated[
        str, typer.Argument(metavar="FILE", show_default=False, help="Span file; `-` reads standard input.")
    ],
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule", metavar="NAME[,NAME...]",
            help="Schedules to compare; FILE.py:FUNCTION for your own.",
        ),
    ] = ALL,
    timeline: Annotated[
        str | None,
        typer.Option(
            "--timeline", metavar="FILE", show_default=False,
            help="Write one row per operation: CSV, or JSON lines for a name in .jsonl.",
        ),
    ] = None,
    gantt: Annotated[
        str | None,
        typer.Option("--gantt", metavar="FILE.svg", show_default=False, help="Draw the timeline of the first schedule."),
    ] = None,
    perfetto: Annotated[
        str | None,
        typer.Option(
            "--perfetto", metavar="FILE", show_default=False, help="Write a trace for ui.perfetto.dev."
        ),
    ] = None,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Also show where the time of each device goes.")
    ] = False,
    jitter: Annotated[
        float | None,
        typer.Option(
            "--jitter", metavar="PERCENT", min=0, max=300, show_default=False,
            help="Vary each operation and transfer (log-normal), with a fixed and a dynamic order.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the jitter.")] = 0,
    tries: Annotated[int, typer.Option("--tries", metavar="K", min=1, max=100_000, help="Number of iterations with jitter.")] = 100,
    without: WithoutOption = None,
    slow: SlowOption = None,
    ledger_rows: Annotated[
        str | None,
        typer.Option(
            "--ledger-rows", metavar="FILE", show_default=False,
            help="Write the ledger of the first schedule as rows: .csv, .jsonl or .parquet.",
        ),
    ] = None,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check", show_default=False,
            help="Check the timeline against the rules; default: unless it is large.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Compare pipeline schedules across sites in a simulation. All have the same memory limit. The output has time,
    utilisation, waits, memory, bytes and cost."""
    from unidle.span.files.schedule import schedules_named
    from unidle.span.files.setting import load_pipelines
    from unidle.span.simulate.iteration import simulate as simulated
    from unidle.span.simulate.uneven import together

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
    lean = _in_memory_of_atlas(alike)
    if as_json:
        told = {each.result.schedule: as_object(each, ledger=ledger) for each in found}
        if lean is not None:
            told["unidle"]["in_memory_of_atlas"] = as_object(lean)
        if weather:
            told = {name: each | as_json_of(outcomes[name], weather) for name, each in told.items()}
        print_json(told)
        return
    show_groups(groups)
    _show(found, lean)
    if weather:
        show_outcomes(outcomes, alike, weather)
    if ledger:
        for each in found:
            _show_ledger(each)


def _in_memory_of_atlas(found: list[Simulation]) -> Simulation | None:
    """Ours with no more memory than ATLAS holds, where both were simulated and ours holds more."""
    from unidle.span.simulate.iteration import simulate as simulated
    from unidle.span.simulate.schedules import SCHEDULES

    by_name = {each.result.schedule: each for each in found}
    ours, theirs = by_name.get("unidle"), by_name.get("atlas")
    if ours is None or theirs is None or ours.result.peak_memory_bytes <= theirs.result.peak_memory_bytes:
        return None
    equal = replace(ours.setting, memory_cap_bytes=theirs.result.peak_memory_bytes)
    return simulated(equal, SCHEDULES["unidle"])


def _write(
    found: list[Modelled], timeline: str | None, gantt: str | None, perfetto: str | None, ledger_rows: str | None
) -> None:  # fmt: skip
    """The files that were asked for."""
    from unidle.cli.output import whole_file
    from unidle.span.cli.output import picture_of, write_ledger, write_rows, write_svg

    if timeline is not None:
        with whole_file(timeline, "--timeline") as stream:
            write_rows(stream, found, lines=timeline.endswith((".jsonl", ".ndjson")))
    if gantt is not None:
        with whole_file(gantt, "--gantt") as stream:
            write_svg(stream, [picture_of(found[0])])
    if perfetto is not None:
        from unidle.span.cli.trace import write_trace

        with whole_file(perfetto, "--perfetto") as stream:
            write_trace(stream, found)
    if ledger_rows is not None:
        write_ledger(ledger_rows, found[0])


def as_object(simulation: Modelled, *, ledger: bool = False) -> dict[str, Any]:
    """The result for machines; ``ledger``: with the nanoseconds of all devices by leaf and cause."""
    from dataclasses import asdict

    from unidle.span.simulate.uneven import Together

    told = (
        asdict(simulation.result)
        | expected_object(simulation.setting, simulation.result)
        | {"how": "modelled"}
    )
    del told["schedule"]
    if isinstance(simulation, Together):
        told["groups"] = groups_object(simulation.groups)
    if ledger:
        from unidle.span.simulate.ledger import LEAF_OF, causes

        leaves = dict[str, dict[str, int]]()
        for cause, ns in causes(simulation).items():
            leaves.setdefault(LEAF_OF[cause], {})[cause] = ns
        told["ledger"] = {"devices": simulation.setting.devices, "ns": leaves}
    return told


def _show_ledger(simulation: Modelled) -> None:
    """All devices of an iteration: each nanosecond once."""
    from unidle.span.simulate.ledger import LEAF_OF, causes

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
    show_table(["leaf", "cause", "seconds", "%"], rows)


def show_schedules(found: Iterable[ScheduleResult]) -> None:
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
    show_table(header, list(_lines(found)))


def _show(found: list[Modelled], lean: Simulation | None) -> None:
    from unidle.span.cli.output import strip

    show_schedules(each.result for each in found)
    best = min(found, key=lambda each: each.result.iteration_ns)
    say()
    for line in strip(best):
        show(line)
    notes = [
        f"{each.result.schedule}: {line}"
        for each in found
        if (line := expected_line(each.setting, each.result))
    ]
    if lean is not None:
        theirs = next(each.result for each in found if each.result.schedule == "atlas")
        ratio = theirs.iteration_ns / lean.result.iteration_ns
        notes.append(
            f"In the {figures(theirs.peak_memory_bytes / 1e9)} GB that atlas holds, unidle takes "
            f"{figures(lean.result.iteration_ns / 1e6)} ms: atlas takes {ratio:.2f} times as long."
        )
    notes.append("All figures are modelled.")
    if any(each.result.reconstructed for each in found):
        notes.append(
            "* reconstructed from papers: ATLAS published no code, and Varuna decides while it runs."
        )
    if unchecked := [each.result.schedule for each in found if not each.result.checked]:
        notes.append(f"Not checked, for their size (--check does): {', '.join(unchecked)}.")
    say()
    for note in notes:
        say(note)


def _lines(found: Iterable[ScheduleResult]) -> Iterable[list[str]]:
    for told in found:
        yield [
            told.schedule + ("*" if told.reconstructed else ""), figures(told.iteration_ns / 1e6),
            figures(told.lower_bound_ns / 1e6), f"{100 * told.utilisation:.1f}", figures(told.exposed_wan_ns / 1e6),
            figures(told.peak_memory_bytes / 1e9), figures(told.wan_bytes / 1e9), figures(told.cost_per_iteration),
            told.chosen,
        ]  # fmt: skip
