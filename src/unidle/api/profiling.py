"""Profile of running processes, for a given time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from unidle.errors import BadInput, CannotRun, TargetEnded

if TYPE_CHECKING:
    from unidle.scope.bottlenecks import Machine
    from unidle.scope.model import Profile
    from unidle.scope.targets import ProfileTarget
    from unidle.scope.tiers import ProfilerWatch
    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView

_PAUSE_S: Final = 0.2


def ranks_of(
    store: Store, job: JobView, chosen: Sequence[int] | None, *, children: bool = True
) -> ProfileTarget:
    """The ranks of a running job, or those that are chosen. Errors: BadInput, CannotRun."""
    from unidle.api.stores import data_dir
    from unidle.control.store_files import run_root
    from unidle.scope.targets import of_ranks, pids_of_ranks

    if job.live is None:
        raise CannotRun(f"the job does not run: it is {job.state}", field="JOB", value=job.id, remedy="`unidle list` shows the running jobs")  # fmt: skip
    ranks = range(len(job.live.ranks))
    for rank in chosen or ():
        if rank not in ranks:
            raise BadInput("the job has no such rank", field="--rank", value=rank, remedy=f"0 to {len(ranks) - 1}")  # fmt: skip
    wanted = ranks if chosen is None else chosen
    root, number = run_root(store, data_dir()), job.live.number
    if job.state == "starting" and not pids_of_ranks(root, job.id, number, wanted):
        raise CannotRun("the job starts: none of its ranks runs yet", field="JOB", value=job.id, remedy="try again when `unidle list` shows it as running")  # fmt: skip
    return of_ranks(root, job.id, number, wanted, children=children)


def look(
    target: ProfileTarget, seconds: float, goes_on: Callable[[], bool] = lambda: True, **how: Any
) -> tuple[Profile, Machine]:
    """Samples of the target in that time; ``how`` is for :func:`unidle.scope.tiers.watch`. Errors: see
    :func:`watched`.
    """
    from unidle.scope import injected
    from unidle.scope.targets import OtherPrograms, any_lives

    recorded = injected.recorded(target.pids)
    with watched(target, **how) as watch:
        others = OtherPrograms(target)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and goes_on():
            if not watch.run(min(left, _PAUSE_S)):
                break
        seen = target.named(watch.take())
        seen = injected.merged(seen, sorted({*target.pids, *(p.pid for p in seen.processes)}), recorded)
        machine = others.machine([process.pid for process in seen.processes])
    if not seen.samples and not any_lives(target.pids):
        raise has_ended(target)
    return seen, machine


def watched(target: ProfileTarget, **how: Any) -> ProfilerWatch:
    """Errors: BadInput, CannotRun, TargetEnded."""
    from unidle.scope.targets import any_lives
    from unidle.scope.tiers import watch

    try:
        return watch(target.roots, **how)
    except BadInput:
        if any_lives(target.pids):
            raise
        raise has_ended(target) from None


def has_ended(target: ProfileTarget) -> TargetEnded:
    return TargetEnded(
        "it ended before the first sample", field="JOB" if target.job else "PID", value=target.job or target.pids[0],
        remedy="start the profile while the job runs",
    )  # fmt: skip
