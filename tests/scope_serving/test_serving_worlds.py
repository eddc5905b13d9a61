"""The inference view over traffic that was made up: overlapping requests, kept connections, streams, whole answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.scope.model import Span
from unidle.scope.serving import Serving, serving
from unidle.scope.serving_requests import forwards

MS = 1_000_000


@dataclass
class World:
    """What a server's sockets and its model do."""

    spans: list[Span] = field(default_factory=list)
    port: int = 8000
    thread: int = 10

    def add(self, kind: str, at_ms: float, size: int = 0, client: int = 1, tid: int | None = None) -> None:
        at = int(at_ms * MS)
        name = f"10.0.0.1:{self.port}>10.0.0.9:{50000 + client}"
        self.spans.append(Span(1, tid or 100 + client, name, kind, at, at, size))

    def run(self, start_ms: float, end_ms: float, tid: int | None = None) -> None:
        self.spans.append(
            Span(1, tid or self.thread, "forward", "forward", int(start_ms * MS), int(end_ms * MS))
        )

    def stream(
        self, at_ms: float, tokens: int, prefill_ms: float, token_ms: float, client: int = 1, each: int = 1
    ) -> float:
        """A streamed answer, ``each`` tokens in a chunk; the time when it ends."""
        self.add("recv", at_ms, 400, client)
        self.add("send", at_ms + 0.2, 150, client)  # headers
        now = at_ms + prefill_ms
        for k in range(tokens):
            if (k + 1) % each == 0 or k == tokens - 1:
                self.add("send", now, 40, client)
            now += token_ms
        self.add("send", now - token_ms + 0.05, 5, client)  # the end of the chunks
        return now - token_ms

    def seen(self, seconds: float = 10.0, **more: Any) -> Serving:
        return serving(self.spans, 0, int(seconds * 1e9), **more)


@given(
    st.integers(2, 60),
    st.floats(5, 400),
    st.floats(2, 80),
    st.integers(1, 6),
)
def test_a_streamed_answer_gives_ttft_tpot_and_tokens_without_its_headers(
    tokens: int, prefill: float, token_ms: float, clients: int
) -> None:
    prefill = max(prefill, token_ms)
    world = World()
    for client in range(clients):
        world.stream(100 + 7.3 * client, tokens, prefill, token_ms, client)
    found = world.seen(60)
    assert found.finished == clients
    assert [r.tokens for r in found.requests] == [tokens] * clients
    assert found.ttft is not None
    assert found.tpot is not None
    assert found.ttft.p50_ms == pytest.approx(prefill, rel=1e-3)
    assert found.tpot.p50_ms == pytest.approx(token_ms, rel=1e-3)
    assert found.tokens_s == pytest.approx(clients * tokens / 60)


def loop(world: World, client: int, begin_ms: float, runs: list[tuple[float, float]]) -> None:
    """A streamed answer of an event loop: the first token goes out together with the headers."""
    world.add("ask", begin_ms, 224, client, tid=1)
    for n, (start, end) in enumerate(runs):
        world.run(start, end, tid=10 + client)
        world.add("send" if n else "head", end + 0.2, 28 if n else 108, client, tid=1)
    world.add("done", runs[-1][1] + 0.3, 5, client, tid=1)


def test_headers_that_hold_a_token_do_so_while_another_run_goes_on() -> None:
    world = World()
    loop(world, 1, 0, [(1 + 8 * k, 8.5 + 8 * k) for k in range(12)])
    loop(world, 2, 3, [(4 + 4 * k, 7.5 + 4 * k) for k in range(12)])
    assert [r.tokens for r in world.seen(1).requests] == [12, 12]


def test_headers_that_hold_a_token_do_so_in_a_stream_that_stalls_later() -> None:
    world = World()
    loop(
        world,
        1,
        0,
        [(1 + 4 * k + (90 if k > 6 else 0), 4.5 + 4 * k + (90 if k > 6 else 0)) for k in range(12)],
    )
    assert [r.tokens for r in world.seen(1).requests] == [12]


@pytest.mark.parametrize("quick", [(0, 1), (1,), (1, 2), (5,), (10, 11)])
def test_runs_that_nothing_interrupts_on_a_busy_machine_are_tokens_too(quick: tuple[int, ...]) -> None:
    world, now, runs = World(), 1.0, []
    for k in range(12):
        now += 3 if k in quick else 60
        runs.append((now - (2.5 if k in quick else 59.5), now))
    loop(world, 1, 0, runs)
    loop(world, 2, 3, [(60 * k + 3.5, 60 * k + 62) for k in range(12)])
    assert [r.tokens for r in world.seen(1).requests] == [12, 12]


@pytest.mark.parametrize("alone", [3, 8, 12, 14])
def test_runs_that_serve_one_request_each_are_not_counted_for_another(alone: int) -> None:
    world = World()
    begun: set[int] = set()
    for n, client in enumerate([0] * alone + [1, 0] * (16 - alone) + [1] * alone):
        if client not in begun:
            world.add("ask", 4 * n, 224, client, tid=10)
        world.run(4 * n + 0.2, 4 * n + 3)
        kind, size = ("send", 28) if client in begun else ("head", 108)
        world.add(kind, 4 * n + 3.1, size, client, tid=10)
        begun.add(client)
    assert [r.tokens for r in world.seen(1).requests] == [16, 16]


def test_requests_on_a_kept_connection_are_told_apart() -> None:
    world = World()
    end = 0.0
    for _ in range(5):
        end = world.stream(end + 30, 10, 40, 8)
    found = world.seen()
    assert len(found.requests) == 5
    assert found.ttft is not None
    assert found.ttft.count == 5
    assert found.ttft.p99_ms == pytest.approx(40, rel=1e-3)
    assert found.concurrency == pytest.approx(1)


def test_a_request_that_comes_in_pieces_begins_with_its_first() -> None:
    world = World()
    world.add("recv", 90, 300)
    world.add("recv", 95, 60_000)
    world.stream(100, 10, 50, 8)
    (request,) = world.seen().requests
    assert request.start_ns == 90 * MS
    assert request.bytes_in == 60_700


def test_a_small_frame_of_the_client_begins_no_request() -> None:
    world = World()
    world.stream(0, 20, 50, 10)
    world.add("recv", 120, 13)  # a WINDOW_UPDATE of HTTP/2
    assert len(world.seen().requests) == 1


def test_a_stream_that_began_before_the_look_has_no_ttft_but_a_pace() -> None:
    world = World()
    world.stream(-100, 60, 50, 10)
    found = world.seen()
    (request,) = found.requests
    assert request.ttft_ns is None
    assert request.tpot_ns == pytest.approx(10 * MS, rel=1e-3)
    assert found.ttft is None


def test_a_stream_that_outlasts_the_look_has_not_finished() -> None:
    world = World()
    world.stream(0, 2000, 50, 10)
    found = world.seen(5)
    assert found.finished == 0
    assert found.whole is None
    assert found.tokens == pytest.approx(496, abs=1)


def test_connections_that_the_server_opened_itself_hold_no_requests() -> None:
    world = World()
    world.stream(10, 10, 40, 8)
    at = 0.0
    for k in range(50):  # a database: asked first, then read
        name = "10.0.0.1:43210>10.0.0.7:5432"
        for kind in ("send", "recv"):
            at += 1
            world.spans.append(Span(1, 3, name, kind, int((20 + at) * MS), int((20 + at) * MS), 100 + k))
    found = world.seen()
    assert len(found.requests) == 1
    assert len(world.seen(ports=[43210]).requests) >= 50


@pytest.mark.parametrize("together", [1, 2, 4])
def test_a_relay_that_passes_several_tokens_on_at_once_hides_none(together: int) -> None:
    """Two clients at once; the relay (process 1) asks the server (process 2) for each."""
    world = World()
    tokens = {1: 12, 2: 8}

    def pass_on(pid: int, name: str, kind: str, at_ms: float, size: int) -> None:
        world.spans.append(Span(pid, pid, name, kind, int(at_ms * MS), int(at_ms * MS), size))

    for client, count in tokens.items():
        near, far = f"127.0.0.1:{40000 + client}", "127.0.0.1:9000"
        begin = 2.0 * client
        world.add("ask", begin, 224, client)
        pass_on(1, f"{near}>{far}", "send", begin + 0.1, 224)
        pass_on(2, f"{far}>{near}", "ask", begin + 0.2, 224)
        held = 0
        for n in range(count):
            end = begin + 30 + 10 * n
            world.run(end - 5, end, tid=200 + client)
            world.spans[-1] = Span(2, 200 + client, "forward", "forward", int((end - 5) * MS), int(end * MS))
            world.spans.append(
                Span(2, 200 + client, f"{far}>{near}", "send" if n else "head", int((end + 0.1) * MS), int((end + 0.1) * MS), 28 if n else 108)
            )  # fmt: skip
            held += 1
            if held == together or n in (0, count - 1):
                world.add("send" if n else "head", end + 0.3, 28 * held if n else 108, client)
                held = 0
        pass_on(2, f"{far}>{near}", "done", begin + 31 + 10 * count, 5)
        world.add("done", begin + 31.2 + 10 * count, 5, client)
    requests = world.seen(1).requests
    assert [r.tokens for r in requests] == [12, 8]
    assert {r.connection.partition(">")[0] for r in requests} == {"10.0.0.1:8000"}
    assert [r.tpot_ns for r in requests] == [pytest.approx(10 * MS)] * 2


def test_a_batching_engine_gives_one_token_of_each_run_to_all() -> None:
    """Three clients, one engine thread; runs of 20 ms, each answered by a chunk to all that are there."""
    world = World()
    left = {1: 30, 2: 25, 3: 20}
    for client in left:
        world.add("recv", client * 5, 300, client)
        world.add("send", client * 5 + 0.1, 120, client)
    now = 20.0
    while left:
        world.run(now, now + 19)
        now += 20
        for client in list(left):
            world.add("send", now + 0.1 * client, 40, client)
            left[client] -= 1
            if not left[client]:
                del left[client]
    found = world.seen(1.0, model_bytes=10**9, machine_bytes_s=100e9)
    assert sorted(r.tokens for r in found.requests) == [20, 25, 30]
    assert found.forwards == 30
    assert found.batch == pytest.approx((3 * 20 + 2 * 5 + 5) / 30, abs=0.2)
    assert found.tpot is not None
    assert found.tpot.p50_ms == pytest.approx(20, rel=0.01)
    assert found.model_bytes_s == pytest.approx(30e9)
    assert found.bandwidth_pct == pytest.approx(30)
    assert found.bandwidth_busy_pct == pytest.approx(100 / 19 * 10, rel=0.01)


def test_chunks_of_several_tokens_are_counted_by_runs_of_the_model() -> None:
    world = World()
    world.add("recv", 0, 300)
    world.add("send", 0.1, 120)
    for k in range(40):
        world.run(10 * k + 1, 10 * k + 9)
        if k % 4 == 3:
            world.add("send", 10 * k + 9.5, 160)
    (request,) = world.seen().requests
    assert request.tokens == 40
    assert request.tpot_ns == pytest.approx(10 * MS)


def test_an_engine_that_takes_turns_gives_each_run_to_one_request() -> None:
    world = World()
    for client in (1, 2, 3):
        world.add("recv", client * 0.1, 300, client)
    for k in range(90):
        world.run(10 * k + 1, 10 * k + 9)
        world.add("send", 10 * k + 9.5, 40, k % 3 + 1)
    found = world.seen()
    assert [r.tokens for r in found.requests] == [30, 30, 30]


def test_a_whole_answer_is_counted_by_the_runs_of_its_own_thread() -> None:
    world = World()
    for client in (1, 2):
        tid = 100 + client
        world.add("recv", 10, 300, client, tid)
        for k in range(12 * client):
            world.run(20 + 10 * k, 29 + 10 * k, tid)
        world.add("send", 30 + 120 * client, 900, client, tid)
    found = world.seen()
    assert sorted(r.tokens for r in found.requests) == [12, 24]
    assert found.ttft is not None
    assert found.ttft.p50_ms == pytest.approx(19)
    assert any("no answer was streamed" in note for note in found.notes)


def test_health_checks_are_no_requests_to_the_model() -> None:
    world = World()
    world.add("recv", 0, 300)
    for k in range(50):
        world.run(10 * k + 1, 10 * k + 9)
        world.add("send", 10 * k + 9.5, 40)
        if k % 5 == 0:
            world.add("recv", 10 * k + 8.8, 80, 7)
            world.add("send", 10 * k + 9.3, 120, 7)
    found = world.seen()
    assert found.other == 10
    assert found.tokens == 50


def test_first_requests_that_warm_the_server_up_do_not_count_in_percentiles() -> None:
    world = World()
    end = 0.0
    for k in range(12):
        end = world.stream(end + 30, 10, 2000 if k < 2 else 40, 8)
    found = world.seen()
    assert found.warm_up == 2
    assert found.ttft is not None
    assert found.ttft.p99_ms < 50
    assert found.tokens == 120


def test_without_runs_of_the_model_whole_answers_have_no_tokens_and_that_is_said() -> None:
    world = World()
    world.add("recv", 0, 300)
    world.add("send", 500, 5000)
    found = world.seen()
    assert found.tokens == 0
    assert found.model_bytes_s is None
    assert found.to_json()["requests"] == 1
    assert len(found.notes) == 2


def test_nothing_seen_is_an_empty_view() -> None:
    found = serving([], 0, 10**9)
    assert found.requests == ()
    assert found.ttft is None
    assert found.notes == ()


def test_runs_are_made_of_operators_whatever_embeddings_they_begin_with() -> None:
    marks = []
    for k in range(5):
        for j, name in enumerate(("embedding", "embedding", "linear", "linear", "addmm")):
            at = 100 * k + j
            marks.append(Span(1, 1, f"at::_ops::{name}::call", "operator", at, at + 1))
    found = forwards(marks)
    assert [(s.start_ns, s.end_ns) for s in found] == [(100 * k, 100 * k + 5) for k in range(5)]
    assert forwards(m for m in marks if "embedding" in m.name) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["recv", "send"]), st.floats(0, 900), st.integers(0, 5000), st.integers(1, 4)
        ),
        max_size=60,
    ),
    st.lists(st.tuples(st.floats(0, 900), st.floats(0.1, 30)), max_size=20),
)
def test_whatever_passes_the_figures_stay_within_their_bounds(
    traffic: list[tuple[str, float, int, int]], runs: list[tuple[float, float]]
) -> None:
    world = World()
    for kind, at, size, client in traffic:
        world.add(kind, at, size, client)
    for start, more in runs:
        world.run(start, start + more)
    found = world.seen(1.0, ports=[8000], model_bytes=10**9, machine_bytes_s=10e9)
    assert sum(r.bytes_out for r in found.requests) == sum(
        size for kind, _, size, _ in traffic if kind == "send"
    )
    for r in found.requests:
        assert r.tokens >= 0
        assert r.ttft_ns is None or r.ttft_ns >= 0
        assert r.tpot_ns is None or r.tpot_ns >= 0
    assert found.busy_pct is None or 0 <= found.busy_pct <= 100
