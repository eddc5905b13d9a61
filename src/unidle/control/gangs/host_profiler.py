"""Continuous mode on hosts: agents profile the ranks there, and what they see becomes events and rows of the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from unidle import wire
from unidle.clock import Clock
from unidle.control.gangs.host_stacks import AskAgent
from unidle.control.gangs.peer_clocks import PeerClocks
from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.hub import frames
from unidle.hub.protocol import Peer
from unidle.hub.refusals import printable
from unidle.ledger.profiled_causes import CARVED
from unidle.scope.continuous.process import ProfilerOrders, ProfilerProcess
from unidle.store.profiles import ProfileRow
from unidle.view.state import View
from unidle.words import counted

_MOST_WAITING: Final = 100_000
_AHEAD_NS: Final = 1_000_000_000  # as far as the offset of a host's clock may be wrong
_WHY_CHARS: Final = 500

_Measured: TypeAlias = ev.BudgetMeasured | ev.StepsWatched


class SeenProfile(msgspec.Struct, frozen=True):
    """What an agent sends: an event by its kind, or what is to be kept of one rank."""

    kind: str = ""
    event: msgspec.Raw = msgspec.Raw(b"{}")
    row: SeenRow | None = None


class SeenRow(msgspec.Struct, frozen=True):
    """As :class:`unidle.store.profiles.ProfileRow`, on the clock of its host."""

    job: str
    start_ns: int
    attempt: int
    rank: int
    end_ns: int
    looks: int
    body: bytes


class HostProfiler:
    """:class:`unidle.control.gangs.profiler.ProfileSource` where ranks are on hosts.

    Each agent is given the order once on each connection, as soon as it sees ranks. ``errors``: what the process that
    keeps profiles writes to its standard error.
    """

    def __init__(
        self, orders: ProfilerOrders, errors: Path, ask: AskAgent, clocks: PeerClocks, clock: Clock, *, command: Sequence[str] = ()
    ) -> None:  # fmt: skip
        self._policy, self._ask, self._clocks, self._clock = orders.policy, ask, clocks, clock
        self._keeper = ProfilerProcess(orders, errors, command=command)
        self._ordered: dict[str, int] = {}  # by node: the connection that has the order
        self._heard: list[tuple[str, ev.Event | ProfileRow]] = []
        self._why: dict[str, str] = {}  # by node, or "" for this machine: why nothing is profiled or kept

    def hear(self, peer: Peer, seen: frames.Seen) -> None:
        """Take what an agent has seen."""
        if peer.kind != "agent":
            return
        if seen.what == wire.VITALS and self._ordered.get(peer.node) != peer.id:
            self._order(peer)
        elif seen.what == wire.PROFILING and len(self._heard) < _MOST_WAITING:
            found = self._read(peer, seen.body)
            if found is not None:
                self._heard.append((peer.node, found))

    def _order(self, peer: Peer) -> None:
        self._ordered[peer.node] = peer.id

        def answered(done: frames.Done) -> None:
            if self._ordered.get(peer.node) == peer.id:
                self._why[peer.node] = "" if done.ok else printable(done.why)[:_WHY_CHARS]

        self._ask(peer.node, wire.PROFILING, {"policy": msgspec.to_builtins(self._policy)}, answered)

    def _read(self, peer: Peer, body: dict[str, Any]) -> ev.Event | ProfileRow | None:
        """On the controller's clock; None where it is nothing of the kind, or its time is not known."""
        offset = self._clocks.offset(peer.id)
        try:
            told = msgspec.json.decode(msgspec.json.encode(body), type=SeenProfile)
            if told.row is not None:
                found: ev.Event | ProfileRow = ProfileRow(*msgspec.structs.astuple(told.row))
            else:
                found = ev.decode(told.kind, bytes(told.event))
        except (msgspec.DecodeError, StoreDamaged):
            return None
        if isinstance(found, ev.ProfilerSet):
            return found
        if offset is None or not isinstance(found, ProfileRow | ev.BudgetMeasured | ev.StepsWatched):
            return None
        return _moved(found, offset.offset_ns, self._clock.now_ns() + _AHEAD_NS)

    def take(self, view: View) -> Iterator[ev.Event]:
        """The findings since the last call; what is to be kept goes to the process that does."""
        heard, self._heard = self._heard, []
        rows: list[ProfileRow] = []
        for node, found in heard:
            if isinstance(found, ProfileRow):
                if found.rank in _ranks_on(view, found.job, found.attempt, node):
                    rows.append(found)
            elif isinstance(found, ev.ProfilerSet):
                self._why[node] = printable(found.why_not)[:_WHY_CHARS]
            elif isinstance(found, ev.BudgetMeasured | ev.StepsWatched):
                yield from _of_own(view, found, node)
        if rows:
            self._keeper.keep(rows)
        for event in self._keeper.found():
            if isinstance(event, ev.ProfilerSet):
                self._why[""] = event.why_not
        why = _together(
            {node: why for node, why in self._why.items() if why and (not node or node in view.nodes)}
        )
        if why != (view.profiler or ""):
            yield ev.ProfilerSet(why)

    def close(self) -> None:
        self._keeper.close()


def _moved(found: _Measured | ProfileRow, by_ns: int, until_ns: int) -> _Measured | ProfileRow | None:
    """Moved to the controller's clock; None for a window that is not over, or whose steps are not in it."""
    start_ns, end_ns = found.start_ns + by_ns, found.end_ns + by_ns
    if not 0 <= start_ns < end_ns <= until_ns:
        return None
    if isinstance(found, ProfileRow):
        return found._replace(start_ns=start_ns, end_ns=end_ns)
    if isinstance(found, ev.BudgetMeasured):
        parts = [part for leaves in found.ranks.values() for part in leaves.items()]
        if any(leaf not in CARVED or ns < 0 for leaf, ns in parts):
            return None
        return msgspec.structs.replace(found, start_ns=start_ns, end_ns=end_ns)
    steps = {rank: tuple(at + by_ns for at in ends) for rank, ends in found.ranks.items()}
    if any(not start_ns <= at <= end_ns for ends in steps.values() for at in ends):
        return None
    return msgspec.structs.replace(found, start_ns=start_ns, end_ns=end_ns, ranks=steps)


def _of_own(view: View, found: _Measured, node: str) -> Iterator[ev.Event]:
    """The part that is of ranks on the node of the agent."""
    here = _ranks_on(view, found.job, found.attempt, node)
    if isinstance(found, ev.BudgetMeasured):
        leaves = {rank: ns for rank, ns in found.ranks.items() if rank in here}
        if leaves:
            yield msgspec.structs.replace(found, ranks=leaves)
        return
    steps = {rank: ends for rank, ends in found.ranks.items() if rank in here}
    if steps:
        yield msgspec.structs.replace(found, ranks=steps)


def _ranks_on(view: View, job: str, number: int, node: str) -> set[int]:
    known = view.jobs.get(job)
    for attempt in reversed(known.attempts if known is not None else ()):
        if attempt.number == number:
            return {rank for rank, place in enumerate(attempt.places) if place.node == node}
    return set()


def _together(why: dict[str, str]) -> str:
    """One line: that of this machine, else of the first host."""
    if not why:
        return ""
    node = min(why)
    if not node:
        return why[node]
    more = f" (and {counted(len(why) - 1, 'other host')})" if len(why) > 1 else ""
    return f"host {node}: {why[node]}{more}"
