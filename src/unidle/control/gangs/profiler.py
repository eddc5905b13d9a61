"""The controller's part of continuous mode: findings about ranks of this machine, as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from unidle.events import types as ev
from unidle.scope.continuous.process import Live, ProfilerOrders, ProfilerProcess
from unidle.view.state import View


class ProfileSource(Protocol):
    """Where profiles of running ranks come from."""

    def take(self, view: View) -> Iterator[ev.Event]:
        """The findings since the last call."""
        ...

    def close(self) -> None:
        """End what profiles; findings that it has not reported are lost."""
        ...


class Profiler:
    """Profiles ranks of this machine, in a process of its own: see :class:`ProfilerProcess`."""

    def __init__(self, orders: ProfilerOrders, errors: Path, *, command: Sequence[str] = ()) -> None:
        self._process = ProfilerProcess(orders, errors, command=command)

    @property
    def pid(self) -> int | None:
        """The process that profiles now; None without one."""
        return self._process.pid

    def take(self, view: View) -> Iterator[ev.Event]:
        """The findings since the last call. Also sends the process the list of attempts that run now."""
        self._process.attend(live_in(view))
        for event in self._process.found():
            if not isinstance(event, ev.ProfilerSet) or event.why_not != view.profiler:
                yield event

    def close(self) -> None:
        self._process.close()


def live_in(view: View) -> Live:
    """The attempts all of whose ranks were started."""
    return tuple(
        (job, attempt.number, len(attempt.ranks))
        for job in sorted(view.live)
        if (attempt := view.jobs.open[job].live) is not None and attempt.all_spawned
    )
