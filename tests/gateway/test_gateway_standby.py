"""A controller that stands by answers probes, and each command with one word."""

from __future__ import annotations

import http.client
import ssl

import msgspec

from unidle.gateway.standby import open_standby
from unidle.kube.commands import STANDBY


def test_probes_and_commands_are_answered_while_it_stands_by() -> None:
    server = open_standby("127.0.0.1:0")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(*server.addresses[0], context=context, timeout=60)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        connection.request("POST", "/v1", body=b"whatever it is")
        answer = connection.getresponse()
        assert answer.status == 200
        assert msgspec.msgpack.decode(answer.read())["error"]["kind"] == STANDBY
    finally:
        connection.close()
        server.close()
