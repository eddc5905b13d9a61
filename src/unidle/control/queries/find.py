"""Which job a person means: by id, by the beginning of an id, by name, or the newest one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from unidle.errors import BadInput
from unidle.view.jobs import JobView
from unidle.view.records import Removal
from unidle.view.state import View
from unidle.words import counted

_LISTED: Final = 8
_COMPARED: Final = 500
_REMEDY: Final = "`unidle list --all` shows the jobs"


def find_job(view: View, name: str, *, removed: bool = False, alone: bool = False) -> JobView:
    """The job that ``name`` means: an id, the name of a job, or the beginning of an id, in this order.

    Where several jobs fit, one that has not ended takes precedence over those that have; of several ended jobs of one
    name it is the newest. ``removed``: a removed job is found by its id, too. ``alone``: a name of several ended
    jobs leaves a choice. Errors: :class:`BadInput` where none fits, or where the name leaves a choice.
    """
    if name in view.jobs and (removed or name not in view.removed):
        return view.jobs[name]
    if name and (found := _one_of(_named(view, name, _LISTED + 1 if alone else 1), name)):
        return found
    begins = [job_id for job_id in _listed(view) if job_id.startswith(name)] if name else []
    if found := _one_of([view.jobs[job_id] for job_id in _few(view, begins)], name):
        return found
    if (gone := _removed(view, name)) is not None:
        raise BadInput(how_removed(view.removed[gone]), field="JOB", value=gone, remedy=_REMEDY)
    raise BadInput("no such job in this store", field="JOB", value=name, remedy=_near(view, name) or _REMEDY)


def newest_job(view: View, *, live: bool = False, started: bool = False) -> JobView:
    """The job that is meant where none is named: the newest that has not ended, else the newest of all.

    ``live``: only one that has not ended. ``started``: one that ever started takes precedence. Errors: :class:`BadInput`.
    """
    jobs = view.jobs
    newest = next(reversed(jobs.open), None)
    if started:
        begun = (job.id for job in jobs.open.awake() if job.attempts)
        newest = max(begun, key=lambda name: jobs.open[name].order, default=None)
    if newest is not None:
        return jobs.open[newest]
    if live:
        problem = "no job of this store runs" if started else "no job of this store runs or waits"
        raise BadInput(problem, field="JOB", remedy="`unidle list` shows what it has")
    found = next(_ended(view), None) or next((jobs.open[name] for name in reversed(jobs.open)), None)
    if found is None:
        raise BadInput(
            "this store has no job", field="JOB", remedy="`unidle run` or `unidle submit` makes one"
        )
    return found


def last_ended(view: View, most: int) -> list[JobView]:
    """The jobs that ended last, as many as ``most``, in the order of their submission."""
    names = [job_id for job_id in reversed(view.ended) if job_id in view.stored][:most]
    if len(names) < most and len(view.stored) > len(names):
        known = set(names)
        older = (job.id for job in _ended(view) if job.id not in known)
        names += islice(older, most - len(names))
    return sorted((view.jobs[name] for name in names), key=lambda job: job.order)


def not_ended(view: View, most: int | None = None) -> list[JobView]:
    """Jobs that have not ended, in the order of submission; of those that hold nothing the last ``most``."""
    jobs = view.jobs.open
    if most is None:
        return list(jobs.values())
    waiting = islice((name for name in reversed(jobs) if name not in view.live), most)
    shown = {*view.live, *waiting}
    return [jobs[name] for name in jobs if name in shown]


def listed(view: View) -> Iterator[JobView]:
    """All jobs that were not removed, in the order of submission."""
    return (view.jobs[job_id] for job_id in _listed(view))


def how_removed(removal: Removal) -> str:
    """By whom and when a job was removed, in words."""
    date = datetime.fromtimestamp(removal.at_ns / 1e9).astimezone().date()
    why = f" ({removal.why})" if removal.why else ""
    return f"the job was removed by {removal.by or 'a user'} on {date.isoformat()}{why}"


def _removed(view: View, name: str) -> str | None:
    """The removed job of this id, or the last removed one whose id begins so."""
    if name in view.removed or not name:
        return name or None
    return next((job_id for job_id in reversed(view.removed) if job_id.startswith(name)), None)


def _listed(view: View) -> Iterator[str]:
    return (job_id for job_id in view.jobs if job_id in view.stored or job_id in view.jobs.open)


def _backwards(view: View) -> Iterator[str]:
    return (job_id for job_id in reversed(view.jobs) if job_id in view.stored or job_id in view.jobs.open)


def _ended(view: View) -> Iterator[JobView]:
    """Jobs that have ended, the last submitted first."""
    return (view.jobs[job_id] for job_id in _backwards(view) if job_id not in view.jobs.open)


def _named(view: View, name: str, most: int) -> list[JobView]:
    """Live jobs of that name; without one the newest of the ended ones, as many as ``most``.

    Reading an ended job means unpacking it. An id usually begins with the job's name, so such ids are read first.
    """
    jobs = view.jobs
    live = [jobs.open[job_id] for job_id in jobs.open if jobs.name_of(job_id) == name][: _LISTED + 1]
    if live:
        return live
    for begins in (True, False):
        ended = (view.jobs[job_id] for job_id in _backwards(view) if job_id.startswith(name) == begins)
        if found := list(islice((job for job in ended if job.spec.name == name), most)):
            return found
    return []


def _few(view: View, names: Sequence[str]) -> Sequence[str]:
    """Of these jobs those that have not ended, else all; no more than are needed to list them."""
    return ([name for name in names if name in view.jobs.open] or names)[: _LISTED + 1]


def _one_of(jobs: list[JobView], name: str) -> JobView | None:
    """The one job; :class:`BadInput` with a list where there are several to choose from."""
    live = [job for job in jobs if not job.terminal]
    fits = live or jobs
    if len(fits) <= 1:
        return fits[0] if fits else None
    listed = ", ".join(f"{job.id} ({job.state})" for job in fits[:_LISTED])
    many = "many jobs" if len(fits) > _LISTED else counted(len(fits), "job")
    more = ", ..." if len(fits) > _LISTED else ""
    raise BadInput(
        f"fits {many}{' that have not ended' if live else ''}", field="JOB", value=name,
        remedy=f"name one of {listed}{more}",
    )  # fmt: skip


def _near(view: View, name: str) -> str:
    """A question for a name that is nearly one of the latest jobs'."""
    from difflib import get_close_matches

    latest = list(islice(_backwards(view), _COMPARED))
    names = list(dict.fromkeys(view.jobs[job_id].spec.name for job_id in latest))
    near = get_close_matches(name, [*names, *latest], 1) if name else []
    return f"did you mean {near[0]}?" if near else ""
