"""``unidle span run``: train a real model over the sites of a span file, and compare what was measured with the model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, data_dir, figures, print_json, say, show, show_table, warn
from unidle.cli.times import duration_option
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.cli.run import Signals
    from unidle.span.files.train import Wanted
    from unidle.span.run.attempt import Attempt
    from unidle.span.run.coordinator import Conductor, Options
    from unidle.span.run.gang import Gang
    from unidle.span.run.hosts import Ground
    from unidle.span.simulate.uneven import Modelled
    from unidle.view.jobs import JobView

_STRIPS = 12
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
    from unidle.span.run.coordinator import Options

    options = Options(replan, rejoin, fresh)
    if host is not None and site is None:
        raise BadInput("is one of a site", field="--host", value=host, remedy="give --site, too")
    if site is not None:
        from unidle.span.cli.site import run_site

        sys.exit(
            run_site(wanted, site, host, store, options, wait_s, begin_without=begin_without, as_json=as_json)
        )
    from unidle.span.run.hosts import ground_of

    _tell_plan(wanted, simulation, tell)
    with ground_of(wanted.setting, wanted.training.device, namespaces) as ground:
        tell(f"on {ground.how}")
        for line in ground.missing:
            warn(line)
        done = _train(wanted, ground, store, options, tell)
        others = _compared(modes, ground, done, tell)
    _pictures(done, gantt, perfetto)
    report(done, others, as_json=as_json)
    sys.exit(0 if done.state == "succeeded" else done.code)


class Done:
    """A run that has ended."""

    def __init__(self, conductor: Conductor, job: JobView, gang: Gang, store: str, interrupted: bool) -> None:
        self.conductor, self.job, self.store = conductor, job.id, store
        self.state = job.state
        self.attempts = [conductor.attempts[n] for n in sorted(conductor.attempts)]
        self.place = gang.place
        self.code = 130 if interrupted else conductor.error.exit_code if conductor.error else 1
        self.why = _why(conductor, job, gang)

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]


def _why(conductor: Conductor, job: JobView, gang: Gang) -> str:
    """Why it did not succeed, in one sentence; empty where it did."""
    if job.state == "succeeded":
        return ""
    if conductor.error is not None:
        return conductor.error.line()
    for attempt in reversed(conductor.attempts.values()):
        for device in attempt.devices:
            end = attempt.ends.get(device, {})
            if end.get("why") not in (None, "done", "stopped") and end.get("because"):
                return f"{device}: {end['because']}"
    if job.attempts:
        for rank, seen in enumerate(job.attempts[-1].ranks):
            if seen.failed and (said := gang.said(job.attempts[-1].number, rank)):
                return said
    return job.because.text if job.because else job.state


def _changed(wanted: Wanted, steps: int | None, schedule: str | None) -> Wanted:
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


def _tell_plan(wanted: Wanted, simulation: Modelled, tell: Any) -> None:
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


def _train(wanted: Wanted, ground: Ground, store: str | None, options: Options, tell: Any) -> Done:
    from unidle.cli.run import caught
    from unidle.control.ids import new_job_id
    from unidle.span.run.coordinator import Conductor
    from unidle.span.run.gang import gang_of
    from unidle.span.run.launchers import Here

    name = "span"
    address = store or str(data_dir() / "span" / f"{new_job_id(name)}.db")
    with caught() as signals, gang_of(ground, name, address, data_dir()) as gang:
        here = Here(gang, frozenset(ground.addresses))
        conductor = Conductor(wanted, ground, gang, here, tell, options)

        def turn(seen: JobView) -> bool:
            here.see(seen)
            return conductor.turn(seen) or interrupted(signals, gang, seen)

        job = gang.run(turn)
        return Done(conductor, job, gang, address, bool(signals.interrupts or signals.terminates))


def interrupted(signals: Signals, gang: Gang, job: JobView) -> bool:
    """Ends the job at a signal; always False."""
    if signals.interrupts + signals.terminates and job.cancel_by is None:
        gang.cancel("Ctrl-C" if signals.interrupts else "SIGTERM")
    elif signals.interrupts > 1:
        gang.cancel("Ctrl-C", at_once=True)
    return False


def _compared(modes: list[str], ground: Ground, done: Done, tell: Any) -> dict[str, Any]:
    if done.state != "succeeded" or not modes:
        return {}
    from unidle.span.run.compare import compare_with

    return {mode: compare_with(mode, ground, done.attempts, done.place, tell) for mode in modes}


def _pictures(done: Done, gantt: str | None, perfetto: str | None) -> None:
    from unidle.cli.output import whole_file
    from unidle.span.cli.output import picture_of, write_svg
    from unidle.span.cli.trace import write_timelines

    measured = measured_picture(done)
    simulation = done.last.simulation
    if gantt is not None:
        with whole_file(gantt, "--gantt") as stream:
            write_svg(stream, [picture for picture in (measured, picture_of(simulation)) if picture])
    if perfetto is not None:
        timelines = [("modelled", simulation.rows())]
        if measured is not None:
            timelines.insert(0, ("measured", iter(measured.rows)))
        with whole_file(perfetto, "--perfetto") as stream:
            write_timelines(stream, timelines)


def measured_picture(done: Done) -> Any:
    """A step of the middle, from its begin on; None where none was measured."""
    from unidle.span.cli.output import Picture

    steps = [step for step in done.last.steps.values() if step.rows and step.took_ns]
    if not steps:
        return None
    step = sorted(steps, key=lambda one: one.took_ns)[len(steps) // 2]
    begin = step.begin_ns
    rows = [row._replace(start_ns=row.start_ns - begin, end_ns=row.end_ns - begin) for row in step.rows]
    rows.sort(key=lambda row: row.start_ns)
    title = f"step {step.number}: {step.took_ns / 1e6:.6g} ms, measured"
    return Picture(title, list(done.last.devices), rows, step.end_ns - begin)


def report(done: Done, others: dict[str, Any], *, as_json: bool) -> None:
    """Measured and modelled, as a table or for machines."""
    from unidle.span.replan.observed import summary

    simulation = done.last.simulation if done.attempts else None
    if simulation is None:
        if not as_json:
            warn(done.why)
            return
        print_json({"state": done.state, "because": done.why})
        return
    told, model = summary(simulation.setting, done.last.steps.values()), simulation.result
    off = None if told.step_ns is None else 100 * (told.step_ns / model.iteration_ns - 1)
    if as_json:
        print_json({
            "job": done.job, "state": done.state, "because": done.why or None, "store": done.store, "schedule": model.schedule,
            "attempts": len(done.attempts), "steps": told.steps, "shares": shares_of(done),
            "step_ns": {"measured": told.step_ns, "modelled": model.iteration_ns, "difference_percent": off},
            "busy": {"measured": told.busy, "modelled": model.utilisation},
            "exposed_wan_ns": {"measured": told.exposed_wan_ns, "modelled": model.exposed_wan_ns},
            "link_bytes": told.link_bytes, "link_use": told.link_use, "losses": losses(done), "compare": others,
            "replanned": done.conductor.changes,
        })  # fmt: skip
        return
    _show(done, told, model, off)
    for mode, found in others.items():
        say()
        say(f"{mode}: {found['text']}")
        if mode == "single":
            _curves(losses(done), found["losses"])
    say()
    if done.why:
        warn(done.why)
    say(
        f"{done.job} {done.state} after {len(done.attempts)} attempt{'s' if len(done.attempts) > 1 else ''}; where its time went: unidle ledger --store {done.store}"
    )


def shares_of(done: Done) -> list[dict[str, Any]]:
    """What each pipeline did, and after which step it began with that."""
    from unidle.span.simulate.uneven import microbatches_of

    found: list[dict[str, Any]] = []
    for attempt in done.attempts:
        counts = list(microbatches_of(attempt.simulation))
        if not found or found[-1]["microbatches"] != counts:
            found.append({"after_step": attempt.resumed, "microbatches": counts})
    return found


def _curves(ours: dict[str, float], theirs: dict[str, float], most: int = 8) -> None:
    """Both losses of a few steps, from the first to the last."""
    shared = [step for step in ours if step in theirs]
    chosen = (
        [shared[k * (len(shared) - 1) // max(most - 1, 1)] for k in range(most)]
        if len(shared) > most
        else shared
    )
    rows = [[step, f"{ours[step]:.9f}", f"{theirs[step]:.9f}"] for step in chosen]
    show_table(["step", "loss here", "in one process"], rows)


def losses(done: Done) -> dict[str, float]:
    """By step: of the attempt that did it last."""
    found = {step.number: step.loss for attempt in done.attempts for step in attempt.steps.values()}
    return {str(number): loss for number, loss in sorted(found.items()) if loss is not None}


def _show(done: Done, told: Any, model: Any, off: float | None) -> None:
    from unidle.span.cli.output import picture_of, strip_of

    measured = measured_picture(done)
    say()
    if measured is not None:
        simulation = done.last.simulation
        modelled = picture_of(simulation)._replace(devices=measured.devices)
        length = max(measured.length_ns, modelled.length_ns)
        for picture in (measured, modelled):
            for line in strip_of(picture._replace(devices=picture.devices[:_STRIPS]), scale_ns=length):
                show(line)
        say()
    if told.step_ns is None:
        say("no step was measured")
        return
    rows = [
        ["step ms", figures(told.step_ns / 1e6), figures(model.iteration_ns / 1e6), f"{off:+.1f} %"],
        ["busy %", "-" if told.busy is None else f"{100 * told.busy:.1f}", f"{100 * model.utilisation:.1f}", ""],
        ["exposed WAN s, mean of devices", figures((told.exposed_wan_ns or 0) / 1e9), figures(model.exposed_wan_ns / 1e9), ""],
        ["WAN MB a step", figures(sum(told.link_bytes.values()) / 1e6), figures(model.wan_bytes / 1e6), ""],
    ]  # fmt: skip
    show_table(
        [f"{model.schedule}, median of {told.steps} steps", "measured", "modelled", "difference"], rows
    )
    if told.link_bytes:
        say()
        lines = [
            [pair, figures(size / 1e6), f"{100 * told.link_use.get(pair, 0):.1f}"]
            for pair, size in told.link_bytes.items()
        ]
        show_table(["link", "MB a step", "busiest wire, % of the step"], lines)
