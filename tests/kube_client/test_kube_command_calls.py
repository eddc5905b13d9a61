"""Calls of the controller through an API server that does what a real one does only by chance."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest

from kube_client.servers import Server, refuse, reply, serving
from unidle.kube.commands import CommandCalls, CommandTarget
from unidle.kube.protocol import KubeError


class CutsShort:
    """Ends the connection in the middle of the first ``times`` answers, as golang/go#40747 does."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        if "/proxy/" not in request.path:
            reply(request, 201, {})
            return
        body = msgspec.msgpack.encode({"value": ["x" * 20_000]})
        if self.times == 0:
            reply(request, 200, body)
            return
        self.times -= 1
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[:16_384])
        request.close_connection = True


def calls_of(server: Server, place: Path) -> CommandCalls:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server.urls("http")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = place / "kubeconfig"
    path.write_text(json.dumps(config))
    return CommandCalls(CommandTarget(str(path)), place / "tickets")


def sent(server: Server) -> list[dict[str, object]]:
    bodies = zip(server.requests, server.bodies, strict=True)
    return [msgspec.msgpack.decode(body) for (_, path, _), body in bodies if "/proxy/" in path]


def test_an_answer_that_is_cut_short_is_sent_for_again_with_the_same_id(tmp_path: Path) -> None:
    with serving(CutsShort(2)) as server:
        calls = calls_of(server, tmp_path)
        assert calls.call("tables") == ["x" * 20_000]
        calls.call("tables")
        calls.close()
        first, second, third, other = sent(server)
    assert first == second == third
    assert other["id"] != first["id"]


def test_answers_that_are_always_cut_short_are_one_clear_error(tmp_path: Path) -> None:
    with serving(CutsShort(1000)) as server:
        calls = calls_of(server, tmp_path)
        with pytest.raises(KubeError, match="the answer ends early") as found:
            calls.call("tables")
        calls.close()
    assert found.value.reason == "CutShort"


def test_a_refusal_is_not_tried_again(tmp_path: Path) -> None:
    with serving(lambda request: refuse(request, 403, "Forbidden")) as server:
        calls = calls_of(server, tmp_path)
        with pytest.raises(KubeError, match="no"):
            calls.call("tables")
        calls.close()
        assert len(server.requests) == 1
