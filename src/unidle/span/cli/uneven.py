"""``unidle span simulate`` if pipelines differ: what it reports of them in addition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unidle.cli.common import say
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.span.simulate.uneven import Group


def only_alike(options: Sequence[str]) -> None:
    """Errors: :class:`unidle.errors.BadInput` for an option that requires equal pipelines."""
    if options:
        raise BadInput(
            "needs equal pipelines",
            field=options[0],
            remedy="leave it out, or give one number of microbatches",
        )


def groups_object(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The groups for machines."""
    return [
        {"pipelines": list(g.pipelines), "microbatches": g.setting.microbatches, "speed": g.speed}
        for g in groups
    ]


def show_groups(groups: Sequence[Group]) -> None:
    """A line for each group; nothing otherwise."""
    for g in groups:
        say(
            f"{counted(len(g.pipelines), 'pipeline')} at {g.speed:g} times the speed:"
            f" {counted(g.setting.microbatches, 'microbatch')} each"
        )
    if groups:
        say()
