"""The targets of fuzz_python.py: what reads bytes of unknown origin, and which errors it may raise.

A target is made with an empty directory, and is called with one input after the other. It returns for a result and for an
allowed error; every other exception is a finding.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_hosts
from unidle.errors import UnidleError

Run = Callable[[bytes], None]


def _file(load: Callable[[Path], object], name: str) -> Callable[[Path], Run]:
    """A reader of a file."""

    def make(place: Path) -> Run:
        path = place / name

        def run(data: bytes) -> None:
            path.write_bytes(data)
            with contextlib.suppress(UnidleError):
                load(path)

        return run

    return make


def _job(path: Path) -> object:
    from unidle.files.job import load_job

    return load_job(path)


def _fleet(path: Path) -> object:
    from unidle.files.fleet import load_fleet_and_notices

    return load_fleet_and_notices(path)


def _drill(path: Path) -> object:
    from unidle.files.drill import load_drill

    return load_drill(path)


def _clusters(path: Path) -> object:
    from unidle.files.clusters import load_clusters

    return load_clusters(path)


def _span(path: Path) -> object:
    from unidle.span.files.setting import load_pipelines

    return load_pipelines(path)


def _fill(path: Path) -> object:
    from unidle.fill.files.setting import load_fill

    return load_fill(path)


def _filler(path: Path) -> object:
    from unidle.fill.files.filler_file import load_filler

    return load_filler(path)


def _trace(path: Path) -> object:
    from unidle.files.trace import load_trace

    return load_trace(path)


def _fault_trace(path: Path) -> object:
    from unidle.files.fault_trace import load_fault_trace

    return load_fault_trace(path)


def _snapshot(path: Path) -> object:
    from unidle.files.snapshot import load_snapshot

    return load_snapshot(path)


def _profile(path: Path) -> object:
    from unidle.scope.tiers.imported import read

    return read(path)


def _kernel_log(_: Path) -> Run:
    from unidle.guard.log import Reader, Splitter

    def run(data: bytes) -> None:
        reader, splitter = Reader(), Splitter()
        half = len(data) // 2
        for line in [*splitter.feed(data[:half]), *splitter.feed(data[half:]), *splitter.end()]:
            reader.read(line)
            reader.consider(line)

    return run


def _progress(_: Path) -> Run:
    from unidle.engine.local.ranks.supervisor.progress import HelperPipe, Scanner

    def run(data: bytes) -> None:
        scanner, helper = Scanner(), HelperPipe()
        t_ns = 0
        for line in data.splitlines(keepends=True):
            t_ns += 10**9
            scanner.feed("stdout", line, t_ns)
            helper.feed(line, t_ns)
        scanner.flush(t_ns)
        helper.flush(t_ns)

    return run


def _pattern(_: Path) -> Run:
    """A pattern is only compiled and tried on an empty line: what it does to long lines is up to the user."""
    from unidle.engine.local.ranks.supervisor.progress import validate_pattern

    def run(data: bytes) -> None:
        validate_pattern(data.decode(errors="replace"))

    return run


def _failure(_: Path) -> Run:
    from unidle.engine.local.ranks.supervisor.failure import read_failure

    def run(data: bytes) -> None:
        out, _, err = data.partition(b"\0")
        read_failure(out, err or out, data, 1, "/home/ada")

    return run


def _greeting(_: Path) -> Run:
    """The side that listens, and the side that connects."""
    from unidle.span.wan import handshake
    from unidle.span.wan.api import BadFrame, Refused
    from unidle.span.wan.frames import unpack

    me = handshake.Identity("b", "r", b"secret", "i", 0)

    def run(data: bytes) -> None:
        with contextlib.suppress(Refused, OSError):
            _received(data, lambda link: handshake.answer(link, me))
            raise AssertionError("a stranger was admitted")
        with contextlib.suppress(Refused, OSError):
            _received(data, lambda link: handshake.ask(link, me, "a", 0, 1))
            raise AssertionError("a stranger was admitted")
        if len(data) >= 256:
            with contextlib.suppress(BadFrame):
                unpack(1, data, 1 << 20)

    return run


def _hub(place: Path) -> Run:
    """A stream of a client: cut into frames in two pieces, each read as a hello and as a frame, by the hub and by a client."""
    from unidle import wire
    from unidle.hub import frames
    from unidle.hub.greeting import Greeting, HelloRefused
    from unidle.hub.limits import HubLimits
    from unidle.hub.tokens import Tokens

    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    greeting = Greeting(Tokens(folder, str(place)), 1, HubLimits(), lambda: None)
    os.close(folder)

    def run(data: bytes) -> None:
        unframer = wire.Unframer(wire.FRAME_BYTES)
        half = len(data) // 2
        payloads = [data]
        with contextlib.suppress(wire.Malformed):
            payloads += unframer.feed(data[:half])
            payloads += unframer.feed(data[half:])
        for payload in payloads:
            for newer in (False, True):
                with contextlib.suppress(wire.Malformed):
                    frames.from_client(payload, newer=newer)
                with contextlib.suppress(wire.Malformed):
                    frames.to_client(payload, newer=newer)
            with contextlib.suppress(wire.Malformed, HelloRefused):
                greeting.taken(payload, 1, "127.0.0.1")
                raise AssertionError("a stranger was welcomed")

    return run


def _holder(_: Path) -> Run:
    from unidle.checkpoint.holder import wire

    def run(data: bytes) -> None:
        with contextlib.suppress(wire.Gone, OSError):
            _received(data, wire.receive)

    return run


def _received(data: bytes, read: Callable[[socket.socket], Any]) -> None:
    """``read`` from a connection over which ``data`` comes, and nothing after it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    with ours, theirs:
        ours.settimeout(2)
        sender = threading.Thread(target=_send, args=(theirs, data))
        sender.start()
        try:
            read(ours)
        finally:
            ours.close()
            sender.join()


def _send(link: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)


def _webhook(_: Path) -> Run:
    """The answer of a server to a notice."""
    from unidle.notices.webhook import WebhookTarget, post

    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    to = WebhookTarget(f"http://{host}:{port}/")

    def serve(data: bytes) -> None:
        link, _ = listener.accept()
        with link, contextlib.suppress(OSError):
            link.recv(65536)
            _send(link, data)

    def run(data: bytes) -> None:
        server = threading.Thread(target=serve, args=(data,))
        server.start()
        post(to, "n1", b"{}", 1.8e9)
        server.join()

    return run


def _safetensors(place: Path) -> Run:
    from unidle.checkpoint.formats import whole
    from unidle.checkpoint.verify import verify

    path = place / "model.safetensors"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        whole(str(path), len(data))
        verify(str(path))

    return run


def _checkpoint(name: str, fixed: str = "") -> Callable[[Path], Run]:
    """A directory whose description has the input as its content."""

    def make(place: Path) -> Run:
        from unidle.checkpoint.verify import verify

        folder = place / "step-1"
        folder.mkdir()
        if fixed:
            (folder / fixed).write_bytes(b"PK\x03\x04" + bytes(64))

        def run(data: bytes) -> None:
            (folder / name).write_bytes(data)
            verify(str(folder))

        return run

    return make


def _export(place: Path) -> Run:
    """What is imported can be exported again."""
    from unidle.store.open import open_store
    from unidle.store.tools import export, import_

    path = place / "store.db"

    def run(data: bytes) -> None:
        for old in place.glob("store.db*"):
            if old.is_file():
                old.unlink()
        store = open_store(str(path), create=True)
        try:
            with contextlib.suppress(UnidleError):
                import_(store, io.BytesIO(data))
                out = io.BytesIO()
                export(store, out)
        finally:
            store.close()

    return run


TARGETS: dict[str, Callable[[Path], Run]] = {
    "job": _file(_job, "job.yaml"),
    "fleet": _file(_fleet, "fleet.yaml"),
    "drill": _file(_drill, "drill.yaml"),
    "clusters": _file(_clusters, "clusters.yaml"),
    "span": _file(_span, "span.yaml"),
    "fill": _file(_fill, "fill.yaml"),
    "filler": _file(_filler, "filler.yaml"),
    "trace": _file(_trace, "trace.jsonl"),
    "fault_trace": _file(_fault_trace, "faults.jsonl"),
    "snapshot": _file(_snapshot, "snapshot.jsonl"),
    "profile": _file(_profile, "profile"),
    "kernel_log": _kernel_log,
    "progress": _progress,
    "pattern": _pattern,
    "failure": _failure,
    "greeting": _greeting,
    "holder": _holder,
    "hub": _hub,
    **fuzz_hosts.TARGETS,
    "webhook": _webhook,
    "safetensors": _safetensors,
    "dcp": _checkpoint(".metadata", "__0_0.distcp"),
    "index": _checkpoint("model.safetensors.index.json"),
    "export": _export,
}
