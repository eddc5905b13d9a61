"""Who looks after nodes: remedies for sick ones, checks before a gang starts, spares. Each is loaded when there is work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unidle.events import types as ev
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.control.hooks import Hands
    from unidle.control.preflight import Preflight
    from unidle.control.remedies import RemedyWatch
    from unidle.control.spares import SpareWatch


class NodeCare:
    """``hands`` makes what carries out remedies and checks; without it nothing is repaired, proved or held back.

    ``name``: of this controller, for the checks that it begins.
    """

    def __init__(self, hands: Callable[[], Hands] | None = None, name: str = "") -> None:
        self._make_hands, self._name = hands, name
        self._hands: Hands | None = None
        self._remedies: RemedyWatch | None = None
        self._preflight: Preflight | None = None
        self._spares: SpareWatch | None = None

    @property
    def next_ns(self) -> int | None:
        """When :meth:`look` may have an answer though nothing happened."""
        times = [one.next_ns for one in (self._remedies, self._preflight) if one is not None]
        return min((at for at in times if at is not None), default=None)

    def asked(self, view: View, body: bytes, now_ns: int) -> Iterator[ev.Event]:
        """What follows from a :class:`unidle.control.remedies.GuardRequest`. Errors: msgspec's, where it is none."""
        import msgspec

        from unidle.control.remedies import GuardRequest

        return self._mender().asked(view, msgspec.json.decode(body, type=GuardRequest), now_ns)

    def holds(self, view: View, job: JobView, attempt: AttemptView) -> bool:
        """Whether the attempt is not to start yet: its nodes are checked first."""
        if self._make_hands is None or not _is_checked(view, job, attempt):
            return False
        if self._preflight is None:
            from unidle.control.preflight import Preflight

            self._preflight = Preflight(self._shared_hands(), self._name)
        return self._preflight.holds(job, attempt)

    def look(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """What follows now; each event is to be applied to the view before the next is asked for."""
        if self._preflight is not None:
            yield from self._preflight.look(view, now_ns)
        if self._remedies is not None or not view.care.idle:
            yield from self._mender().look(view, now_ns)
        if view.fleet.guard.keeps_spares or view.spares:
            yield from self._spare_watch().look(view)

    def act(self, view: View) -> None:
        """Start the remedies and checks that the log orders. Call it after the log is written."""
        if view.care.targets:
            self._mender().act(view)
        if self._preflight is not None:
            self._preflight.act()

    def excuse(self, view: View, job: JobView, event: ev.Event) -> ev.Event:
        """A gang that failed on a node which is being taken out waits again: it was not the job's fault."""
        return self._mender().excuse(view, job, event) if view.care.targets else event

    def _mender(self) -> RemedyWatch:
        if self._remedies is None:
            from unidle.control.remedies import RemedyWatch

            self._remedies = RemedyWatch(self._shared_hands())
        return self._remedies

    def _spare_watch(self) -> SpareWatch:
        if self._spares is None:
            from unidle.control.spares import SpareWatch

            self._spares = SpareWatch()
        return self._spares

    def _shared_hands(self) -> Hands | None:
        if self._hands is None and self._make_hands is not None:
            self._hands = self._make_hands()
        return self._hands


def _is_checked(view: View, job: JobView, attempt: AttemptView) -> bool:
    """Whether the nodes of an attempt are to be checked before it starts."""
    wish = view.fleet.guard.preflight
    if wish != "auto":
        return wish != "off"
    nodes = {place.node for place in attempt.places}
    if attempt.number > 1 and nodes <= {p.node for p in job.attempts[attempt.number - 2].places}:
        return False  # they were watched until a moment ago
    return len(attempt.places) > 1 or any(
        d.kind == "gpu" for n in view.fleet.nodes if n.id in nodes for d in n.devices
    )
