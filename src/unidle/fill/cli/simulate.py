"""``unidle fill simulate``: what becomes of the bubbles of a training schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from unidle.cli.common import JsonOption, print_json
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.fill.files.setting import FillRequestFile
    from unidle.fill.simulate.rules import FillPolicy
    from unidle.fill.simulate.run import FillOutcome


FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", show_default=False, help="Fill file; `-` reads standard input.")
]
ScheduleOption = Annotated[
    str,
    typer.Option(
        "--schedule", metavar="NAME", help="Schedule of the training; FILE.py:FUNCTION for your own."
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="What fills the bubbles: unidle, no-guard, whole, pipefill or freeride.",
    ),
]
TimelineOption = Annotated[
    str | None,
    typer.Option(
        "--timeline", metavar="FILE", show_default=False,
        help="Write one row per operation of training and filler: CSV, or JSON lines for a name in .jsonl.",
    ),
]  # fmt: skip


def simulate(
    file: FileArgument,
    schedule: ScheduleOption = "unidle",
    policy: PolicyOption = "unidle",
    timeline: TimelineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate training with prefill in its bubbles. The output compares it with the same training alone: utilisation,
    slow-down, times to the first token, and where the time of all devices goes."""
    from unidle.fill.cli.output import as_object, show_outcome, write_timeline
    from unidle.fill.files.setting import load_fill
    from unidle.fill.simulate.rules import POLICIES

    if policy not in POLICIES:
        raise BadInput(
            "is not a choice", field="--policy", value=policy, remedy=f"use one of {', '.join(POLICIES)}"
        )
    wanted = load_fill(file)
    chosen = own_rules(POLICIES[policy], wanted)
    outcome = outcome_of(wanted, chosen, schedule, rows=timeline is not None)
    if timeline is not None:
        from unidle.cli.output import whole_file

        with whole_file(timeline, "--timeline") as stream:
            lines = timeline.endswith((".jsonl", ".ndjson"))
            write_timeline(stream, outcome, wanted.setting, schedule, lines=lines)
    if as_json:
        print_json(as_object(outcome, chosen, schedule))
    else:
        show_outcome(outcome, chosen, schedule)


def own_rules(policy: FillPolicy, wanted: FillRequestFile) -> FillPolicy:
    """The policy with the file's length of a chunk, and time in which a piece gives way; where the policy has any."""
    pieces, yields = policy.pieces, policy.yields
    if pieces.chunk_tokens is not None:
        pieces = replace(pieces, chunk_tokens=wanted.chunk_tokens)
    if yields.gives_way_ns is not None:
        yields = replace(yields, gives_way_ns=wanted.gives_way_ns)
    return replace(policy, pieces=pieces, yields=yields)


def outcome_of(wanted: FillRequestFile, policy: FillPolicy, schedule: str, *, rows: bool) -> FillOutcome:
    """Simulate what the file declares. Errors: :class:`unidle.errors.BadInput`."""
    import numpy as np

    from unidle.fill.simulate.arrivals import arrivals
    from unidle.fill.simulate.run import FillSetting, filled
    from unidle.span.files.schedule import schedules_named
    from unidle.span.simulate.iteration import simulate as simulated

    named = schedules_named(schedule)
    if len(named) != 1:
        raise BadInput("must be one", field="--schedule", value=schedule, remedy="name one schedule")
    simulation = simulated(wanted.setting, named[0])
    requests = arrivals(wanted.prompts, wanted.seconds, np.random.default_rng(wanted.seed))
    setting = FillSetting(
        simulation, wanted.model, requests, wanted.seconds, wanted.jitter, wanted.seed, wanted.dedicated_gpus
    )
    return filled(setting, policy, rows=rows)
