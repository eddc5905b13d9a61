"""The inference view of a real server, beside what its own clock saw."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from scope_serving.relay import Relay
from unidle.scope.serving import Serving, serving

SERVER = Path(__file__).with_name("server.py")
STREAMS, WHOLE, TOKENS = 6, 3, 24


@dataclass(frozen=True)
class Seen:
    view: Serving
    truth: list[dict[str, Any]]
    client_ttft_s: list[float]


@pytest.fixture(scope="module", params=["alone", "batched"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A server with two clients at once that keep their connections, and a third that asks for its health."""
    truth = tmp_path_factory.mktemp("serving") / "truth.json"
    command = [sys.executable, str(SERVER), "--truth", str(truth), "--width", "384", "--layers", "4"]
    if request.param == "batched":
        command.append("--batched")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        relay = Relay(told["port"])
        begin = time.monotonic_ns()
        with_streams = [True] * (STREAMS // 2) + [False] * WHOLE
        ttft_s: list[float] = []
        clients = [
            threading.Thread(target=_ask, args=(relay.port, kinds, ttft_s))
            for kinds in (with_streams, [True] * (STREAMS - STREAMS // 2))
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        relay.close()
        server.communicate(timeout=60)
        view = serving(relay.spans, begin, time.monotonic_ns())
        yield Seen(view, json.loads(truth.read_text())["requests"], ttft_s)
    finally:
        server.kill()
        server.wait()


def _ask(port: int, kinds: Sequence[bool], ttft_s: list[float]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for stream in kinds:
        body = json.dumps({"prompt": "once upon a time " * 4, "tokens": TOKENS, "stream": stream})
        began = time.perf_counter()
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read1(1)
        if stream:
            ttft_s.append(time.perf_counter() - began)
        answer.read()
    connection.close()


def test_every_request_is_seen_and_every_streamed_token_counted(seen: Seen) -> None:
    assert len(seen.truth) == STREAMS + WHOLE
    assert len(seen.view.requests) == STREAMS + WHOLE
    tokens = sorted(r.tokens for r in seen.view.requests)
    assert tokens[:WHOLE] == [0] * WHOLE
    # Where a busy machine delays the headers, nothing tells them from a token without the model's runs.
    assert set(tokens[WHOLE:]) <= {TOKENS, TOKENS + 1}


def test_the_first_token_is_seen_after_the_server_made_it_and_before_the_client_has_it(seen: Seen) -> None:
    made = median(t["ttft_s"] for t in seen.truth if t["streamed"])
    found = [r.ttft_ns / 1e9 for r in seen.view.requests if r.streamed and r.ttft_ns is not None]
    assert len(found) == STREAMS
    assert made < median(found) < median(seen.client_ttft_s)


def test_the_pace_of_tokens_is_that_of_the_servers_own_clock(seen: Seen) -> None:
    assert seen.view.tpot is not None
    truth = median(t["tpot_s"] for t in seen.truth if t["streamed"])
    assert seen.view.tpot.p50_ms == pytest.approx(1e3 * truth, rel=0.15)
