"""``unidle run``: one job, driven to its end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from unidle.cli.common import (
    CpuDevicesOption,
    FleetOption,
    JsonOption,
    StoreOption,
    data_dir,
    print_json,
    say,
    show,
    store_address,
    warn,
)
from unidle.errors import BadInput, CannotRun, StoreError, StoreHeld
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.cli.live import Live, Progress
    from unidle.control.loop import Controller
    from unidle.control.session import Session
    from unidle.files.fleet_notices import Channel
    from unidle.fleet import Fleet
    from unidle.jobs import JobSpec, Reason
    from unidle.view.jobs import JobView

JobFileArgument = Annotated[
    str | None,
    typer.Argument(metavar="JOB.yaml", show_default=False, help="Job file; `-` reads standard input."),
]
ProgressOption = Annotated[
    str,
    typer.Option(
        "--progress", metavar="auto|live|plain|off", help="What to show on standard error meanwhile."
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", show_default=False, help="Name of the job; default: the script's."),
]
RanksOption = Annotated[
    int | None, typer.Option(metavar="N", show_default=False, help="Processes in the gang; default 1.")
]
DevicesPerRankOption = Annotated[
    int | None, typer.Option(metavar="N", show_default=False, help="Devices for each rank; default 1.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="gpu|cpu|any", show_default=False, help="Kind of device; default: any."),
]
MaxRestartsOption = Annotated[
    int | None,
    typer.Option(metavar="N", show_default=False, help="Restarts after failures; default 0."),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(metavar="DIR", show_default=False, help="Directory in which the job saves checkpoints."),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", show_default=False, help="How long the job may run, restarts included."),
]
ProfileOption = Annotated[
    bool,
    typer.Option("--profile", help="Look at running jobs all the time; `unidle profile JOB` then tells of the past."),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command("run")(run)


def run(
    context: typer.Context,
    job: JobFileArgument = None,
    store: StoreOption = None,
    fleet: FleetOption = None,
    cpu_devices: CpuDevicesOption = None,
    name: NameOption = None,
    ranks: RanksOption = None,
    devices_per_rank: DevicesPerRankOption = None,
    device: DeviceOption = None,
    max_restarts: MaxRestartsOption = None,
    checkpoint: CheckpointOption = None,
    timeout_s: TimeoutOption = None,
    profile: ProfileOption = False,
    progress: ProgressOption = "auto",
    report: Annotated[
        str | None, typer.Option(metavar="FILE", show_default=False, help="Where to write the report.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a job on this machine, watch it, and print where its device time went.

    Give a job file, or a command after `--`: unidle run --ranks 4 -- python train.py --lr 3e-4
    """
    options = options_of(
        name=name, ranks=ranks, devices_per_rank=devices_per_rank, device=device,
        max_restarts=max_restarts, checkpoint=checkpoint, timeout_s=timeout_s,
    )  # fmt: skip
    spec = read_job(job, context.obj, options)
    found, channels = find_fleet_and_channels(fleet, cpu_devices)
    refuse_impossible(spec, found)
    found = looked_at(found) if profile else found
    address, mode = store_address(store), progress_of(progress)
    try:
        sys.exit(_run(spec, found, channels, address, mode, report, as_json))
    except StoreHeld as held:
        remedy = "`unidle submit` puts the job into its queue; or name another store (--store)"
        raise StoreHeld(held.problem, field=held.field, remedy=remedy) from held


def options_of(**options: Any) -> dict[str, Any]:
    """Fields of a job file from options of the command line; those not given are left out."""
    max_restarts, checkpoint = options.pop("max_restarts", None), options.pop("checkpoint", None)
    options["restart"] = None if max_restarts is None else {"max": max_restarts}
    options["checkpoint"] = None if checkpoint is None else {"path": checkpoint}
    return {field: value for field, value in options.items() if value is not None}


def make_parent(address: str) -> None:
    """The directory of a store that is a file."""
    if "://" in address:
        return
    parent = Path(address).absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"its directory cannot be made: {error.strerror}", field=address, remedy="name another place (--store)"
        ) from error  # fmt: skip


def read_job(
    path: str | None, command: tuple[str, ...] | None, options: dict[str, Any], by: str = "run"
) -> JobSpec:
    """The job that the command line of ``unidle BY`` describes: a file, or a command after ``--``."""
    from unidle.files.job import job_from_command, load_job

    if (path is None) == (command is None):
        raise BadInput(
            "give either a job file or a command after --", field="JOB",
            remedy=f"unidle {by} JOB.yaml, or unidle {by} --ranks 4 -- python train.py",
        )  # fmt: skip
    if path is not None:
        if options:
            raise BadInput(
                "options of the job go with a command after --, not with a job file",
                field="--" + next(iter(options)).replace("_", "-"), remedy="set the field in the job file",
            )  # fmt: skip
        return load_job(path)
    return job_from_command(command or (), **options)


def find_fleet(path: str | None, cpu_devices: int | None) -> Fleet:
    """The declared fleet, else what this machine has."""
    return find_fleet_and_channels(path, cpu_devices)[0]


def find_fleet_and_channels(path: str | None, cpu_devices: int | None) -> tuple[Fleet, tuple[Channel, ...]]:
    """As :func:`find_fleet`, with those whom the fleet file wants to be told what happens."""
    if path is not None:
        from unidle.files.fleet import load_fleet_and_notices

        fleet, channels = load_fleet_and_notices(path)
        if fleet.queues:
            _check_queues(path, fleet)
        return fleet, channels
    from unidle.engine.local.devices import discover

    return discover(cpu_devices or 8), ()


def looked_at(fleet: Fleet) -> Fleet:
    """The fleet, its running jobs looked at all the time as its file says, or as is usual."""
    return replace(fleet, profile=replace(fleet.profile, on=True))


def _check_queues(path: str, fleet: Fleet) -> None:
    from unidle.files.fleet_queues import pointed
    from unidle.place.fleet_queues import check_queues

    try:
        check_queues(fleet)
    except BadInput as error:
        raise (pointed(path, error) if path != "-" else error) from None


def refuse_impossible(spec: JobSpec, fleet: Fleet) -> None:
    """A job that no state of this fleet can hold is refused before it is submitted."""
    from unidle.place.policy import Unidle
    from unidle.view.state import View

    policy, view = Unidle(), View(fleet=fleet)
    because = policy.why_not(view, spec)
    if because is not None and not policy.ever(view, spec):
        raise CannotRun(
            because.text, field=spec.name,
            remedy="use fewer ranks or devices, `--cpu-devices N`, or a fleet file (`--fleet`)",
        )  # fmt: skip


def progress_of(mode: str) -> Progress:
    """How to show progress. Errors: :class:`BadInput`."""
    if mode not in ("auto", "live", "plain", "off"):
        raise BadInput(
            "is not a way to show progress", field="--progress", value=mode, remedy="auto, live, plain or off"
        )
    return cast("Progress", mode)


class Signals:
    """Counts of the signals that ask for an end."""

    interrupts = 0
    terminates = 0


@contextmanager
def caught() -> Iterator[Signals]:
    """Count them instead of being ended by them."""
    seen = Signals()

    def interrupt(_number: int, _frame: object) -> None:
        seen.interrupts += 1

    def terminate(_number: int, _frame: object) -> None:
        seen.terminates += 1

    before = signal.signal(signal.SIGINT, interrupt), signal.signal(signal.SIGTERM, terminate)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def _run(
    spec: JobSpec, fleet: Fleet, channels: tuple[Channel, ...], address: str, mode: Progress,
    report: str | None, as_json: bool,
) -> int:  # fmt: skip
    from unidle.cli.live import Live
    from unidle.control.ids import new_job_id
    from unidle.control.session import take_up
    from unidle.store.open import open_store

    live = Live(mode)
    job_id = new_job_id(spec.name)
    make_parent(address)
    store = open_store(address, create=True)
    opened = take_up(store, fleet, data_dir(), "unidle run", channels=channels, profile_to=address)
    with caught() as signals, opened as session:
        controller = session.controller
        controller.watch(lambda event, _time: live.tell(controller.view, event))
        controller.submit(job_id, spec)
        job = controller.view.jobs[job_id]
        with told_what_is_left(controller, live, address):
            never = _drive(session, signals, job, live)
    if never is not None:
        store.close()
        raise CannotRun(f"{job_id}: {never.text}", remedy="`unidle doctor` says what this machine offers")
    path = _write_report(store, job_id, report)
    _print_end(store, job, path, as_json, address)
    store.close()
    if signals.interrupts or signals.terminates:
        return 130
    return 0 if job.state == "succeeded" else 1


@contextmanager
def told_what_is_left(controller: Controller, live: Live, address: str) -> Iterator[None]:
    """Also when the store fails: what runs goes on, and the user should know how to come back to it."""
    try:
        yield
    finally:
        live.done()
        left = len(controller.view.live)
        if left:
            jobs = counted(left, "job")
            warn(f"{jobs} of this store left running; `unidle up --store {address}` takes over")


def _drive(session: Session, signals: Signals, job: JobView, live: Live) -> Reason | None:
    """Until the job has ended; why, where it could never start."""
    controller = session.controller
    asked, never = 0, None

    def done() -> bool:
        nonlocal asked, never
        wanted = signals.interrupts + signals.terminates
        if wanted > asked:
            if asked == 0:
                controller.cancel(job.id, "Ctrl-C" if signals.interrupts else "SIGTERM")
                live.hint(f"{job.id}: Ctrl-C again kills at once")
            if wanted > 1:
                controller.kill(job.id)
            asked = wanted
            controller.turn()
        elif never is None and (never := _never(job)) is not None:
            controller.cancel(job.id, "`unidle run`")
            controller.turn()
        live.refresh(job, session.clock.now_ns())
        return job.terminal

    controller.run(done)
    return never


def _never(job: JobView) -> Reason | None:
    """Why it waits in vain, if it does: what the machine does not offer is known only once its engine was asked."""
    from unidle.jobs import NEVER

    waits = job.verdict if job.state == "queued" else None
    return waits if waits is not None and waits.code in NEVER else None


def _write_report(store: Any, job_id: str, report: str | None) -> str | None:
    """The HTML report's path; a report that cannot be written costs a warning, not the job's result."""
    from unidle.control.session import state_dir
    from unidle.report.write import write_report

    path = Path(report) if report else state_dir(store, data_dir()) / "reports" / f"{job_id}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_report(store, path, job_id)
    except OSError as error:
        warn(f"the report could not be written: {error.strerror}: {path}")
        return None
    return str(path.absolute())


def _print_end(store: Any, job: JobView, report: str | None, as_json: bool, address: str) -> None:
    from unidle.control.describe import exit_codes

    codes = exit_codes(job.attempts[-1]) if job.attempts else []
    if as_json:
        print_json(
            {"job": job.id, "state": job.state, "attempts": len(job.attempts), "exit_codes": codes,
             "steps": job.steps(), "report": report}
        )  # fmt: skip
        return
    from unidle.report.write import terminal_picture

    show(terminal_picture(store, job.id, address))
    say()
    because = f": {job.because.text}" if job.because else ""
    say(f"{job.id} {job.state} after {counted(len(job.attempts), 'attempt')}{because}")
    if report:
        say(f"report: {report}")
