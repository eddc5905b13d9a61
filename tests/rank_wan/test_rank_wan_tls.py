"""Certificates that are not those they should be, with real ones: each side says what is wrong with which."""

from __future__ import annotations

from pathlib import Path

import pytest

from rank_wan.certificates import certificate
from rank_wan.pairs import SECRET, pair
from unidle.span.rank.mesh import contexts
from unidle.span.wan import Endpoint, Refused, Settings
from waiting import wait_until

# Python leaves a socket to its garbage collector if the other side is gone before the handshake begins
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)


def test_certificates_of_one_authority_are_taken(tmp_path: Path) -> None:
    server, client = contexts(certificate(tmp_path, "b"))[0], contexts(certificate(tmp_path, "a"))[1]
    with pair(tls=(server, client)) as (one, other):
        got = other.recv(1, bytearray(5))
        assert one.send(1, b"hello").result(60) == 5
        assert bytes(got.result(60)) == b"hello"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"days": -1}, r"tls: b at 127\.0\.0\.1:\d+: certificate has expired; renew the certificate of that side"),
        ({"host": "DNS:elsewhere"}, r"tls: b at .*localhost.*; .*certificate.* name.* by which it is reached"),
        ({"authority": "theirs"}, r"tls: b at .*; give both sides certificates of one authority"),
    ],
)  # fmt: skip
def test_who_connects_says_what_is_wrong_with_the_other_certificate(
    tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    server, client = (
        contexts(certificate(tmp_path, "b", **fields))[0],
        contexts(certificate(tmp_path, "a"))[1],
    )
    with pytest.raises(Refused, match=said), pair(tls=(server, client)):
        pass


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"days": -1}, "certificate expired"),
        ({"authority": "theirs"}, "unknown ca"),
    ],
)
def test_whose_own_certificate_is_turned_away_is_told_so(
    tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    server, client = (
        contexts(certificate(tmp_path, "b"))[0],
        contexts(certificate(tmp_path, "a", **fields))[1],
    )
    quick = Settings(flows=1, give_up_s=20)
    with (
        Endpoint("b", run="r", secret=SECRET, listen=("127.0.0.1", 0), settings=quick, tls_server=server) as b,
        Endpoint("a", run="r", secret=SECRET, settings=quick, tls_client=client) as a,
    ):  # fmt: skip
        assert b.address is not None
        channel = a.connect("b", b.address, tls_name="localhost")
        with pytest.raises(Refused, match=rf"tls: b at .* refused this side's certificate: {said}; renew it"):
            channel.wait_open(10)
        wait_until(
            lambda: any("tls: a peer was refused" in each for each in b.refusals), 60, "b's own account"
        )
