"""Posting to real servers that fail in every way that servers do."""

from __future__ import annotations

import base64
import re
import socket
import ssl
import subprocess
import threading
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from notices.receiver import Received, receiver
from unidle.notices.send_queue import Delivery
from unidle.notices.webhook import WebhookTarget, post, secret_bytes, signature

NOW_S = 1_800_000_000.0
DOC = Path(__file__).parents[2] / "docs" / "how-to" / "notices.md"


def test_a_notice_is_posted_and_signed_so_that_anybody_can_verify_it() -> None:
    secret = b"\x00\xffs3cret"
    with receiver() as there:
        answer = post(
            WebhookTarget(there.url, secret, {"X-Room": "7"}),
            "id-1",
            b'{"text":"gr\xc3\xbc\xc3\x9f"}',
            NOW_S + 0.9,
        )
    assert answer == Delivery("done")
    (got,) = there.all
    assert (got.path, got.body) == ("/hook?room=1", b'{"text":"gr\xc3\xbc\xc3\x9f"}')
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-room"] == "7"
    assert (got.headers["webhook-id"], got.headers["webhook-timestamp"]) == ("id-1", "1800000000")
    code = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    now_s = str(int(time.time()))
    fresh = {
        **got.headers,
        "webhook-timestamp": now_s,
        "webhook-signature": signature(secret, "id-1", int(now_s), got.body),
    }
    assert got.headers["webhook-signature"] == signature(secret, "id-1", int(NOW_S), got.body)
    assert names["verify"](secret, fresh, got.body)
    assert not names["verify"](secret, got.headers, got.body)  # of another day
    assert not names["verify"](secret, fresh, got.body + b" ")
    assert not names["verify"](b"another", fresh, got.body)
    assert not names["verify"](secret, {**fresh, "webhook-id": "id-2"}, got.body)


def test_the_signature_is_that_of_the_published_example() -> None:
    """The example of the Standard Webhooks specification's reference libraries."""
    secret = secret_bytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_without_a_secret_nothing_is_signed() -> None:
    with receiver() as there:
        post(WebhookTarget(there.url), "id", b"{}", NOW_S)
    assert "webhook-signature" not in there.all[0].headers


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {}, Delivery("done")),
        (204, {}, Delivery("done")),
        (400, {}, Delivery("refused", "answered 400")),
        (401, {}, Delivery("refused", "answered 401")),
        (404, {}, Delivery("refused", "answered 404")),
        (410, {}, Delivery("refused", "answered 410")),
        (408, {}, Delivery("again", "answered 408")),
        (429, {"Retry-After": "120"}, Delivery("again", "answered 429", 120.0)),
        (429, {"Retry-After": formatdate(NOW_S + 60, usegmt=True)}, Delivery("again", "answered 429", 60.0)),
        (429, {"Retry-After": formatdate(NOW_S - 60, usegmt=True)}, Delivery("again", "answered 429")),
        (429, {"Retry-After": "soon"}, Delivery("again", "answered 429")),
        (429, {"Retry-After": "-5"}, Delivery("again", "answered 429")),
        (
            429,
            {"Retry-After": "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"},
            Delivery("again", "answered 429"),
        ),
        (500, {}, Delivery("again", "answered 500")),
        (503, {"Retry-After": "7"}, Delivery("again", "answered 503", 7.0)),
    ],
)
def test_what_follows_from_an_answer(status: int, headers: dict[str, str], expected: Delivery) -> None:
    with receiver(lambda _: (status, headers)) as there:
        assert post(WebhookTarget(there.url), "id", b"{}", NOW_S) == expected
    assert len(there.all) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_refused(status: int) -> None:
    with receiver() as elsewhere, receiver(lambda _: (status, {"Location": elsewhere.url})) as there:
        answer = post(WebhookTarget(there.url, b"secret"), "id", b"{}", NOW_S)
    assert answer == Delivery("again", f"answered {status}: redirects are not followed")
    assert elsewhere.all == []


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_nobody_listens() -> None:
    assert post(WebhookTarget(f"http://127.0.0.1:{closed_port()}/"), "id", b"{}", NOW_S) == Delivery(
        "again", "connection refused"
    )


def test_no_such_host() -> None:
    assert post(WebhookTarget("http://no-such-host.invalid/"), "id", b"{}", NOW_S).outcome == "again"


def test_a_server_that_never_answers_is_left_after_the_time_limit() -> None:
    free = threading.Event()

    def hang(_: Received) -> tuple[int, dict[str, str]]:
        free.wait(600)
        return 200, {}

    with receiver(hang) as there:
        begun_s = time.monotonic()
        answer = post(WebhookTarget(there.url, timeout_s=0.3), "id", b"{}", NOW_S)
        free.set()
    assert answer == Delivery("again", "no answer in time")
    assert time.monotonic() - begun_s < 60


def test_a_server_that_dribbles_is_cut_off_as_a_whole() -> None:
    stop = threading.Event()

    def dribble(one: Received) -> tuple[int, dict[str, str]]:
        one.handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not stop.wait(0.05):
            one.handler.wfile.write(b"x")
        raise ConnectionError

    with receiver(dribble) as there:
        begun_s = time.monotonic()
        answer = post(WebhookTarget(there.url, timeout_s=300.0, whole_s=0.5), "id", b"{}", NOW_S)
        stop.set()
    assert answer == Delivery("again", "no answer in time")
    assert time.monotonic() - begun_s < 60


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 two hundred\r\n\r\n", b"\x00" * 100_000]
)
def test_what_does_not_speak_http_is_tried_again(said: bytes) -> None:
    def speak(one: Received) -> tuple[int, dict[str, str]]:
        one.handler.wfile.write(said)
        raise ConnectionError

    with receiver(speak) as there:
        assert post(WebhookTarget(there.url, timeout_s=5.0), "id", b"{}", NOW_S).outcome == "again"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signed itself, with its key, in one file."""
    place = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", place / "key.pem", "-out", place / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    both = place / "both.pem"
    both.write_text((place / "key.pem").read_text() + (place / "cert.pem").read_text())
    return both


def test_certificates_are_verified(certificate: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with receiver(tls=tls) as there:
        url = there.url.replace("http:", "https:")
        unknown = post(WebhookTarget(url, b"secret"), "id", b"{}", NOW_S)
        known = post(
            WebhookTarget(url, tls=ssl.create_default_context(cafile=str(certificate))), "id", b"{}", NOW_S
        )
        wrong = post(
            WebhookTarget(url.replace("127.0.0.1", "localhost"), tls=ssl.create_default_context(cafile=str(certificate))),
            "id", b"{}", NOW_S,
        )  # fmt: skip
    assert unknown.outcome == "again"
    assert unknown.text.startswith("its certificate is not valid: self")
    assert known == Delivery("done")
    assert wrong.outcome == "again"
    assert wrong.text.startswith("its certificate is not valid:")
    assert len(there.all) == 1


def test_secrets_are_text_or_base64() -> None:
    assert secret_bytes("s3crét") == "s3crét".encode()
    assert secret_bytes("whsec_" + base64.b64encode(b"\x00\x01").decode()) == b"\x00\x01"
    with pytest.raises(ValueError, match="not base64"):
        secret_bytes("whsec_%%%")


def test_what_fails_is_told_without_the_address() -> None:
    answer = post(
        WebhookTarget(f"http://127.0.0.1:{closed_port()}/T0KEN", b"S3CRET", {"X": "H3ADER"}),
        "id",
        b"{}",
        NOW_S,
    )
    shown = repr((answer, WebhookTarget("http://h/T0KEN", b"S3CRET", {"X": "H3ADER"})))
    assert not any(word in shown for word in ("T0KEN", "S3CRET", "H3ADER"))
