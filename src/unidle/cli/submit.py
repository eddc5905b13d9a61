"""``unidle submit``: a job for the queue of a store, or of the best of several clusters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from unidle.api.fleets import find_fleet, refuse_to_queue
from unidle.api.stores import make_parent
from unidle.cli.common import (
    JsonOption,
    StoreModeOption,
    StoreOption,
    mode_of,
    not_both,
    print_json,
    read_view,
    say,
    store_address,
    warn,
)
from unidle.cli.job_words import JobCommand, JobFileArgument, JobOptions, read_job
from unidle.cli.option_set import with_options

if TYPE_CHECKING:
    from unidle.jobs import JobSpec


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command("submit", cls=JobCommand)(submit)


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """Where a job is put, in the order of the help."""

    # fmt: off
    store: StoreOption = None
    clusters: Annotated[
        str | None,
        typer.Option(
            "--clusters",
            metavar="FILE",
            show_default=False,
            help="Submit to the cluster of this file that would start the job first, instead of --store.",
        ),
    ] = None
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", metavar="FILE", show_default=False, help="Check against this fleet file."),
    ] = None
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep the job until the fleet can hold it, if it cannot now.")
    ] = False
    mode: StoreModeOption = "0600"
    # fmt: on


@with_options(options=SubmitOptions, described=JobOptions)
def submit(
    context: typer.Context,
    job: JobFileArgument = None,
    *,
    options: SubmitOptions,
    described: JobOptions,
    as_json: JsonOption = False,
) -> None:
    """Put a job into the queue of a store. A controller (`unidle up`) on that store runs it.

    A job that the fleet can never hold is refused. The fleet is that of --fleet, else of the last `unidle up`.
    """
    from unidle.control.job_ids import new_job_id

    mode_of(options.mode)  # refused before the job file is read
    spec = read_job(job, context.obj, described, by="submit")
    job_id = new_job_id(spec.name)
    if options.clusters is not None:
        for option in ("hold", "fleet", "mode"):
            not_both(context, option, clusters=options.clusters)
        spec = replace(spec, user=described.user or spec.user)
        _submit_somewhere(context, options.clusters, job_id, spec, as_json)
        return
    _submit_here(job_id, spec, described.user, options, as_json)


def _submit_here(job_id: str, spec: JobSpec, user: str | None, options: SubmitOptions, as_json: bool) -> None:
    import msgspec

    from unidle.control.inbox import SubmitRequest, signed
    from unidle.fleet import as_declared
    from unidle.store.open import open_store

    found = find_fleet(options.fleet, None) if options.fleet is not None else None
    address = store_address(options.store)
    make_parent(address)
    opened = open_store(address, create=True, mode=mode_of(options.mode))
    try:
        spec, by = signed(opened, spec, user)
        note = refuse_to_queue(spec, found or as_declared(read_view(opened).fleet), hold=options.hold)
        opened.request("submit", msgspec.json.encode(SubmitRequest(job_id, spec)))
        holder = opened.holder()
    finally:
        opened.close()
    if as_json:
        print_json(
            {"job": job_id, "state": "queued", "driven_by": holder, "user": spec.user, "submitted_by": by,
             "note": note}
        )  # fmt: skip
    else:
        _say_queued(job_id, spec.user if spec.user != by else None, note, holder, address)


def _say_queued(job_id: str, user: str | None, note: str | None, holder: str | None, address: str) -> None:
    say(f"{job_id} queued" + (f" for {user}" if user is not None else ""))
    if note is not None:
        warn(note)
    if holder is None:
        warn(f"no controller runs on this store: start one with `unidle up --store {address}`")


def _submit_somewhere(
    context: typer.Context, clusters: str, job_id: str, spec: JobSpec, as_json: bool
) -> None:
    from unidle.cli.clusters import dispatch, verdict_as_json
    from unidle.control.dispatch import send

    not_both(context, "store", clusters=clusters)
    target, verdict = dispatch(clusters, spec)
    holder = send(target.address, job_id, spec)
    if as_json:
        print_json(
            {"job": job_id, "state": "queued", "driven_by": holder, "cluster": target.name,
             "store": target.address.store, "dispatch": verdict_as_json(verdict)}
        )  # fmt: skip
        return
    say(f"{job_id} queued in {target.name}: {verdict.because.text}")
    if holder is None:
        warn(f"no controller runs on that cluster: start one with `unidle up --store {target.address.store}`")
