"""Whether a replica of a service answers, on real sockets."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from unidle.engine.local.ranks.supervisor.progress.readiness import MISSES, Readiness, answers, free_port


class Replica(http.server.BaseHTTPRequestHandler):
    """Answers with the status that its path ends in."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.rpartition("/")[2]))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Replica)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "ready"),
    [("", True), ("/200", True), ("/a/204", True), ("/302", True), ("/404", False), ("/503", False)],
)
def test_a_replica_is_ready_by_a_connection_or_by_the_status_of_a_request(
    port: int, path: str, ready: bool
) -> None:
    assert answers(port, path) is ready


def test_what_accepts_a_connection_and_speaks_no_http_is_not_ready_for_requests() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert answers(port, "")
        closes = threading.Thread(target=lambda: listening.accept()[0].close())
        listening.accept()[0].close()  # the connection of the line above
        closes.start()
        assert not answers(port, "/health")
        closes.join()


def test_marks_say_when_it_was_first_ready_and_when_it_was_not_any_more() -> None:
    """A check or two without an answer are no sign yet."""
    here, times = Readiness(free_port(), ""), iter(range(100, 1000))
    assert here.check(next(times)) == []
    with socket.create_server(("127.0.0.1", here.port)):
        assert here.check(101) == [{"k": "ready", "t": 101, "info": {"port": here.port}}]
        assert here.check(102) == []
    assert [here.check(110 + k) for k in range(MISSES - 1)] == [[]] * (MISSES - 1)
    with socket.create_server(("127.0.0.1", here.port)):
        assert here.check(115) == []
    found = [here.check(120 + k) for k in range(MISSES + 2)]
    assert [mark for marks in found for mark in marks] == [{"k": "begin", "t": 120, "w": "unready"}]
    with socket.create_server(("127.0.0.1", here.port)):
        assert here.check(130) == [{"k": "span", "t": 120, "e": 130, "w": "unready"}]


def test_an_order_names_the_port_or_leaves_it_open() -> None:
    assert Readiness.ordered("8000 /health").port == 8000
    assert Readiness.ordered("0 ").port > 0
