"""The directory of a store's jobs: its paths, its owner, and ranks in it that the store's log does not have."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from unidle import private
from unidle.engine.local.ranks import rundir
from unidle.errors import StoreError, StoreHeld
from unidle.store.protocol import Store

if TYPE_CHECKING:
    from unidle.view.state import View
_NAMED = 4


def state_dir(store: Store, data_dir: Path) -> Path:
    """Where logs, journals and reports of a store live: next to its file, else under ``data_dir``."""
    if store.url.startswith("sqlite:///"):
        return Path(store.url.removeprefix("sqlite:///") + ".d")
    return data_dir / (hashlib.sha256(store.url.encode()).hexdigest()[:16] + ".d")


def run_root(store: Store, data_dir: Path) -> Path:
    """Where the attempts' logs and journals are."""
    return state_dir(store, data_dir) / "runs"


def make_run_root(store: Store, data_dir: Path) -> Path:
    """:func:`run_root`, made with mode 0700. What is in it is run, so one that another user prepared is refused.

    One that only the user's own group may write (it was made under umask 002) is closed to it, with a line on stderr.

    Errors: :class:`unidle.errors.StoreError` with the owner of what is there.
    """
    state = state_dir(store, data_dir)
    try:
        state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in (state, state / "runs"):
            private.make_directory(directory, mended=say_line)
    except private.NotPrivate as error:
        raise StoreError(error.problem, field=error.path, remedy=error.remedy) from error
    except OSError as error:
        raise StoreError(
            f"the directory for the ranks' logs cannot be made: {error.strerror}", field=str(state / "runs"),
            remedy="free space on its disk, or check its permissions",
        ) from error  # fmt: skip
    return state / "runs"


def say_line(line: str) -> None:
    """One line for the user on stderr."""
    sys.stderr.write(f"unidle: {line}\n")


def refuse_foreign(store: Store) -> None:
    """The owner of a store decides what runs: only its owner runs the jobs, or anyone where that is root.

    Errors: :class:`unidle.errors.StoreError` with the owner.
    """
    if not store.url.startswith("sqlite:///"):
        return
    try:
        private.check_owned_file(store.url.removeprefix("sqlite:///"))
    except private.NotPrivate as error:
        raise StoreError(error.problem, field=error.path, remedy=error.remedy) from error


def refuse_strays(root: Path, jobs: Container[str]) -> None:
    """Errors: :class:`StoreHeld` where ranks of unknown jobs run: the store's file was deleted or replaced under them.

    They use devices that this store takes for free. :class:`StoreError` where that cannot be found out.
    """
    try:
        running = [
            place
            for job in sorted(root.iterdir())
            if not job.name.startswith(".") and job.name not in jobs
            for place in sorted(job.glob("*/rank*"))
            if (place / rundir.LOCK).exists() and _is_alive(place)
        ]
    except OSError as error:
        raise StoreError(
            f"whether ranks of other stores run cannot be found out: {error.strerror}",
            field=str(error.filename or root), remedy="check the owner, the mode and the disk of what is there",
        ) from error  # fmt: skip
    if running:
        named = ", ".join(str(place.relative_to(root)) for place in running[:_NAMED])
        more = ", ..." if len(running) > _NAMED else ""
        raise StoreHeld(
            f"ranks of jobs that this store does not know still run: {named}{more}", field=str(root),
            remedy="put back the store that they belong to, or end the supervisors whose pids are in their "
            f"{rundir.SUPERVISOR}",
        )  # fmt: skip


def unlogged(root: Path, view: View) -> Iterator[str]:
    """Jobs and attempts that have files but are not in the log, in sentences: events at its end are lost, or it is an older one.

    An attempt gets its files after its start is in the log.
    """
    try:
        places = sorted(root.iterdir())
    except OSError:
        return
    for place in places:
        name = place.name
        if name.startswith(".") or name in view.removed or name in view.stored:
            continue
        job = view.jobs.get(name)
        known = len(job.attempts) if job is not None else 0
        more = sorted(
            int(one.name) for one in place.glob("*") if one.name.isdigit() and int(one.name) > known
        )
        if more:
            what = f"attempt {more[0]}" if len(more) == 1 else f"attempts {more[0]} to {more[-1]}"
            yield (
                f"{name}: {what} has files in {root}, but is not in the log: its last events are lost, or it was restored "
                "from an older export"
            )


def _is_alive(place: Path) -> bool:
    try:
        lock = rundir.try_lock(str(place))
    except FileNotFoundError:  # removed meanwhile
        return False
    if lock is None:
        return True
    rundir.release(lock)
    return False
