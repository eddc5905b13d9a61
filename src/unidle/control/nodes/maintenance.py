"""Maintenance of nodes: remedies for sick ones, checks before a gang starts, spares, and planned maintenance.

What few fleets need is loaded when there is work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.fleet.spares import Spares
from unidle.place.protocol import Place
from unidle.view.jobs import AttemptView, JobView
from unidle.view.spares import busy_nodes
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.control.nodes.preflight import Preflight
    from unidle.control.nodes.remedies import RemedyWatch
    from unidle.engine.node_commands import NodeCommands
    from unidle.engine.node_marks import NodeMark, NodeMarks
_KEEPING: tuple[str, ...] = ("", "unidle")
"""Placement policies that keep spares."""


class NodeMaintenance:
    """``commands`` makes what carries out remedies and checks; without it nothing is repaired, proved or held back.

    ``name``: of this controller, for the checks that it begins; ``marks``: an engine whose nodes others use, too.
    """

    def __init__(
        self,
        commands: Callable[[], NodeCommands] | None = None,
        name: str = "",
        marks: NodeMarks | None = None,
    ) -> None:
        self._make, self._name, self._marks = commands, name, marks
        self._marked: dict[str, NodeMark] | None = None
        self._commands: NodeCommands | None = None
        self._remedies: RemedyWatch | None = None
        self._preflight: Preflight | None = None
        self._spares = SpareWatch()

    @property
    def next_ns(self) -> int | None:
        """When :meth:`look` may have an answer though nothing happened."""
        times = [one.next_ns for one in (self._remedies, self._preflight) if one is not None]
        return min((at for at in times if at is not None), default=None)

    def asked(self, view: View, body: bytes, now_ns: int) -> Iterator[ev.Event]:
        """What follows from a :class:`unidle.control.nodes.remedies.GuardRequest`. Errors: msgspec's, where it is none."""
        import msgspec

        from unidle.control.nodes.remedies import GuardRequest

        request = msgspec.json.decode(body, type=GuardRequest)
        if request.verb == "links" and self._make is not None:
            return self._checks(self._make).asked(view, request.nodes, request.by, request.text)
        return self._mender().asked(view, request, now_ns)

    def holds(self, view: View, job: JobView, attempt: AttemptView) -> bool:
        """Whether the attempt is not to start yet: its nodes are checked first."""
        if self._make is None or not is_checked(view, job, attempt):
            return False
        return self._checks(self._make).holds(job, attempt)

    def look(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """What follows now; each event is to be applied to the view before the next is asked for."""
        if self._preflight is not None:
            yield from self._preflight.look(view, now_ns)
        if self._remedies is not None or not view.care.idle:
            yield from self._mender().look(view, now_ns)
        if view.fleet.guard.keeps_spares or view.spares:
            yield from self._spares.look(view)

    def act(self, view: View) -> None:
        """Start the remedies and checks that the log orders. Call it after the log is written."""
        if view.care.targets:
            self._mender().act(view)
        if self._preflight is not None:
            self._preflight.act()
        if self._marks is not None:
            self._show(view, self._marks)

    def _show(self, view: View, marks: NodeMarks) -> None:
        from unidle.control.nodes.marks import marks_of

        if (wanted := marks_of(view)) != self._marked:
            self._marked = wanted
            marks.mark(wanted)

    def excuse(self, view: View, job: JobView, event: ev.Event) -> ev.Event:
        """A gang that failed on a node which is being taken out waits again: it was not the job's fault."""
        return self._mender().excuse(view, job, event) if view.care.targets else event

    def _checks(self, make: Callable[[], NodeCommands]) -> Preflight:
        if self._preflight is None:
            from unidle.control.nodes.preflight import Preflight

            self._preflight = Preflight(self._shared(make), self._name)
        return self._preflight

    def _mender(self) -> RemedyWatch:
        if self._remedies is None:
            from unidle.control.nodes.remedies import RemedyWatch

            self._remedies = RemedyWatch(self._shared(self._make) if self._make is not None else None)
        return self._remedies

    def _shared(self, make: Callable[[], NodeCommands]) -> NodeCommands:
        if self._commands is None:
            self._commands = make()
        return self._commands


def is_checked(view: View, job: JobView, attempt: AttemptView) -> bool:
    """Whether the nodes of an attempt, or links between them, are to be checked before it starts."""
    return links_are_checked(view, attempt) or nodes_are_checked(view, job, attempt)


def links_are_checked(view: View, attempt: AttemptView) -> bool:
    """Whether links between the nodes of an attempt are to be checked before it starts."""
    return view.fleet.guard.between is not None and len({place.node for place in attempt.places}) > 1


def nodes_are_checked(view: View, job: JobView, attempt: AttemptView) -> bool:
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


class SpareWatch:
    """Determines the spares again after each new event; they follow from the view (``unidle.place.nodes.free``)."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._rule: Spares | None = None
        self._seq = -1

    def look(self, view: View) -> Iterator[ev.SparesSet]:
        """The spares, where they changed."""
        if view.seq == self._seq:
            return
        self._seq = view.seq
        if self._rule is None or self._fleet is not view.fleet:
            self._fleet, self._rule = view.fleet, Spares(view.fleet)
        spares = self._rule.of(busy_nodes(view), view.barred) if view.policy in _KEEPING else frozenset()
        if spares != view.spares:
            yield ev.SparesSet(tuple(sorted(spares)))


def in_the_way(view: View, place: Place, now_ns: int) -> list[str]:
    """Nodes of the place that have to be empty before the job is expected to end."""
    windows = view.care.windows
    if not windows:
        return []
    from unidle.guard.maintenance import expected_ns, runs_into

    job = view.jobs[place.job]
    return runs_into(
        (p.node for p in place.places), windows, expected_ns(job.spec, _predicted_ns(job)), now_ns
    )


def _predicted_ns(job: JobView) -> int | None:
    return next((p.value_ns for p in reversed(job.predictions) if p.what == "run_time"), None)
