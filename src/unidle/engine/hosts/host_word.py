"""What is known of a box by the word of its host or cluster, and not from the box itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unidle.engine.hosts.box_link import BoxLink
from unidle.engine.protocol import Disrupted
from unidle.jobs import Reason

if TYPE_CHECKING:
    from unidle.engine.hosts.core import HostsCore


class HostWord:
    """Each call may be repeated. The time is that of the core's outbox."""

    def __init__(self, core: HostsCore) -> None:
        self._core = core

    def ends(self, link: BoxLink, because: Reason) -> None:
        """Others end a box: no failure of the job. No new rank is started in it; a gang that only waits for one waits on."""
        link.ending = True
        for gang in self._core.of_job.get(link.job, {}).values():
            if gang.risky(link.node):
                self._core.out.seen.append(Disrupted(*gang.key, because))

    def no_room(self, link: BoxLink, because: Reason) -> None:
        """A box cannot be where gangs wait for it, as others have the room: no failure of the job, which is placed again."""
        for gang in self._core.of_job.get(link.job, {}).values():
            if gang.unsettled and gang.on(link.node):
                self._core.out.seen.append(Disrupted(*gang.key, because))

    def ended(self, link: BoxLink, text: str) -> None:
        """No process of a box is alive: its ranks are lost, whatever its lease."""
        link.ending = False
        core = self._core
        core.lose(link, core.risky(link), text, f"the box of node {link.node} has ended")
        core.fetch(link)

    def hopeless(self, link: BoxLink, why: str) -> None:
        """A box that gangs wait for will not be there: they are given up."""
        for gang in list(self._core.of_job.get(link.job, {}).values()):
            if gang.unsettled and gang.on(link.node):
                self._core.moves.give_up(gang, why)

    def listed(self) -> None:
        """The boxes that there are are known from now on: what waited for that continues."""
        for gang in list(self._core.gangs.values()):
            self._core.moves.move(gang)
