"""``submit``, ``list``, ``show``, ``cancel`` and ``explain``."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from unidle.cli.common import (
    JobArgument,
    JsonOption,
    StoreOption,
    age,
    clock_time,
    figures,
    need_job,
    not_both,
    now_of,
    print_json,
    read_store,
    read_view,
    say,
    store_address,
    table,
    warn,
)
from unidle.cli.run import (
    CheckpointOption,
    DeviceOption,
    DevicesPerRankOption,
    JobFileArgument,
    MaxRestartsOption,
    NameOption,
    RanksOption,
    TimeoutOption,
    make_parent,
    options_of,
    read_job,
)
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.jobs import JobSpec


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command("submit")(submit)
    app.command("list")(list_jobs)
    app.command("show")(show)
    app.command("explain")(explain)
    app.command("cancel")(cancel)


def submit(
    context: typer.Context,
    job: JobFileArgument = None,
    store: StoreOption = None,
    clusters: Annotated[
        str | None,
        typer.Option(
            "--clusters",
            metavar="FILE",
            show_default=False,
            help="Instead of --store: of these clusters, the one that starts it first gets it.",
        ),
    ] = None,
    name: NameOption = None,
    ranks: RanksOption = None,
    devices_per_rank: DevicesPerRankOption = None,
    device: DeviceOption = None,
    max_restarts: MaxRestartsOption = None,
    checkpoint: CheckpointOption = None,
    timeout_s: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a job into the queue of a store; `unidle up` on that store runs it."""
    import msgspec

    from unidle.control.ids import new_job_id
    from unidle.control.inbox import SubmitRequest
    from unidle.store.open import open_store

    options = options_of(
        name=name, ranks=ranks, devices_per_rank=devices_per_rank, device=device,
        max_restarts=max_restarts, checkpoint=checkpoint, timeout_s=timeout_s,
    )  # fmt: skip
    spec = read_job(job, context.obj, options, by="submit")
    job_id = new_job_id(spec.name)
    if clusters is not None:
        _submit_somewhere(context, clusters, job_id, spec, as_json)
        return
    address = store_address(store)
    make_parent(address)
    opened = open_store(address, create=True)
    opened.request("submit", msgspec.json.encode(SubmitRequest(job_id, spec)))
    holder = opened.holder()
    opened.close()
    if as_json:
        print_json({"job": job_id, "state": "queued", "driven_by": holder})
        return
    say(f"{job_id} queued")
    if holder is None:
        warn(f"nobody drives this store yet: `unidle up --store {address}`")


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
        warn(f"nobody drives that cluster now: `unidle up --store {target.address.store}`")


def list_jobs(
    store: StoreOption = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", show_default=False, help="Only jobs in this state.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, oldest first."""
    from unidle.control.describe import job_line

    _known_state(state)
    opened = read_store(store)
    view = read_view(opened)
    lines = [job_line(job) for job in view.jobs.values() if state in (None, job.state)]
    opened.close()
    if as_json:
        print_json(lines)
        return
    if not lines:
        say("no jobs; try `unidle run -- python -c 'print(1)'`" if state is None else f"no job is {state}")
        return
    now = now_of(view)
    rows = [
        [line["job"], line["state"], str(line["attempts"]), str(line["ranks"]), str(line["steps"]),
         age((line["ended_ns"] or now) - line["submitted_ns"]), line["reason"] or ""]
        for line in lines
    ]  # fmt: skip
    for text in table(["job", "state", "attempts", "ranks", "steps", "age", "reason"], rows):
        say(text)


def _known_state(state: str | None) -> None:
    from unidle.jobs import JobState

    known = get_args(JobState)
    if state is not None and state not in known:
        raise BadInput("is not a state of a job", field="--state", value=state, remedy=", ".join(known))


def show(job: JobArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show one job: its attempts, and every rank with its process, devices and end."""
    from unidle.control.describe import job_detail

    opened = read_store(store)
    detail = job_detail(need_job(read_view(opened), job))
    opened.close()
    if as_json:
        print_json(detail)
        return
    say(_headline(detail))
    say(f"command  {shlex.join(detail['command'])}")
    for run in detail["runs"]:
        say()
        end = (
            f"{run['outcome']} at {clock_time(run['ended_ns'])}: {run['ended_because']}"
            if run["ended_ns"]
            else "running"
        )
        say(
            f"attempt {run['attempt']}  placed {clock_time(run['placed_ns'])} on {run['placed_because']}; {end}"
        )
        if run["last_step"] is not None:
            durable = (
                "no checkpoint seen"
                if run["durable_step"] is None
                else f"kept up to step {run['durable_step']}"
            )
            say(f"steps {run['first_step']} to {run['last_step']}, {durable}")
        rows = [
            [str(r["rank"]), str(r["pid"] or "-"), " ".join(r["slices"]), r["how"], _mib(r["info"].get("peak_bytes")),
             "; ".join(r["notes"])]
            for r in run["ranks"]
        ]  # fmt: skip
        for text in table(["rank", "pid", "devices", "state", "peak MiB", "notes"], rows):
            say("  " + text)


def _headline(job: dict[str, Any]) -> str:
    return f"{job['job']}  {job['state']}" + (f": {job['reason']}" if job["reason"] else "")


def _mib(value: object) -> str:
    return f"{value / 2**20:.0f}" if isinstance(value, (int, float)) else "-"


def explain(job: JobArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Explain why a job is where it is: what it waits for, where it was placed and why, how it ended."""
    from unidle.control import describe
    from unidle.jobs import NEVER

    opened = read_store(store)
    view = read_view(opened)
    opened.close()
    story = describe.explain(view, need_job(view, job))
    if as_json:
        print_json(story)
        return
    say(_headline(story))
    waiting = story.get("waiting")
    if waiting:
        expected_ns = waiting["expected_start_ns"]
        start = f"; expected to start at {clock_time(expected_ns)}" if expected_ns else ""
        now = waiting["now"]["text"]
        now = "the same" if now == story["reason"] else now
        ahead = f"; {counted(waiting['ahead'], 'job')} ahead in the queue{start}"
        say(f"  now: {now}" + ("" if waiting["now"]["code"] in NEVER else ahead))
        if waiting["stops"]:
            say(f"  stops for it: {', '.join(waiting['stops'])}")
        for barrier in waiting["in_the_way"]:
            say(f"  what would help: {barrier['unblock']}")
    for decision in story["decisions"]:
        say(f"  {clock_time(decision['time_ns'])}  {decision['what']:<18} {decision['text']}")
    for said in story["predictions"]:
        say(f"  {clock_time(said['said_ns'])}  {'foretold':<18} {_foretold(said)}")


def _foretold(said: dict[str, Any]) -> str:
    """One prediction in words, with its error once the truth is known."""
    if said["what"] == "cost":
        return _foretold_cost(said)
    shown = {"start": clock_time, "step_time": _seconds}.get(said["what"], age)
    text = f"{said['what'].replace('_', ' ')} {shown(said['value_ns'])}"
    text += f" ({shown(said['low_ns'])} to {shown(said['high_ns'])}"
    text += f" with {100 * said['level']:.0f} %)" if said["level"] else ")"
    text += f", from {said['by']}"
    if said["error_ns"] == 0:
        text += "; and so it was"
    elif said["error_ns"] is not None:
        late = "later" if said["what"] == "start" else "longer"
        early = "earlier" if said["what"] == "start" else "shorter"
        length = _seconds if said["what"] == "step_time" else age
        text += f"; it was {length(abs(said['error_ns']))} {late if said['error_ns'] > 0 else early}"
    return text


def _foretold_cost(said: dict[str, Any]) -> str:
    cost = said["cost"]
    text = (
        f"cost {figures(cost['value'])} {cost['currency']} ({figures(cost['low'])} to {figures(cost['high'])}"
    )
    text += f" with {100 * said['level']:.0f} %)" if said["level"] else ")"
    text += f", from {said['by']}"
    if cost["error"] == 0:
        text += "; and so it was"
    elif cost["error"] is not None:
        text += f"; it was {figures(abs(cost['error']))} {'more' if cost['error'] > 0 else 'less'}"
    return text


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.4g} s"


def cancel(
    job: JobArgument,
    store: StoreOption = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until nothing of it runs.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Cancel a job: SIGTERM, its grace, SIGKILL, to all of every rank's processes."""
    import msgspec

    from unidle.cli.drive import settle
    from unidle.control.inbox import CancelRequest

    opened = read_store(store, requests=True)
    found = need_job(read_view(opened), job)
    state: str = found.state
    if not found.terminal:
        opened.request("cancel", msgspec.json.encode(CancelRequest(found.id, _caller())))
        state = settle(opened, found.id) if wait else "cancelling"
    opened.close()
    if as_json:
        print_json({"job": found.id, "state": state})
    elif found.terminal:
        say(f"{found.id} had already {'been ' * (state == 'cancelled')}{state}")
    else:
        say(f"{found.id} {state}")


def _caller() -> str:
    """Who asks: the login name, or the number of a user without one."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
