"""Requests from the traffic of a server's connections, and their tokens by the runs of the model. Pure.

See :mod:`unidle.scope.serving` for the spans that go in.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import ceil
from statistics import fmean, median
from typing import Final

from unidle.scope.model import Span
from unidle.scope.serving_traffic import Exchange, answers_of

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
STALLS: Final = 0.85  # of all gaps are no stalls of the server
LEAST_ALONE: Final = 3  # gaps of a request with no other at the same time show how many runs a chunk takes
_EMBEDS: Final = re.compile(r"embedding")


@dataclass(frozen=True, slots=True)
class ServedRequest:
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
    over: bool = False  # the end of its answer was seen, and not only that nothing came any more

    @property
    def ttft_ns(self) -> int | None:
        return None if self.start_ns is None or self.first_ns is None else self.first_ns - self.start_ns


def requests_of(traffic: Mapping[str, Sequence[Span]], runs: Sequence[Span]) -> list[ServedRequest]:
    """The requests of all connections (see :func:`served`); ``runs`` of the model, in order of their ends."""
    answers = [answer for name, events in traffic.items() for answer in answers_of(name, events)]
    known = _Runs(runs, answers)
    chunks = [_chunks(answer, known) for answer in answers]
    per_chunk = _tokens_per_chunk(answers, chunks, known)
    return [_request(a, c, known, per_chunk) for a, c in zip(answers, chunks, strict=True)]


def counted_behind(requests: Iterable[ServedRequest], behind: Iterable[ServedRequest]) -> list[ServedRequest]:
    """Tokens as the server behind a relay sent them: a relay that is held up passes several on at once.

    A request's own one behind the relay lies within its time; of several that do, it is the one of most like a size.
    """
    known = [r for r in behind if r.start_ns is not None and r.end_ns is not None and r.tokens > 0]
    found: list[ServedRequest] = []
    for r in requests:
        within = [b for b in known if r.model and _within(b, r)]
        if not within:
            found.append(r)
            continue
        own = min(within, key=lambda b: abs(b.bytes_out - r.bytes_out))
        known.remove(own)
        gaps = own.tokens - 1
        pace = r.tpot_ns * (r.tokens - 1) / gaps if r.tpot_ns is not None and gaps else None
        found.append(replace(r, tokens=own.tokens, tpot_ns=pace))
    return found


def _within(inner: ServedRequest, outer: ServedRequest) -> bool:
    if outer.start_ns is None or outer.end_ns is None or inner.start_ns is None or inner.end_ns is None:
        return False
    return outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns


def forwards(marks: Iterable[Span]) -> list[Span]:
    """Runs of the model from marks of its operators: each thread's, from an embedding to the last operator before the next.

    Several embeddings in a row (of tokens, of positions) begin one run. Needs at least one kind of operator next to the
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


class _Runs:
    """Runs of the model, asked for by time and thread."""

    def __init__(self, runs: Sequence[Span], answers: Sequence[Exchange] = ()) -> None:
        self.spans = runs
        self.all = [s.end_ns for s in runs]
        self.typical_ns = median([s.end_ns - s.start_ns for s in runs]) if runs else 0.0
        self._threads: dict[tuple[int, int], list[int]] = defaultdict(list)
        for s in runs:
            self._threads[s.pid, s.tid].append(s.end_ns)
        self.several = len(self._threads) > 1  # each for one request at a time
        in_order = sorted(runs, key=lambda s: s.start_ns)
        self._begun = [s.start_ns for s in in_order]
        ends = accumulate((s.end_ns for s in reversed(in_order)), min)
        self._first_end = [*ends][::-1]  # of the runs from here on: they may overlap
        self._shared = _shared_threads(answers)
        self.asks = any(a.kind == "ask" for a in answers)

    def of(self, answer: Exchange) -> tuple[list[int], bool]:
        """The ends of runs that may be the answer's, and whether they are its own and no other's."""
        if not answer.writes:
            return self.all, False
        first = answer.writes[0]
        thread = (first.pid, first.tid)
        if thread in self._threads and thread not in self._shared:
            return self._threads[thread], True
        return self.all, False

    def of_worker(self, answer: Exchange) -> tuple[list[int], bool]:
        """The same of an answer that is written whole, which one thread of several may have made for another to write."""
        ends, own = self.of(answer)
        written_by_runner = any((s.pid, s.tid) in self._threads for s in answer.writes[:1])
        if own or written_by_runner or len(self._threads) < 2:
            return ends, own
        return self._threads[self._worker(answer)], True

    def whole(self, after: int, until: int, ends: Sequence[int]) -> int:
        """How many of these runs lie between two times as a whole, as far as that can be determined."""
        return len(_between(ends, after + round(self.typical_ns / 2), until)) if after else 1

    def fit(self, after: int, until: int) -> bool:
        """Whether a whole run lies between two times."""
        begun = bisect_right(self._begun, after)
        return begun < len(self._begun) and self._first_end[begun] <= until

    def apart(self, one: Span, other: Span, least_ns: float) -> bool:
        """Whether there is time for a token between two writes: so much, or less with a whole run of the model in it. On a busy
        machine most runs take several times as long as one that nothing interrupts.
        """
        return other.end_ns - one.end_ns >= least_ns or self.fit(one.end_ns, other.end_ns)

    def _worker(self, answer: Exchange) -> tuple[int, int]:
        """The thread that most often ends a run right before something of the answer is written."""
        votes: dict[tuple[int, int], int] = defaultdict(int)
        for write in answer.writes:
            latest = {
                t: ends[n - 1] for t, ends in self._threads.items() if (n := bisect_right(ends, write.end_ns))
            }
            if latest:
                votes[max(latest, key=lambda t: latest[t])] += 1
        return max(votes, key=lambda t: votes[t]) if votes else next(iter(self._threads))


def _shared_threads(answers: Sequence[Exchange]) -> set[tuple[int, int]]:
    """Threads that write several answers at a time, as an event loop does."""
    stays: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for a in answers:
        if a.writes:
            begin = a.reads[0].start_ns if a.reads else a.writes[0].start_ns
            stays[a.writes[0].pid, a.writes[0].tid].append((begin, a.writes[-1].end_ns))
    return {
        thread
        for thread, rows in stays.items()
        if any(later[0] < earlier[1] for earlier, later in pairwise(sorted(rows)))
    }


def _between(ends: Sequence[int], after: int, until: int) -> Sequence[int]:
    return ends[bisect_right(ends, after) : bisect_right(ends, until)]


def _chunks(answer: Exchange, known: _Runs) -> list[int]:
    """When chunks that hold tokens were sent: headers and what is written together with a chunk are none of their own."""
    writes = [s for s in answer.writes if s.n_bytes >= LEAST_CHUNK_BYTES and s.kind != "done"]
    times = [s.end_ns for s in writes]
    if known.all and answer.writes:
        return _chunks_by_runs(answer, writes, known)
    if len(times) > 1 and answer.reads:
        waited = times[0] - answer.reads[-1].end_ns
        if times[-1] - times[0] <= max(WHOLE_NS, WHOLE * waited):
            return times[-1:]
        unlike = writes[0].kind == "head" or _begins_unlike(writes)
        limit = 1.0 if unlike else HEADERS_ONLY
        times = times[1:] if waited < limit * (times[1] - times[0]) else times
    gaps = [b - a for a, b in pairwise(times)]
    close = TOGETHER * _usual(gaps)
    if gaps and answer.reads and gaps[0] < close and len(times) == len(writes) and _begins_unlike(writes):
        times, gaps = times[1:], gaps[1:]  # headers, right before the first token
    if sum(gap < close for gap in gaps) < PARTS * len(gaps):
        return times
    return times[:1] + [at for at, gap in zip(times[1:], gaps, strict=True) if gap >= close]


def _chunks_by_runs(answer: Exchange, writes: Sequence[Span], known: _Runs) -> list[int]:
    """The same where runs of the model are seen: a chunk with a token has a run before it that no other chunk is of.

    What is written at once after two runs, because the writer was late, are two chunks: if they are of one size.
    """
    ends, _ = known.of(answer)
    asked = after = answer.reads[0].start_ns if answer.reads else 0
    told: list[Span] = []
    runs = 0
    for write in writes[_headers(writes, known, asked) :]:
        at = write.end_ns
        fresh = len(_between(ends, after, at))
        runs += fresh
        after = at
        if not runs:
            continue
        apart = not told or known.apart(told[-1], write, TOGETHER * known.typical_ns)
        if (apart and fresh) or (told and _alike(write, told[-1])):
            runs = max(known.whole(asked, at, ends), 1) if not told else runs
            told.append(write)
            runs -= 1
    return [write.end_ns for write in told]


def _alike(one: Span, other: Span) -> bool:
    return other.n_bytes / UNLIKE <= one.n_bytes <= other.n_bytes * UNLIKE and "head" not in (
        one.kind,
        other.kind,
    )


def _headers(writes: Sequence[Span], known: _Runs, asked: int) -> int:
    """1 where the first write is of headers that hold no token: it is not known for a token, or one follows at once."""
    if len(writes) < 3 or writes[0].kind != "head":
        return 0
    usual = _usual([b.end_ns - a.end_ns for a, b in pairwise(writes[1:])])
    holds_one = known.fit(asked, writes[0].end_ns) and known.apart(writes[0], writes[1], TOGETHER * usual)
    return 0 if holds_one else 1


def _begins_unlike(writes: Sequence[Span]) -> bool:
    """Whether the first write is of another size than the later ones: headers, alone or with a token."""
    if len(writes) < 3:
        return False
    usual = median([s.n_bytes for s in writes[1:]])
    return not usual / UNLIKE <= writes[0].n_bytes <= usual * UNLIKE


def _usual(gaps: Sequence[int]) -> int:
    """The gap of which half of the time is in shorter ones: parts of one chunk, however many, hardly count, nor do stalls."""
    in_order = sorted(gaps)
    longest = in_order[ceil(STALLS * (len(in_order) - 1))] if in_order else 0
    capped = [min(gap, longest) for gap in in_order]
    passed = 0
    for gap in capped:
        passed += gap
        if 2 * passed >= sum(capped):
            return gap
    return 0


def _tokens_per_chunk(answers: Sequence[Exchange], chunks: Sequence[list[int]], known: _Runs) -> int:
    """Runs of the model between two chunks, where all requests share its runs; 1 where they take turns."""
    shared = [
        (a, c) for a, c in zip(answers, chunks, strict=True) if len(c) > 2 and a.writes and not known.of(a)[1]
    ]
    if not known.all or not shared or known.several:
        return 1
    stays = _Stays([a for a in answers if a.kind != "get" and a.writes])
    gaps = [gap for _, c in shared for gap in pairwise(c)]
    alone = [gap for gap in gaps if stays.most(*gap) < 2]
    if len(alone) >= LEAST_ALONE:
        return max(round(median(len(_between(known.all, *gap)) for gap in alone)), 1)
    followed: dict[int, int] = defaultdict(int)
    for _, c in shared:
        for at in c:
            followed[bisect_right(known.all, at)] += 1
    counts = [(stays.at(known.all[n - 1]), k) for n, k in followed.items() if n]
    crowded = [(active, k) for active, k in counts if active > 1]
    if not crowded:
        return 1
    active, together = (fmean(column) for column in zip(*crowded, strict=True))
    between = median(len(_between(known.all, *gap)) for gap in gaps)
    return max(round(between), 1) if together >= 0.5 * active + 0.25 else 1


class _Stays:
    """How many requests are in the server at a time."""

    def __init__(self, answers: Sequence[Exchange]) -> None:
        self._begins = sorted((a.reads or a.writes)[0].start_ns for a in answers)
        self._ends = sorted(a.writes[-1].end_ns for a in answers)

    def at(self, when: int) -> int:
        return self.most(when, when)

    def most(self, after: int, until: int) -> int:
        """How many are in it at some time between the two."""
        return bisect_right(self._begins, until) - bisect_left(self._ends, after)


def _request(answer: Exchange, chunks: Sequence[int], known: _Runs, per_chunk: int) -> ServedRequest:
    start = answer.reads[0].start_ns if answer.reads else None
    last = answer.writes[-1].end_ns if answer.writes else None
    made = ServedRequest(
        connection=answer.connection,
        start_ns=start,
        first_ns=chunks[0] if chunks else None,
        end_ns=last,
        tokens=len(chunks),
        streamed=len(chunks) > 1,
        bytes_in=sum(s.n_bytes for s in answer.reads),
        bytes_out=sum(s.n_bytes for s in answer.writes),
        over=answer.closed
        or any(s.kind == "done" or s.n_bytes < LEAST_CHUNK_BYTES for s in answer.writes[-1:]),
    )
    if last is None:
        return replace(made, tokens=0)
    if not known.all:
        model = made.streamed or answer.kind != "get"
        pace = _pace(chunks, len(chunks) - 1)
        return replace(made, tokens=len(chunks) * made.streamed, tpot_ns=pace, model=model)
    ends, own = known.of(answer)
    if made.streamed:
        more = len(_between(ends, chunks[0], chunks[-1])) if own else (len(chunks) - 1) * per_chunk
        first = 1 if start is None else len(_between(ends, start, chunks[0])) if own else per_chunk
        return replace(made, tokens=first + more, tpot_ns=_pace(chunks, more))
    ends, own = known.of_worker(answer)
    its = _between(ends, start, last) if start is not None else ()
    too_short = start is not None and not own and last - start < known.typical_ns
    looks_up = (
        answer.kind == "get" and not own and known.asks
    )  # health, figures: next to those who ask the model
    if not its or too_short or looks_up:
        return replace(made, tokens=0, first_ns=None, model=start is None)
    return replace(made, tokens=len(its), first_ns=its[0], tpot_ns=_pace(its, len(its) - 1))


def _pace(times: Sequence[int], tokens: int) -> float | None:
    return (times[-1] - times[0]) / tokens if tokens > 0 else None
