"""The routes, on Starlette; streams are sent without it, as one message of ASGI for all tokens that have arrived."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from unidle.fill.serve.door import Door
from unidle.fill.serve.http.answers import Answer
from unidle.fill.serve.http.errors import ApiError, bad
from unidle.fill.serve.http.wanted import RequestReader, Wanted
from unidle.fill.serve.text.tokenizer import TextTokenizer
from unidle.fill.serve.ticket import AnswerPart, OpenRequest

_BODY_S: Final = 30.0
_DROPPED: Final = 16
_LONG: Final = 32 * 1024
"""Bodies from this size on are read in a thread: cutting them into tokens takes milliseconds."""


class ServedModel(Protocol):
    """``name``, ``context``, ``vocabulary`` of the model; ``created``: seconds since 1970."""

    name: str
    context: int
    vocabulary: int
    created: int


class Api:
    """The endpoints of one model. ``key``: what clients must send as bearer token, None for no check; ``most_bytes`` of a body."""

    def __init__(
        self,
        door: Door,
        reader: RequestReader,
        tokenizer: TextTokenizer,
        model: ServedModel,
        key: str | None,
        most_bytes: int,
    ) -> None:
        self._door = door
        self._reader = reader
        self._tokenizer = tokenizer
        self._model = model
        self._key = key
        self._most_bytes = most_bytes

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/completions", self._guarded(self._completions), methods=["POST"]),
                Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
                Route("/v1/models", self._guarded(self._models)),
                Route("/v1/models/{name:path}", self._guarded(self._one_model)),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={ApiError: _answer_api_error, HTTPException: _answer_http_error, Exception: _answer_bug},
        )  # fmt: skip

    def _guarded(
        self, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            given = request.headers.get("authorization", "")
            if self._key is not None and not hmac.compare_digest(
                given.encode(), f"Bearer {self._key}".encode()
            ):
                raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")
            return await endpoint(request)

        return checked

    async def _completions(self, request: Request) -> Response:
        return await self._begun(request, self._reader.completion)

    async def _chat(self, request: Request) -> Response:
        return await self._begun(request, self._reader.chat)

    async def _begun(self, request: Request, read: Callable[[bytes], Wanted]) -> Response:
        raw = await self._body(request)
        wanted = await asyncio.to_thread(read, raw) if len(raw) > _LONG else read(raw)
        self._door.admit(len(wanted.prompts), wanted.samples, max(map(len, wanted.prompts)) + wanted.most)
        return _Generation(self._door, wanted, Answer(wanted, self._model.name, self._tokenizer))

    async def _body(self, request: Request) -> bytes:
        """The body. Errors: :class:`ApiError` for one that is too long, or does not arrive in time."""
        found, length = bytearray(), 0
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in request.stream():
                    length += len(part)
                    # what is too long is read and dropped: a client that still sends would lose the answer
                    if length <= self._most_bytes:
                        found += part
                    elif length > _DROPPED * self._most_bytes:
                        break
        except TimeoutError:
            raise ApiError(408, f"The body did not arrive within {_BODY_S:g} s.", code="timeout") from None
        except ClientDisconnect:
            raise bad("The client disconnected.") from None
        if length > self._most_bytes:
            raise ApiError(
                413, f"The body is too long: at most {self._most_bytes} bytes are read.", code="body_too_long"
            )
        return bytes(found)

    def _described(self) -> dict[str, Any]:
        return {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created,
            "owned_by": "unidle",
            "max_model_len": self._model.context,
        }

    async def _models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._described()]})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._model.name:
            raise ApiError(404, f"The model '{name}' does not exist.", param="model", code="model_not_found")
        return _json(self._described())

    async def _health(self, _: Request) -> Response:
        ready = bool(self._door.dedicated) and not self._door.draining
        state = "ready" if ready else "draining" if self._door.draining else "no worker"
        return _json({"status": state}, 200 if ready else 503)

    async def _metrics(self, _: Request) -> Response:
        return Response(self._door.metrics.text(self._door.gauges()), media_type="text/plain; version=0.0.4")


class _Generation(Response):
    """The answer of one request, as a whole or as a stream. It is cancelled when the client disconnects."""

    def __init__(self, door: Door, wanted: Wanted, answer: Answer) -> None:
        super().__init__()
        self._door = door
        self._wanted = wanted
        self._answer = answer
        self._tickets = list[OpenRequest]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = self._wanted
        self._tickets = [
            self._door.open(tokens, wanted.most, wanted.samples, _seeded(wanted, at), wanted.stops)
            for at, tokens in enumerate(wanted.prompts)
        ]
        for ticket in self._tickets:
            ticket.reader = asyncio.current_task()
        outcome = "failed"
        watcher = asyncio.create_task(self._watch(receive))
        try:
            if wanted.stream:
                await self._send_stream(send)
            else:
                await self._send_whole(scope, receive, send)
            outcome = "answered"
        except _Gone:
            outcome = "disconnected"
        except ApiError as error:
            await self._send_error(error, scope, receive, send)
        finally:
            watcher.cancel()
            for ticket in self._tickets:
                self._door.close(ticket, outcome)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for ticket in self._tickets:
            ticket.fail(_Gone())

    async def _parts(self) -> AsyncIterator[list[tuple[int, AnswerPart]]]:
        """Parts with the index of their choice, of all prompts as they arrive."""
        samples = self._wanted.samples
        if len(self._tickets) == 1:
            while parts := await self._tickets[0].parts():
                yield [(part.sample, part) for part in parts]
            return
        reads = {asyncio.ensure_future(ticket.parts()): at for at, ticket in enumerate(self._tickets)}
        try:
            while reads:
                done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
                for read in done:
                    at = reads.pop(read)
                    if parts := read.result():
                        reads[asyncio.ensure_future(self._tickets[at].parts())] = at
                        yield [(at * samples + part.sample, part) for part in parts]
        finally:
            for read in reads:
                read.cancel()

    def _generated(self) -> int:
        return sum(ticket.tokens for ticket in self._tickets)

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async for parts in self._parts():
            for index, part in parts:
                self._answer.take(index, part)
        await Response(self._answer.body(self._generated()), media_type="application/json")(
            scope, receive, send
        )

    async def _send_stream(self, send: Send) -> None:
        """The status is sent with the first token: what fails before it has a status of its own."""
        answer, begun = self._answer, False
        async for parts in self._parts():
            body = b"".join([answer.chunk(index, part) for index, part in parts])
            if not begun:
                await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                begun, body = True, answer.first() + body
                self._begun = True
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": answer.last(self._generated()), "more_body": False})

    _begun = False

    async def _send_error(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if self._begun:
            await send(
                {"type": "http.response.body", "body": b"data: " + error.body() + b"\n\n", "more_body": False}
            )
        else:
            await _error_response(error)(scope, receive, send)


class _Gone(ApiError):
    def __init__(self) -> None:
        super().__init__(499, "The client disconnected.")


_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def _seeded(wanted: Wanted, prompt: int) -> Any:
    """Each prompt of a request draws its own numbers."""
    return (
        wanted.sampling
        if prompt == 0
        else msgspec.structs.replace(wanted.sampling, seed=wanted.sampling.seed + prompt)
    )


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _error_response(error: ApiError) -> Response:
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return Response(error.body(), error.status, headers=headers, media_type="application/json")


async def _answer_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error_response(error)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {
        404: f"Unknown request URL: {request.method} {request.url.path}.",
        405: f"Not allowed: {request.method} {request.url.path}.",
    }
    found = _error_response(
        ApiError(error.status_code, text.get(error.status_code, str(error.detail)), code="unknown_url")
    )
    found.headers.update(error.headers or {})
    return found


async def _answer_bug(_: Request, error: Exception) -> Response:
    return _error_response(
        ApiError(500, f"The server had an error: {type(error).__name__}.", code="internal_error")
    )


def now_s() -> int:
    """Seconds since 1970."""
    return int(time.time())
