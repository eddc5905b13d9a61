"""Events of hosts, applied to the view: what others use, ranks that do not answer, slices that a host really gave."""

from __future__ import annotations

from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.jobs import RankPlace
from unidle.view import fold_fleet as of_fleet
from unidle.view.fold_jobs import attempt_of, job_of, started_use
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import answer_again, fall_silent
from unidle.view.records import RankLanding, TakenView, users_of
from unidle.view.state import View
from unidle.view.stranded import strand


def node_taken(view: View, event: ev.NodeTaken, now: int) -> None:
    cpu_milli, book = round(event.cpus * 1000), view.book
    before = users_of(view.taken.get(event.node))
    some = bool(cpu_milli or event.memory_bytes or event.devices)
    taken = None
    if some and event.node in view.nodes:
        taken = TakenView(now, cpu_milli, event.memory_bytes, event.devices, event.because, event.pods)
    view.set_taken(event.node, taken)
    after = users_of(taken)
    strand(view, (event.node,), now, asks=True)
    for device in sorted({device for device, _ in before.items() ^ after.items()}):
        for k in book.on(device):
            if of_fleet.is_open(view, k):
                of_fleet.set_down(view, k, now)


def pods_seen(view: View, event: ev.PodsSeen, now: int) -> None:
    attempt = attempt_of(view, job_of(view, event.job), event.attempt)
    if attempt.live:
        added = {node: [*attempt.pod_phases.get(node, ()), (now, event.phase)] for node in event.nodes}
        attempt.pod_phases = {**attempt.pod_phases, **added}
        view.touch(event.job)


def ranks_silent(view: View, event: ev.RanksSilent, now: int) -> None:
    attempt = attempt_of(view, job_of(view, event.job), event.attempt)
    if not attempt.live:
        return
    for number in event.ranks:
        rank = attempt.ranks[_rank(view, attempt, event.job, number)]
        if event.since_ns:
            fall_silent(rank, min(event.since_ns, now))
        else:
            answer_again(rank, now)
    view.touch(event.job)


def attempt_disrupted(view: View, event: ev.AttemptDisrupted, now: int) -> None:
    attempt = attempt_of(view, job_of(view, event.job), event.attempt)
    if attempt.live and attempt.disrupted is None:
        attempt.disrupted, attempt.disrupted_ns = event.because, now
        view.touch(event.job)


def rank_landed(view: View, event: ev.RankLanded, now: int) -> None:
    job = job_of(view, event.job)
    attempt = attempt_of(view, job, event.attempt)
    if not attempt.live:
        return
    number = _rank(view, attempt, event.job, event.rank)
    had, got = attempt.places[number].slices, event.slices
    if not may_land(view, had, got):
        raise _damaged(view, f"{event.job} rank {number}: {', '.join(got)}")
    lost, new = _differ(had, got)
    if not new:
        return
    attempt.landings = [*attempt.landings, RankLanding(now, number, attempt.places[number].node, had)]
    for old, piece in zip(lost, new, strict=True):
        _exchange(view, (job, attempt, number), old, piece, now)
    _put(view, job, attempt, RankPlace(number, event.node, got))


def may_land(view: View, had: tuple[str, ...], got: tuple[str, ...]) -> bool:
    """Whether a rank with slices ``had`` can have ``got`` instead: as many, of the same kind and share, and no parts made on demand."""
    occupancy, book = view.occupancy, view.book
    if len(got) != len(had) or len(set(got)) != len(got) or not occupancy.knows_all((*had, *got)):
        return False
    if any(map(occupancy.is_part, (*had, *got))):
        return False
    lost, new = _differ(had, got)
    return all(
        occupancy.kind_of(a) == occupancy.kind_of(b)
        and book.slices[book.index(a)].share_ppm == book.slices[book.index(b)].share_ppm
        for a, b in zip(lost, new, strict=True)
    )


def _differ(had: tuple[str, ...], got: tuple[str, ...]) -> tuple[list[str], list[str]]:
    return [piece for piece in had if piece not in got], [piece for piece in got if piece not in had]


def _exchange(view: View, holder: tuple[JobView, AttemptView, int], old: str, new: str, now: int) -> None:
    """The rank has ``new`` instead of ``old``; who held ``new`` has ``old`` from now on."""
    job, attempt, _ = holder
    book = view.book
    k, n = book.index(old), book.index(new)
    other = _holder_of(view, new) if book.held[n] else None
    book.leave_unused(k, now, job.id, attempt.number)
    if other is not None:
        book.leave_unused(n, now, other[0].id, other[1].number)
    attempt.since.pop(old, None)
    if other is not None:
        other[1].since.pop(new, None)
    of_fleet.entered(view, (n,), now)
    book.take((n,), now, now, job.id)
    if not job.spec.is_filler:  # what fillers use is free for all others
        view.occupancy.take((new,))
    attempt.since = {**attempt.since, new: now}
    view.fillers_moved()
    if other is None:
        _free(view, old, k, now)
        return
    their_job, theirs, their_rank = other
    if their_job.spec.is_filler != job.spec.is_filler:
        view.occupancy.give_back((old if their_job.spec.is_filler else new,))
        if job.spec.is_filler:
            view.occupancy.take((old,))
    book.take((k,), now, now, their_job.id)
    theirs.since = {**theirs.since, old: now}
    place = theirs.places[their_rank]
    theirs.landings = [*theirs.landings, RankLanding(now, their_rank, place.node, place.slices)]
    slices = tuple(old if piece == new else piece for piece in place.slices)
    nodes = {view.book.slices[book.index(piece)].node for piece in slices}
    _put(view, their_job, theirs, RankPlace(their_rank, min(nodes), slices))


def _free(view: View, piece: str, k: int, now: int) -> None:
    """The slice has no holder any more; it may still be one that takes no new job."""
    view.occupancy.give_back((piece,))
    if view.book.down or view.barred or view.spares:
        of_fleet.set_down(view, k, now)


def _put(view: View, job: JobView, attempt: AttemptView, place: RankPlace) -> None:
    """The rank is there now: what it requests, and what its queue is charged, moves with it."""
    view.request(job, -1)
    view.count_firm(job, -1)
    places = attempt.places
    attempt.places = (*places[: place.rank], place, *places[place.rank + 1 :])
    view.request(job, +1)
    view.count_firm(job, +1)
    view.usage.end(job.id, view.time_ns, view.fleet.history.half_life_ns)
    started_use(view, job, attempt.places)
    view.touch(job.id)
    strand(view, (there.node for there in (*places, place)), view.time_ns, asks=job.spec.requests.given)


def _holder_of(view: View, slice_id: str) -> tuple[JobView, AttemptView, int] | None:
    for name in sorted(view.live):
        job = view.jobs.open[name]
        attempt = job.attempts[-1]
        for place in attempt.places if attempt.yielded_ns is None else ():
            if slice_id in place.slices:
                return job, attempt, place.rank
    return None


def _rank(view: View, attempt: AttemptView, job: str, number: int) -> int:
    if not 0 <= number < len(attempt.ranks):
        raise _damaged(view, f"{job} rank {number}")
    return number


def _damaged(view: View, value: str) -> StoreDamaged:
    return StoreDamaged(
        "the log names a rank, or slices, that its gang cannot have",
        field=f"event {view.seq}", value=value, remedy="run `unidle store check`",
    )  # fmt: skip
