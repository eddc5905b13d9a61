"""``unidle run --context``: a job of a cluster's controller, submitted and followed to its end."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from unidle.cli.common import data_dir, fitted, not_both, printable, read_view, say, say_whole, show, warn
from unidle.cli.run import JobRunOptions, Signals, caught, print_json_end, progress_of, shown_ranks

if TYPE_CHECKING:
    from unidle.api.job_watch import JobWatch
    from unidle.cli.live import Live, Progress
    from unidle.jobs import JobSpec
    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView

_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """``user``: whose job it is, if given. ``ranks``: whose output is shown."""

    address: str
    spec: JobSpec
    user: str | None
    ranks: tuple[int, ...]
    progress: Progress
    report: str | None
    as_json: bool


def run_on_cluster(
    context: typer.Context, address: str, spec: JobSpec, user: str | None, options: JobRunOptions
) -> int:
    """The exit code. Errors: BadInput for an option that is for this machine."""
    for option in ("fleet", "cpu_devices", "profile"):
        not_both(context, option, kubeconfig="")
    ranks = shown_ranks(options.logs, spec.ranks, options.as_json)
    progress = progress_of(options.progress)
    return _run(ClusterRun(address, spec, user, ranks, progress, options.report, options.as_json))


def _run(wanted: ClusterRun) -> int:
    """The exit code. A first Ctrl-C or SIGTERM cancels the job; a second one leaves it to the controller."""
    from unidle.api.job_watch import JobWatch
    from unidle.cli.live import Live

    job_id = _submitted(wanted)
    live = Live(wanted.progress, with_output=bool(wanted.ranks) and not wanted.as_json)
    with caught() as signals, JobWatch(wanted.address, job_id) as watch:
        live.hint(f"{job_id} submitted to {wanted.address}")
        job = _followed(wanted, watch, live, signals)
        live.done()
        if job is None:
            say(f"{job_id} is being cancelled by its controller")
            return 130
        path = _report(watch.store, job_id, wanted.report)
        _print(watch.store, job, path, wanted)
        if signals.interrupts or signals.terminates:
            return 130
    return 0 if job.state == "succeeded" else 1


def _submitted(wanted: ClusterRun) -> str:
    import msgspec

    from unidle.api.fleets import refuse_to_queue
    from unidle.control.inbox import SubmitRequest, signed
    from unidle.control.job_ids import new_job_id
    from unidle.fleet import as_declared
    from unidle.store.open import open_store

    store = open_store(wanted.address, create=False)
    try:
        spec, _ = signed(store, wanted.spec, wanted.user)
        if note := refuse_to_queue(spec, as_declared(read_view(store).fleet), hold=False):
            warn(note)
        job_id = new_job_id(spec.name)
        store.request("submit", msgspec.json.encode(SubmitRequest(job_id, spec)))
    finally:
        store.close()
    return job_id


def _followed(wanted: ClusterRun, watch: JobWatch, live: Live, signals: Signals) -> JobView | None:
    """The job once it has ended; None where the user did not wait for that."""
    import msgspec

    from unidle.api.logs import Output
    from unidle.control.inbox import CancelRequest
    from unidle.login import login_name

    to = sys.stderr if wanted.as_json else sys.stdout
    output: Output | None = None
    asked, state = 0, ""
    try:
        while True:
            job = watch.ended() or watch.view.jobs.get(watch.job)
            seen = signals.interrupts + signals.terminates
            if seen > asked:
                if asked:
                    return None
                asked = seen
                body = CancelRequest(watch.job, login_name())
                watch.store.request("cancel", msgspec.json.encode(body))
                live.hint(f"{watch.job}: cancelling; Ctrl-C again leaves that to the controller")
            if job is not None:
                if job.state != state:
                    state = job.state
                    live.hint(f"{job.id}: {state}")
                if wanted.ranks and output is None and job.attempts:
                    output = Output(watch.store, job.id, wanted.ranks, first=1)
                for line in output.new(job) if output is not None else ():
                    live.lines(to, line.decode("utf-8", "replace") + "\n", "")
                if job.terminal:
                    return job
                live.refresh(job, time.time_ns())
            time.sleep(_LOOK_S)
    finally:
        if output is not None:
            output.close()


def _report(store: Store, job_id: str, report: str | None) -> str | None:
    """The report's path; None without --report."""
    if report is None:
        return None
    from pathlib import Path

    from unidle.api.rank_output import rank_output
    from unidle.report.write import write_report

    with rank_output(store, data_dir(), job_id) as output:
        return str(write_report(store, Path(report), output, job_id, data_dir()))


def _print(store: Store, job: JobView, report: str | None, wanted: ClusterRun) -> None:
    from unidle.guard.failure import failure_of_job
    from unidle.guard.failure_words import failure_lines
    from unidle.report.write import terminal_summary

    if wanted.as_json:
        print_json_end(job, report, wanted.address)
        return
    say()
    show(terminal_summary(store, job.id))
    if report:
        say_whole(f"report: {report}")
    sys.stdout.flush()
    failed = failure_of_job(job)
    for line in failure_lines(failed.as_json(wanted.address)) if failed is not None else ():
        sys.stderr.write(f"{fitted(printable(line))}\n")
