"""``unidle fill serve``: the front door, its workers and its sockets together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn
import uvloop

from unidle.errors import BadInput, CannotRun
from unidle.fill.serve.door import Door, DoorRules
from unidle.fill.serve.handoff import HandoffPlace
from unidle.fill.serve.http.app import Api
from unidle.fill.serve.http.errors import unavailable
from unidle.fill.serve.http.wanted import RequestReader
from unidle.fill.serve.job_fillers import JobFillers, JobFilling
from unidle.fill.serve.links import WorkerLink
from unidle.fill.serve.model.config import read_config
from unidle.fill.serve.router import Router
from unidle.fill.serve.text.chat import ChatTemplate
from unidle.fill.serve.text.tokenizer import TextTokenizer
from unidle.fill.serve.workers import WorkerOptions, Workers

_TICK_S: Final = 1.0
_BACKLOG: Final = 2048
_DOOR: Final = "door"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """``bubbles``: path of the socket for fillers, None without; ``filling``: a job whose waits are filled; ``drain_s``: how long
    requests may take after a signal.
    """

    name: str
    host: str
    port: int
    devices: list[str]
    worker: WorkerOptions
    most_waiting: int
    slo_s: float
    drain_s: float
    bubbles: Path | None = None
    filling: JobFilling | None = None
    key: str | None = None
    most_bytes: int = 4 << 20


@dataclass(slots=True)
class _Served:
    name: str
    context: int
    vocabulary: int
    created: int


class _Server(uvicorn.Server):
    """Ends cleanly on a signal: requests that are not complete get until the end of the drain, then an error."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain = drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - of uvicorn
        if self.should_exit:
            self.force_exit = sig == signal.SIGINT
        self.should_exit = True
        self._drain()


def serve(options: ServeOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. Errors: :class:`unidle.errors.BadInput`, :class:`unidle.errors.CannotRun`."""
    config = read_config(options.worker.model)
    tokenizer = TextTokenizer(options.worker.model)
    template = ChatTemplate(options.worker.model)
    listener = _listener(options.host, options.port)
    place = HandoffPlace()
    if options.filling is not None and options.bubbles is None:
        options = replace(options, bubbles=place.directory / _DOOR)
    served = _Served(options.name, config.context, config.vocabulary, int(time.time()))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            door = Door(
                tokenizer, Router(options.slo_s), DoorRules(options.most_waiting, config.eos, place.directory)
            )
            api = Api(
                door,
                RequestReader(served, tokenizer, template),
                tokenizer,
                served,
                options.key,
                options.most_bytes,
            )
            runner.run(_serve(options, door, api, listener, say))
    finally:
        listener.close()
        place.close()


def _listener(host: str, port: int) -> socket.socket:
    """Bound before the model is loaded: a port in use is an error at once."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=_BACKLOG
        )
    except OSError as error:
        raise CannotRun(
            f"cannot listen: {error.strerror or error}",
            field="--port",
            value=f"{host}:{port}",
            remedy="choose another port",
        ) from error


def _http_server(options: ServeOptions, door: Door, api: Api, say: Callable[[str], None]) -> _Server:
    loop = asyncio.get_running_loop()

    def drain() -> None:
        loop.call_soon_threadsafe(begin_drain)

    def begin_drain() -> None:
        door.draining = True
        say(f"stopping: {door.open_requests} requests are not complete; they have {options.drain_s:g} s")
        loop.call_later(options.drain_s, door.fail_all, unavailable("The server is shutting down."))

    return _Server(
        uvicorn.Config(
            api.app(), http="httptools", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=int(options.drain_s) + 5, backlog=_BACKLOG, h11_max_incomplete_event_size=None,
        ),
        drain,
    )  # fmt: skip


async def _serve(
    options: ServeOptions, door: Door, api: Api, listener: socket.socket, say: Callable[[str], None]
) -> None:
    workers = Workers(door, options.worker, options.devices)
    server = _http_server(options, door, api, say)
    fillers = await _fillers(options.bubbles, door, workers)
    tick = asyncio.create_task(_tick(door))
    workers.start()
    job = JobFillers(say)
    if options.filling is not None and options.bubbles is not None:
        job.start(options.filling, options.worker, options.bubbles)
    try:
        with _signals(server):
            await _first(workers.ready, server)
            if workers.failed is not None:
                raise workers.failed
            if not server.should_exit:
                port = listener.getsockname()[1]
                say(f"serving {options.name} at http://{options.host}:{port}/v1; Ctrl-C stops")
        await server.serve([listener])
    finally:
        tick.cancel()
        await job.stop()
        if fillers is not None:
            fillers.close()
            _unlink(options.bubbles)
        await workers.stop()


@contextlib.contextmanager
def _signals(server: _Server) -> Iterator[None]:
    """Signals before uvicorn handles them: while the model is loaded."""
    before = {sig: signal.signal(sig, server.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)


async def _first(ready: asyncio.Event, server: _Server) -> None:
    """Until the first worker is ready or has failed, or a signal arrives."""
    while not ready.is_set() and not server.should_exit:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ready.wait(), 0.2)


async def _fillers(path: Path | None, door: Door, workers: Workers) -> asyncio.Server | None:
    """The socket for fillers in bubbles; the user alone may connect."""
    if path is None:
        return None
    if path.is_socket():
        _unlink(path)  # of a door that was killed; one that lives is found by its port
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        raise BadInput(
            f"cannot be made: {error.strerror or error}",
            field="--bubbles",
            value=str(path),
            remedy="name a path in a directory of yours",
        ) from error
    return await asyncio.get_running_loop().create_unix_server(
        lambda: WorkerLink(door, workers.accepts, lambda _: None), sock=listener
    )


def _unlink(path: Path | None) -> None:
    if path is not None:
        path.unlink(missing_ok=True)


async def _tick(door: Door) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        door.drop_unread(time.monotonic())
