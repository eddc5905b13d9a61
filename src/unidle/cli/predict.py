"""``unidle predict``: speed and cost by model of GPU, and how good predictions were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from unidle.cli import complete
from unidle.cli.common import (
    JsonOption,
    StoreOption,
    age,
    figures,
    need_job,
    print_json,
    read_store,
    read_view,
    say,
    show_table,
)
from unidle.cli.option_set import with_options
from unidle.cli.tables import without_empty
from unidle.errors import BadInput
from unidle.words import counted


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("predict")(predict)


@dataclass(frozen=True, slots=True)
class PredictOptions:
    """What to predict for, in the order of the help."""

    # fmt: off
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="Predict for jobs of this name instead."),
    ] = None
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="With --name: the submitter; default: that of the latest job.",
        ),
    ] = None
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1_000_000,
            show_default=False,
            help="Number of devices; default: the job's.",
        ),
    ] = None
    # fmt: on


@with_options(options=PredictOptions)
def predict(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            show_default=False,
            autocompletion=complete.jobs,
            help="Job id, a unique prefix of it, or a name.",
        ),
    ] = None,
    *,
    options: PredictOptions,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict step time and cost of a job on each GPU model. Without a job, show how accurate earlier predictions were."""
    from dataclasses import replace

    from unidle.control.queries import predictions

    name, devices = options.name, options.devices
    _check(job, options)
    opened = read_store(store)
    view = read_view(opened)
    if job is None and name is None:
        rows = predictions.scores(view)
        print_json(rows) if as_json else _say_scores(rows)
        return
    if job is not None:
        found = need_job(view, job)
        spec = found.spec if devices is None else replace(found.spec, ranks=devices, devices_per_rank=1)
        told = predictions.by_model(view, spec, found)
    else:
        told = predictions.by_model(view, predictions.spec_of(view, name or "", options.user, devices))
    print_json(told) if as_json else _say_models(told)


def _check(job: str | None, options: PredictOptions) -> None:
    name, user, devices = options.name, options.user, options.devices
    if job is not None and name is not None:
        raise BadInput(
            "cannot be used together with JOB", field="--name", value=name, remedy="leave one of them out"
        )
    if user is not None and name is None:
        raise BadInput("is only for use with --name", field="--user", value=user, remedy="add --name NAME")
    if devices is not None and job is None and name is None:
        raise BadInput("needs a job", field="--devices", value=devices, remedy="give JOB or --name")


def _say_models(told: dict[str, Any]) -> None:
    from unidle.control.queries.predictions import BATCH

    say(f"{told['name']} of {told['user'] or 'an unknown user'} on {counted(told['devices'], 'device')}")
    money = told["currency"]
    rows = []
    for row in told["models"]:
        if row["step_ns"] is None:
            rows.append([row["model"] or "-", *["-"] * 6, "too few steps"])
            continue
        rest, cost = row.get("rest"), row[f"cost_per_{BATCH}_steps"]
        bounds = f"{row['low_ns'] / 1e9:.3g} to {row['high_ns'] / 1e9:.3g}"
        rows.append(
            [row["model"] or "-", f"{row['step_ns'] / 1e9:.4g}", bounds, f"{100 * row['level']:.0f}",
             "-" if cost is None else figures(cost), age(rest["value_ns"]) if rest else "-",
             _rest_cost(rest), _behind(row)]
        )  # fmt: skip
    columns = [
        "model",
        "step s",
        "bounds s",
        "%",
        f"{money} per {BATCH:,} steps",
        "rest",
        f"rest {money}",
        "from",
    ]
    shown = without_empty(columns, rows, columns[4])
    show_table(*without_empty(*shown, columns[6]), indent="  ")
    if told["steps_left"] is not None:
        say(f"  the rest is {counted(told['steps_left'], 'step')}, without start and end")


def _rest_cost(rest: dict[str, Any] | None) -> str:
    if rest is None or rest["cost"] is None:
        return "-"
    return f"{rest['cost']:.2f} ({rest['cost_low']:.2f} to {rest['cost_high']:.2f})"


def _behind(row: dict[str, Any]) -> str:
    text = f"{counted(row['steps'], 'step')} of {counted(row['attempts'], 'attempt')}"
    if not row["measured"]:
        text = f"{row['by']} ({text})"
    return f"{text} on another number of devices, its work split" if row["split"] else text


def _say_scores(rows: list[dict[str, Any]]) -> None:
    lines = []
    for row in rows:
        known = row["known"]
        shown = (
            [f"{figures(row['median_error'])} {row['unit']}", f"{100 * row['median_relative_error']:.1f}",
             f"{100 * row['within']:.0f}", f"{100 * row['promised']:.0f}"]
            if known else ["-"] * 4
        )  # fmt: skip
        lines.append([row["what"].replace("_", " "), str(row["said"]), str(known), *shown])
    show_table(["of", "said", "came true", "median error", "in %", "within bounds %", "promised %"], lines)
