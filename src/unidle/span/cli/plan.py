"""``unidle span plan``: which sites train a model, and how it is cut."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, figures, print_json, say, show_table
from unidle.errors import BadInput
from unidle.span.cli.what_if import SlowOption, WithoutOption, plan_changed
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.span.model.setting import Setting
    from unidle.span.plan.alternatives import LeftOut, ScheduleComparison
    from unidle.span.plan.search import LayoutPlan
    from unidle.span.simulate.iteration import ScheduleResult


def plan(
    file: Annotated[
        str, typer.Argument(metavar="FILE", show_default=False, help="Span file; `-` reads standard input.")
    ],
    objective: Annotated[
        str, typer.Option("--objective", metavar="time|cost", help="Minimise time, or cost including egress.")
    ] = "time",
    schedule: Annotated[str, typer.Option("--schedule", metavar="NAME", help="Schedule that is simulated.")] = "unidle",
    planner: Annotated[
        str,
        typer.Option(
            "--planner", metavar="ours|greedy|brute",
            help="Planner: unidle's own, greedy by GPUs (ATLAS, reconstructed), or every plan simulated.",
        ),
    ] = "ours",
    rent: Annotated[
        list[str] | None,
        typer.Option(
            "--rent", metavar="SITE:GPUS:PRICE", show_default=False,
            help="Assume that the site has GPUS GPUs at PRICE; may be repeated.",
        ),
    ] = None,
    without: WithoutOption = None,
    slow: SlowOption = None,
    write: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", "--write", metavar="FILE", show_default=False, help="Write the plan as a span file."
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Compare the plan under other schedules.")
    ] = True,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Choose sites, stages and microbatch for a model. The output includes a bound on the best plan, and why a
    site is not used.
    """
    from unidle.cli.output import whole_file
    from unidle.span.files.plan import as_file, load_plan, rented
    from unidle.span.plan.alternatives import compare as compared
    from unidle.span.plan.alternatives import reconsidered
    from unidle.span.plan.search import PLANNERS
    from unidle.span.simulate.schedules import SCHEDULES

    _one_of("--objective", objective, ("time", "cost"))
    _one_of("--planner", planner, PLANNERS)
    _one_of("--schedule", schedule, SCHEDULES)
    wanted, more = load_plan(file)
    made = PLANNERS[planner](wanted, "cost" if objective == "cost" else "time", schedule)
    base = None
    if rent or without or slow:
        base = made
        for text in rent or ():
            wanted = rented(wanted, text)
        wanted = plan_changed(wanted, without, slow)
        made = PLANNERS[planner](wanted, made.objective, schedule)
    made, outs = reconsidered(made, better=planner == "ours")
    told = Told(made, outs, compared(made) if compare else None)
    if write is not None:
        with whole_file(write, "--out") as stream:
            stream.write((json.dumps(as_file(wanted, made.layout, more), indent=1) + "\n").encode())
    if as_json:
        print_json(as_object(told) | ({"base": as_object(Told(base, reconsidered(base)[1]))} if base else {}))
        return
    _show(told, planner)
    if base:
        _compare(
            base, made, "Without what is rented" if rent and not (without or slow) else "As the file has it"
        )


def _one_of(field: str, value: str, allowed: Any) -> None:
    if value not in allowed:
        raise BadInput("is not a choice", field=field, value=value, remedy=f"use one of {', '.join(allowed)}")


@dataclass(frozen=True, slots=True)
class Told:
    """A plan, why it does without some sites, and what other schedules would make of it."""

    plan: LayoutPlan
    left_out: tuple[LeftOut, ...]
    comparison: ScheduleComparison | None = None


def as_object(told: Told) -> dict[str, Any]:
    """The plan for machines."""
    made = told.plan
    from unidle.span.plan.offer import setting_of

    layout, wanted, result = made.layout, made.wanted, made.result
    return (
        {
            "sites": [
                {
                    "name": wanted.offers[k].name,
                    "stages": count,
                    "gpus": count * layout.pipelines,
                    "gpus_there": wanted.offers[k].gpus,
                }
                for k, count in zip(layout.order, layout.stages, strict=True)
            ],
            "layers": list(layout.layers),
            "cell": layout.cell,
            "microbatch": layout.microbatch,
            "schedule": result.schedule,
            "iteration_ns": result.iteration_ns,
            "lower_bound_ns": made.lower_bound_ns,
            "left_out": [each._asdict() for each in told.left_out],
            "pipelines": layout.pipelines,
            "stages": len(layout.layers),
            "microbatches": layout.microbatches(wanted.batch),
            "batch": wanted.batch,
            "cost_per_iteration": result.cost_per_iteration,
            "utilisation": result.utilisation,
            "peak_memory_bytes": result.peak_memory_bytes,
            "objective": made.objective,
            "gap_pct": made.gap_pct,
            "proved": made.proved,
            "layouts": made.considered,
            "simulated": made.simulated,
            "exhaustive": made.exhaustive,
            "greedy": made.greedy,
            "how": "modelled",
        }
        | expected_object(setting_of(wanted, layout), result)
        | (_compared(told.comparison) if told.comparison else {})
    )


def expected_object(setting: Setting, result: ScheduleResult) -> dict[str, Any]:
    """The expected values with revocations, if they are given."""
    from unidle.span.simulate.iteration import expected

    found = expected(setting, result)
    return {"expected": asdict(found)} if found else {}


def expected_line(setting: Setting, result: ScheduleResult) -> str:
    """The same as a sentence; with the interval that would be best where a checkpoint takes time."""
    from unidle.checkpoint.interval import Costs, best_interval
    from unidle.span.simulate.iteration import expected

    found, saving = expected(setting, result), setting.saving
    if found is None or saving is None:
        return ""
    rate = found.revocations_per_hour
    told = (
        f"With {rate:.4g} revocations an hour of the devices in use: {found.iteration_ns / 1e6:,.3f} ms expected"
        f" ({found.stretch:.4f} times), cost {figures(found.cost_per_iteration)}; saved every {saving.every_s:g} s"
    )
    if rate and saving.save_s:
        best = best_interval(Costs(saving.save_s, 3600 / rate, saving.restart_s, 0.0))
        told += f", best about every {best:.0f} s"
    return told + "."


def _compared(comparison: ScheduleComparison) -> dict[str, Any]:
    names = (
        "schedule", "iteration_ns", "utilisation", "exposed_wan_ns", "peak_memory_bytes", "cost_per_iteration", "chosen",
        "reconstructed",
    )  # fmt: skip
    return {
        "compared": [{name: getattr(result, name) for name in names} for result in comparison.results],
        "not_compared": [each._asdict() for each in comparison.missing],
    }


def _show(all_told: Told, planner: str) -> None:
    from unidle.span.plan.offer import setting_of

    made = all_told.plan
    told, layout, wanted = as_object(all_told), made.layout, made.wanted
    rows, first = list[list[str]](), 0
    for k, count in zip(layout.order, layout.stages, strict=True):
        own = layout.layers[first : first + count]
        few, most, offer = min(own), max(own), wanted.offers[k]
        layers = str(most) if few == most else f"{few} to {most}"
        rows.append(
            [offer.name, str(count), f"{count * layout.pipelines} of {offer.gpus}", layers, str(sum(own))]
        )
        first += count
    show_table(["site", "stages", "GPUs", "layers a stage", "layers"], rows)
    say()
    say(
        f"{counted(layout.pipelines, 'pipeline')} of {counted(len(layout.layers), 'stage')}, cells of {layout.cell},"
        f" {counted(told['microbatches'], 'microbatch')} of {counted(layout.microbatch, 'sequence')}, schedule {told['schedule']}."
    )
    say(
        f"Iteration {told['iteration_ns'] / 1e6:,.3f} ms, no less than {told['lower_bound_ns'] / 1e6:,.3f} ms in any"
        f" layout considered; utilisation {100 * told['utilisation']:.1f} %; cost {figures(told['cost_per_iteration'])}."
    )
    if line := expected_line(setting_of(wanted, layout), made.result):
        say(line)
    state = (
        "no layout considered is better with this schedule" if made.proved else "not proved to be the best"
    )
    say(
        f"Within {made.gap_pct:.2f} % of the bound on the {made.objective}; {state}; {made.simulated} simulated of"
        f" {made.considered:,}{'' if made.exhaustive else ' (thinned)'}."
    )
    if made.greedy is not None and planner == "ours" and made.value:
        say(f"Greedy (ATLAS's, reconstructed): {made.greedy / made.value:.3f} times as much.")
    for each in told["left_out"]:
        say(f"Left out: {each['site']}: {each['because']}.")
    if all_told.comparison:
        _show_comparison(all_told.comparison)
    say("All figures are modelled.")


def _show_comparison(comparison: ScheduleComparison) -> None:
    own, rows = comparison.results[0], list[list[str]]()
    for each in comparison.results:
        rows.append([
            each.schedule + ("*" if each.reconstructed else ""), f"{each.iteration_ns / 1e6:.1f}",
            f"{each.iteration_ns / own.iteration_ns:.3f}", f"{100 * each.utilisation:.1f}", figures(each.exposed_wan_ns / 1e6),
            figures(each.peak_memory_bytes / 1e9), figures(each.cost_per_iteration),
        ])  # fmt: skip
    say()
    say("This layout under the schedules, at equal memory:")
    show_table(["schedule", "iteration ms", "times", "use %", "WAN wait ms", "memory GB", "cost"], rows)
    for because in dict.fromkeys(each.because for each in comparison.missing):
        names = [each.schedule for each in comparison.missing if each.because == because]
        say(f"Not simulated: {', '.join(names)}: {because}.")
    if any(each.reconstructed for each in comparison.results):
        say("* reconstructed from papers.")
    say()


def _compare(base: LayoutPlan, made: LayoutPlan, what: str) -> None:
    before, after = base.result, made.result
    say(
        f"{what}: {before.iteration_ns / 1e6:,.3f} ms, cost {figures(before.cost_per_iteration)};"
        f" {'with it' if what.startswith('Without') else 'so'} {100 * (after.iteration_ns / before.iteration_ns - 1):+.1f} % time"
        + (
            f", {100 * (after.cost_per_iteration / before.cost_per_iteration - 1):+.1f} % cost."
            if before.cost_per_iteration
            else "."
        )
    )
