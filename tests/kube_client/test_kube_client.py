"""Requests over real connections: TLS, credentials, deadlines, what is tried again, and errors that name the request."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from kube_client.servers import Answers, authority, refuse, reply, serving
from unidle.errors import BadInput
from unidle.kube.access import ClusterAccess
from unidle.kube.client import ApiClient, open_client
from unidle.kube.credentials import ClientPair, Credential, Fixed, TokenFile
from unidle.kube.objects import PODS
from unidle.kube.protocol import ApiRequest, KubeError, Selected
from waiting import wait_until

GET = ApiRequest("get", "GET", "/api/v1/x", "x a")
POST = ApiRequest("create", "POST", "/api/v1/x", "x a", body=b"{}")


def access(port: int, **more: Any) -> ClusterAccess:
    return ClusterAccess(f"http://127.0.0.1:{port}", source="the test", **more)


@contextlib.contextmanager
def client_of(found: ClusterAccess, timeout_s: float = 30.0, patience_s: float = 0.0) -> Iterator[ApiClient]:
    with contextlib.closing(open_client(found, timeout_s=timeout_s, patience_s=patience_s)) as client:
        yield client


def in_turn(*answers: Answers) -> Answers:
    left = list(answers)

    def answer(request: BaseHTTPRequestHandler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(request)

    return answer


def ok(request: BaseHTTPRequestHandler) -> None:
    reply(request, 200, {"metadata": {"name": "a"}})


def refused(status: int, reason: str, message: str = "no") -> Answers:
    return lambda request: refuse(request, status, reason, message)


def test_a_connection_is_kept_for_the_next_request() -> None:
    with serving(in_turn(ok, refused(404, "NotFound"), ok)) as server:
        with client_of(access(server.port)) as client:
            client.call(GET)
            with pytest.raises(KubeError):  # an answer that is an error leaves it usable, too
                client.call(GET)
            client.call(POST)
        assert server.connections == 1


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    def closes(request: BaseHTTPRequestHandler) -> None:
        ok(request)
        request.close_connection = True  # without having announced it

    with serving(closes) as server, client_of(access(server.port)) as client:
        client.call(POST)
        wait_until(lambda: not client._pool._idle[0].timed.fresh(), what="the end of the connection")
        client.call(POST)
        assert server.connections == 2


def test_the_server_is_verified_and_the_client_shows_its_certificate(tmp_path: Path) -> None:
    made, pair = authority(tmp_path)
    mine = made.sign(tmp_path / "mine", "someone")
    with serving(ok, pair, made.file) as server:
        files = Fixed(Credential("", ClientPair(mine.certificate, mine.key)))
        inline = Fixed(Credential("", ClientPair(mine.certificate.read_bytes(), mine.key.read_bytes())))
        for credentials in (files, inline):
            for ca in (made.file, made.file.read_bytes()):
                found = ClusterAccess(server.urls(), authority=ca, credentials=credentials)
                with client_of(found) as client:
                    client.call(GET)
        assert b"PRIVATE" not in repr(inline).encode()
        with client_of(ClusterAccess(server.urls(), authority=made.file)) as client, pytest.raises(KubeError):
            client.call(GET)


def test_a_server_that_cannot_prove_itself_is_not_trusted(tmp_path: Path) -> None:
    made, pair = authority(tmp_path)
    other, _ = authority(tmp_path / "other")
    with serving(ok, pair) as server:
        right = ClusterAccess(server.urls(), authority=made.file, source="the test")
        for wrong in (replace(right, authority=other.file), replace(right, server_name="other.test")):
            with client_of(wrong, patience_s=60) as client, pytest.raises(KubeError) as error:
                client._patiently(GET)  # at once: it will not be right later
            assert error.value.reason == "Untrusted"
            assert not error.value.may_pass
            assert "certificate-authority and tls-server-name of the test" in str(error.value)
        for fine in (replace(right, server_name="api.test"), replace(right, authority=None, insecure=True)):
            with client_of(fine) as client:
                client.call(GET)


def test_a_certificate_that_is_no_certificate_is_bad_input(tmp_path: Path) -> None:
    _, pair = authority(tmp_path)
    with serving(ok, pair) as server:
        broken = Fixed(Credential("", ClientPair(b"x", b"y")))
        for found, field in (
            (ClusterAccess(server.urls(), authority=b"no"), "certificate-authority"),
            (ClusterAccess(server.urls(), insecure=True, credentials=broken), "client-certificate"),
        ):
            with client_of(found) as client, pytest.raises(BadInput, match=f"{field}: cannot be used"):
                client.call(GET)


def test_requests_go_through_a_proxy(tmp_path: Path) -> None:
    made, pair = authority(tmp_path)
    asked: list[str] = []

    def tunnels(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        host, port = request.path.split(":")
        with socket.create_connection((host, int(port))) as server:
            request.send_response(200)
            request.end_headers()
            other = threading.Thread(target=_copy, args=(server, request.connection), daemon=True)
            other.start()
            _copy(request.connection, server)
            other.join()
        request.close_connection = True

    with serving(ok, pair) as server, serving(ok) as proxy:
        proxy_handler = tunnels
        with _proxy(proxy_handler) as port:
            found = ClusterAccess(server.urls(), authority=made.file, proxy=f"http://127.0.0.1:{port}")
            with client_of(found) as client:
                client.call(GET)
                client.call(GET)
        assert asked == [f"127.0.0.1:{server.port}"]
        assert not proxy.requests


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while found := source.recv(1 << 16):
            target.sendall(found)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def _proxy(tunnels: Answers) -> Iterator[int]:
    from http.server import ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            tunnels(self)

        def log_message(self, *_: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield listener.server_port
    finally:
        listener.shutdown()
        listener.server_close()


def test_a_token_that_is_refused_is_read_again_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")

    def answer(request: BaseHTTPRequestHandler) -> None:
        if request.headers["Authorization"] == "Bearer new":
            return ok(request)
        path.write_text("new and" if request.headers["Authorization"] == "Bearer new" else "new")
        return refuse(request, 401, "Unauthorized")

    with serving(answer) as server, client_of(access(server.port, credentials=TokenFile(path))) as client:
        client.call(POST)
        assert [headers["Authorization"] for _, _, headers in server.requests] == ["Bearer old", "Bearer new"]


def test_credentials_that_stay_refused_are_an_error_at_once() -> None:
    found = access(0, credentials=Fixed(Credential("wrong")))
    with serving(refused(401, "Unauthorized")) as server:
        found = replace(found, server=server.urls("http"))
        with client_of(found, patience_s=60) as client, pytest.raises(KubeError) as error:
            client.get(PODS, "a")
        assert len(server.requests) == 1
        assert "check the credentials of the test" in str(error.value)
        assert "wrong" not in str(error.value)


def test_a_read_is_tried_again_and_a_write_is_not() -> None:
    busy = (
        refused(503, "ServiceUnavailable"),
        refused(500, "InternalError"),
        refused(429, "TooManyRequests"),
    )
    with serving(in_turn(*busy, ok)) as server, client_of(access(server.port), patience_s=60) as client:
        assert client.get(PODS, "a").metadata.name == "a"
        assert len(server.requests) == 4
    with serving(in_turn(*busy, ok)) as server, client_of(access(server.port), patience_s=60) as client:
        with pytest.raises(KubeError) as error:
            client.call(POST)
        assert error.value.may_pass
        assert len(server.requests) == 1


def test_a_server_that_asks_for_more_time_than_there_is_ends_the_tries() -> None:
    def later(request: BaseHTTPRequestHandler) -> None:
        reply(request, 429, {"kind": "Status", "message": "busy"}, {"Retry-After": "3600"})

    with serving(later) as server, client_of(access(server.port), patience_s=60) as client:
        with pytest.raises(KubeError) as error:
            client.get(PODS, "a")
        assert error.value.retry_after_s == 3600
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "reason", "line"),
    [
        (403, {"kind": "Status", "reason": "Forbidden", "message": 'User "x" cannot'}, "Forbidden",
         'get x a: User "x" cannot; have get granted'),
        (404, b"404 page not found\n", "NotFound", "get x a: 404 page not found; the server does not serve this kind"),
        (404, {"kind": "Status", "reason": "NotFound", "message": "gone"}, "NotFound", "check its name and namespace"),
        (502, b"<html>\x1b[31mBad\nGateway</html>", "HTTP 502", r"get x a: <html>\x1b[31mBad Gateway</html>; try again"),
        (500, b"", "InternalError", "get x a: HTTP status 500"),
        (302, b"", "HTTP 302", "HTTP status 302"),
    ],
)  # fmt: skip
def test_an_error_names_request_reason_and_remedy(status: int, body: object, reason: str, line: str) -> None:
    serves = serving(lambda request: reply(request, status, body))
    with serves as server, client_of(access(server.port)) as client, pytest.raises(KubeError) as error:
        client.call(GET)
    assert (error.value.status, error.value.reason) == (status, reason)
    assert line in str(error.value)
    assert str(error.value).isprintable()
    assert error.value.exit_code == 4


def test_what_is_no_json_is_an_error_that_names_the_server() -> None:
    serves = serving(lambda request: reply(request, 200, b"<html>login</html>"))
    error = pytest.raises(KubeError, match=r"check that .* is an API server")
    with serves as server, client_of(access(server.port)) as client, error:
        client.get(PODS, "a")


def test_nothing_that_listens_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with client_of(access(port)) as client, pytest.raises(KubeError) as error:
        client.call(GET)
    assert error.value.reason == "Unreachable"
    assert f"check that http://127.0.0.1:{port} answers (the test)" in str(error.value)


def test_a_server_that_trickles_does_not_outlast_the_time_of_a_request() -> None:
    def trickles(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000000")
        request.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(1_000_000):
                request.wfile.write(b" ")
                time.sleep(0.01)

    with serving(trickles) as server, client_of(access(server.port)) as client:
        with pytest.raises(KubeError) as error:
            client.call(GET, timeout_s=0.3)
        assert error.value.reason == "TimedOut"


def test_a_stream_on_which_nothing_comes_ends() -> None:
    def one_line(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        request.wfile.write(b"3\r\n{}\n\r\n")
        request.wfile.flush()
        request.rfile.read(1)  # until the client leaves

    with serving(one_line) as server, client_of(access(server.port)) as client:
        lines = client.stream(GET, silent_s=0.3)
        assert next(lines) == b"{}"
        with pytest.raises(KubeError) as error:
            next(lines)
        assert error.value.reason == "TimedOut"


def test_lines_come_whole_however_they_are_cut() -> None:
    text = (
        b"".join(b'{"n": %d, "x": "%s"}\n' % (n, b"y" * (n * 997 % 5000)) for n in range(200)) + b"the last"
    )

    def cut(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        at, size = 0, 1
        while at < len(text):
            part = text[at : at + size]
            request.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            at, size = at + size, size * 7 % 9001 + 1
        request.wfile.write(b"0\r\n\r\n")

    with serving(cut) as server, client_of(access(server.port)) as client:
        assert b"\n".join(client.stream(GET, silent_s=30)) == text


def test_a_request_that_runs_can_be_broken_off() -> None:
    waits = threading.Event()

    def waiting(request: BaseHTTPRequestHandler) -> None:
        if request.path.endswith("/slow"):
            waits.set()
            request.rfile.read(1)
        else:
            ok(request)

    with serving(waiting) as server, client_of(access(server.port)) as client:
        errors: list[KubeError] = []

        def ask() -> None:
            with pytest.raises(KubeError) as error:
                client.call(replace(GET, path="/slow"))
            errors.append(error.value)

        thread = threading.Thread(target=ask)
        thread.start()
        assert waits.wait(60)
        client.break_off()
        thread.join()
        assert errors[0].reason == "Unreachable"
        client.call(GET)  # later ones are as before
        client.close()
        with pytest.raises(KubeError):
            client.call(GET)


def test_impersonation_and_agent_are_sent_and_a_body_has_its_type() -> None:
    found = {"headers": {"Impersonate-User": "eve"}}
    with serving(ok) as server, client_of(access(server.port, **found)) as client:
        client.call(replace(POST, content_type="application/merge-patch+json"))
        [(_, _, headers)] = server.requests
        assert headers["Impersonate-User"] == "eve"
        assert headers["User-Agent"].startswith("unidle/")
        assert headers["Content-Type"] == "application/merge-patch+json"
        assert server.bodies == [b"{}"]


def test_a_server_below_a_path_is_asked_there() -> None:
    with serving(lambda request: reply(request, 200, {"items": None})) as server:
        found = replace(access(0), server=f"http://127.0.0.1:{server.port}/clusters/c-1")
        with client_of(found) as client:
            client.list_all(PODS, Selected("ns", "a=b,c", "spec.nodeName=n1"))
        [(_, path, _)] = server.requests
        assert path == (
            "/clusters/c-1/api/v1/namespaces/ns/pods"
            "?labelSelector=a%3Db%2Cc&fieldSelector=spec.nodeName%3Dn1&limit=500"
        )


def test_a_secret_is_not_sent_over_a_network_unencrypted() -> None:
    token = Fixed(Credential("secret-token"))
    with pytest.raises(BadInput, match="would be sent unencrypted") as error:
        open_client(ClusterAccess("http://api.test:8080", credentials=token))
    assert "secret-token" not in str(error.value)
    open_client(ClusterAccess("http://api.test:8080")).close()
    open_client(ClusterAccess("http://localhost:8080", credentials=token)).close()
