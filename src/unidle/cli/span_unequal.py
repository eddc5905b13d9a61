"""``unidle span simulate`` where pipelines are not alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unidle.cli.common import print_json, say
from unidle.cli.span_plan import expected_line, expected_object
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.span.schedules import Schedule
    from unidle.span.setting import Setting
    from unidle.span.unequal import Group


def only_alike(options: Sequence[str]) -> None:
    """Errors: :class:`unidle.errors.BadInput` where there is an option that needs pipelines which are alike."""
    if options:
        raise BadInput(
            "needs pipelines that are alike",
            field=options[0],
            remedy="leave it out, or give one number of microbatches",
        )


def show_unequal(
    whole: Setting,
    groups: Sequence[Group],
    schedules: Sequence[Schedule],
    *,
    check: bool | None,
    as_json: bool,
) -> None:
    """Each schedule on all groups."""
    from unidle.cli.span import show_table
    from unidle.span.unequal import simulate_groups

    found = [simulate_groups(whole, groups, schedule, checked=check)[0] for schedule in schedules]
    shared = [
        {"pipelines": list(g.pipelines), "microbatches": g.setting.microbatches, "speed": g.speed}
        for g in groups
    ]
    if as_json:
        told: dict[str, Any] = {}
        for each in found:
            told[each.schedule] = (
                asdict(each) | expected_object(whole, each) | {"groups": shared, "how": "modelled"}
            )
            del told[each.schedule]["schedule"]
        print_json(told)
        return
    for g in groups:
        say(
            f"{counted(len(g.pipelines), 'pipeline')} at {g.speed:g} times the speed:"
            f" {counted(g.setting.microbatches, 'microbatch')} each"
        )
    say()
    show_table(found)
    for each in found:
        if line := expected_line(whole, each):
            say(f"{each.schedule}: {line}")
    say()
    say("All figures are modelled.")
