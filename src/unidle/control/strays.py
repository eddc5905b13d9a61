"""What is in the directory of a store's ranks although the store's log does not have it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from unidle.engine.local import rundir
from unidle.errors import StoreError, StoreHeld

if TYPE_CHECKING:
    from unidle.view.state import View

_NAMED = 4


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
