"""``unidle rm`` and ``unidle prune``: jobs that have ended leave the lists, and their files go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from unidle.cli import complete
from unidle.cli.common import (
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
from unidle.errors import BadInput, StoreError
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
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB", show_default=False, autocompletion=complete.jobs,
            help="Job id, a unique prefix of it, or a name.",
        ),
    ],
    store: StoreOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Remove jobs that have ended, with their logs and reports.

    Their time stays in the ledger, and checkpoints are not touched. A job that runs or waits is refused.
    """
    from unidle.control.find import find_job

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
        str,
        typer.Option("--older", metavar="TIME", show_default=False, help="Minimum time since the end of a job: 12h, 30d."),
    ],
    store: StoreOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Remove all jobs that ended long ago, as `unidle rm` does.

    The remains of an interrupted removal are deleted, too.
    """
    from unidle.control.find import listed
    from unidle.files.values import duration_ns

    try:
        older_ns = duration_ns(older)
    except ValueError:
        raise BadInput(
            "is not a time", field="--older", value=older, remedy="for instance 12h or 30d"
        ) from None
    opened = _open(store, dry_run)
    view = read_view(opened)
    before_ns = now_of(view) - older_ns
    found = [job for job in listed(view) if job.ended_ns is not None and job.ended_ns <= before_ns]
    _remove(opened, view, found, dry_run, as_json)


def _open(store: str | None, dry_run: bool) -> SqlStore:
    from unidle.store.open import open_store

    return open_store(store_address(store), create=False, read_only=dry_run)


def _remove(opened: SqlStore, view: View, jobs: Sequence[JobView], dry_run: bool, as_json: bool) -> None:
    """Have the log say it, then delete the files of these jobs, and those that an earlier removal left."""
    from unidle.control.session import state_dir

    state = state_dir(opened, data_dir())
    names = [job.id for job in jobs if not _is_held(state, job.id)]
    if not dry_run:
        for first in range(0, len(names), _AT_ONCE):
            _ask(opened, names[first : first + _AT_ONCE])
    left = [name for name in _with_files(state) if name in view.removed]
    freed, problems = _delete(state, [*names, *left], dry_run)
    profiles = _drop_profiles(opened, {*names, *view.removed}, dry_run)
    opened.close()
    if as_json:
        removed = [{"job": name, "bytes": freed[name]} for name in names]
        print_json(
            {"removed": removed, "bytes": sum(freed.values()), "profile_bytes": profiles, "dry_run": dry_run}
        )
    else:
        _say(names, freed, profiles, dry_run)
    for problem in problems:
        warn(problem)
    if problems or len(names) < len(jobs):
        raise typer.Exit(1)


def _is_held(state: Path, job: str) -> bool:
    from unidle.control.removal import is_held

    held = is_held(state, job)
    if held:
        warn(f"{job} stays: a process of it is left")
    return held


def _ask(opened: SqlStore, names: Sequence[str]) -> None:
    import msgspec

    from unidle.cli.drive import answered
    from unidle.control.inbox import RemoveRequest

    request = opened.request("remove", msgspec.json.encode(RemoveRequest(tuple(names), login_name())))
    answered(opened, request, "unidle rm")
    if not read_view(opened).removed.issuperset(names):
        raise StoreError(
            "the controller did not remove the jobs", field=opened.url,
            remedy="restart `unidle up` with this version of unidle, then try again",
        )  # fmt: skip


def _with_files(state: Path) -> list[str]:
    """Jobs that have a run directory or a report."""
    found: set[str] = set()
    for place, ending in ((state / "runs", ""), (state / "reports", ".html")):
        if place.is_dir():
            found.update(path.name.removesuffix(ending) for path in place.iterdir())
    return sorted(found)


def _delete(state: Path, names: Iterable[str], dry_run: bool) -> tuple[dict[str, int], list[str]]:
    """Bytes freed by job, and what could not be deleted."""
    from unidle.control.removal import delete, files_of, size_of

    freed: dict[str, int] = {}
    problems = []
    for name in dict.fromkeys(names):
        files = files_of(state, name)
        before = size_of(files)
        try:
            if not dry_run:
                delete(files)
        except OSError as error:
            problems.append(f"{error.filename or name} cannot be deleted: {error.strerror or error}")
        freed[name] = before if dry_run else before - size_of(files)
    return freed, problems


def _drop_profiles(opened: SqlStore, names: set[str], dry_run: bool) -> int:
    """Bytes of kept profiles inside the store, which are free for new data then."""
    from unidle.store.profiles import ProfileShelf

    shelf = ProfileShelf(opened, opened.token())
    held = {name: one.n_bytes for name, one in shelf.held().items() if name in names}
    if held and not dry_run:
        shelf.drop_jobs(held)
    return sum(held.values())


def _say(names: Sequence[str], freed: dict[str, int], profiles: int, dry_run: bool) -> None:
    verb = "would be removed" if dry_run else "removed"
    for name in names[:_NAMED]:
        say(f"{name} {verb}, {_size(freed[name])}")
    if len(names) > _NAMED:
        say(f"and {counted(len(names) - _NAMED, 'more job')}")
    total = f"{counted(len(names), 'job')} {verb}; {_size(sum(freed.values()))} {'would be ' * dry_run}freed"
    if older := [name for name in freed if name not in set(names) and freed[name]]:
        total += f", with what was left of {counted(len(older), 'job')} removed before"
    say(total)
    if profiles:
        say(f"profiles: {_size(profiles)} inside the store; `unidle store compact` returns them to the disk")


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:.0f} KiB"
