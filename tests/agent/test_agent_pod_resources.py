"""Which devices pods have, asked of a real gRPC server at a unix socket, as a kubelet is one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent.protobuf import message
from agent.test_agent_commands import World
from unidle import wire
from unidle.agent.pods import pod_resources, unary_call
from unidle.agent.pods.pod_resources import PodResources, fields, given_by
from unidle.hub import frames
from waiting import wait_until

LONG_S = 60.0
GPU = "nvidia.com/gpu"


class Kubelet:
    """A server that can be ended and begun again. ``tell`` changes what it lists."""

    def __init__(self, place: Path) -> None:
        self.socket, self.file = str(place / "kubelet.sock"), place / "told.json"
        self.tell()
        self.begin()

    def tell(self, **told: Any) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.replace(self.file)

    def begin(self) -> None:
        server = Path(__file__).with_name("kubelet_server.py")
        words = [sys.executable, "-P", str(server), self.socket, str(self.file)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"listens\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    found = Kubelet(tmp_path_factory.mktemp("k"))
    yield found
    found.end()


@pytest.fixture
def kubelet(server: Kubelet) -> Kubelet:
    server.tell()
    return server


@pytest.fixture
def watched(kubelet: Kubelet) -> Iterator[PodResources]:
    found = PodResources(kubelet.socket)
    yield found
    kubelet.tell()
    found.close()


def report(watched: PodResources) -> dict[str, Any]:
    found = wait_until(watched.report, 60, "a report")
    assert found is not None
    return found


def answer(watched: PodResources, command: int) -> tuple[str, dict[str, Any]]:
    [(number, why, data)] = wait_until(lambda: list(watched.answers()), 60, "an answer")
    assert number == command
    return why, data


def test_devices_of_pods_and_of_claims_are_listed(kubelet: Kubelet) -> None:
    kubelet.tell(
        allocatable={GPU: ["GPU-b", "GPU-a"], "rdma/hca": ["h0"]},
        pods={"team/train": {GPU: ["GPU-b"], "rdma/hca": ["h0"]}, "team/web": {}},
        claims={"team/claims": [["gpu.nvidia.com", "gpu-3"], ["gpu.nvidia.com", "gpu-1"]]},
    )
    found = given_by(kubelet.socket, LONG_S)
    assert found.allocatable == {GPU: ["GPU-a", "GPU-b"], "rdma/hca": ["h0"]}
    assert found.pods == {
        "team/train": {GPU: ["GPU-b"], "rdma/hca": ["h0"]},
        "team/claims": {"gpu.nvidia.com": ["gpu-1", "gpu-3"]},
    }


def test_a_list_is_longer_than_a_window_of_http2(kubelet: Kubelet) -> None:
    ids = {f"vendor.example/kind-{k}": [f"{k}-{n:050}" for n in range(100)] for k in range(110)}
    kubelet.tell(pods={"team/one": ids})
    content = unary_call.unary_call(kubelet.socket, "/v1.PodResourcesLister/List", LONG_S)
    assert len(content) > 600_000
    with pytest.raises(ValueError, match=r"take \d+ bytes, and 524288 are reported at most"):
        given_by(kubelet.socket, LONG_S)


def test_a_refused_call_a_hanging_server_and_no_server_are_errors(kubelet: Kubelet, tmp_path: Path) -> None:
    kubelet.tell(refuse=True)
    with pytest.raises(unary_call.UnaryCallFailed, match="refused"):
        given_by(kubelet.socket, LONG_S)
    kubelet.tell(hang=True)
    with pytest.raises(TimeoutError):
        given_by(kubelet.socket, 0.2)
    with pytest.raises(FileNotFoundError):
        given_by(str(tmp_path / "none.sock"), LONG_S)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no server of HTTP/2"),
        (b"", "closed the connection"),
        (b"\0\0\0\4\0\0\0\0\0" + b"\0\0\4\7\0\0\0\0\0" + b"\0\0\0\0", "ended the call"),
        (b"\0\0\6\0\1\0\0\0\1" + b"\0\0\0\0\2x", "cut short"),
        (b"\0\0\6\0\1\0\0\0\1" + b"\1\0\0\0\1x", "compressed"),
        (b"\0\0\2\0\x09\0\0\0\1" + b"\5x", "not as agreed"),
    ],
)
def test_what_is_no_answer_is_an_error(tmp_path: Path, content: bytes, match: str) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, suppress(OSError):  # a client that has seen enough resets the connection
                peer.recv(65536)
                peer.sendall(content)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(65536)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(unary_call.UnaryCallFailed, match=match):
            unary_call.unary_call(path, "/v1.PodResourcesLister/List", LONG_S)
        thread.join()


@pytest.mark.parametrize("content", [b"\x0a\x05ab", b"\x0b", b"\xff" * 12, b"\x0a", b"\x09ab"])
def test_a_message_that_is_cut_or_of_another_form_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut short|unknown type"):
        list(fields(content))
    assert list(fields(message((1, 300), (2, "a")))) == [(1, 300), (2, b"a")]


def test_a_report_comes_when_it_is_news_and_again_on_a_new_connection(
    kubelet: Kubelet, watched: PodResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_resources, "EVERY_S", 0.02)
    assert report(watched) == {"why": "", "allocatable": {}, "pods": {}}
    kubelet.tell(allocatable={GPU: ["GPU-a"]}, pods={"team/a": {GPU: ["GPU-a"]}})
    watched.ask(1, {"pod": "team/a"})
    assert answer(watched, 1) == ("", {"devices": {GPU: ["GPU-a"]}})
    assert report(watched)["pods"] == {"team/a": {GPU: ["GPU-a"]}}
    assert watched.report() is None
    watched.lost()
    assert report(watched)["allocatable"] == {GPU: ["GPU-a"]}


def test_a_question_is_answered_by_a_look_after_it(kubelet: Kubelet, watched: PodResources) -> None:
    report(watched)
    for k in range(3):  # no look of the timer's in between
        kubelet.tell(pods={"team/a": {GPU: [f"GPU-{k}"]}})
        watched.ask(k, {"pod": "team/a"})
        assert watched.is_busy
        assert answer(watched, k) == ("", {"devices": {GPU: [f"GPU-{k}"]}})
    watched.ask(9, {"pod": "team/none"})
    assert answer(watched, 9) == ("", {"devices": {}})
    assert watched.ask(10, {"pod": 3}) == "the order is not as agreed"


def test_what_is_not_known_is_said_until_the_kubelet_answers(tmp_path: Path) -> None:
    watched = PodResources(str(tmp_path / "kubelet.sock"))
    try:
        assert "there is no socket" in report(watched)["why"]
        watched.ask(1, {"pod": "team/a"})
        assert "there is no socket" in answer(watched, 1)[0]
        kubelet = Kubelet(tmp_path)
        try:
            watched.ask(2, {"pod": "team/a"})
            assert answer(watched, 2) == ("", {"devices": {}})
            assert (report(watched)["why"], watched.why_not) == ("", "")
        finally:
            kubelet.end()
        watched.ask(3, {"pod": "team/a"})
        assert "refused" in answer(watched, 3)[0]
        assert watched.why_not
    finally:
        watched.close()


def test_an_agent_without_a_kubelet_says_so() -> None:
    watched = PodResources("")
    assert "without --pod-resources" in report(watched)["why"]
    assert watched.ask(1, {"pod": "team/a"}) == "this agent has no kubelet"
    watched.close()


def test_an_agent_reports_what_its_kubelet_lists_and_answers_for_a_pod(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    kubelet.tell(allocatable={GPU: ["GPU-a"]}, pods={"team/a": {GPU: ["GPU-a"]}})
    world = World(tmp_path)
    agent = world.agent
    agent.pod_resources = PodResources(kubelet.socket)
    try:

        def of(kind: type) -> list[Any]:
            agent.tick()
            return [one for one in world.sent if isinstance(one, kind)]

        def reported() -> list[dict[str, Any]]:
            return [one.body for one in of(frames.Seen) if one.what == wire.DEVICES]

        [body] = wait_until(reported, 60, "a report")
        assert body == {"why": "", "allocatable": {GPU: ["GPU-a"]}, "pods": {"team/a": {GPU: ["GPU-a"]}}}
        agent.take(frames.Run(7, 3, wire.DEVICES, {"pod": "team/a"}))
        assert agent.is_busy
        [done] = wait_until(lambda: of(frames.Done), 60, "an answer")
        assert (done.id, done.ok, done.data) == (7, True, {"devices": {GPU: ["GPU-a"]}})
        agent.disconnected()
        agent.connected(3)
        wait_until(lambda: len(reported()) == 2, 60, "the report again")
    finally:
        agent.close()
        world.state.close()
