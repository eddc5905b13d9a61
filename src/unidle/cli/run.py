"""``unidle run``: one job, driven to its end."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from unidle.api.fleets import find_fleet_and_channels, looked_at, refuse_impossible, with_devices_of_jobs
from unidle.api.stores import make_parent
from unidle.cli.common import (
    CpuDevicesOption,
    FleetOption,
    JsonOption,
    StoreModeOption,
    StoreOption,
    data_dir,
    fitted,
    mode_of,
    named_store,
    print_json,
    printable,
    say,
    say_whole,
    show,
    store_address,
    warn,
)
from unidle.cli.job_words import JobCommand, JobFileArgument, JobOptions, ranks_of, read_job
from unidle.cli.option_set import with_options
from unidle.errors import BadInput, CannotRun, StoreGone, StoreHeld
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.cli.job_output import JobOutput
    from unidle.cli.live import Live, Progress
    from unidle.control.loop import Controller
    from unidle.control.session import ControllerSession
    from unidle.files.fleet_notices import NoticeChannel
    from unidle.fleet import Fleet
    from unidle.jobs import JobSpec, Reason
    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView

ProgressOption = Annotated[
    str,
    typer.Option("--progress", metavar="auto|live|plain|off", help="Progress on standard error."),
]
_MANY_PER_CORE = 32
LogsOption = Annotated[
    str | None,
    typer.Option(
        "--logs", metavar="all|none|K[,K...]", show_default=False,
        help="Ranks whose output is shown, such as 0,2 or 0-3; default 0, with --json none.",
    ),
]  # fmt: skip
ProfileOption = Annotated[
    bool,
    typer.Option("--profile", help="Profile running jobs continuously, for `unidle profile JOB --since TIME`."),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command("run", cls=JobCommand)(run)


@dataclass(frozen=True, slots=True)
class JobRunOptions:
    """How a job is run and shown, in the order of the help."""

    # fmt: off
    profile: ProfileOption = False
    logs: LogsOption = None
    progress: ProgressOption = "auto"
    report: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", show_default=False, help="File for the report; default: next to the store."
        ),
    ] = None
    mode: StoreModeOption = "0600"
    as_json: JsonOption = False
    # fmt: on


@with_options(options=JobRunOptions, described=JobOptions)
def run(
    context: typer.Context,
    job: JobFileArgument = None,
    store: StoreOption = None,
    fleet: FleetOption = None,
    cpu_devices: CpuDevicesOption = None,
    *,
    described: JobOptions,
    options: JobRunOptions,
) -> None:
    """Run a job on this machine, and show where its device time went.

    Give a job file, or a program after the options: unidle run --ranks 4 python train.py --lr 3e-4

    Options take precedence over the job file. Arguments after a program belong to the program. A file that ends in .py
    is run with the Python in PATH.
    """
    _check_report(options.report)
    store_mode = mode_of(options.mode)
    _need_kernels(described)
    spec = read_job(job, context.obj, described)
    if store_address(store).startswith("kubernetes://"):
        from unidle.cli.run_on_cluster import run_on_cluster

        sys.exit(run_on_cluster(context, store_address(store), spec, described.user, options))
    found, channels = find_fleet_and_channels(fleet, cpu_devices, 0 if spec.device == "gpu" else spec.devices)
    refuse_impossible(spec, found)
    _warn_of_many(spec)
    given = _Given(
        spec, looked_at(found) if options.profile else found, channels, store_address(store),
        progress_of(options.progress), shown_ranks(options.logs, spec.ranks, options.as_json), options.report,
        options.as_json, discovered=fleet is None and cpu_devices is None, user=described.user, store_mode=store_mode,
    )  # fmt: skip
    try:
        sys.exit(_run(given))
    except StoreHeld as held:
        remedy = "`unidle submit` puts the job into its queue; or name another store (--store)"
        raise StoreHeld(held.problem, field=held.field, remedy=remedy) from held


def _need_kernels(described: JobOptions) -> None:
    """The reason why there is no library for them is an error here, and a miss of the profile elsewhere."""
    if described.kernels:
        from unidle.engine.local.injection import library

        library()


def _warn_of_many(spec: JobSpec) -> None:
    cores = len(os.sched_getaffinity(0))
    if spec.ranks > _MANY_PER_CORE * cores:
        warn(
            f"{spec.ranks:,} ranks on {counted(cores, 'core')}: if this is a mistake, Ctrl-C cancels the job"
        )


@dataclass(frozen=True, slots=True)
class _Given:
    spec: JobSpec
    fleet: Fleet
    channels: tuple[NoticeChannel, ...]
    address: str
    mode: Progress
    ranks: tuple[int, ...]  # whose output is shown
    report: str | None
    as_json: bool
    discovered: bool  # the fleet is what this machine has
    user: str | None  # whose job it is, if not the submitter's
    store_mode: int  # permissions of a store that is made


def shown_ranks(logs: str | None, ranks: int, as_json: bool) -> tuple[int, ...]:
    """The ranks that ``--logs`` names. Errors: :class:`BadInput`."""
    if logs is None:
        return () if as_json else (0,)
    if logs in ("all", "none"):
        return tuple(range(ranks)) if logs == "all" else ()
    return ranks_of("--logs", logs, ranks)


def progress_of(mode: str) -> Progress:
    """How to show progress. Errors: :class:`BadInput`."""
    if mode not in ("auto", "live", "plain", "off"):
        raise BadInput(
            "is not a kind of progress display",
            field="--progress",
            value=mode,
            remedy="auto, live, plain or off",
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


def _run(given: _Given) -> int:
    from unidle.cli.live import Live
    from unidle.control.inbox import signed
    from unidle.control.job_ids import new_job_id
    from unidle.control.session import take_up
    from unidle.store.open import open_store

    live = Live(given.mode, with_output=bool(given.ranks) and not given.as_json)
    job_id = new_job_id(given.spec.name)
    make_parent(given.address)
    store = open_store(given.address, create=True, mode=given.store_mode)
    spec, by = signed(store, given.spec, given.user)
    fleet = with_devices_of_jobs(given.fleet, store) if given.discovered else given.fleet
    if given.ranks:
        live.output = _output_of(given, store, job_id, live)
    opened = take_up(
        store, fleet, data_dir(), "unidle run", channels=given.channels, profile_to=given.address
    )
    with caught() as signals, opened as session:
        controller = session.controller
        controller.watch(lambda event, _time: live.tell(controller.view, event))
        controller.submit(job_id, spec, by)
        job = controller.view.jobs[job_id]
        if given.ranks == (0,) and given.spec.ranks > 1:
            live.hint(f"output of rank 0 of {given.spec.ranks} follows; `--logs all` shows all")
        with told_what_is_left(controller, live, given.address):
            never = _drive(session, signals, job, live)
    if live.output is not None:
        live.output.finish()
    if never is not None:
        store.close()
        raise CannotRun(f"{job_id}: {never.text}", remedy="`unidle doctor` shows what this machine offers")
    path = _write_report(store, job_id, given.report)
    _print_end(store, job, path, given)
    store.close()
    if signals.interrupts or signals.terminates:
        return 130
    return 0 if job.state == "succeeded" else 1


def _output_of(given: _Given, store: Store, job_id: str, live: Live) -> JobOutput:
    from unidle.cli.job_output import JobOutput
    from unidle.control.store_files import run_root

    to = sys.stderr if given.as_json else sys.stdout
    return JobOutput(run_root(store, data_dir()), job_id, given.ranks, live, to)


@contextmanager
def told_what_is_left(controller: Controller, live: Live, address: str) -> Iterator[None]:
    """Also when the store fails: running jobs continue, and the user is shown how to return to them."""
    gone = False
    try:
        yield
    except StoreGone:
        gone = True
        raise
    finally:
        live.done()
        left = len(controller.view.live)
        jobs = counted(left, "job")
        if left and gone:
            warn(f"{jobs} of the lost store left running: {', '.join(sorted(controller.view.live)[:8])}")
        elif left:
            warn(f"{jobs} of this store left running; `unidle up --store {address}` takes over")


def _drive(session: ControllerSession, signals: Signals, job: JobView, live: Live) -> Reason | None:
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
        if not job.terminal:
            live.refresh(job, session.clock.now_ns())
        return job.terminal

    controller.run(done)
    return never


def _never(job: JobView) -> Reason | None:
    """Why it waits in vain, if it does: what the machine does not offer is known only once its engine was asked."""
    from unidle.jobs import NEVER

    waits = job.verdict if job.state == "queued" else None
    return waits if waits is not None and waits.code in NEVER else None


def _check_report(report: str | None) -> None:
    """A file that cannot be written is refused before the job has run for hours. Errors: BadInput."""
    if report is None:
        return
    path = Path(report)
    above = next(place for place in path.absolute().parents if place.exists())
    problem = "is a directory" if path.is_dir() else None
    if not above.is_dir() or not os.access(path if path.exists() else above, os.W_OK):
        problem = problem or "cannot be written"
    if problem is not None:
        raise BadInput(problem, field="--report", value=report, remedy="name a file, such as report.html")


def _write_report(store: Store, job_id: str, report: str | None) -> str | None:
    """The HTML report's path; a report that cannot be written costs a warning, not the job's result."""
    from unidle.api.rank_output import rank_output
    from unidle.report.write import write_report

    try:
        with rank_output(store, data_dir(), job_id) as output:
            return str(write_report(store, Path(report) if report else None, output, job_id, data_dir()))
    except OSError as error:
        warn(f"the report could not be written: {error.strerror}: {report or error.filename}")
        return None


def _print_end(store: Store, job: JobView, report: str | None, given: _Given) -> None:
    """The result, even if standard output is closed: the exit code is the job's."""
    try:
        if given.as_json:
            print_json_end(job, report, given.address)
        else:
            _print_summary(store, job, report, given.address)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json_end(job: JobView, report: str | None, address: str) -> None:
    """The result of `unidle run --json`."""
    from unidle.control.queries.describe import exit_codes
    from unidle.guard.failure import failure_of_job

    codes = exit_codes(job.attempts[-1]) if job.attempts else []
    failed = failure_of_job(job)
    failure = None if failed is None else failed.as_json(named_store(address))
    print_json(
        {"job": job.id, "state": job.state, "attempts": len(job.attempts), "exit_codes": codes,
         "steps": job.steps(), "report": report, "failure": failure}
    )  # fmt: skip


def _print_summary(store: Store, job: JobView, report: str | None, address: str) -> None:
    from unidle.control.store_files import run_root
    from unidle.guard.failure import failure_of_job
    from unidle.guard.failure_words import failure_lines
    from unidle.report.write import terminal_summary

    say()
    show(terminal_summary(store, job.id))
    if wants_rendezvous(run_root(store, data_dir()), job):
        say(
            "The script needs the variables of torchrun, which one rank receives with `--rendezvous torchrun`."
        )
    if report:
        say_whole(f"report: {report}")
    sys.stdout.flush()
    failed = failure_of_job(job)
    for line in failure_lines(failed.as_json(named_store(address))) if failed is not None else ():
        sys.stderr.write(f"{fitted(printable(line))}\n")


def wants_rendezvous(root: Path, job: JobView) -> bool:
    """Whether a job without a rendezvous failed because its script asked for one."""
    if job.state != "failed" or job.spec.rendezvous == "torchrun":
        return False
    from unidle.engine.local.logs import LogReader
    from unidle.engine.local.ranks import rundir

    reader = LogReader(rundir.rank_dir(root, job.id, len(job.attempts), 0))
    reader.begin(tail=50)
    said = b"".join(iter(reader.read, b""))
    reader.close()
    name = rb"(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)"
    return re.search(rb"environment variable %b expected|KeyError: '%b'" % (name, name), said) is not None
