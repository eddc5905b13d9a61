"""``list``, ``show``, ``explain`` and ``cancel``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from unidle.cli import complete
from unidle.cli.common import (
    JobArgument,
    JsonOption,
    StoreOption,
    age,
    clock_time,
    named_store,
    need_job,
    now_of,
    print_json,
    read_store,
    read_view,
    say,
    say_whole,
    show_table,
    store_address,
    warn,
)
from unidle.errors import BadInput
from unidle.login import login_name
from unidle.words import counted, does

if TYPE_CHECKING:
    from unidle.view.state import View


_ENDED_LISTED: Final = 10
_WAITING_LISTED: Final = 100


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command("list")(list_jobs)
    app.command("show")(show)
    app.command("explain")(explain)
    app.command("cancel")(cancel)


def _list_others(view: View, as_json: bool) -> None:
    """Pods that have devices of the fleet and are of no job."""
    lines: list[dict[str, Any]] = [
        {"pod": pod.name, "node": node, "phase": pod.phase, "devices": list(pod.devices)}
        for node, taken in sorted(view.taken.items())
        for pod in taken.pods
    ]
    if as_json:
        print_json(lines)
    elif lines:
        rows = [
            [line["pod"], line["node"], line["phase"], " ".join(line["devices"]) or "none left"]
            for line in lines
        ]
        show_table(["pod", "node", "phase", "devices"], rows)
    else:
        say("no pod of others has a device")


def list_jobs(
    store: StoreOption = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            show_default=False,
            autocompletion=complete.states,
            help="Only jobs in this state.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list the jobs that ended earlier, and all that wait.")
    ] = False,
    others: Annotated[
        bool,
        typer.Option(
            "--others",
            help="Of a cluster: list the pods that unidle did not start and that have devices instead.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs: those that run or wait, and the last ten that ended.

    Of the jobs that wait, the last hundred are listed. Ages are since submission. `--json` lists all jobs.
    """
    from unidle.control.queries.describe import job_line
    from unidle.control.queries.find import last_ended, listed, not_ended
    from unidle.jobs import TERMINAL

    _known_state(state)
    opened = read_store(store)
    view = read_view(opened)
    watched = opened.holder() is not None
    if others:
        _list_others(view, as_json)
        return
    if as_json:
        print_json(
            [job_line(job, named_store(store), view) for job in listed(view) if state in (None, job.state)]
        )
        return
    most = None if state is not None else _WAITING_LISTED
    under_way = not_ended(view, most)
    jobs = list(listed(view)) if everything else [*last_ended(view, _ENDED_LISTED), *under_way]
    lines = [
        job_line(job, named_store(store), view)
        for job in sorted(jobs, key=lambda job: job.order)
        if state in (None, job.state)
    ]
    if not lines:
        say("no jobs; try `unidle run -- python -c 'print(1)'`" if not jobs else f"no job is {state}")
    _show_lines(lines, now_of(view))
    waiting = 0 if everything else len(view.jobs.open) - len(under_way)
    hidden = len(view.jobs) - len(view.removed) - len(jobs) - waiting
    _warn_of_more(waiting, hidden if state is None or state in TERMINAL else 0)
    if not watched:
        _warn_of_unwatched(view, store)


def _warn_of_more(waiting: int, ended: int) -> None:
    """Jobs that are not listed."""
    if waiting:
        warn(f"{counted(waiting, 'more job')} {does(waiting, 'wait')}: `unidle list --all` shows all")
    if ended:
        warn(f"{counted(ended, 'more job')} ended before: `unidle list --all` shows all")


def _show_lines(lines: Sequence[dict[str, Any]], now_ns: int) -> None:
    from unidle.control.queries.describe import silence_text

    known = any(line["mfu"] is not None for line in lines)
    rows = [
        [line["job"], line["state"] + (" (filler)" if line["class"] == "filler" else ""), str(line["attempts"]), str(line["ranks"]), str(line["steps"]),
          *(["-" if line["mfu"] is None else f"{100 * line['mfu']:.1f} %"] if known else []),
         age(now_ns - line["submitted_ns"]), silence_text(line, now_ns) or line["reason"] or ""]
        for line in lines
    ]  # fmt: skip
    show_table(
        ["job", "state", "attempts", "ranks", "steps", *(["MFU"] if known else []), "age", "reason"], rows
    )


def _warn_of_unwatched(view: View, store: str | None, job: str | None = None) -> None:
    """Where no controller runs: the state of jobs that run (``job``: of this one) is from the time when one did."""
    left = len(view.live) if job is None else job in view.live
    if left and not view.modelled:
        what = counted(left, "running job") if job is None else "this job"
        warn(f"no controller watches {what} now: start one with `unidle up --store {store_address(store)}`")


def _known_state(state: str | None) -> None:
    from unidle.jobs import JobState

    known = get_args(JobState)
    if state is not None and state not in known:
        raise BadInput("is not a state of a job", field="--state", value=state, remedy=", ".join(known))


def show(job: JobArgument = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show a job's attempts, and how each of its ranks ended."""
    from unidle.control.queries.describe import job_detail
    from unidle.control.queries.explanation import headline
    from unidle.control.queries.mfu import mfu_lines
    from unidle.control.replicas import service_detail

    opened = read_store(store)
    view = read_view(opened)
    found = need_job(view, job)
    detail = job_detail(view, found, named_store(store)) | {"service": service_detail(view, found)}
    if as_json:
        print_json(detail)
        return
    say(headline(detail))
    say_whole(f"command  {shlex.join(detail['command'])}")
    for line in mfu_lines(view, found):
        say(line)
    if detail["service"] is not None:
        _say_service(detail["service"])
    for run in detail["runs"]:
        _say_run(run)
    _say_failure(detail)


def _say_service(service: dict[str, Any]) -> None:
    """Its replicas, and where each answers."""
    rows = [
        [str(line["replica"]), line["job"], line["state"], "yes" if line["ready"] else "no", str(line["restarts"]),
         line["endpoint"] or "-"]
        for line in service["replicas"]
    ]  # fmt: skip
    say(f"service  {service['ready']} of {counted(service['wanted'], 'replica')} ready")
    show_table(["replica", "job", "state", "ready", "restarts", "endpoint"], rows)


def _say_run(run: dict[str, Any]) -> None:
    """One attempt."""
    from unidle.control.queries.describe import clock_text

    say()
    end = (
        f"{run['outcome']} at {clock_time(run['ended_ns'])}: {run['ended_because']}"
        if run["ended_ns"]
        else "running"
    )
    say(f"attempt {run['attempt']}  placed {clock_time(run['placed_ns'])} on {run['placed_because']}; {end}")
    if run["last_step"] is not None:
        durable = (
            "no checkpoint seen" if run["durable_step"] is None else f"kept up to step {run['durable_step']}"
        )
        say(f"steps {run['first_step']} to {run['last_step']}, {durable}")
    if clocks := clock_text(run["clock_errors_ns"]):
        say(clocks)
    for line in _stack_lines(run):
        say(line)
    rows = [
        [str(r["rank"]), str(r["pid"] or "-"), " ".join(r["slices"]), r["how"], _mib(r["info"].get("peak_bytes")),
         "; ".join(r["notes"])]
        for r in run["ranks"]
    ]  # fmt: skip
    show_table(["rank", "pid", "devices", "state", "peak MiB", "notes"], rows, indent="  ")


def _say_failure(job: dict[str, Any]) -> None:
    from unidle.guard.failure_words import failure_lines

    if job["failure"] is not None:
        say()
        for line in failure_lines(job["failure"]):
            say(line)


def _mib(value: object) -> str:
    return f"{value / 2**20:.0f}" if isinstance(value, (int, float)) else "-"


def _stack_lines(run: dict[str, Any]) -> list[str]:
    """Where the ranks of a gang stood when it hung: all in one line, and the frames of those that stand out."""
    if run["stacks_text"] is None:
        return []
    lines = [f"stacks at {clock_time(run['stacks_ns'])}: {run['stacks_text']}"]
    shown = set(run["odd_ranks"][:4])
    for stack in run["stacks"]:
        if stack["rank"] in shown and stack["frames"]:
            lines += [
                f"  rank {stack['rank']}, deepest last:",
                *(f"    {frame}" for frame in stack["frames"][-8:]),
            ]
    return lines


def explain(job: JobArgument = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Explain why a job waits, runs where it does, or ended. Every decision on the way is listed with its reason."""
    from unidle.control.queries.describe import explain as explained
    from unidle.control.queries.describe import silence_text
    from unidle.control.queries.explanation import story_lines

    opened = read_store(store)
    view = read_view(opened)
    watched = opened.holder() is not None
    found = need_job(view, job)
    story = explained(view, found, named_store(store))
    story["silent"] = silence_text(story, now_of(view)) or None
    if as_json:
        print_json(story)
        return
    for line in story_lines(story):
        say(line)
    if not watched:
        _warn_of_unwatched(view, store, found.id)


def cancel(
    job: JobArgument = None,
    store: StoreOption = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until no process of the job is left.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Cancel a job. All processes of its ranks receive SIGTERM, and after the job's grace period SIGKILL.

    Without JOB, the newest job that has not ended is cancelled."""
    import msgspec

    from unidle.cli.drive import settle
    from unidle.control.inbox import CancelRequest

    opened = read_store(store, requests=True)
    found = need_job(read_view(opened), job, live=True)
    state: str = found.state
    if not found.terminal:
        opened.request("cancel", msgspec.json.encode(CancelRequest(found.id, login_name())))
        state = settle(opened, found.id) if wait else "cancelling"
    if as_json:
        print_json({"job": found.id, "state": state})
    elif found.terminal:
        say(f"{found.id} had already {'been ' * (state == 'cancelled')}{state}")
    else:
        say(f"{found.id} {state}")
