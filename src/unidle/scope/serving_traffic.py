"""The connections on which a server is asked, and their traffic cut into requests with their answers. Pure.

See :mod:`unidle.scope.serving` for the spans that go in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.scope.model import Span

READS: Final = frozenset({"recv", "ask", "get"})  # "ask", "get": HTTP requests begin with these bytes
WRITES: Final = frozenset({"send", "head", "done"})  # "head": HTTP headers begin it; "done": it ends a stream
INTERIM_BYTES: Final = 64  # headers of "100 Continue": the body of the request follows
# "GET / HTTP/1.1", a Host and an empty line; frames of HTTP/2 that ask nothing are less
LEAST_REQUEST_BYTES: Final = 26


def served(spans: Iterable[Span], ports: frozenset[int] = frozenset()) -> dict[str, list[Span]]:
    """Reads and writes by connection, in order, of those connections that others opened to this server.

    Where HTTP is spoken, the places that speak it; else those where most connections begin with a question. A
    connection that another server of these processes opened (a relay, a router) is its own affair, and left out.
    """
    return outer_and_inner(spans, ports)[0]


def outer_and_inner(
    spans: Iterable[Span], ports: frozenset[int] = frozenset()
) -> tuple[dict[str, list[Span]], dict[str, list[Span]]]:
    """The result of :func:`served`, and the connections that it leaves out: those from a relay to the servers behind it."""
    connections: dict[str, list[Span]] = defaultdict(list)
    for s in spans:
        if s.kind in READS or s.kind in WRITES:
            connections[s.name].append(s)
    for events in connections.values():
        events.sort(key=lambda s: s.end_ns)
    by_place: dict[str, list[str]] = defaultdict(list)
    for name in connections:
        by_place[_place(name)].append(name)
    chosen = _places(by_place, connections, ports)
    inner = _inner(connections, {name for place in chosen for name in by_place[place]})
    outer = (name for place in chosen for name in by_place[place] if name not in inner)

    def told(names: Iterable[str]) -> dict[str, list[Span]]:
        return {name: [s for s in connections[name] if s.n_bytes > 0] for name in names}

    return told(outer), told(sorted(inner))


def without_collectives(spans: Iterable[Span], members: set[int] | frozenset[int]) -> list[Span]:
    """The spans without the traffic of collectives: what processes ``members`` that run them say in another tongue than HTTP.

    A server whose model is spread over ranks keeps its own connections: they speak HTTP.
    """
    listed = list(spans)
    theirs: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for s in listed:
        if s.pid in members and (s.kind in READS or s.kind in WRITES):
            theirs[s.pid, s.name].append(s)
    left_out = {key for key, events in theirs.items() if not is_http(events)}
    return [s for s in listed if (s.pid, s.name) not in left_out]


def _places(
    by_place: Mapping[str, Sequence[str]], connections: Mapping[str, Sequence[Span]], ports: frozenset[int]
) -> list[str]:
    """Where this server is asked, of all local ends."""
    if ports:
        return sorted(place for place, names in by_place.items() if _port(names[0]) in ports)
    spoken = [place for place, names in by_place.items() if any(is_http(connections[n]) for n in names)]
    if spoken:
        return sorted(spoken)
    return sorted(
        place
        for place, names in by_place.items()
        if 2 * sum(_was_opened_to_us(connections[name]) for name in names) > len(names)
    )


def is_http(events: Sequence[Span]) -> bool:
    """Whether requests of HTTP come in, or its answers go out, by this end of the connection."""
    return any(s.kind in ("ask", "get", "head") for s in events)


def _inner(connections: Mapping[str, Sequence[Span]], chosen: set[str]) -> set[str]:
    """Connections whose other end is a process that is asked itself by others."""
    other_end = {name: connections.get(">".join(reversed(name.split(">", 1)))) for name in chosen}
    asked = {
        connections[name][0].pid for name, other in other_end.items() if other is None
    }  # by those that are not looked at
    return {name for name, other in other_end.items() if other is not None and other[0].pid in asked}


def _was_opened_to_us(events: Sequence[Span]) -> bool:
    """It begins with a question; or it is all answer, of a question before the look, from a port below the other's."""
    if events[0].kind in READS:
        return True
    local, _, remote = events[0].name.partition(">")
    return all(s.kind in WRITES for s in events) and _port(local) < _port(remote)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request's reads and the writes after them."""

    connection: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    closed: bool  # the next request followed on the connection

    @property
    def kind(self) -> str:
        """What its first bytes were taken for; nothing where they came before the look."""
        return self.reads[0].kind if self.reads else ""


def answers_of(name: str, events: Sequence[Span]) -> list[Exchange]:
    """Cut a connection's reads and writes into requests with their answers (HTTP/1.1: one after the other)."""
    if any(s.kind in ("ask", "get") for s in events):
        return _told_answers(name, events)
    found: list[Exchange] = []
    reads: list[Span] = []
    writes: list[Span] = []
    for event in events:
        if event.kind in WRITES:
            writes.append(event)
        elif writes and event.n_bytes >= LEAST_REQUEST_BYTES:
            found.append(Exchange(name, tuple(reads), tuple(writes), True))
            reads, writes = [event], []
        elif not writes:
            reads.append(event)
    if reads or writes:
        found.append(Exchange(name, tuple(reads), tuple(writes), False))
    return found


def _told_answers(name: str, events: Sequence[Span]) -> list[Exchange]:
    """The same, where requests are seen to begin."""
    found: list[Exchange] = []
    reads: list[Span] = []
    writes: list[Span] = []
    for event in events:
        if event.kind in ("ask", "get") and (reads or writes):
            found.append(Exchange(name, tuple(reads), tuple(writes), True))
            reads, writes = [], []
        if event.kind in READS:
            if not writes or (len(writes) == 1 and writes[0].n_bytes <= INTERIM_BYTES):
                writes.clear()
                reads.append(event)
        else:
            writes.append(event)
    found.append(Exchange(name, tuple(reads), tuple(writes), False))
    return found


def _place(name: str) -> str:
    """The server's end of a connection: its port, whatever its address is called there; or its path."""
    local = name.partition(">")[0]
    return f"{_port(name):05}" if _port(name) else local


def _port(name: str) -> int:
    digits = name.partition(">")[0].rpartition(":")[2]
    return int(digits) if digits.isdigit() else 0
