"""``unidle rm`` and ``unidle prune``: jobs that have ended leave the lists, and their files go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from unidle.cli.common import (
    JobsArgument,
    JsonOption,
    StoreOption,
    data_dir,
    now_of,
    print_json,
    read_view,
    say,
    store_address,
    warn,
)
from unidle.errors import BadInput
from unidle.login import login_name
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.store.sql import SqlStore
    from unidle.view.jobs import JobView
    from unidle.view.state import View

_AT_ONCE: Final = 1000  # jobs in one event of the log
_NAMED: Final = 20

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")]


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command("rm")(rm)
    app.command("prune")(prune)


def rm(
    jobs: JobsArgument,
    store: StoreOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Remove jobs that have ended, with their logs and reports.

    Their time stays in the ledger, and checkpoints are not touched. A job that runs or waits is refused.
    """
    from unidle.control.queries.find import find_job

    opened = _open(store, dry_run)
    view = read_view(opened)
    found = list({job.id: job for job in (find_job(view, name, alone=True) for name in jobs)}.values())
    for job in found:
        if not job.terminal:
            raise BadInput(
                f"{job.id} is {job.state}", field="JOB", value=job.spec.name,
                remedy=f"`unidle cancel {job.id}` ends it; only jobs that have ended are removed",
            )  # fmt: skip
    _remove(opened, view, found, dry_run, as_json)


def prune(
    older: Annotated[
        str | None,
        typer.Option(
            "--older", metavar="TIME", show_default=False,
            help="Minimum time since the end of a job: 12h, 30d; default: the retention of the fleet.",
        ),
    ] = None,
    store: StoreOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Remove all jobs that ended long ago, as `unidle rm` does.

    Without --older, jobs beyond a limit of the fleet's retention are removed; jobs that `unidle keep` keeps stay.
    The remains of an interrupted removal are deleted, too.
    """
    from unidle.files.values import duration_ns

    try:
        older_ns = None if older is None else duration_ns(older)
    except ValueError:
        raise BadInput(
            "is not a time", field="--older", value=older, remedy="for instance 12h or 30d"
        ) from None
    opened = _open(store, dry_run)
    view = read_view(opened)
    if older_ns is None:
        found = _beyond_retention(opened, view)
    else:
        before_ns = now_of(view) - older_ns
        found = [view.jobs[name] for name, ended_ns in view.stored.items() if ended_ns <= before_ns]
    _remove(opened, view, found, dry_run, as_json)


def _beyond_retention(opened: SqlStore, view: View) -> list[JobView]:
    """Jobs beyond a limit of the fleet's retention, as of now."""
    from unidle.control.retention.policy import beyond
    from unidle.control.retention.removal import files_of, size_of
    from unidle.control.store_files import state_dir
    from unidle.store.archives import ArchiveShelf

    policy, state = view.fleet.retention, state_dir(opened, data_dir())
    if not policy.removes:
        raise BadInput(
            "the fleet of this store has no retention with a limit", field="--older",
            remedy="give --older 30d, or set retention in the fleet file and start `unidle up` with it",
        )  # fmt: skip
    sizes = ArchiveShelf(opened).sizes()
    if policy.size_bytes is not None:
        for name in view.stored:
            sizes[name] = sizes.get(name, 0) + size_of(files_of(state, name))
    sizes = {name: size for name, size in sizes.items() if name in view.stored}
    return [view.jobs[name] for name, _ in beyond(view, policy, sizes, now_of(view), lambda _: False)]


def _open(store: str | None, dry_run: bool) -> SqlStore:
    from unidle.store.open import open_store

    return open_store(store_address(store), create=False, read_only=dry_run)


def _remove(opened: SqlStore, view: View, jobs: Sequence[JobView], dry_run: bool, as_json: bool) -> None:
    """Have the log say it, then delete the files of these jobs, and those that an earlier removal left."""
    from unidle.control.retention.removal import delete_jobs, drop_rows, with_files
    from unidle.control.store_files import state_dir

    state = state_dir(opened, data_dir())
    names = [job.id for job in jobs if not _is_held(state, job.id)]
    if not dry_run:
        for first in range(0, len(names), _AT_ONCE):
            _ask(opened, names[first : first + _AT_ONCE])
    left = [name for name in with_files(state) if name in view.removed]
    freed, problems = delete_jobs(state, [*names, *left], dry_run=dry_run)
    profiles, archives = drop_rows(opened, opened.token(), {*names, *view.removed}, dry_run=dry_run)
    opened.close()
    if as_json:
        removed = [{"job": name, "bytes": freed[name]} for name in names]
        print_json(
            {
                "removed": removed, "bytes": sum(freed.values()), "profile_bytes": profiles,
                "archive_bytes": archives, "dry_run": dry_run,
            }
        )  # fmt: skip
    else:
        _say(names, freed, profiles, archives, dry_run)
    for problem in problems:
        warn(problem)
    if problems or len(names) < len(jobs):
        raise typer.Exit(1)


def _is_held(state: Path, job: str) -> bool:
    from unidle.control.retention.removal import is_held

    held = is_held(state, job)
    if held:
        warn(f"{job} stays: a process of it is left")
    return held


def _ask(opened: SqlStore, names: Sequence[str]) -> None:
    import msgspec

    from unidle.cli.drive import done_by_controller
    from unidle.control.inbox import RemoveRequest

    request = opened.request("remove", msgspec.json.encode(RemoveRequest(tuple(names), login_name())))
    done_by_controller(
        opened, request, "unidle rm", lambda view: view.removed.keys() >= set(names), "remove the jobs"
    )


def _say(names: Sequence[str], freed: dict[str, int], profiles: int, archives: int, dry_run: bool) -> None:
    verb = "would be removed" if dry_run else "removed"
    for name in names[:_NAMED]:
        say(f"{name} {verb}, {_size(freed[name])}")
    if len(names) > _NAMED:
        say(f"and {counted(len(names) - _NAMED, 'more job')}")
    total = f"{counted(len(names), 'job')} {verb}; {_size(sum(freed.values()))} {'would be ' * dry_run}freed"
    if older := [name for name in freed if name not in set(names) and freed[name]]:
        total += f", with what was left of {counted(len(older), 'job')} removed before"
    say(total)
    for what, size in (("profiles", profiles), ("archives", archives)):
        if size:
            say(f"{what}: {_size(size)} inside the store; `unidle store compact` returns them to the disk")


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:.0f} KiB"
