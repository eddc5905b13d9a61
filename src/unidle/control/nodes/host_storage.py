"""File servers that do not respond on hosts: agents ask the mounts there, and the events follow from what all of them saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias

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
from unidle.jobs import RankPlace
from unidle.probe.mount_table import Mount
from unidle.probe.mount_watch import MountState
from unidle.view.state import View

_LOOK_EVERY_NS: Final = 500_000_000
_AGAIN_NS: Final = 10_000_000_000
_MOST_PATHS: Final = 512
_MOST_CHARS: Final = 1024
_WHY_CHARS: Final = 200
_NEVER_NS: Final = 1 << 63
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


_Key: TypeAlias = tuple[tuple[str, int, tuple[RankPlace, ...]], ...]
"""Of live attempts: job, number and places. Where nothing changed the places are the same objects, and compare at once."""


@dataclass(slots=True)
class _LiveJobs:
    """Attempts that are live (``key``), their directories and hosts; and the directories by host.

    The places are part of the key: a rank may land on another host than it was placed on.
    """

    key: _Key = ()
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    wanted: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Found:
    asked: dict[str, tuple[Mount, MountState]]
    nodes: tuple[str, ...]


class HostStorage:
    """As :class:`unidle.control.nodes.storage_watch.StorageWatch`, of jobs on hosts.

    The last report of an agent counts while it is away: a mount that it did not see come back has not.
    """

    def __init__(self, ask: AskAgent, clocks: PeerClocks) -> None:
        self._ask, self._clocks = ask, clocks
        self._hosts: dict[str, _Host] = {}
        self._jobs = _LiveJobs()
        self._found: dict[str, _Found] = {}  # by job, until an agent reports something else
        self._due: set[str] = set()  # nodes whose agents may need an order
        self._next_ns = 0

    def hear(self, peer: Peer, seen: frames.Seen) -> None:
        """Take what an agent reports; each one shows its connection by what it sees of ranks."""
        if peer.kind != "agent" or seen.what not in (wire.VITALS, wire.MOUNTS):
            return
        offset = self._clocks.offset(peer.id)
        if offset is None:
            return  # it is measured within a second, and no order is given before: a report has a time
        host = self._hosts.setdefault(peer.node, _Host())
        if host.peer != peer.id:
            host.peer, host.ordered, host.again_ns = peer.id, None, 0
            self._due.add(peer.node)
        if seen.what != wire.MOUNTS:
            return
        try:
            told = msgspec.convert(seen.body, SeenMounts)
        except msgspec.ValidationError:
            return  # of another release
        host.why = printable(told.why_not)[:_WHY_CHARS]
        host.asked = {one.path: _moved(one, offset.offset_ns) for one in told.mounts}
        self._found.clear()

    def look(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """The events that follow from what the mounts answered. Each has to be applied before the next. Never waits."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _LOOK_EVERY_NS
        if self._jobs.key != (key := _key_of(view)):
            before, self._jobs = self._jobs, _live_jobs(view, key)
            self._found.clear()
            self._due |= {
                n
                for n in before.wanted | self._jobs.wanted
                if before.wanted.get(n) != self._jobs.wanted.get(n)
            }
        self._give_orders(now_ns)
        yield from self._sights(view)
        for job in self._jobs.paths:
            if job not in self._found:
                self._found[job] = self._of_job(job)
            yield from mount_stalls(view, job, self._found[job].asked, now_ns, self._found[job].nodes)

    def close(self) -> None:
        """Nothing is left running here."""

    def _give_orders(self, now_ns: int) -> None:
        """Not all hosts are gone through: there may be ten thousand."""
        for node in list(self._due):
            host = self._hosts.setdefault(node, _Host())
            paths = self._jobs.wanted.get(node, ())
            if paths == host.ordered:
                self._due.discard(node)
            elif host.peer and now_ns >= host.again_ns:
                self._order(node, host, paths, now_ns)

    def _order(self, node: str, host: _Host, paths: tuple[str, ...], now_ns: int) -> None:
        host.ordered, peer = paths, host.peer

        def answered(done: frames.Done) -> None:
            if host.peer == peer and not done.ok:
                host.ordered, host.again_ns = None, now_ns + _AGAIN_NS
                host.why = printable(done.why)[:_WHY_CHARS]
                self._due.add(node)

        self._ask(node, wire.MOUNTS, {"paths": paths}, answered)

    def _of_job(self, job: str) -> _Found:
        """By directory the worst that any host has, and the hosts where one does not respond."""
        asked: dict[str, tuple[Mount, MountState]] = {}
        late = []
        for node in self._jobs.nodes[job]:
            host = self._hosts.get(node)
            seen = host.asked if host is not None else None
            if not seen:
                continue
            here = {path: seen[path] for path in self._jobs.paths[job] if path in seen}
            if any(state.since_ns is not None for _, state in here.values()):
                late.append(node)
            for path, one in here.items():
                before = asked.get(path)
                if before is None or _since(one) < _since(before):
                    asked[path] = one
        return _Found(asked, tuple(late))

    def _sights(self, view: View) -> Iterator[ev.WatchSet]:
        """Nodes of running jobs whose mounts cannot be checked, and those where that is over."""
        known = {node: told[STORAGE].why_not for node, told in view.watching.items() if STORAGE in told}
        why = {node: host.why for node, host in self._hosts.items() if host.why and node in self._jobs.wanted}
        for node in sorted(why.keys() | known.keys()):
            if known.get(node, "") != why.get(node, "") and node in view.nodes:
                yield ev.WatchSet(node, STORAGE, why.get(node, ""))


def _key_of(view: View) -> _Key:
    live = ((job, view.jobs.open[job].live) for job in sorted(view.live))
    return tuple((job, attempt.number, attempt.places) for job, attempt in live if attempt is not None)


def _live_jobs(view: View, key: _Key) -> _LiveJobs:
    made = _LiveJobs(key)
    wanted: dict[str, set[str]] = {}
    for job, _, places in key:
        made.paths[job] = directories_of(view.jobs.open[job].spec)
        made.nodes[job] = tuple(sorted({place.node for place in places}))
        for node in made.nodes[job]:
            wanted.setdefault(node, set()).update(
                path for path in made.paths[job] if len(path) <= _MOST_CHARS
            )
    made.wanted = {node: tuple(sorted(paths)[:_MOST_PATHS]) for node, paths in wanted.items()}
    return made


def _moved(one: SeenMount, offset_ns: int) -> tuple[Mount, MountState]:
    """On the controller's clock."""
    since_ns = None if one.since_ns is None else max(one.since_ns + offset_ns, 0)
    return Mount(*map(printable, one.mount)), MountState(since_ns, one.error)


def _since(one: tuple[Mount, MountState]) -> int:
    return _NEVER_NS if one[1].since_ns is None else one[1].since_ns
