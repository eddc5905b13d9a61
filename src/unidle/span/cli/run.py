"""``unidle span run``: train a real model over the sites of a span file, and compare what was measured with the model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, data_dir, say, warn
from unidle.cli.times import duration_option
from unidle.errors import BadInput
from unidle.span.cli.run_report import RunEnd, interrupted, report, write_pictures

if TYPE_CHECKING:
    from unidle.span.files.train import RunRequest
    from unidle.span.run.coordinator import RunOptions
    from unidle.span.run.hosts import RunHosts
    from unidle.span.simulate.uneven import Modelled
    from unidle.view.jobs import JobView

PACED = "Devices are paced: each computes what it has to, then waits until the file's time for it has passed."


def run(
    file: Annotated[
        str, typer.Argument(metavar="FILE", show_default=False, help="Span file with a train section; `-` reads standard input.")
    ],
    store: Annotated[
        str | None,
        typer.Option(
            "--store", "-s", metavar="PATH_OR_URL", show_default=False,
            help="SQLite file or postgresql:// URL; default: a store of its own.",
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="Start only the devices of this site; the others start on their hosts."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", show_default=False, help="With --site: address of this host in the file, for a site with several hosts."),
    ] = None,
    namespaces: Annotated[
        bool | None,
        typer.Option(
            "--namespaces/--no-namespaces", show_default=False,
            help="Give each device a network namespace, and apply the limits of links; default: as root, if the "
            "file has links.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, show_default=False, help="Number of steps; default: the file's.")] = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="Schedule, or FILE.py:FUNCTION; default: the file's.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--against", "--compare", metavar="single|gloo", show_default=False,
            help="Compare with training in one process (single), or with gloo send/recv and 1F1B over the same links.",
        ),
    ] = None,
    gantt: Annotated[
        str | None,
        typer.Option("--gantt", metavar="FILE.svg", show_default=False, help="Draw a measured step and the modelled one."),
    ] = None,
    perfetto: Annotated[
        str | None,
        typer.Option("--perfetto", metavar="FILE.json", show_default=False, help="Write a trace for ui.perfetto.dev."),
    ] = None,
    replan: Annotated[
        int, typer.Option(metavar="STEPS", min=0, help="Steps between two reviews of the plan; 0: never.")
    ] = 20,
    rejoin: Annotated[
        bool, typer.Option("--rejoin/--no-rejoin", help="Readmit a lost site at a checkpoint, when it is reachable again.")
    ] = True,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from step 0 and move existing checkpoints aside; default: resume from the newest.")
    ] = False,
    wait_s: Annotated[
        float, duration_option("--timeout", "--wait", text="With --site: how long sites wait for each other.", least=1)
    ] = 600.0,
    begin_without: Annotated[
        bool, typer.Option("--begin-without", help="With --site: after --timeout, start without missing sites; they join later.")
    ] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Train the model of a span file across its sites. Measured figures are printed next to modelled ones."""
    from unidle.span.files.train import load_run
    from unidle.span.rank.environment import check_environment

    check_environment()
    wanted = _changed(load_run(file), steps, schedule)
    modes = _modes(compare)
    simulation = wanted.simulated()
    tell = (lambda _: None) if as_json else say
    from unidle.span.run.coordinator import RunOptions

    options = RunOptions(replan, rejoin, fresh)
    if host is not None and site is None:
        raise BadInput("is one of a site", field="--host", value=host, remedy="give --site, too")
    if site is not None:
        from unidle.span.cli.site import run_site

        sys.exit(
            run_site(wanted, site, host, store, options, wait_s, begin_without=begin_without, as_json=as_json)
        )
    from unidle.span.run.hosts import hosts_of_machine

    _tell_plan(wanted, simulation, tell)
    with hosts_of_machine(wanted.setting, wanted.training.device, namespaces) as hosts:
        tell(f"on {hosts.how}")
        for line in hosts.missing:
            warn(line)
        done = _train(wanted, hosts, store, options, tell)
        others = _compared(modes, hosts, done, tell)
    write_pictures(done, gantt, perfetto)
    report(done, others, as_json=as_json)
    sys.exit(0 if done.state == "succeeded" else done.code)


def _changed(wanted: RunRequest, steps: int | None, schedule: str | None) -> RunRequest:
    from dataclasses import replace

    from unidle.span.files.schedule import schedules_named
    from unidle.span.files.train import for_run

    if steps is not None:
        wanted = replace(wanted, training=replace(wanted.training, steps=steps))
    if schedule is not None:
        chosen = schedules_named(schedule)
        if len(chosen) != 1:
            raise BadInput(
                "must be one", field="--schedule", value=schedule, remedy="a run follows one schedule"
            )
        wanted = replace(wanted, schedule=for_run(chosen[0]))
    return wanted


def _modes(compare: list[str] | None) -> list[str]:
    modes = [mode for text in compare or [] for mode in text.split(",")]
    for mode in modes:
        if mode not in ("single", "gloo"):
            raise BadInput(
                "is nothing to compare with", field="--against", value=mode, remedy="single or gloo"
            )
    return modes


def _tell_plan(wanted: RunRequest, simulation: Modelled, tell: Any) -> None:
    from unidle.span.cli.output import strip
    from unidle.span.simulate.uneven import microbatches_of

    told, setting = simulation.result, wanted.setting
    counts = microbatches_of(simulation)
    each = f"{setting.pipelines} x {counts[0]}" if len(set(counts)) == 1 else " + ".join(map(str, counts))
    chain = " - ".join(f"{site.name} ({site.stages})" for site in setting.sites)
    tell(f"plan: {chain}; {each} microbatches, {told.schedule}: {told.chosen}")
    tell(
        f"modelled: {told.iteration_ns / 1e6:.1f} ms a step, {100 * told.utilisation:.1f} % busy, bound {told.lower_bound_ns / 1e6:.1f} ms"
    )
    for line in strip(simulation):
        tell(line)
    if wanted.training.paced:
        tell(PACED)
    for name, value in wanted.training.semantics.items():
        if value:
            tell(f"changes_semantics: {name} {value}: another model than a single process would train")


def _train(wanted: RunRequest, hosts: RunHosts, store: str | None, options: RunOptions, tell: Any) -> RunEnd:
    from unidle.cli.run import caught
    from unidle.control.job_ids import new_job_id
    from unidle.span.run.coordinator import Coordinator
    from unidle.span.run.gang import gang_of
    from unidle.span.run.launchers import LocalLauncher

    name = "span"
    address = store or str(data_dir() / "span" / f"{new_job_id(name)}.db")
    with caught() as signals, gang_of(hosts, name, address, data_dir(), wanted.training.optimizer) as gang:
        here = LocalLauncher(gang, frozenset(hosts.addresses))
        coordinator = Coordinator(wanted, hosts, gang, here, tell, options)

        def turn(seen: JobView) -> bool:
            here.see(seen)
            return coordinator.turn(seen) or interrupted(signals, gang, seen)

        job = gang.run(turn)
        return RunEnd(coordinator, job, gang, address, bool(signals.interrupts or signals.terminates))


def _compared(modes: list[str], hosts: RunHosts, done: RunEnd, tell: Any) -> dict[str, Any]:
    if done.state != "succeeded" or not modes:
        return {}
    from unidle.span.run.compare import compare_with

    return {mode: compare_with(mode, hosts, done.attempts, done.place, tell) for mode in modes}
