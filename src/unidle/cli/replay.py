"""``unidle replay``: what policies would have done with recorded pods or jobs, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import (
    JsonOption,
    StoreOption,
    cannot_write,
    counted,
    print_json,
    read_store,
    read_view,
    say,
    table,
    warn,
)
from unidle.cli.replay_openb import openb
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.control.compare import Outcome
    from unidle.control.replay import Assumptions, Scenario
    from unidle.store.protocol import Store

replay_app = typer.Typer(
    help="What policies would have done with the jobs of a trace or of a store, side by side. All figures are modelled.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

PolicyOption = Annotated[
    str, typer.Option("--policy", metavar="NAME[,NAME...]", help="Placement policies to compare.")
]
SaveOption = Annotated[
    str | None,
    typer.Option(
        "--save", metavar="DIR", show_default=False,
        help="Keep each replay as a store, DIR/NAME.db, for `unidle explain`, `ledger` and `report`.",
    ),
]  # fmt: skip
CheckpointEvery = Annotated[
    float, typer.Option("--checkpoint-every", metavar="S", min=0, help="Work between two checkpoints; 0: none.")
]  # fmt: skip
CheckpointWrite = Annotated[
    float, typer.Option("--checkpoint-write", metavar="S", min=0, help="How long a gang waits for one.")
]
RestartTime = Annotated[
    float, typer.Option("--restart", metavar="S", min=0, help="Start of each attempt after the first.")
]
RestoreTime = Annotated[float, typer.Option("--restore", metavar="S", min=0, help="Reading a checkpoint.")]
StopTime = Annotated[
    float, typer.Option("--stop", metavar="S", min=0, help="How long a gang needs to leave when asked to.")
]
SavesOnStop = Annotated[
    bool, typer.Option("--saves-on-stop", help="A gang that is asked to stop saves its last step.")
]
Communication = Annotated[
    float,
    typer.Option(
        "--communication", metavar="PART", min=0, max=1,
        help="Part of a step that is communication between nodes; gangs that share an uplink slow each other.",
    ),
]  # fmt: skip
Mtbf = Annotated[
    float, typer.Option("--mtbf", metavar="H", min=0, help="Mean hours between faults of a node; 0: none.")
]
Mttr = Annotated[float, typer.Option("--mttr", metavar="H", min=0.001, help="Mean hours of a repair.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Draws the faults.")]


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    replay_app.command("openb")(openb)
    app.add_typer(replay_app, name="replay")


@replay_app.command("trace")
def trace(
    fleet: Annotated[str, typer.Option("--fleet", metavar="FILE", help="Fleet file.")],
    file: Annotated[str, typer.Option("--trace", metavar="FILE.csv", help="One line per job; the columns are those of `unidle.files.trace`.")],
    policy: PolicyOption,
    save: SaveOption = None,
    checkpoint_every: CheckpointEvery = 1800.0,
    checkpoint_write: CheckpointWrite = 0.0,
    restart: RestartTime = 60.0,
    restore: RestoreTime = 30.0,
    stop: StopTime = 0.0,
    saves_on_stop: SavesOnStop = False,
    communication: Communication = 0.0,
    mtbf: Mtbf = 0.0,
    mttr: Mttr = 1.0,
    seed: Seed = 1,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Replay a job trace: job,submit_s,duration_s,gpus,cpu_milli,memory_mib,model,queue,priority,preemptible,ranks."""
    from unidle.cli.run import find_fleet
    from unidle.control.replay import Assumptions, scenario_of
    from unidle.files.trace import load_trace

    names = _names(policy)
    declared = find_fleet(fleet, None)
    scenario = scenario_of(load_trace(file, declared), declared)
    assumed = Assumptions(
        checkpoint_every, checkpoint_write, restart, restore, stop, saves_on_stop, round(communication * 1e6),
        mtbf * 3600, mttr * 3600, seed,
    )  # fmt: skip
    _show(scenario, assumed, _outcomes(scenario, assumed, names, save), {}, as_json)


@replay_app.command("store")
def store(
    policy: PolicyOption,
    store: StoreOption = None,
    fleet: Annotated[
        str | None, typer.Option("--fleet", metavar="FILE", show_default=False, help="Another fleet; default: the store's.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", show_default=False, help="Jobs submitted from here on (as `unidle ledger --start`).")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", show_default=False, help="Jobs submitted before.")
    ] = None,
    save: SaveOption = None,
    checkpoint_every: CheckpointEvery = 1800.0,
    checkpoint_write: CheckpointWrite = 0.0,
    restart: RestartTime = 60.0,
    restore: RestoreTime = 30.0,
    stop: StopTime = 0.0,
    saves_on_stop: SavesOnStop = False,
    communication: Communication = 0.0,
    mtbf: Mtbf = 0.0,
    mttr: Mttr = 1.0,
    seed: Seed = 1,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Replay the jobs of a store: what would another policy have done? The first column is what it did."""
    from unidle.cli.ledger import window_of
    from unidle.cli.run import find_fleet
    from unidle.control.compare import outcome_of
    from unidle.control.history import scenario_of_store
    from unidle.control.replay import Assumptions
    from unidle.view.source import ledger_source

    names = _names(policy)
    declared = find_fleet(fleet, None) if fleet is not None else None
    opened = read_store(store)
    view = read_view(opened)
    source = ledger_source(opened, view)
    window = window_of(source.extent(), start, end) if start or end else None
    scenario = scenario_of_store(opened, view, source, fleet=declared, window=window)
    recorded = outcome_of(view, source, (a.job for a in scenario.arrivals))
    opened.close()
    assumed = Assumptions(
        checkpoint_every, checkpoint_write, restart, restore, stop, saves_on_stop, round(communication * 1e6),
        mtbf * 3600, mttr * 3600, seed,
    )  # fmt: skip
    outcomes = _outcomes(scenario, assumed, names, save)
    _show(scenario, assumed, outcomes, {"recorded": recorded}, as_json)


def _names(policy: str) -> list[str]:
    """The policies asked for; each is looked up before anything is read."""
    from unidle.place.registry import policy_named

    names = list(dict.fromkeys(name.strip() for name in policy.split(",")))
    for name in names:
        policy_named(name)
    return names


def _outcomes(
    scenario: Scenario, assumed: Assumptions, names: list[str], save: str | None
) -> dict[str, Outcome]:
    from unidle.control.compare import outcome_of
    from unidle.control.replay import replay
    from unidle.place.registry import policy_named
    from unidle.view.source import ledger_source

    found = {}
    for name in names:
        kept = _store(save, name)
        view = replay(scenario, policy_named(name), kept, assumed)
        found[name] = outcome_of(view, ledger_source(kept, view))
        kept.close()
    return found


def _store(save: str | None, name: str) -> Store:
    from unidle.store.memory import ForgetfulStore
    from unidle.store.open import open_store

    if save is None:
        return ForgetfulStore()
    path = Path(save) / f"{name}.db"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write("--save", save, error) from error
    if path.exists():
        raise BadInput("the store of a replay is there already", field="--save", value=str(path), remedy="remove it, or name another place")  # fmt: skip
    return open_store(str(path), create=True)


def _show(
    scenario: Scenario, assumed: Assumptions, found: dict[str, Outcome], recorded: dict[str, Outcome], as_json: bool
) -> None:  # fmt: skip
    from dataclasses import asdict

    from unidle.control.compare import side_by_side

    if as_json:
        answer: dict[str, Any] = {
            "how": "modelled",
            "jobs": len(scenario.arrivals),
            "left_out": dict(scenario.left_out),
            "nodes": len(scenario.fleet.nodes),
            "devices": len(scenario.fleet.devices()),
            "assumptions": asdict(assumed),
            "policies": {name: outcome.as_json() for name, outcome in found.items()},
        }
        if recorded:
            answer["recorded"] = recorded["recorded"].as_json()
        print_json(answer)
        return
    for text in table(*side_by_side(recorded | found)):
        say(text)
    say()
    jobs, nodes = counted(len(scenario.arrivals), "job"), counted(len(scenario.fleet.nodes), "node")
    say(f"{jobs} on {nodes}; replays are modelled, by the loop that places real jobs")
    for why, count in scenario.left_out.items():
        warn(f"{counted(count, 'job')} left out: {why}")
