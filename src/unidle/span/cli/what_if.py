"""What if: jitter, a link that is lost, a site that is slow. Options and output of ``unidle span simulate`` and ``plan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import say, show_table
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.span.model.setting import Setting
    from unidle.span.plan.offer import PlanRequest
    from unidle.span.simulate.iteration import Simulation
    from unidle.span.simulate.jitter import Weathered

WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--without-link",
        metavar="A-B",
        show_default=False,
        help="Assume that this link is lost; may be repeated.",
    ),
]
SlowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slow-site", metavar="NAME:FACTOR", show_default=False,
        help="Assume that devices of this site take FACTOR times as long; may be repeated.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weather:
    """``percent``: the coefficient of variation; ``changed``: a link is lost or a site slow."""

    percent: float
    seed: int
    tries: int
    changed: bool


def changed(setting: Setting, without: list[str] | None, slow: list[str] | None) -> Setting:
    """With what was asked; the same object where nothing was."""
    from unidle.span.plan.what_if import slow_site, without_link

    for pair in without or ():
        setting = without_link(setting, pair)
    for text in slow or ():
        setting = slow_site(setting, text)
    return setting


def plan_changed(wanted: PlanRequest, without: list[str] | None, slow: list[str] | None) -> PlanRequest:
    """The same for a plan."""
    from unidle.span.plan.what_if import plan_slow_site, plan_without_link

    for pair in without or ():
        wanted = plan_without_link(wanted, pair)
    for text in slow or ():
        wanted = plan_slow_site(wanted, text)
    return wanted


def outcomes_of(planned: Sequence[Simulation], setting: Setting, weather: Weather) -> dict[str, Weathered]:
    """By schedule; each meets the same luck."""
    import numpy as np

    from unidle.span.simulate.jitter import weathered

    return {
        each.result.schedule: weathered(
            each, setting, weather.percent / 100, weather.tries, np.random.default_rng(weather.seed)
        )
        for each in planned
    }


def as_json_of(outcome: Weathered, weather: Weather) -> dict[str, Any]:
    """For machines."""
    return {"what_if": asdict(outcome) | asdict(weather) | {"distribution": "log-normal, mean 1"}}


def show_outcomes(outcomes: Mapping[str, Weathered], found: Sequence[Simulation], weather: Weather) -> None:
    """A line for each schedule."""
    header = ["schedule", "planned ms", "fixed mean", "fixed p99", "online mean", "online p99"]
    header += ["replanned"] if weather.changed else []
    rows = list[list[str]]()
    for simulation in found:
        name = simulation.result.schedule
        told = outcomes[name]
        online = ["-", "-"] if told.online is None else [_ms(told.online.mean_ns), _ms(told.online.p99_ns)]
        row = [name, _ms(told.planned_ns), _ms(told.fixed.mean_ns), _ms(told.fixed.p99_ns), *online]
        rows.append(row + ([_ms(simulation.result.iteration_ns)] if weather.changed else []))
    say()
    say(
        f"{counted(weather.tries, 'iteration')}, jitter {weather.percent:g} % (log-normal, mean 1), seed {weather.seed}:"
        " the planned order, and an order in which devices run what is ready within the plan's memory"
    )
    show_table(header, rows)
    if weather.changed:
        say(
            "Planned: before the change. Replanned: chosen for the change, without jitter. The rows above are replanned."
        )


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"
