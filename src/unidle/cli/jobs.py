"""``submit``, ``list``, ``show``, ``cancel`` and ``explain``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import (
    JobArgument,
    JsonOption,
    StoreOption,
    age,
    clock_time,
    need_job,
    print_json,
    read_store,
    read_view,
    say,
    store_address,
    table,
    warn,
)
from unidle.cli.run import Count, JobFileArgument, Text, make_parent, options_of, read_job

if TYPE_CHECKING:
    from unidle.store.protocol import Store


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
    name: Text = None,
    ranks: Count = None,
    devices_per_rank: Count = None,
    as_json: JsonOption = False,
) -> None:
    """Put a job into the queue of a store; `unidle up` on that store runs it."""
    import msgspec

    from unidle.control.ids import new_job_id
    from unidle.control.loop import SubmitRequest
    from unidle.store.open import open_store

    spec = read_job(job, context.obj, options_of(name=name, ranks=ranks, devices_per_rank=devices_per_rank))
    address = store_address(store)
    make_parent(address)
    opened = open_store(address, create=True)
    job_id = new_job_id(spec.name)
    opened.request("submit", msgspec.json.encode(SubmitRequest(job_id, spec)))
    holder = opened.holder()
    opened.close()
    if as_json:
        print_json({"job": job_id, "state": "queued", "driven_by": holder})
        return
    say(f"{job_id} queued")
    if holder is None:
        warn(f"nobody drives this store yet: `unidle up --store {address}`")


def list_jobs(
    store: StoreOption = None,
    state: Annotated[str | None, typer.Option(show_default=False, help="Only jobs in this state.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, oldest first."""
    from unidle.control.describe import job_line

    opened = read_store(store)
    view = read_view(opened)
    lines = [job_line(job) for job in view.jobs.values()] + _pending(opened, set(view.jobs))
    lines = [line for line in lines if state is None or line["state"] == state]
    opened.close()
    if as_json:
        print_json(lines)
        return
    if not lines:
        say("no jobs; try `unidle run -- python -c 'print(1)'`" if state is None else f"no job is {state}")
        return
    now = time.time_ns()
    rows = [
        [line["job"], line["state"], str(line["attempts"]), str(line["ranks"]), str(line["steps"]),
         age((line["ended_ns"] or now) - line["submitted_ns"]), line["reason"] or ""]
        for line in lines
    ]  # fmt: skip
    for text in table(["job", "state", "attempts", "ranks", "steps", "age", "reason"], rows):
        say(text)


def _pending(store: Store, known: set[str]) -> list[dict[str, Any]]:
    """Jobs that were submitted and that no writer has taken over yet."""
    import msgspec

    from unidle.control.describe import job_line
    from unidle.control.loop import SubmitRequest
    from unidle.jobs import Reason
    from unidle.view.state import JobView

    lines = []
    for request in store.requests():
        if request.kind != "submit":
            continue
        submitted = msgspec.json.decode(request.body, type=SubmitRequest)
        if submitted.job not in known:
            job = JobView(submitted.job, submitted.spec, 0, request.time_ns)
            job.verdict = Reason(
                "not_taken_up", "nobody has taken it up yet: is `unidle up` running on this store?"
            )
            lines.append(job_line(job))
    return lines


def show(job: JobArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show one job: its attempts, and every rank with its process, devices and end."""
    from unidle.control.describe import job_detail

    opened = read_store(store)
    detail = job_detail(need_job(read_view(opened), job))
    opened.close()
    if as_json:
        print_json(detail)
        return
    say(f"{detail['job']}  {detail['state']}" + (f": {detail['reason']}" if detail["reason"] else ""))
    say(f"command  {' '.join(detail['command'])}")
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


def _mib(value: object) -> str:
    return f"{value / 2**20:.0f}" if isinstance(value, (int, float)) else "-"


def explain(job: JobArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Explain why a job is where it is: what it waits for, where it was placed and why, how it ended."""
    from unidle.control import describe

    opened = read_store(store)
    view = read_view(opened)
    pending = [
        p
        for p in _pending(opened, set(view.jobs))
        if job in (p["job"], p["name"]) or p["job"].startswith(job)
    ]
    found = describe.find_job(view, job)
    if found is None and pending:
        story = {**pending[0], "code": "not_taken_up", "decisions": []}
    else:
        story = describe.explain(view, need_job(view, job))
    opened.close()
    if as_json:
        print_json(story)
        return
    say(f"{story['job']} is {story['state']}" + (f": {story['reason']}" if story["reason"] else ""))
    waiting = story.get("waiting")
    if waiting:
        say(f"  now: {waiting['now']['text']}; {waiting['ahead']} jobs are ahead in the queue")
    for decision in story["decisions"]:
        say(f"  {clock_time(decision['time_ns'])}  {decision['what']:<18} {decision['text']}")


def cancel(
    job: JobArgument,
    store: StoreOption = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until nothing of it runs.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Cancel a job: SIGTERM, its grace, SIGKILL, to all of every rank's processes."""
    import getpass

    import msgspec

    from unidle.cli.drive import settle
    from unidle.control.loop import CancelRequest

    opened = read_store(store, requests=True)
    view = read_view(opened)
    pending = {p["job"] for p in _pending(opened, set(view.jobs))}
    job_id = job if job in pending else need_job(view, job).id
    opened.request("cancel", msgspec.json.encode(CancelRequest(job_id, getpass.getuser())))
    state = settle(opened, job_id) if wait else "cancelling"
    opened.close()
    if as_json:
        print_json({"job": job_id, "state": state})
    else:
        say(f"{job_id} {state}")
