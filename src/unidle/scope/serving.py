"""What a running inference server does, from what crosses its sockets and when its model runs. Pure.

The input are plain spans. Of kind ``recv`` and ``send``: bytes that the process read from or wrote to a connection,
whose name is ``LOCAL>REMOTE`` (``10.0.0.1:8000>10.0.0.9:51234``, ``[::1]:8000>[::1]:51234``, ``unix:PATH>unix:#1``).
Where they begin with HTTP, ``ask`` and ``get`` are reads that begin a request (one with a body, one without), and
``head`` is a write that begins with headers. Of kind ``forward``: one run of the model, or of kind
``operator``: its marks, from which :func:`forwards` makes the runs.

A request begins with the first bytes that are read after an answer and ends with the last bytes of its own answer. What
is written at once belongs together (a chunk); a streamed chunk holds as many tokens as runs of the model lie between two
of them. TTFT is from the first byte of the request to the first chunk that holds a token, TPOT the mean time between
tokens after the first. Both are the server's share: what a client sees has the network on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from unidle.scope.model import Span
from unidle.scope.rank_views import length, union
from unidle.scope.serving_requests import ServedRequest, counted_behind, forwards, requests_of
from unidle.scope.serving_traffic import outer_and_inner
from unidle.scope.steps import quantile

WARMING: Final = 3.0  # times the median of the later ones: the first requests still warm the server up


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in milliseconds over ``count`` requests."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Serving:
    """The inference view of a look. Shares in percent, rates per second of the whole look."""

    seconds: float
    requests: tuple[ServedRequest, ...]
    finished: int
    other: int  # requests that the model did not run for
    warm_up: int
    concurrency: float  # requests in the server, on average over the time that there was one
    batch: float | None  # requests that a run of the model served, on average
    ttft: Percentiles | None
    tpot: Percentiles | None
    whole: Percentiles | None  # from the first byte in to the last byte out
    tokens: int
    tokens_s: float
    forwards: int | None
    forward_ms: float | None
    busy_pct: float | None  # of the time the model ran
    model_bytes_s: float | None  # bytes of parameters that runs of the model read
    bandwidth_pct: float | None  # of the machine's, over the whole look
    bandwidth_busy_pct: float | None  # of the machine's, while the model ran (MBU)
    notes: tuple[str, ...] = ()

    @property
    def asked(self) -> int:
        """Requests that the model ran for."""
        return len(self.requests) - self.other

    def to_json(self) -> dict[str, object]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        times = {name: _times_json(getattr(self, name)) for name in ("ttft", "tpot", "whole")}
        rate = {"requests": self.asked, "requests_s": self.asked / self.seconds}
        return rate | plain | times | {"notes": list(self.notes)}


_PLAIN: Final = (
    "seconds", "finished", "other", "warm_up", "concurrency", "batch", "tokens", "tokens_s", "forwards", "forward_ms",
    "busy_pct", "model_bytes_s", "bandwidth_pct", "bandwidth_busy_pct",
)  # fmt: skip


def serving(
    spans: Iterable[Span],
    start_ns: int,
    end_ns: int,
    *,
    ports: Iterable[int] = (),
    model_bytes: int | None = None,
    machine_bytes_s: float | None = None,
) -> Serving:
    """The inference view of the time from ``start_ns`` to ``end_ns``.

    ``ports``: where the server listens; without them, local ports whose connections begin with a read (or only answer).
    ``model_bytes``: what one run of the model reads of parameters. ``machine_bytes_s``: measured memory bandwidth.
    """
    known = [s for s in spans if s.end_ns >= start_ns and s.start_ns <= end_ns]
    runs = sorted((s for s in known if s.kind == "forward"), key=lambda s: s.end_ns)
    runs = runs or forwards(s for s in known if s.kind == "operator")
    outer, inner = outer_and_inner(known, frozenset(ports))
    requests = sorted(requests_of(outer, runs), key=lambda r: r.start_ns or start_ns)
    if inner:
        requests = counted_behind(requests, requests_of(inner, runs))
    requests = _warm([_going_on(r, end_ns) for r in requests])
    return _summary(requests, runs, start_ns, end_ns, model_bytes, machine_bytes_s)


def _going_on(r: ServedRequest, end_ns: int) -> ServedRequest:
    """A streamed answer whose last chunk is hardly older than the next one would be has not ended yet."""
    if (
        not r.over
        and r.streamed
        and r.tpot_ns is not None
        and r.end_ns is not None
        and end_ns - r.end_ns < 3 * r.tpot_ns
    ):
        return replace(r, end_ns=None)
    return r


def _warm(requests: Sequence[ServedRequest]) -> list[ServedRequest]:
    """Mark the first requests of the look, as long as they take far longer to their first token than the later ones."""
    known = [r.ttft_ns for r in requests if r.model and r.ttft_ns is not None]
    if len(known) < 4:
        return list(requests)
    limit = WARMING * median(known[len(known) // 2 :])
    marked: list[ServedRequest] = []
    warming = True
    for r in requests:
        if warming and r.model and r.ttft_ns is not None:
            warming = r.ttft_ns > limit
        marked.append(replace(r, warm_up=warming and r.model and r.ttft_ns is not None))
    return marked


def _summary(
    requests: Sequence[ServedRequest],
    runs: Sequence[Span],
    start_ns: int,
    end_ns: int,
    model_bytes: int | None,
    machine_bytes_s: float | None,
) -> Serving:
    seconds = max(end_ns - start_ns, 1) / 1e9
    asked = [r for r in requests if r.model]
    counted = [r for r in asked if not r.warm_up and r.start_ns is not None]
    stays = [(max(r.start_ns or start_ns, start_ns), r.end_ns or end_ns) for r in asked]
    present = length(union(stays))
    tokens = sum(r.tokens for r in asked)
    run_ns = length(union((max(s.start_ns, start_ns), min(s.end_ns, end_ns)) for s in runs))
    read = model_bytes * len(runs) if runs and model_bytes else None
    batches = [sum(a <= s.end_ns <= b for a, b in stays) for s in runs] if len(stays) else []
    streamed = [r for r in counted if r.streamed]
    return Serving(
        seconds=seconds,
        requests=tuple(requests),
        finished=sum(r.end_ns is not None for r in asked),
        other=len(requests) - len(asked),
        warm_up=sum(r.warm_up for r in requests),
        concurrency=sum(b - a for a, b in stays) / present if present else 0.0,
        batch=fmean(batches) if batches and not _own_threads(requests, runs) else None,
        ttft=_times([r.ttft_ns for r in streamed or counted]),
        tpot=_times([r.tpot_ns for r in counted]),
        whole=_times([r.end_ns - r.start_ns for r in counted if r.end_ns and r.start_ns is not None]),
        tokens=tokens,
        tokens_s=tokens / seconds,
        forwards=len(runs) if runs else None,
        forward_ms=median([s.end_ns - s.start_ns for s in runs]) / 1e6 if runs else None,
        busy_pct=100 * run_ns / (end_ns - start_ns) if runs and end_ns > start_ns else None,
        model_bytes_s=None if read is None else read / seconds,
        bandwidth_pct=_share_pct(read, 1e9 * seconds, machine_bytes_s),
        bandwidth_busy_pct=_share_pct(read, run_ns, machine_bytes_s),
        notes=tuple(_notes(asked, streamed, runs, model_bytes, machine_bytes_s)),
    )


def _share_pct(n_bytes: int | None, ns: float, machine_bytes_s: float | None) -> float | None:
    """Percent of the machine's bandwidth that these bytes took in this time."""
    if n_bytes is None or not machine_bytes_s or not ns:
        return None
    return 100 * (n_bytes / ns * 1e9) / machine_bytes_s


def _own_threads(requests: Sequence[ServedRequest], runs: Sequence[Span]) -> bool:
    """Whether runs of the model overlap: then each serves one request, and there are no batches."""
    return any(b.start_ns < a.end_ns for a, b in pairwise(sorted(runs, key=lambda s: s.start_ns))) and bool(
        requests
    )


def _notes(
    asked: Sequence[ServedRequest],
    streamed: Sequence[ServedRequest],
    runs: Sequence[Span],
    model_bytes: int | None,
    machine_bytes_s: float | None,
) -> Iterable[str]:
    if asked and not runs:
        yield "runs of the model were not seen: a chunk counts as one token, and late headers may count as one"
    if asked and not streamed:
        yield (
            "no answer was streamed: the first token is when the model made it"
            if runs
            else ("no answer was streamed: the time to the first token is that of the whole answer")
        )
    if runs and model_bytes is None:
        yield "the size of the model is unknown, and so is its bandwidth"
    if runs and model_bytes and not machine_bytes_s:
        yield "the memory bandwidth of this machine was not measured"


def _times(values: Iterable[float | None]) -> Percentiles | None:
    known = [v / 1e6 for v in values if v is not None]
    if not known:
        return None

    at = partial(quantile, known)
    return Percentiles(len(known), at(0.5), at(0.9), at(0.99))


def _times_json(times: Percentiles | None) -> Mapping[str, float] | None:
    if times is None:
        return None
    return {"count": times.count, "p50_ms": times.p50_ms, "p90_ms": times.p90_ms, "p99_ms": times.p99_ms}
