"""Commands on the machines of nodes: checks and the site's remedies. Begun once by name; no call waits for their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unidle.fleet.policies import Between


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """unidle's own check. ``log_since_ns``: from when on the kernel log counts, by the clock of the log of events; None: since
    the machine's boot. It is a moment and no age, as a check may read the log long after it was ordered. ``used``:
    directories whose file systems are in use. ``kernel_log``: the source of the node, as in
    :class:`unidle.fleet.policies.WatchSources`; of a host with an agent, that of the agent counts. ``whole_node``: limits of the
    control group that the check runs in do not count, as ranks are in other ones: so of an agent in a pod.
    """

    tier: str
    log_since_ns: int | None = None
    used: tuple[str, ...] = ()
    kernel_log: str = ""
    whole_node: bool = False


@dataclass(frozen=True, slots=True)
class LinkCheck:
    """The part of one node in a check between ``world`` nodes (:mod:`unidle.probe.check.between`).

    Rank 0 leads, at ``address`` and ``port`` of its node; its outcome is that of the check. All ranks have one
    ``secret``, by which the leader recognises them. ``policy``: what is measured.
    """

    rank: int
    world: int
    address: str
    port: int
    secret: str
    policy: Between


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """Run ``what`` on the machine of a node, at most ``limit_ns``: a check, or the words of a command of the site.

    ``name`` identifies it: two orders with one name are the same. It is a file's name. ``netns``: see
    :class:`unidle.fleet.Node`.
    """

    name: str
    node: str
    what: NodeCheck | LinkCheck | tuple[str, ...]
    limit_ns: int
    netns: str = ""


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """How an order ended: its exit code, and the end of what it printed.

    ``code`` is None where it was killed at its limit (``late``), the machine did not answer by then (``away``), the
    machine restarted meanwhile (``restarted``), or, as ``text`` has it, it was not run or its end was not seen.
    """

    code: int | None
    late: bool
    text: str
    away: bool = False
    restarted: bool = False


class NodeCommands(Protocol):
    """What carries out orders on nodes."""

    @property
    def elsewhere(self) -> bool:
        """Whether each node is a machine of its own, with file systems of its own; else all are parts of this one."""
        ...

    def away(self, node: str) -> str:
        """Why the machine of a node cannot be expected to answer; empty where it can."""
        ...

    def begin(self, order: NodeCommand) -> None:
        """Start it; does nothing if it was started before, also by an earlier controller."""
        ...

    def look(self, name: str) -> NodeOutcome | None:
        """How it ended; None while it runs, or if it was not begun."""
        ...

    def forget(self, name: str) -> None:
        """The caller does not look for it any more. It is not ended."""
        ...
