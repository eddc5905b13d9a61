"""The inference view of real servers, as the profiler sees them from outside, beside the clocks of their clients."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import needs
from e2e.commands import unidle
from unidle.scope.export import html
from unidle.scope.model import Profile
from unidle.scope.serving import Serving
from unidle.scope.serving_view import ServingView, view_facts, view_of
from unidle.scope.tiers import watch

HERE = Path(__file__).parent
TOKENS = 12
SIZE = ("--width", "256", "--layers", "3")

pytestmark = pytest.mark.skipif(not needs.can_load_bpf(), reason="needs eBPF and the native part")


@contextmanager
def running(script: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A script beside this file and the first line it prints. It ends when its input closes."""
    paths = [str(HERE.parent), str(HERE), *sys.path]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": ":".join(paths),
    }
    command = [sys.executable, str(HERE / script), *more]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
            process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class UnixConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


@dataclass
class Client:
    """One connection, kept over all its requests: what it saw by its own clock."""

    connection: http.client.HTTPConnection
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)

    def ask(self, stream: bool) -> None:
        body = json.dumps({"prompt": "once upon a time " * 3, "tokens": TOKENS, "stream": stream})
        began = time.perf_counter()
        self.connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        if not stream:
            answer.read()
            return
        times = []
        while answer.readline():  # an event and an empty line
            times.append(time.perf_counter())
        events = times[::2]
        self.ttft_s.append(events[0] - began)
        self.tpot_s.append((events[-1] - events[0]) / (len(events) - 1))

    def health(self) -> None:
        self.connection.request("GET", "/health")
        self.connection.getresponse().read()


def serve(pid: int, clients: Sequence[Client], kinds: Sequence[bool], health: bool = True) -> Profile:
    """All clients at once; each asks for all kinds, one after the other."""

    def work(client: Client) -> None:
        for stream in kinds:
            client.ask(stream)
            if health:
                client.health()
        client.connection.close()

    with watch([pid]) as watched:
        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            watched.run(0.1)
        watched.run(0.1)
        return watched.take()


def to(told: dict[str, Any], host: str = "127.0.0.1") -> Client:
    return Client(http.client.HTTPConnection(host, told["port"], timeout=120))


def check(
    view: ServingView, clients: Sequence[Client], streams: int, whole: int, told: dict[str, Any]
) -> Serving:
    """Counts are exact; times lie where the clients' own say that they must."""
    assert view.serving is not None, view.why_not
    it = view.serving
    asked = [r for r in it.requests if r.model]
    assert (len(asked), it.finished) == (streams + whole, streams + whole)
    assert [r.tokens for r in asked] == [TOKENS] * (streams + whole)
    assert sum(r.streamed for r in asked) == streams
    assert it.tokens == TOKENS * (streams + whole)
    assert view.model_bytes == told["parameter_bytes"]
    # What the server sent when, its client saw a little later, or a lot where the machine was busy.
    streamed = [r for r in asked if r.streamed and r.ttft_ns is not None and r.tpot_ns is not None]
    first = sorted(r.ttft_ns / 1e9 for r in streamed)
    own_first = sorted(s for client in clients for s in client.ttft_s)
    last = sorted((r.ttft_ns + (TOKENS - 1) * r.tpot_ns) / 1e9 for r in streamed)
    own_last = sorted(a + (TOKENS - 1) * b for c in clients for a, b in zip(c.ttft_s, c.tpot_s, strict=True))
    assert len(first) == len(own_first)
    assert all(a < 1.05 * b for a, b in zip(first + last, own_first + own_last, strict=True))
    # Without the network and the client, which a busy machine may hold up for most of the time.
    assert max(a / b for a, b in zip(first, own_first, strict=True)) > 0.05
    assert median(last) > 0.2 * median(own_last)
    return it


@pytest.mark.parametrize("engine", ["alone", "batched"])
def test_requests_tokens_and_times_of_a_threaded_server_are_its_clients_own(engine: str) -> None:
    with running("server.py", *SIZE, *(["--batched"] if engine == "batched" else [])) as (server, line):
        told = json.loads(line)
        clients = [to(told) for _ in range(3)]
        seen = serve(server.pid, clients, [True, False, True])
    view = view_of(seen)
    if engine == "alone":
        it = check(view, clients, streams=6, whole=3, told=told)
        assert it.forwards == TOKENS * 9
        assert it.batch is None
    else:
        it = view.serving or pytest.fail(view.why_not)
        asked = [r for r in it.requests if r.model]
        assert len(asked) == 9
        assert [r.tokens for r in asked if r.streamed] == [TOKENS] * 6
        assert it.forwards is not None
        assert TOKENS * 3 <= it.forwards < TOKENS * 9  # several requests in one run
        assert it.batch is not None
        assert it.batch > 1.2
    assert it.other == 9  # health
    assert view.machine_bytes_s is not None
    assert it.bandwidth_busy_pct is not None
    assert it.bandwidth_busy_pct > 0


@pytest.mark.parametrize("shape", ["pool", "inline"])
def test_an_event_loop_that_serves_all_connections_is_told_apart_by_request(shape: str) -> None:
    with running("loop_server.py", *SIZE, *(["--inline"] if shape == "inline" else [])) as (server, line):
        told = json.loads(line)
        clients = [to(told) for _ in range(2)]
        seen = serve(server.pid, clients, [True, True], health=False)
    it = check(view_of(seen), clients, streams=4, whole=0, told=told)
    assert it.forwards == 4 * TOKENS


def test_connections_of_ipv6_count() -> None:
    with running("server.py", *SIZE, "--host", "::1") as (server, line):
        told = json.loads(line)
        clients = [to(told, "::1")]
        seen = serve(server.pid, clients, [True, False])
    it = check(view_of(seen), clients, streams=1, whole=1, told=told)
    assert all(r.connection.startswith("[::1]:") for r in it.requests)


def test_connections_of_a_unix_socket_count(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tmp_path_factory.mktemp("u") / "s.sock")
    with running("server.py", *SIZE, "--unix", path) as (server, line):
        told = json.loads(line)
        clients = [Client(UnixConnection(path, timeout=120)) for _ in range(2)]
        seen = serve(server.pid, clients, [True, False])
    check(view_of(seen), clients, streams=2, whole=2, told=told)


def test_behind_a_relay_each_request_counts_once() -> None:
    with running("front.py", *SIZE) as (front, line):
        told = json.loads(line)
        clients = [to(told)]
        seen = serve(front.pid, clients, [True, False])
    it = check(view_of(seen), clients, streams=1, whole=1, told=told)
    assert {r.connection.partition(">")[0] for r in it.requests} == {f"127.0.0.1:{told['port']}"}


@pytest.mark.slow
def test_ranks_that_train_serve_nobody_whatever_they_listen_for(tmp_path: Path) -> None:
    with running("trainer.py", str(tmp_path / "store")) as (trainer, line):
        client = Client(http.client.HTTPConnection("127.0.0.1", int(line), timeout=60))
        with watch([trainer.pid]) as watched:
            for _ in range(5):
                client.health()
                watched.run(0.3)
            seen = watched.take()
        client.connection.close()
    assert any(s.kind == "backward" for s in seen.spans)
    view = view_of(seen)
    assert view.serving is None
    assert view.why_not.startswith("it trains")
    assert view_facts(view) == []


@pytest.mark.slow
def test_ranks_that_only_reduce_serve_nobody(tmp_path: Path) -> None:
    with (
        running("trainer.py", str(tmp_path / "store"), "reduce") as (ranks, _line),
        watch([ranks.pid]) as watched,
    ):
        watched.run(1.5)
        seen = watched.take()
    assert any(c.kind == "collective" and c.count for c in seen.calls)
    assert any(s.kind in ("recv", "ask", "get") and s.n_bytes for s in seen.spans)
    view = view_of(seen)
    assert view.serving is None
    assert "collectives" in view.why_not


@pytest.mark.slow
def test_the_command_says_it_on_the_first_screen_in_json_and_on_the_page(tmp_path: Path) -> None:
    page, again = tmp_path / "page.html", tmp_path / "again.json"
    with running("server.py", *SIZE) as (server, line):
        told = json.loads(line)
        stop = threading.Event()

        def work() -> None:
            client = to(told)
            while not stop.is_set():
                client.ask(stream=True)
            client.connection.close()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            done = unidle("profile", server.pid, "--seconds", 4, "--out", again)
        finally:
            stop.set()
            thread.join()
    assert done.returncode == 0, done.stderr
    assert "Requests to the model" in done.stdout
    for word in ("requests", "tokens", "TTFT", "TPOT", "99th percentile", "of parameters"):
        assert word in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    shown = unidle("profile", "--from", again, "--json")
    serving = json.loads(shown.stdout)["serving"]
    assert serving["requests"] > 0
    assert serving["ttft"]["p50_ms"] <= serving["ttft"]["p99_ms"]
    assert serving["model_bytes"] == told["parameter_bytes"]
    assert serving["machine_bytes_s_is"] == "measured"
    assert unidle("profile", "--from", again, "--format", "html", "--out", page).returncode == 0
    assert "Requests to the model" in page.read_text()


def test_a_process_that_serves_nobody_says_why() -> None:
    view = view_of(Profile("T0", 0, 10**9))
    assert view.to_json() is None
    assert "listening" in view.why_not
    assert "T0" in view_of(Profile("T2", 0, 10**9)).why_not
    assert b'id="serving"' not in html.write(Profile("T0", 0, 10**9), serving=view_facts(view))
