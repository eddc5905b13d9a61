"""``unidle fleet probe``: what to measure between nodes, and the fleet file with what was measured."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from unidle.cli.common import warn
from unidle.cli.help import Commands
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.fleet import Fleet, Link

probe_app = Commands(help="Measure the links between nodes.")
_FleetFile = Annotated[str, typer.Option("--fleet", metavar="FILE", help="Fleet file.")]


@probe_app.command("plan")
def plan(fleet: _FleetFile) -> None:
    """Print the plan of a measurement. `python -m unidle.rank.probe` on each node carries it out."""
    from unidle.files.fleet import load_fleet
    from unidle.files.probe import plan_as_json
    from unidle.fleet.probing import phases

    found = load_fleet(fleet)
    planned = phases(found)
    if not planned:
        raise BadInput(
            "has no two nodes with a link to measure", field="--fleet", value=fleet,
            remedy="use a fleet file with two or more nodes",
        )  # fmt: skip
    sys.stdout.write(plan_as_json(planned) + "\n")


@probe_app.command("links")
def links(
    result: Annotated[str, typer.Argument(metavar="RESULT", show_default=False, help="Output of the probe.")],
    fleet: _FleetFile,
) -> None:
    """Print the fleet file with the measured links. Links without a measurement stay as declared."""
    from dataclasses import replace

    from unidle.files.fleet import fleet_to_yaml, load_fleet
    from unidle.files.probe import load_result
    from unidle.fleet.probing import links_of

    found = load_fleet(fleet)
    measured = links_of(found, load_result(result, found))
    sys.stdout.write(fleet_to_yaml(replace(found, links=(*measured, *_others(found, measured)))))
    if not measured:
        warn("the result has no measured link")


def _others(fleet: Fleet, measured: tuple[Link, ...]) -> list[Link]:
    """Declared links that no measured one replaces."""
    kinds = {link.tier for link in measured if link.tier}
    ends = {link.a for link in measured if link.a}
    kind_of = {tier.id: tier.kind for tier in fleet.tiers} | {node.id: "node" for node in fleet.nodes}
    return [
        link
        for link in fleet.links
        if not (link.tier in kinds if link.tier else link.a in ends or kind_of.get(link.a) in kinds)
    ]
