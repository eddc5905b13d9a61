"""Several clusters: look at each, choose one for a job, and move jobs that wait where another could start them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from unidle.control.inbox import CancelRequest, SubmitRequest, add_submitted, signed
from unidle.errors import BadInput, UnidleError
from unidle.files.clusters import ClusterAddress, load_summary
from unidle.fleet.summary import CapacitySummary
from unidle.jobs import JobSpec, Reason
from unidle.place.dispatch import ClusterVerdict, Prefer, judge, ranked
from unidle.place.summary import summary_of
from unidle.store.open import open_store
from unidle.store.protocol import Store
from unidle.view.jobs import JobView
from unidle.view.snapshot import load_view
from unidle.view.state import View

MOVER: Final = "unidle clusters: moved to "
LOOKED_BACK: Final = 2_000
"""Jobs, the latest to be submitted, among which a move that was not finished is looked for."""


@dataclass(frozen=True, slots=True)
class ClusterSight:
    """A cluster as it is now: a summary or why there is none, and its view where its store is at hand."""

    address: ClusterAddress
    summary: CapacitySummary | None
    view: View | None
    problem: str = ""

    @property
    def name(self) -> str:
        return self.address.name


@dataclass(frozen=True, slots=True)
class ClusterMove:
    """A waiting job that another cluster could start now. ``left``: it left its cluster already."""

    job: str
    spec: JobSpec
    source: ClusterAddress
    target: ClusterAddress
    because: Reason
    left: bool = False


def look(
    clusters: Sequence[ClusterAddress], now_ns: int, stores: ExitStack | None = None
) -> list[ClusterSight]:
    """Each cluster as it is now. One that cannot be reached is there with its problem.

    ``stores`` closes their stores; without it they are closed at once, and ended jobs cannot be read of the views.
    """
    with ExitStack() as own:
        return [_look(address, now_ns, own if stores is None else stores) for address in clusters]


def _look(address: ClusterAddress, now_ns: int, stores: ExitStack) -> ClusterSight:
    try:
        if address.store is None:
            assert address.summary is not None
            return ClusterSight(address, load_summary(address.summary), None)
        view = _view(address.store, stores)
        if not view.fleet.nodes:
            return ClusterSight(address, None, None, "no controller has run on its store yet")
        return ClusterSight(address, summary_of(view, max(now_ns, view.time_ns)), view)
    except UnidleError as error:
        return ClusterSight(address, None, None, error.line())


def _view(store: str, stores: ExitStack) -> View:
    opened = open_store(store, create=False, read_only=True)
    stores.callback(opened.close)
    requests = opened.requests()
    view = load_view(opened)
    add_submitted(view, requests)
    return view


def verdicts(seen: Sequence[ClusterSight], spec: JobSpec, prefer: Prefer) -> list[ClusterVerdict]:
    """What each cluster that was seen can do for the job, the best first; those with a store decide themselves."""
    found = [
        _proved(one, spec, judge(one.name, one.summary, spec)) for one in seen if one.summary is not None
    ]
    currencies = {verdict.currency for verdict in found if verdict.cost is not None}
    if prefer == "cost" and len(currencies) > 1:
        raise BadInput(
            "the clusters have prices in different currencies", field="prefer", value=sorted(currencies),
            remedy="use prefer: start, or the same currency in all fleet files",
        )  # fmt: skip
    return ranked(found, prefer)


def _proved(one: ClusterSight, spec: JobSpec, verdict: ClusterVerdict) -> ClusterVerdict:
    """A start that the summary promises, checked by the decision that the cluster itself would take."""
    if verdict.state != "now" or one.view is None:
        return verdict
    from dataclasses import replace

    from unidle.place.explain import GangRefusal
    from unidle.place.scheduler import Scheduler

    answer = Scheduler().try_one(one.view, spec)
    if not isinstance(answer, GangRefusal):
        return verdict
    state = "never" if answer.because.code == "never_fits" else "later"
    return replace(verdict, state=state, because=answer.because, start_in_ns=None, tier="")  # type: ignore[arg-type]


def chosen(seen: Sequence[ClusterSight], found: Sequence[ClusterVerdict]) -> ClusterSight | None:
    """The best cluster that a job can be sent to, if any holds it."""
    by_name = {one.name: one for one in seen}
    for verdict in found:
        if verdict.state != "never" and by_name[verdict.cluster].address.store is not None:
            return by_name[verdict.cluster]
    return None


def send(address: ClusterAddress, job: str, spec: JobSpec) -> str | None:
    """Put the job into the cluster's inbox. Returns the holder of its store; None if no process drives it."""
    assert address.store is not None
    return _with_store(address.store, lambda store: _submit(store, job, spec))


def _submit(store: Store, job: str, spec: JobSpec) -> str | None:
    store.request("submit", msgspec.json.encode(SubmitRequest(job, signed(store, spec)[0])))
    return store.holder()


def _with_store(address: str, work: Callable[[Store], str | None]) -> str | None:
    opened = open_store(address, create=False)
    try:
        return work(opened)
    finally:
        opened.close()


def moves(seen: Sequence[ClusterSight], prefer: Prefer) -> Iterator[ClusterMove]:
    """Jobs that wait, never ran, and that another cluster could start now; first moves that were not finished.

    A job that is moved takes room that the summary of its target still shows as free. So each call proposes
    at most one job for a cluster; call again with new summaries for the next.
    """
    yield from _unfinished(seen)
    taken: set[str] = set()
    waiting = [(job, one) for one in seen if one.view is not None for job in _waits(one.view)]
    for job, one in sorted(waiting, key=lambda pair: (pair[0].submitted_ns, pair[0].id)):
        others = [other for other in seen if other.name != one.name and other.name not in taken]
        found = [v for v in verdicts(others, job.spec, prefer) if v.state == "now"]
        target = chosen(others, found)
        if target is not None:
            taken.add(target.name)
            because = next(v.because for v in found if v.cluster == target.name)
            yield ClusterMove(job.id, job.spec, one.address, target.address, because)


def _waits(view: View) -> Iterator[JobView]:
    """Queued jobs that the cluster tried to place and could not start, and that have no attempt there."""
    for job in view.jobs.open.values():
        judged = job.verdict is not None and job.verdict.code != "not_taken_up"
        if job.state == "queued" and not job.attempts and judged and job.cancel_by is None:
            yield job


def _unfinished(seen: Sequence[ClusterSight]) -> Iterator[ClusterMove]:
    """Jobs that left one cluster and never arrived in the other: the mover died in between."""
    by_name = {one.name: one for one in seen}
    for one in seen:
        if one.view is None:
            continue
        for job_id in islice(reversed(one.view.jobs), LOOKED_BACK):
            job = one.view.jobs[job_id]
            target = by_name.get((job.cancel_by or "").removeprefix(MOVER))
            gone = job.state == "cancelled" and (job.cancel_by or "").startswith(MOVER)
            if gone and target is not None and target.view is not None and job.id not in target.view.jobs:
                because = Reason("unfinished", "left its cluster in an earlier move that was interrupted")
                yield ClusterMove(job.id, job.spec, one.address, target.address, because, left=True)


def carry_out(move: ClusterMove, settle: Callable[[Store, str, int], str]) -> bool:
    """Take the job out of its queue, then send it on under its own name; False where it started meanwhile.

    The job leaves the first queue before it enters the second, so it never runs twice. If the mover dies in
    between, the next call completes the move from the record that it left. ``settle(store, job, request)``
    waits until the request to leave is answered.
    """
    if not move.left:
        assert move.source.store is not None
        assert move.target.store is not None
        _with_store(move.target.store, lambda store: signed(store, move.spec)[1])  # before it leaves
        opened = open_store(move.source.store, create=False)
        try:
            body = CancelRequest(move.job, MOVER + move.target.name, only_waiting=True)
            settle(opened, move.job, opened.request("cancel", msgspec.json.encode(body)))
            job = load_view(opened).jobs[move.job]
            if job.state != "cancelled" or job.cancel_by != MOVER + move.target.name:
                return False
        finally:
            opened.close()
    send(move.target, move.job, move.spec)
    return True
