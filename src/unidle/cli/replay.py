"""``unidle replay``: what policies would have done with recorded pods or jobs, side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import (
    JsonOption,
    LocalStoreOption,
    print_json,
    read_store,
    read_view,
    say,
    show_table,
    warn,
)
from unidle.cli.help import Commands
from unidle.cli.option_set import with_options
from unidle.cli.replay_faults import faults
from unidle.cli.replay_openb import openb
from unidle.cli.replay_options import (
    Assumed,
    ModelMap,
    PolicyOption,
    QueueMap,
    SaveOption,
    StopAfter,
    policies,
    renames,
    stop_after_option,
    store_of_replay,
)
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.control.replay.fillers import FillerOutcome, FillerWish
    from unidle.control.replay.outcome import ReplayOutcome
    from unidle.control.replay.workload import Assumptions, Scenario
    from unidle.files.trace import Renames

_MOST_FILLERS, _MOST_GPUS = 10_000, 1_024
replay_app = Commands(help="Replay recorded jobs or faults under other policies. All figures are modelled.")


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    replay_app.command("openb")(openb)
    replay_app.command("faults")(faults)
    app.add_typer(replay_app, name="replay")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of `unidle replay trace`, in the order of its help."""

    # fmt: off
    fleet: Annotated[str, typer.Option("--fleet", metavar="FILE", help="Fleet file.")]
    file: Annotated[str, typer.Option("--trace", metavar="FILE", help="Trace with one line per job; see docs/how-to/replay.md.")]
    policy: PolicyOption
    queue_map: QueueMap = None
    model_map: ModelMap = None
    fillers: Annotated[
        str | None,
        typer.Option(
            "--fillers", metavar="N[xGPUS]", show_default=False,
            help="Replay again with N filler jobs of one or more GPUs, and compare: what they got, and whether any other job moved.",
        ),
    ] = None
    skip_misfits: Annotated[
        bool, typer.Option("--skip-misfits", help="Leave out jobs that never fit the fleet, and count them.")
    ] = False
    stop_after: StopAfter = None
    save: SaveOption = None
    as_json: JsonOption = False
    # fmt: on


@replay_app.command("trace")
@with_options(options=TraceOptions, assumed=Assumed)
def trace(options: TraceOptions, assumed: Assumed) -> None:
    """Replay a job trace under one or more placement policies.

    The columns of the trace are job, submit_s, duration_s, gpus, cpu_milli, memory_mib, model, queue, priority,
    preemptible and ranks."""
    from unidle.api.fleets import find_fleet
    from unidle.control.replay.workload import scenario_of
    from unidle.files.trace import load_trace

    assumptions = assumed.checked()
    names = _names(options.policy)
    other = _renames(options.queue_map, options.model_map)
    declared = find_fleet(options.fleet, None)
    scenario = scenario_of(load_trace(options.file, other), declared, skip_misfits=options.skip_misfits)
    outcomes, filled = _outcomes(
        scenario, assumptions, names, options.save, options.stop_after, _wish(options.fillers)
    )
    _show(scenario, assumptions, outcomes, {}, options.as_json, options.stop_after, filled)


def _wish(text: str | None) -> FillerWish | None:
    """``4`` or ``4x8``. Errors: BadInput."""
    if text is None:
        return None
    from unidle.control.replay.fillers import FillerWish
    from unidle.errors import BadInput

    count, x, gpus = text.partition("x")
    numbers = [int(part) for part in (count, gpus if x else "1") if part.isdecimal()]
    if len(numbers) < 2 or not 1 <= numbers[0] <= _MOST_FILLERS or not 1 <= numbers[1] <= _MOST_GPUS:
        remedy = f"give 1 to {_MOST_FILLERS:,} fillers of 1 to {_MOST_GPUS:,} GPUs, such as 4 or 4x8"
        raise BadInput("is not a number of fillers", field="--fillers", value=text, remedy=remedy)
    return FillerWish(*numbers)


@dataclass(frozen=True, slots=True)
class ReplayStoreOptions:
    """Options of `unidle replay store`, in the order of its help."""

    # fmt: off
    policy: PolicyOption
    store: LocalStoreOption = None
    fleet: Annotated[
        str | None, typer.Option("--fleet", metavar="FILE", show_default=False, help="Fleet file; default: the fleet of the store.")
    ] = None
    queue_map: QueueMap = None
    model_map: ModelMap = None
    since: Annotated[
        str | None, typer.Option("--since", "--start", metavar="TIME", show_default=False, help="Only jobs submitted since then (as for `unidle ledger`).")
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", "--end", metavar="TIME", show_default=False, help="Only jobs submitted before then.")
    ] = None
    stop_after: Annotated[float | None, stop_after_option("stop-after")] = None
    save: SaveOption = None
    as_json: JsonOption = False
    # fmt: on


@replay_app.command("store")
@with_options(options=ReplayStoreOptions, assumed=Assumed)
def store(options: ReplayStoreOptions, assumed: Assumed) -> None:
    """Replay the jobs of a store under other policies. The first column of the output is the recorded run."""
    from unidle.api.fleets import find_fleet
    from unidle.cli.ledger import window_of
    from unidle.control.replay.outcome import outcome_of
    from unidle.control.replay.recorded import scenario_of_store
    from unidle.view.source import ledger_source

    options = _with_hours_as_stop(options)
    assumptions = assumed.checked()
    names = _names(options.policy)
    other = _renames(options.queue_map, options.model_map)
    declared = find_fleet(options.fleet, None) if options.fleet is not None else None
    opened = read_store(options.store)
    view = read_view(opened)
    source = ledger_source(opened, view)
    since, until = options.since, options.until
    window = window_of(source.extent(), since, until) if since or until else None
    scenario = scenario_of_store(opened, view, source, fleet=declared, window=window, renames=other)
    recorded = outcome_of(view, source, (a.job for a in scenario.arrivals))
    outcomes, _ = _outcomes(scenario, assumptions, names, options.save, options.stop_after)
    _show(scenario, assumptions, outcomes, {"recorded": recorded}, options.as_json, options.stop_after)


def _with_hours_as_stop(options: ReplayStoreOptions) -> ReplayStoreOptions:
    """`--until` took hours before it took a time."""
    until = options.until
    if until is None or options.stop_after is not None or not _is_hours(until):
        return options
    warn(f"--until {until}: as hours this is --stop-after now; --until takes a time")
    return replace(options, stop_after=float(until), until=None)


def _is_hours(text: str) -> bool:
    """Whether it is what `--until` took before it was a time: a number too small to be one in nanoseconds."""
    try:
        return 0 <= float(text) < 1e6
    except ValueError:
        return False


def _renames(queue_map: str | None, model_map: str | None) -> Renames:
    from unidle.files.trace import Renames

    return Renames(renames(queue_map, "--queue-map"), renames(model_map, "--model-map"))


def _names(policy: str) -> list[str]:
    """The policies asked for; each is looked up before anything is read."""
    from unidle.control.policies import policy_named

    names = policies(policy)
    for name in names:
        policy_named(name)
    return names


def _outcomes(
    scenario: Scenario, assumed: Assumptions, names: list[str], save: str | None, until_h: float | None,
    wish: FillerWish | None = None,
) -> tuple[dict[str, ReplayOutcome], dict[str, FillerOutcome]]:  # fmt: skip
    """By policy; with a wish for fillers also those with them, and what they got."""
    from unidle.control.replay.outcome import outcome_of
    from unidle.control.replay.workload import replay
    from unidle.view.source import ledger_source

    until_ns = None if until_h is None else scenario.start_ns + round(until_h * 3600e9)
    found: dict[str, ReplayOutcome] = {}
    filled: dict[str, FillerOutcome] = {}
    for name in names:
        kept = store_of_replay(save, name)
        view = replay(scenario, name, kept, assumed, until_ns=until_ns)
        found[name] = outcome_of(view, ledger_source(kept, view))
        kept.close()
        if wish is not None:
            from unidle.control.replay.fillers import filler_outcome, with_fillers

            kept = store_of_replay(save, f"{name}-fillers")
            more = with_fillers(scenario, wish, view.time_ns)
            after = replay(more, name, kept, assumed, until_ns=until_ns)
            source = ledger_source(kept, after)
            found[f"{name} + fillers"] = outcome_of(after, source, view.jobs.keys())
            free_ns = sum(leaf.ns for leaf in found[name].ledger.leaves if leaf.group == "free")
            filled[name] = filler_outcome(view, free_ns, after, source)
            kept.close()
    return found, filled


def _show(
    scenario: Scenario, assumed: Assumptions, found: dict[str, ReplayOutcome], recorded: dict[str, ReplayOutcome],
    as_json: bool, until_h: float | None, filled: dict[str, FillerOutcome] | None = None,
) -> None:  # fmt: skip
    from dataclasses import asdict

    from unidle.control.replay.outcome import side_by_side

    if as_json:
        answer: dict[str, Any] = {
            "how": "modelled",
            "jobs": len(scenario.arrivals),
            "left_out": dict(scenario.left_out),
            "nodes": len(scenario.fleet.nodes),
            "devices": len(scenario.fleet.devices()),
            "until_h": until_h,
            "assumptions": asdict(assumed),
            "policies": {name: outcome.as_json() for name, outcome in found.items()},
        }
        if filled:
            answer["fillers"] = {name: outcome.as_json() for name, outcome in filled.items()}
        if recorded:
            answer["recorded"] = recorded["recorded"].as_json()
        print_json(answer)
        return
    show_table(*side_by_side(recorded | found))
    say()
    jobs, nodes = counted(len(scenario.arrivals), "job"), counted(len(scenario.fleet.nodes), "node")
    until = f", the first {until_h:g} h" if until_h is not None else ""
    say(f"{jobs} on {nodes}{until}; replays are modelled by the scheduler that places real jobs")
    for name, outcome in (filled or {}).items():
        say(f"{name}: {outcome.text()}")
    for why, count in scenario.left_out.items():
        warn(f"{counted(count, 'job')} left out: {why}")
