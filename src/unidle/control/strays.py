"""Ranks that run in a store's directory although the store does not know their job."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from unidle.engine.local import rundir
from unidle.errors import StoreError, StoreHeld

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


def _is_alive(place: Path) -> bool:
    try:
        lock = rundir.try_lock(str(place))
    except FileNotFoundError:  # removed meanwhile
        return False
    if lock is None:
        return True
    rundir.release(lock)
    return False
