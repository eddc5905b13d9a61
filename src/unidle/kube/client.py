"""The client: requests over connections that are kept open, errors of the API as one type, lists in pages."""

from __future__ import annotations

import http.client
import random
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import Message
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from unidle import __version__
from unidle.errors import BadInput
from unidle.kube.access import ClusterAccess
from unidle.kube.connection import ApiConnection, Pool
from unidle.kube.credentials import Credential
from unidle.kube.nulls import decoded
from unidle.kube.objects import HasMetadata, ObjectKind
from unidle.kube.protocol import EVERYTHING, ApiRequest, KubeError, Page, Selected
from unidle.kube.refusal import refusal, unreachable

TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 10.0
PAGE: Final = 500  # objects: as much as kubectl asks for at once
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_READ_BYTES: Final = 1 << 16
_PEEK_S: Final = 0.001
_LOOPBACK: Final = ("localhost", "127.", "::1")
T = TypeVar("T", bound=HasMetadata)
D = TypeVar("D")


def open_client(
    access: ClusterAccess,
    *,
    timeout_s: float = TIMEOUT_S,
    patience_s: float = PATIENCE_S,
    agent: str = "unidle",
) -> ApiClient:
    """A client of ``access``; it connects with its first request.

    ``timeout_s`` bounds each request, ``patience_s`` how long a read is tried again. ``agent`` is in the server's audit log.
    Errors: :class:`unidle.errors.BadInput` where a secret would go over the network unencrypted.
    """
    plain = access.server.startswith("http://")
    host = access.server.removeprefix("http://").lstrip("[")
    if plain and not host.startswith(_LOOPBACK) and access.credentials.now() != Credential():
        raise BadInput(
            "the credentials would be sent unencrypted",
            field="server",
            value=access.server,
            remedy="give an address with https://",
        )
    return ApiClient(access, timeout_s, patience_s, f"{agent}/{__version__}")


class Upgraded(NamedTuple):
    """``socket`` has timeouts of its own; ``rest`` came before what it gives next."""

    socket: socket.socket
    headers: Message
    rest: bytes


class ApiClient:
    """See :class:`unidle.kube.protocol.Client`."""

    def __init__(self, access: ClusterAccess, timeout_s: float, patience_s: float, agent: str) -> None:
        self.access = access
        self.timeout_s = timeout_s
        self._patience_s = patience_s
        self._agent = agent
        self._pool = Pool(access)
        self._headers = {"Accept": "application/json", "User-Agent": agent, **access.headers}

    def another(self, *, timeout_s: float | None = None, patience_s: float | None = None) -> ApiClient:
        """A client of the same access with connections of its own, to be closed apart from this one."""
        return ApiClient(
            self.access,
            self.timeout_s if timeout_s is None else timeout_s,
            self._patience_s if patience_s is None else patience_s,
            self._agent,
        )

    @property
    def namespace(self) -> str:
        """That of the context, else ``default``."""
        return self.access.namespace

    def call(self, request: ApiRequest, timeout_s: float | None = None) -> bytes:
        """Send one request once, with the credentials read again where they were refused. The body of the answer."""
        deadline_s = time.monotonic() + (timeout_s or self.timeout_s)
        while True:
            credential = self.access.credentials.now()
            with self._pool.connection(credential.pair, deadline_s) as connection:
                response = self._sent(connection, request, credential, deadline_s, None)
                body = self._body(request, response)
                connection.used = not response.will_close
            if response.status < 300:
                return body
            error = self._refusal(request, response, body)
            if response.status != 401 or not self.access.credentials.refused(credential):
                raise error
            if credential == self.access.credentials.now():
                raise error

    def get(self, kind: ObjectKind[T], name: str, namespace: str = "") -> T:
        """One object."""
        body = self.read(kind, name, namespace)
        return self._decoded(body, kind.type, "get", f"{kind} {name}")

    def read(self, kind: ObjectKind[Any], name: str, namespace: str = "", sub: str = "") -> bytes:
        """One object or subresource as JSON, undecoded."""
        within = namespace or (self.namespace if kind.namespaced else "")
        return self._patiently(
            ApiRequest("get", "GET", kind.path(within, name, sub), target_of(kind, within, name))
        )

    def list_all(self, kind: ObjectKind[T], which: Selected = EVERYTHING) -> Page[T]:
        """All objects, in as many requests as needed."""
        items: list[T] = []
        page = self.page(kind, which)
        items += page.items
        while page.next:
            page = self.page(kind, which, page.next)
            items += page.items
        return Page(items, page.resource_version)

    def page(self, kind: ObjectKind[T], which: Selected, token: str = "", size: int = PAGE) -> Page[T]:
        """One page of a list: the first one, or the one of ``token``.

        Errors: :class:`KubeError`, with the reason ``Expired`` where the token is too old.
        """
        query = {**selecting(which), "limit": str(size), **({"continue": token} if token else {})}
        request = ApiRequest(
            "list", "GET", kind.path(which.namespace), target_of(kind, which.namespace), query
        )
        body = self._patiently(request)
        found: _List[T] = self._decoded(body, _List[kind.type], "list", request.target)  # type: ignore[name-defined]
        return Page(found.items or (), found.metadata.resource_version, found.metadata.continue_)

    def stream(self, request: ApiRequest, silent_s: float) -> Iterator[bytes]:
        """Lines of an answer without end, such as a watch or the log of a pod; ends where the server ends it.

        Errors: :class:`KubeError`, with the reason ``TimedOut`` after ``silent_s`` without a byte.
        """
        for block in self.blocks(request, silent_s):
            yield from block

    def blocks(self, request: ApiRequest, silent_s: float) -> Iterator[list[bytes]]:
        """As :meth:`stream`, with the lines that came together in one list; an empty one once the server has agreed."""
        credential = self.access.credentials.now()
        with self._pool.connection(credential.pair, None) as connection:
            response = self._sent(connection, request, credential, None, silent_s)
            if response.status >= 300:
                body = self._body(request, response)
                if response.status == 401:
                    self.access.credentials.refused(credential)
                raise self._refusal(request, response, body)
            yield []
            yield from self._lines(request, response)

    @contextmanager
    def upgraded(
        self, request: ApiRequest, headers: Mapping[str, str], within_s: float
    ) -> Iterator[Upgraded]:
        """A connection that speaks another protocol from now on, which the server agreed to within ``within_s``."""
        credential = self.access.credentials.now()
        with self._pool.connection(credential.pair, None) as connection:
            response = self._sent(
                connection, request, credential, time.monotonic() + within_s, None, more=headers
            )
            if response.status != 101:
                raise self._refusal(request, response, self._body(request, response))
            connection.timed.deadline_s, connection.timed.silent_s = None, _PEEK_S
            rest = b""
            with suppress(TimeoutError):
                # what came with the head is in the reader; an empty one waits for its next read
                rest = response.fp.read(len(response.fp.peek()))
            yield Upgraded(connection.timed.under, response.headers, rest)

    def break_off(self) -> None:
        """Break every request that runs, from any thread; each raises :class:`KubeError`. Later ones are as before."""
        self._pool.break_off()

    def close(self) -> None:
        """Break what runs and close all connections."""
        self._pool.close()

    def _lines(self, request: ApiRequest, response: http.client.HTTPResponse) -> Iterator[list[bytes]]:
        rest = b""
        while True:
            try:
                found = response.read1(_READ_BYTES)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise self._unreachable(request, error) from None
            if not found:
                if rest:
                    yield [rest]
                return
            if b"\n" not in found:
                rest += found
                continue
            lines = (rest + found).split(b"\n")
            rest = lines.pop()
            yield lines

    def _patiently(self, request: ApiRequest) -> bytes:
        """A read, tried again while the server may answer it later."""
        until_s = time.monotonic() + self._patience_s
        tries = 0
        while True:
            try:
                return self.call(request)
            except KubeError as error:
                tries += 1
                wait_s = pause_s(tries, error.retry_after_s)
                if not error.may_pass or error.status == 401 or time.monotonic() + wait_s > until_s:
                    raise
            time.sleep(wait_s)

    def _sent(
        self,
        connection: ApiConnection,
        request: ApiRequest,
        credential: Credential,
        deadline_s: float | None,
        silent_s: float | None,
        more: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """The answer's head."""
        headers = {**self._headers, **(more or {})}
        if credential.token:
            headers["Authorization"] = f"Bearer {credential.token}"
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        path = self._pool.prefix + request.path
        if request.query:
            path += "?" + urlencode(request.query)
        try:
            if connection.sock is None:
                connection.connect()
            connection.timed.deadline_s, connection.timed.silent_s = deadline_s, silent_s
            connection.request(request.method, path, request.body, headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(request, error) from None

    def _body(self, request: ApiRequest, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(request, error) from None

    def _unreachable(self, request: ApiRequest, error: Exception) -> KubeError:
        return unreachable(request, error, self.access.server, self.access.source)

    def _refusal(self, request: ApiRequest, response: http.client.HTTPResponse, body: bytes) -> KubeError:
        return refusal(request, response.status, body, response.getheader("Retry-After"), self.access.source)

    def _decoded(self, body: bytes, kind: type[D], verb: str, target: str) -> D:
        try:
            return decoded(body, kind)
        except msgspec.DecodeError as error:
            raise KubeError(
                f"the server's answer cannot be read: {error}",
                verb=verb,
                target=target,
                reason="Unreadable",
                remedy=f"check that {self.access.server} is an API server",
            ) from None


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, Generic[D], frozen=True):
    items: list[D] | None = None
    metadata: _ListMeta = _ListMeta()


def pause_s(tries: int, asked_s: float | None = None) -> float:
    """How long to wait before the next try: twice as long each time, with jitter, at least what the server requests."""
    backoff = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16))
    return max(asked_s or 0.0, backoff * random.uniform(0.5, 1.0))


def selecting(which: Selected) -> Mapping[str, str]:
    """The query of selectors."""
    pairs = {"labelSelector": which.labels, "fieldSelector": which.fields}
    return {key: value for key, value in pairs.items() if value}


def target_of(kind: ObjectKind[Any], namespace: str, name: str = "") -> str:
    """How errors name an object, or all of a kind."""
    return " ".join(part for part in (str(kind), "/".join(filter(None, (namespace, name)))) if part)
