"""Cuts the traffic of a server's connections into requests, and counts their tokens by the runs of the model. Pure.

See :mod:`unidle.scope.serving` for the spans that go in.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from unidle.scope.model import Span

LEAST_REQUEST_BYTES: Final = (
    26  # "GET / HTTP/1.1", a Host and an empty line; frames of HTTP/2 that ask nothing are less
)
LEAST_CHUNK_BYTES: Final = (
    6  # of chunked HTTP with one byte in it; less is a length, a line's end or the end of all
)
HEADERS_ONLY: Final = 0.25  # of the time to the next chunk: an answer that begins so soon holds no token yet
UNLIKE: Final = 1.5  # times the usual size, either way: such a first write has headers in it, and then
# it holds no token if less time passed before it than after it: a first token takes longer than a later one
TOGETHER: Final = 0.1  # of the usual time between chunks: writes that close may be parts of one chunk
PARTS: Final = 0.4  # of all writes are that close: chunks are written in parts; less is chance
WHOLE_NS: Final = 1_000_000  # an answer whose writes are all that close is no stream,
WHOLE: Final = 0.02  # nor one that is written in so little of the time that it took
_EMBEDS: Final = re.compile(r"embedding")


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Times are the server's; what the look did not hold is nothing."""

    connection: str
    start_ns: int | None  # its first byte was read; nothing where it came before the look
    first_ns: (
        int | None
    )  # the first token was sent (of a whole answer: made, where runs of the model are seen)
    end_ns: int | None  # the last byte was sent; nothing while it goes on or was not answered
    tokens: int
    streamed: bool
    bytes_in: int
    bytes_out: int
    tpot_ns: float | None = None
    model: bool = True  # whether the model ran for it: no health check, no metrics
    warm_up: bool = False

    @property
    def ttft_ns(self) -> int | None:
        return None if self.start_ns is None or self.first_ns is None else self.first_ns - self.start_ns


def requests_of(traffic: Mapping[str, Sequence[Span]], runs: Sequence[Span]) -> list[Request]:
    """The requests of all connections (see :func:`served`); ``runs`` of the model, in order of their ends."""
    answers = [answer for name, events in traffic.items() for answer in _answers(name, events)]
    known = _Runs(runs)
    chunks = [_chunks(answer, known) for answer in answers]
    per_chunk = _tokens_per_chunk(answers, chunks, known)
    return [_request(a, c, known, per_chunk) for a, c in zip(answers, chunks, strict=True)]


def forwards(marks: Iterable[Span]) -> list[Span]:
    """Runs of the model from marks of its operators: each thread's, from an embedding to the last operator before the next.

    Several embeddings in a row (of tokens, of positions) begin one run. Needs at least one kind of operator beside the
    embedding, such as the matrix products.
    """
    threads: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for mark in marks:
        threads[mark.pid, mark.tid].append(mark)
    found: list[Span] = []
    for (pid, tid), row in threads.items():
        begin: Span | None = None
        last: Span | None = None
        for mark in sorted(row, key=lambda s: s.start_ns):
            embeds = _EMBEDS.search(mark.name) is not None
            if embeds and (begin is None or last is not None):
                if begin is not None and last is not None:
                    found.append(Span(pid, tid, "forward", "forward", begin.start_ns, last.end_ns))
                begin, last = mark, None
            elif not embeds and begin is not None:
                last = mark
        if begin is not None and last is not None:
            found.append(Span(pid, tid, "forward", "forward", begin.start_ns, last.end_ns))
    return sorted(found, key=lambda s: s.end_ns)


def served(spans: Iterable[Span], ports: frozenset[int] = frozenset()) -> dict[str, list[Span]]:
    """Reads and writes by connection, in order, of those connections that others opened to this server."""
    connections: dict[str, list[Span]] = defaultdict(list)
    for s in spans:
        if s.kind in ("recv", "send") and s.n_bytes > 0:
            connections[s.name].append(s)
    for events in connections.values():
        events.sort(key=lambda s: s.end_ns)
    by_port: dict[int, list[str]] = defaultdict(list)
    for name in connections:
        by_port[_port(name)].append(name)
    if not ports:
        ports = frozenset(
            port
            for port, names in by_port.items()
            if 2 * sum(_was_opened_to_us(connections[name]) for name in names) > len(names)
        )
    return {name: connections[name] for port in sorted(ports) for name in by_port.get(port, ())}


def _was_opened_to_us(events: Sequence[Span]) -> bool:
    """It begins with a question; or it is all answer, of a question before the look, from a port below the other's."""
    if events[0].kind == "recv":
        return True
    local, _, remote = events[0].name.partition(">")
    return all(s.kind == "send" for s in events) and _port(local) < _port(remote)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A request's reads and the writes after them."""

    connection: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    closed: bool  # the next request followed on the connection


def _answers(name: str, events: Sequence[Span]) -> list[_Answer]:
    """Cut a connection's reads and writes into requests with their answers (HTTP/1.1: one after the other)."""
    found: list[_Answer] = []
    reads: list[Span] = []
    writes: list[Span] = []
    for event in events:
        if event.kind == "send":
            writes.append(event)
        elif writes and event.n_bytes >= LEAST_REQUEST_BYTES:
            found.append(_Answer(name, tuple(reads), tuple(writes), True))
            reads, writes = [event], []
        elif not writes:
            reads.append(event)
    if reads or writes:
        found.append(_Answer(name, tuple(reads), tuple(writes), False))
    return found


class _Runs:
    """Runs of the model, asked for by time and thread."""

    def __init__(self, runs: Sequence[Span]) -> None:
        self.all = [s.end_ns for s in runs]
        self.typical_ns = median([s.end_ns - s.start_ns for s in runs]) if runs else 0.0
        self._threads: dict[tuple[int, int], list[int]] = defaultdict(list)
        for s in runs:
            self._threads[s.pid, s.tid].append(s.end_ns)

    def of(self, answer: _Answer) -> tuple[list[int], bool]:
        """The ends of runs that may be the answer's, and whether they are its thread's own."""
        own = [self._threads[s.pid, s.tid] for s in answer.writes[:1] if (s.pid, s.tid) in self._threads]
        return (own[0], True) if own else (self.all, False)


def _between(ends: Sequence[int], after: int, until: int) -> Sequence[int]:
    return ends[bisect_right(ends, after) : bisect_right(ends, until)]


def _chunks(answer: _Answer, known: _Runs) -> list[int]:
    """When chunks that hold tokens were sent: headers and what is written together with a chunk are none of their own."""
    writes = [s for s in answer.writes if s.n_bytes >= LEAST_CHUNK_BYTES]
    times = [s.end_ns for s in writes]
    if known.all and answer.writes:
        ends, _ = known.of(answer)
        after = answer.reads[0].start_ns if answer.reads else 0
        told = []
        for at in times:
            if _between(ends, after, at):
                told.append(at)
                after = at
        return told
    if len(times) > 1 and answer.reads:
        waited = times[0] - answer.reads[-1].end_ns
        if times[-1] - times[0] <= max(WHOLE_NS, WHOLE * waited):
            return times[-1:]
        limit = 1.0 if _begins_unlike(writes) else HEADERS_ONLY
        times = times[1:] if waited < limit * (times[1] - times[0]) else times
    gaps = [b - a for a, b in pairwise(times)]
    close = TOGETHER * _usual(gaps)
    if gaps and answer.reads and gaps[0] < close and len(times) == len(writes) and _begins_unlike(writes):
        times, gaps = times[1:], gaps[1:]  # headers, right before the first token
    if sum(gap < close for gap in gaps) < PARTS * len(gaps):
        return times
    return times[:1] + [at for at, gap in zip(times[1:], gaps, strict=True) if gap >= close]


def _begins_unlike(writes: Sequence[Span]) -> bool:
    """Whether the first write is of another size than the later ones: headers, alone or with a token."""
    if len(writes) < 3:
        return False
    usual = median([s.n_bytes for s in writes[1:]])
    return not usual / UNLIKE <= writes[0].n_bytes <= usual * UNLIKE


def _usual(gaps: Sequence[int]) -> int:
    """The gap of which half of the time is in shorter ones: parts of one chunk, however many, hardly count."""
    passed = 0
    for gap in sorted(gaps):
        passed += gap
        if 2 * passed >= sum(gaps):
            return gap
    return 0


def _tokens_per_chunk(answers: Sequence[_Answer], chunks: Sequence[list[int]], known: _Runs) -> int:
    """Runs of the model between two chunks, where all requests share its runs; 1 where they take turns."""
    shared = [
        c for a, c in zip(answers, chunks, strict=True) if len(c) > 2 and a.writes and not known.of(a)[1]
    ]
    if not known.all or not shared:
        return 1
    between = [len(_between(known.all, a, b)) for c in shared for a, b in pairwise(c)]
    active = fmean([_active(shared, at) for at in known.all if _active(shared, at)] or [1])
    followed: dict[int, int] = defaultdict(int)
    for c in shared:
        for at in c:
            followed[bisect_right(known.all, at)] += 1
    together = fmean(followed.values())
    return max(round(median(between)), 1) if together >= 0.5 * active + 0.25 else 1


def _active(chunks: Sequence[list[int]], at: int) -> int:
    return sum(c[0] <= at <= c[-1] for c in chunks)


def _request(answer: _Answer, chunks: Sequence[int], known: _Runs, per_chunk: int) -> Request:
    start = answer.reads[0].start_ns if answer.reads else None
    last = answer.writes[-1].end_ns if answer.writes else None
    made = Request(
        connection=answer.connection,
        start_ns=start,
        first_ns=chunks[0] if chunks else None,
        end_ns=last,
        tokens=len(chunks),
        streamed=len(chunks) > 1,
        bytes_in=sum(s.n_bytes for s in answer.reads),
        bytes_out=sum(s.n_bytes for s in answer.writes),
    )
    if last is None:
        return replace(made, tokens=0)
    if not known.all:
        return replace(made, tokens=len(chunks) * made.streamed, tpot_ns=_pace(chunks, len(chunks) - 1))
    ends, own = known.of(answer)
    if made.streamed:
        more = len(_between(ends, chunks[0], chunks[-1])) if own else (len(chunks) - 1) * per_chunk
        first = 1 if start is None else len(_between(ends, start, chunks[0])) if own else per_chunk
        return replace(made, tokens=first + more, tpot_ns=_pace(chunks, more))
    its = _between(ends, start, last) if start is not None else ()
    too_short = start is not None and not own and last - start < known.typical_ns
    if not its or too_short:
        return replace(made, tokens=0, first_ns=None, model=start is None)
    return replace(made, tokens=len(its), first_ns=its[0], tpot_ns=_pace(its, len(its) - 1))


def _pace(times: Sequence[int], tokens: int) -> float | None:
    return (times[-1] - times[0]) / tokens if tokens > 0 else None


def _port(name: str) -> int:
    digits = name.partition(">")[0].rpartition(":")[2]
    return int(digits) if digits.isdigit() else 0
