"""What a round does where devices are in parts: who is stopped for one, when one is expected to be free, what it is charged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Protocol

from unidle.jobs import Reason
from unidle.place.queue.charge import affordable
from unidle.place.queue.cluster import Cluster
from unidle.place.queue.model import Demand, Running
from unidle.place.queue.preempt import Preemption
from unidle.place.queue.relief import Then, cheapest_relief, stop_for
from unidle.place.queue.victims import Candidates

NO_PART: Final = Reason(
    "no_victims", "stopping all jobs that may be stopped frees no part of a device for it"
)
PARTS_WAIT: Final = Reason("no_share", "no device that may be cut has a part for it")
PARTS_LATER: Final = "parts_later"  # code of the reason of one that waits for a part, with its planned start


class Parts(Protocol):
    """What a round needs if devices are cut on demand."""

    @property
    def then(self) -> Then: ...
    def apart(self, job: str) -> Hashable:
        """What sets jobs apart that ask for the same part."""

    def parts_of(self, job: str) -> Iterable[str]:
        """Devices that a running job has parts of."""

    def keep(self, job: str, devices: Iterable[str]) -> None:
        """These devices are in parts: from now on no other job gets one of them."""


def part_free_ns(
    cluster: Cluster, parts: Parts, leaf: int, demand: Demand, expected: Iterable[tuple[int, Running]]
) -> int | None:
    """When enough running jobs are expected to have left for its parts; None where no known end is enough."""
    ends = [(end_ns, run.job) for end_ns, run in expected if run.estimate_ns is not None]
    before = cluster.journal.mark()
    low, high, found = 1, len(ends), None
    while low <= high:
        middle = (low + high) // 2
        gone = frozenset(job for _, job in ends[:middle])
        for _, job in ends[:middle]:
            cluster.stop(job)
        if parts.then(affordable(cluster.shares, leaf, demand), gone) is None:
            low = middle + 1
        else:
            found, high = ends[middle - 1][0], middle - 1
        cluster.journal.back_to(before)
    return found


def starts_in(wait_ns: int) -> Reason:
    """Why one waits for a part that is expected to be free by then."""
    wait_s = wait_ns // 1_000_000_000
    text = f"as running jobs are expected to end, it starts in {wait_s} s"
    return Reason(PARTS_LATER, text, {"wait_s": wait_s})


def stop_in_parts(
    cluster: Cluster, known: Candidates, parts: Parts, demand: Demand,
    preempt_one: Callable[[Demand], Preemption | Reason], whole_then: Then, expires_ns: int,
) -> Preemption | Reason:  # fmt: skip
    """Stop the job that loses least, whether on whole devices or on parts; what they leave is held for the job. Or why not."""
    then = whole_then if demand.ranks else parts.then
    found = cheapest_relief(cluster, known, demand, then)
    before = cluster.journal.mark()
    answer = preempt_one(demand) if demand.ranks else None
    if found is not None and not (isinstance(answer, Preemption) and answer.lost_us <= found.cost):
        cluster.journal.back_to(before)
        answer = stop_for(cluster, demand, found, expires_ns)
        parts.keep(demand.job, found.room.parts)
    if not isinstance(answer, Preemption):
        return answer or NO_PART
    for victim in answer.victims:
        parts.keep(demand.job, parts.parts_of(victim))
    return answer


def whole_again(ends: Iterable[tuple[int, Running]]) -> list[tuple[int, Mapping[int, int]]]:
    """When devices in parts are expected to be whole: when the last of those on them ends."""
    last: dict[str, tuple[int, int]] = {}
    for end_ns, run in ends:
        last.update((device, (end_ns, node)) for device, node in run.parts.items())
    return [(end_ns, {node: 1}) for end_ns, node in last.values()]
