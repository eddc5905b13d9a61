"""The client of a model's endpoint, against a real server: answers in all forms, and all ways to fail."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from rank_wan.certificates import certificate
from tune.endpoints import Reply, Served, completion, events, fails, hangs, resets, says, served, streams
from unidle.errors import BadInput
from unidle.tune.endpoint.body import MOST_BYTES, text_of_events
from unidle.tune.endpoint.client import EndpointFailed, ModelClient, Patience
from unidle.tune.endpoint.settings import ModelEndpoint, endpoint_of

KEY = "sk-secret-0123456789"
ASK = [{"role": "user", "content": "faster?"}]


def client(url: str, waits: list[float] | None = None, patience: Patience | None = None) -> ModelClient:
    found: list[float] = [] if waits is None else waits
    return ModelClient(ModelEndpoint(url, "small", KEY), patience or Patience(), wait=found.append)


@pytest.mark.parametrize(
    "reply",
    [
        says("é text"),
        says([{"type": "text", "text": "é "}, {"type": "text", "text": "text"}]),
        streams("é text"),
        streams("é text", cut=1),
        streams("é text", cut=10_000),
        streams("é text", done=False),
        streams("é text", reason=None),
        lambda request: request.stream([events("é text").replace(b"\n", b"\r\n"), b""]),
    ],
    ids=["whole", "parts", "stream", "byte by byte", "at once", "without DONE", "without reason", "CRLF"],
)
def test_an_answer_is_read_in_each_form(reply: Reply) -> None:
    with served(reply, key=KEY) as model:
        assert client(model.url).ask(ASK) == "é text"
    assert not model.wrong
    assert model.requests[0]["messages"] == ASK


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_a_busy_endpoint_is_tried_again_with_growing_waits(status: int) -> None:
    waits: list[float] = []
    with served(fails(status), fails(status), says("done")) as model:
        assert client(model.url, waits).ask(ASK) == "done"
    assert waits == [1.0, 2.0]


def test_the_wait_is_the_one_of_the_server() -> None:
    waits: list[float] = []
    soon = formatdate(usegmt=True)  # a date that has passed when it arrives
    replies = (
        fails(429, Retry_After="7"),
        fails(429, Retry_After=soon),
        fails(429, Retry_After="soon"),
        says("done"),
    )
    with served(*replies) as model:
        assert client(model.url, waits).ask(ASK) == "done"
    assert waits == [7.0, 0.0, 4.0]


def test_a_wait_beyond_the_limit_is_not_waited_for() -> None:
    waits: list[float] = []
    with (
        served(fails(429, "quota", Retry_After="86400")) as model,
        pytest.raises(EndpointFailed, match=r"429: quota.*86400 s"),
    ):
        client(model.url, waits).ask(ASK)
    assert not waits
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("status", "match"),
    [
        (400, "no such parameter.*UNIDLE_TUNE_MODEL"),
        (401, "UNIDLE_TUNE_KEY"),
        (403, "UNIDLE_TUNE_KEY"),
        (404, "UNIDLE_TUNE_URL"),
        (413, "less text"),
    ],
)
def test_a_refusal_is_final_and_names_the_remedy(status: int, match: str) -> None:
    with served(fails(status, "no such parameter")) as model, pytest.raises(EndpointFailed, match=match):
        client(model.url).ask(ASK)
    assert len(model.requests) == 1


def test_five_tries_are_all() -> None:
    with served(fails(500)) as model, pytest.raises(EndpointFailed, match="500: busy after 5 tries"):
        client(model.url).ask(ASK)
    assert len(model.requests) == 5


def cut_body(request: Served) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", "5000")
    request.end_headers()
    request.wfile.write(completion("done")[:-9])
    request.close_connection = True


@pytest.mark.parametrize(
    ("reply", "match"),
    [
        (resets, "connection failed"),
        (cut_body, "ends in the middle|no JSON"),
        (streams("half", done=False, reason=None), "ends in the middle"),
        (lambda request: request.send(200, b"<html>gateway</html>"), "no JSON"),
        (lambda request: request.send(200, b"[" * 100_000), "no JSON"),
        (lambda request: request.send(200, b"[]"), "no JSON object"),
        (lambda request: request.send(200, b'{"choices": []}'), "no choices"),
        (lambda request: request.send(200, b'{"choices": [{"message": 3}]}'), "no message"),
        (lambda request: request.send(200, b'{"error": {"message": "overloaded"}}'), "overloaded"),
        (
            lambda request: request.stream([b'data: {"error": {"message": "overloaded"}}\n\n', b""]),
            "overloaded",
        ),
        (lambda request: request.stream([b"data: {oh\n\n", b""]), "no JSON"),
        (lambda request: request.send(200, b"", "text/event-stream"), "ends in the middle"),
        (lambda request: request.wfile.write(b"SSH-2.0-OpenSSH\r\n"), "connection failed"),
    ],
)
def test_a_broken_answer_is_tried_again_then_reported(reply: Reply, match: str) -> None:
    with served(reply, says("done")) as model:
        assert client(model.url).ask(ASK) == "done"
    with served(reply) as model, pytest.raises(EndpointFailed, match=match):
        client(model.url, patience=Patience(tries=2)).ask(ASK)


@pytest.mark.parametrize(
    ("reply", "match"),
    [
        (says("half", "length"), "limit of tokens"),
        (streams("half", reason="length"), "limit of tokens"),
        (says(None), "no text"),
        (
            lambda request: request.send(302, b"", Location="http://127.0.0.1:9/v1"),
            "redirects are not followed",
        ),
        (
            lambda request: request.send(307, b"", Location="http://127.0.0.1:9/v1"),
            "redirects are not followed",
        ),
    ],
)
def test_what_another_try_cannot_change_is_reported_at_once(reply: Reply, match: str) -> None:
    with served(reply) as model, pytest.raises(EndpointFailed, match=match):
        client(model.url).ask(ASK)
    assert len(model.requests) == 1


def test_an_endless_answer_ends_at_the_limit_of_size() -> None:
    sent = threading.Event()

    def pours(request: Served) -> None:
        try:
            request.stream([b"data: " + b"x" * 65_536] * (MOST_BYTES // 65_536 * 50))
        except OSError:
            sent.set()

    with served(pours) as model, pytest.raises(EndpointFailed, match="over the limit of 8 MiB"):
        client(model.url).ask(ASK)
    assert sent.wait(60)


def test_a_silent_endpoint_is_left_after_the_time_without_a_byte() -> None:
    with served(hangs) as model, pytest.raises(EndpointFailed, match="no answer in time after 2 tries"):
        client(model.url, patience=Patience(tries=2, idle_s=0.2)).ask(ASK)


def test_an_answer_that_drips_ends_with_the_time_of_the_request() -> None:
    def drips(request: Served) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.end_headers()
        while not request.endpoint.leave.wait(0.02):
            request.wfile.write(b": wait\n\n")

    with served(drips) as model, pytest.raises(EndpointFailed, match="no answer in time"):
        client(model.url, patience=Patience(total_s=0.5)).ask(ASK)


def test_nothing_that_listens_is_one_clear_error() -> None:
    with served(says("")) as model:
        pass
    with pytest.raises(
        EndpointFailed, match=r"UNIDLE_TUNE_URL: the connection failed: .*refused after 5 tries"
    ):
        client(model.url).ask(ASK)


def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = certificate(tmp_path, "server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files["certificate"], files["key"])
    with served(streams("done"), key=KEY, tls=tls) as model:
        with pytest.raises(EndpointFailed, match="TLS failed: "):
            client(model.url).ask(ASK)
        monkeypatch.setenv("SSL_CERT_FILE", files["authority"])
        assert client(model.url).ask(ASK) == "done"
        with pytest.raises(EndpointFailed, match="TLS failed: "):
            client(model.url.replace("localhost", "127.0.0.1")).ask(ASK)
    assert not model.wrong


def test_tls_to_a_server_without_it_fails_at_once() -> None:
    waits: list[float] = []
    with served(says("")) as model, pytest.raises(EndpointFailed, match="TLS failed"):
        client(model.url.replace("http:", "https:"), waits).ask(ASK)
    assert not waits


@pytest.mark.parametrize("status", [401, 500])
def test_the_key_is_in_no_message(status: int) -> None:
    with (
        served(fails(status, f"wrong key {KEY}")) as model,
        pytest.raises(EndpointFailed, match=r"wrong key \[key\]") as error,
    ):
        client(model.url).ask(ASK)
    assert KEY not in str(error.value) + repr(error.value) + json.dumps(error.value.to_json())
    assert KEY not in repr(client(model.url))


@pytest.mark.parametrize(
    ("environ", "match"),
    [
        ({"URL": "127.0.0.1:8000"}, "UNIDLE_TUNE_URL: is no URL"),
        ({"URL": "http://h:99999/v1"}, "UNIDLE_TUNE_URL: is no URL"),
        ({"URL": "ftp://h/v1"}, "UNIDLE_TUNE_URL: is no URL"),
        ({"URL": f"http://user:{KEY}@h/v1"}, "UNIDLE_TUNE_KEY"),
        ({"URL": f"http://h/v1?key={KEY}"}, "UNIDLE_TUNE_KEY"),
        ({"URL": "http://h/v1", "MODEL": " "}, "UNIDLE_TUNE_MODEL: is missing"),
        ({"URL": "http://h/v1", "KEY": f"{KEY}\nHost: x"}, "UNIDLE_TUNE_KEY: has characters"),
        ({"URL": "http://h/v1", "KEY": f"{KEY}é"}, "UNIDLE_TUNE_KEY: has characters"),
    ],
)
def test_a_wrong_variable_is_one_clear_error_without_the_key(environ: dict[str, str], match: str) -> None:
    given = {f"UNIDLE_TUNE_{name}": value for name, value in {"MODEL": "small", **environ}.items()}
    with pytest.raises(BadInput, match=match) as error:
        endpoint_of(given)
    assert KEY not in str(error.value)


def test_variables_make_the_endpoint_and_none_is_none() -> None:
    assert endpoint_of({}) is None
    assert endpoint_of({"UNIDLE_TUNE_MODEL": "small", "UNIDLE_TUNE_KEY": KEY}) is None
    found = endpoint_of(
        {"UNIDLE_TUNE_URL": "http://h:1/v1/", "UNIDLE_TUNE_MODEL": "small", "UNIDLE_TUNE_KEY": f"{KEY}\n"}
    )
    assert found == ModelEndpoint("http://h:1/v1", "small", KEY)
    assert replace(found, key="").hide_key("text") == "text"


def test_a_check_does_not_import_the_client() -> None:
    code = "import sys, unidle.tune.check; sys.exit(any('endpoint' in name or name == 'urllib.request' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0


def test_a_long_line_in_many_pieces_is_joined_once() -> None:
    raw = events("x" * 2_000_000, size=2_000_000)
    assert len(text_of_events(raw[at : at + 100] for at in range(0, len(raw), 100))) == 2_000_000
