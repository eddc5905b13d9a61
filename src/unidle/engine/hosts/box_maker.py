"""How boxes come to be on nodes: what the engine of hosts needs of that, and the way by agents.

The state machine of gangs requests a box by node and job, and takes it from there once the box has dialled. Who makes it
is behind :class:`BoxMaker`: the agent of the node here, pods in ``unidle.engine.kube``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from unidle.engine.hosts.box_link import BoxLink
from unidle.engine.hosts.gang_state import GangState, Key
from unidle.engine.hosts.grants import RankGrants
from unidle.engine.hosts.host_nodes import HostNodes
from unidle.engine.hosts.kept_output import KeptOutput
from unidle.engine.hosts.outbox import HubFacts, Outbox
from unidle.engine.hosts.timing import HostsTiming
from unidle.engine.protocol import StartGang
from unidle.fleet import Fleet
from unidle.hub import frames
from unidle.jobs import Reason


class BoxMaker(Protocol):
    """Makes boxes and ends them. Every call may be repeated; none waits. A box that is there is not made again.

    ``takes_parts``: whether ranks in its boxes can have parts of devices.
    """

    takes_parts: bool

    def wanted(self, command: StartGang) -> str:
        """A gang is to be started, or was adopted: what its boxes have to be. Why they cannot be made, else empty."""
        ...

    def fetch(self, link: BoxLink) -> None:
        """Make a box that is needed and has no connection, or find that it is there."""
        ...

    def met(self, link: BoxLink) -> None:
        """A box has dialled."""
        ...

    def leaves(self, link: BoxLink) -> bool:
        """Whether a box is ended here, also while it is still connected: no rank starts in it, and a new one is made."""
        ...

    def missing(self, link: BoxLink) -> str:
        """Why a box is not there, for an error."""
        ...

    def address(self, node: str, job: str) -> str:
        """Where the ranks of a box are reached from other nodes."""
        ...

    def ended_by(self, link: BoxLink) -> Reason:
        """Why a box that was stopped from outside ends its ranks."""
        ...

    def fenced(self, link: BoxLink) -> None:
        """The lease of a box is over, and its ranks are lost."""
        ...

    def finish(self, job: str) -> None:
        """The job is over; its boxes with a connection have been sent the end of their work."""
        ...

    def keep(self, jobs: Collection[str]) -> None:
        """Called once at the start: boxes of jobs other than these can go."""
        ...


class AgentBoxes:
    """The agent of a node starts the boxes there, and makes parts of its devices."""

    takes_parts = True

    def __init__(self, out: Outbox, nodes: HostNodes, hub: HubFacts, timing: HostsTiming) -> None:
        self._out, self._nodes, self._hub, self._timing = out, nodes, hub, timing

    def wanted(self, command: StartGang) -> str:  # noqa: ARG002 - a box is the same for all jobs
        return ""

    def fetch(self, link: BoxLink) -> None:
        """Ask the node's agent to start it, or to find that it runs."""
        agent, now_ns = self._nodes.agent(link.node), self._out.now_ns
        if agent is None or (link.asked_ns is not None and now_ns < link.asked_ns + self._timing.retry_ns):
            return
        link.asked_ns = now_ns

        def answered(done: frames.Done) -> None:
            if not done.ok and done.why:
                self._out.heed(done)
                link.trouble = done.why

        token = self._hub.box_token(link.node, link.job)
        number = self._out.ask(agent.id, answered)
        self._out.tell(agent.id, frames.Box(number, self._out.fence, link.job, token))

    def met(self, link: BoxLink) -> None:
        """Nothing to do: its agent reports its end."""

    def leaves(self, link: BoxLink) -> bool:  # noqa: ARG002 - one serves all attempts of its job
        return False

    def missing(self, link: BoxLink) -> str:
        return link.trouble or ("no agent" if self._nodes.agent(link.node) is None else "no answer")

    def address(self, node: str, job: str) -> str:  # noqa: ARG002 - boxes have the network of their host
        return self._nodes.address(node)

    def ended_by(self, link: BoxLink) -> Reason:
        return Reason("host_ends", f"host {link.node} ends its ranks", {"node": link.node})

    def fenced(self, link: BoxLink) -> None:
        """Nothing to do: the box ends its ranks itself, and waits for a connection."""

    def finish(self, job: str) -> None:
        """Nothing to do: a box that is sent its end, also with a later hello, ends."""

    def keep(self, jobs: Collection[str]) -> None:
        """Nothing to do: boxes of other jobs are ended when they dial."""


@dataclass(frozen=True, slots=True)
class Hosting:
    """Where nodes and boxes come from: what makes the parts of one engine. ``grants`` None: agents make parts of devices.
    ``kept`` keeps what is printed in boxes whose disk goes with them."""

    nodes: Callable[[Fleet, int, HostsTiming, Outbox], HostNodes]
    boxes: Callable[[Outbox, HostNodes, HubFacts, HostsTiming], BoxMaker]
    grants: Callable[[Outbox, HostNodes, dict[Key, GangState]], RankGrants] | None = None
    kept: KeptOutput | None = None


BY_AGENTS: Final = Hosting(HostNodes, AgentBoxes)
