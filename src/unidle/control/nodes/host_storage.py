"""File servers that do not respond on hosts: agents ask the mounts there, and the events follow from what all of them saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from unidle import wire
from unidle.control.gangs.host_stacks import AskAgent
from unidle.control.gangs.peer_clocks import PeerClocks
from unidle.control.gangs.storage_stalls import mount_stalls
from unidle.control.nodes.storage_watch import STORAGE, directories_of
from unidle.events import types as ev
from unidle.hub import frames
from unidle.hub.protocol import Peer
from unidle.hub.refusals import printable
from unidle.probe.mount_table import Mount
from unidle.probe.mount_watch import MountState
from unidle.view.state import View

_LOOK_EVERY_NS: Final = 500_000_000
_AGAIN_NS: Final = 10_000_000_000
_MOST_PATHS: Final = 512
_MOST_CHARS: Final = 1024
_WHY_CHARS: Final = 200
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class SeenMount(msgspec.Struct, frozen=True):
    """One directory on a file server. ``since_ns``: since when it does not respond, or only with ``error``."""

    path: _Text
    mount: tuple[_Text, _Text, _Text]
    since_ns: int | None = None
    error: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0


class SeenMounts(msgspec.Struct, frozen=True):
    """What an agent reports, of all directories that it was given."""

    mounts: Annotated[list[SeenMount], msgspec.Meta(max_length=_MOST_PATHS)]
    why_not: _Text = ""


@dataclass(slots=True)
class _Host:
    """``ordered``: the directories that its agent has, None where it has to be given them, from ``again_ns`` on."""

    peer: int = 0
    ordered: tuple[str, ...] | None = ()
    again_ns: int = 0
    why: str = ""
    asked: dict[str, tuple[Mount, MountState]] | None = None


class HostStorage:
    """As :class:`unidle.control.nodes.storage_watch.StorageWatch`, of jobs on hosts.

    The last report of an agent counts while it is away: a mount that it did not see come back has not.
    """

    def __init__(self, ask: AskAgent, clocks: PeerClocks) -> None:
        self._ask, self._clocks = ask, clocks
        self._hosts: dict[str, _Host] = {}
        self._next_ns = 0

    def hear(self, peer: Peer, seen: frames.Seen) -> None:
        """Take what an agent reports; each one shows its connection by what it sees of ranks."""
        if peer.kind != "agent" or seen.what not in (wire.VITALS, wire.MOUNTS):
            return
        host = self._hosts.setdefault(peer.node, _Host())
        if host.peer != peer.id:
            host.peer, host.ordered, host.again_ns = peer.id, None, 0
        offset = self._clocks.offset(peer.id)
        if seen.what != wire.MOUNTS or offset is None:
            return
        try:
            told = msgspec.convert(seen.body, SeenMounts)
        except msgspec.ValidationError:
            return  # of another release
        host.why = printable(told.why_not)[:_WHY_CHARS]
        host.asked = {one.path: _moved(one, offset.offset_ns) for one in told.mounts}

    def look(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """The events that follow from what the mounts answered. Each has to be applied before the next. Never waits."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _LOOK_EVERY_NS
        used = {job: directories_of(view.jobs.open[job].spec) for job in sorted(view.live)}
        on = {job: _nodes_of(view, job) for job in used}
        self._give_orders(used, on, now_ns)
        yield from self._sights(view, {node for nodes in on.values() for node in nodes})
        for job, paths in used.items():
            asked, nodes = self._of_job(paths, on[job], now_ns)
            yield from mount_stalls(view, job, asked, now_ns, nodes)

    def close(self) -> None:
        """Nothing is left running here."""

    def _give_orders(self, used: dict[str, tuple[str, ...]], on: dict[str, list[str]], now_ns: int) -> None:
        wanted: dict[str, set[str]] = {}
        for job, nodes in on.items():
            for node in nodes:
                wanted.setdefault(node, set()).update(path for path in used[job] if len(path) <= _MOST_CHARS)
        for node in [*wanted.keys(), *(self._hosts.keys() - wanted.keys())]:
            host = self._hosts.setdefault(node, _Host())
            paths = tuple(sorted(wanted.get(node, ()))[:_MOST_PATHS])
            if paths != host.ordered and host.peer and now_ns >= host.again_ns:
                self._order(node, host, paths, now_ns)

    def _order(self, node: str, host: _Host, paths: tuple[str, ...], now_ns: int) -> None:
        host.ordered, peer = paths, host.peer

        def answered(done: frames.Done) -> None:
            if host.peer == peer and not done.ok:
                host.ordered, host.again_ns = None, now_ns + _AGAIN_NS
                host.why = printable(done.why)[:_WHY_CHARS]

        self._ask(node, wire.MOUNTS, {"paths": paths}, answered)

    def _of_job(
        self, paths: tuple[str, ...], nodes: list[str], now_ns: int
    ) -> tuple[dict[str, tuple[Mount, MountState]], list[str]]:
        """By directory the worst that any host has, and the hosts where one does not respond."""
        found: dict[str, tuple[Mount, MountState]] = {}
        late = []
        for node in nodes:
            host = self._hosts.get(node)
            seen = (host.asked if host is not None else None) or {}
            here = {path: seen[path] for path in paths if path in seen}
            if any(state.since_ns is not None for _, state in here.values()):
                late.append(node)
            for path, one in here.items():
                before = found.get(path)
                if before is None or _since(one, now_ns) < _since(before, now_ns):
                    found[path] = one
        return found, late or nodes

    def _sights(self, view: View, used: set[str]) -> Iterator[ev.WatchSet]:
        """Nodes of running jobs whose mounts cannot be checked, and those where that is over."""
        known = {node: told[STORAGE].why_not for node, told in view.watching.items() if STORAGE in told}
        why = {node: host.why for node, host in self._hosts.items() if node in used and host.why}
        for node in sorted(why.keys() | known.keys()):
            if known.get(node, "") != why.get(node, "") and node in view.nodes:
                yield ev.WatchSet(node, STORAGE, why.get(node, ""))


def _nodes_of(view: View, job: str) -> list[str]:
    attempt = view.jobs.open[job].live
    return [] if attempt is None else sorted({place.node for place in attempt.places})


def _moved(one: SeenMount, offset_ns: int) -> tuple[Mount, MountState]:
    """On the controller's clock."""
    since_ns = None if one.since_ns is None else max(one.since_ns + offset_ns, 0)
    return Mount(*map(printable, one.mount)), MountState(since_ns, one.error)


def _since(one: tuple[Mount, MountState], now_ns: int) -> int:
    return now_ns if one[1].since_ns is None else one[1].since_ns
