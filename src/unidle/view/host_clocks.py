"""How well the clocks of hosts are known: as measured, and by how much the times of an attempt may be wrong. Pure.

Times of a rank's marks are of its host's clock, moved to the log's by what was measured when the rank was started. They
are wrong by the error of that measurement, and by what the two clocks have drifted apart since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from unidle.jobs import RankPlace

if TYPE_CHECKING:
    from unidle.events.hosts import ClockMeasured
    from unidle.view.jobs import AttemptView
    from unidle.view.state import View

_NEWS_NS: Final = 1_000_000  # smaller errors are all alike
_NEWS_TIMES: Final = 2


class ClockView(msgspec.Struct, array_like=True, frozen=True):
    """The clock of a host, as measured at ``at_ns`` (see ``unidle.events.hosts.ClockMeasured``).

    ``worst_ns``: the largest error of any attempt that has ended there.
    """

    at_ns: int
    boot: str
    offset_ns: int
    error_ns: int
    worst_ns: int = 0


class AttemptClock(msgspec.Struct, array_like=True, frozen=True):
    """The clock of a host as it was when an attempt was placed there; after its end ``error_ns`` has the drift since, too."""

    boot: str
    offset_ns: int
    error_ns: int


def is_news(known: ClockView | None, boot: str, offset_ns: int, error_ns: int) -> bool:
    """Whether a measurement is worth an event: the first one, one that contradicts the last, or of quite another error."""
    if known is None or known.boot != boot:
        return True
    if abs(offset_ns - known.offset_ns) > error_ns + known.error_ns:
        return True
    small, large = sorted((error_ns, known.error_ns))
    return large >= _NEWS_NS and large > _NEWS_TIMES * small


def clock_measured(view: View, event: ClockMeasured, now: int) -> None:
    before = view.clocks.get(event.node)
    worst_ns = before.worst_ns if before is not None else 0
    view.clocks[event.node] = ClockView(now, event.boot, event.offset_ns, event.error_ns, worst_ns)


def at_start(view: View, places: Iterable[RankPlace]) -> dict[str, AttemptClock]:
    """The clocks of the nodes of an attempt that is placed now, as far as they are known."""
    known = {place.node: view.clocks[place.node] for place in places if place.node in view.clocks}
    return {node: AttemptClock(one.boot, one.offset_ns, one.error_ns) for node, one in known.items()}


def attempt_ended(view: View, attempt: AttemptView) -> None:
    """From now on the errors of the attempt's times stay as they are."""
    attempt.clocks = {
        node: msgspec.structs.replace(clock, error_ns=_error_ns(clock, view.clocks.get(node)))
        for node, clock in (at_start(view, attempt.places) | attempt.clocks).items()
    }
    for node, clock in attempt.clocks.items():
        known = view.clocks.get(node)
        if known is not None and known.worst_ns < clock.error_ns:
            view.clocks[node] = msgspec.structs.replace(known, worst_ns=clock.error_ns)


def clock_errors(view: View, attempt: AttemptView) -> dict[str, int]:
    """By node, by how much times of the attempt's ranks may be wrong, in ns; a node that is not in it has the log's clock."""
    if not attempt.live:
        return {node: clock.error_ns for node, clock in attempt.clocks.items()}
    known = at_start(view, attempt.places) | attempt.clocks
    return {node: _error_ns(clock, view.clocks.get(node)) for node, clock in known.items()}


def node_errors(view: View) -> dict[str, int]:
    """By node, by how much times of ranks there may be wrong at most, in ns: of all attempts that the log has."""
    found = {node: max(clock.error_ns, clock.worst_ns) for node, clock in view.clocks.items()}
    for job in view.live if found else ():
        for node, error_ns in clock_errors(view, view.jobs.open[job].attempts[-1]).items():
            found[node] = max(found.get(node, 0), error_ns)
    return found


def order_is_known(attempt: AttemptView, a: int, b: int) -> bool:
    """Whether it is known which of two ranks ended first: they ended further apart than their hosts' clocks may be."""
    one, other = attempt.places[a].node, attempt.places[b].node
    ends = attempt.ranks[a].end_ns, attempt.ranks[b].end_ns
    if one == other or ends[0] is None or ends[1] is None:
        return True
    return abs(ends[0] - ends[1]) >= _of(attempt.clocks, one) + _of(attempt.clocks, other)


def _of(clocks: Mapping[str, AttemptClock], node: str) -> int:
    return clocks[node].error_ns if node in clocks else 0


def _error_ns(start: AttemptClock, now: ClockView | None) -> int:
    """Of times that are corrected by ``start``. A clock of another boot shows nothing about them."""
    if now is None or now.boot != start.boot:
        return start.error_ns
    return max(start.error_ns, abs(now.offset_ns - start.offset_ns) + now.error_ns)
