"""What a command may call: statements that read the store, requests into its inbox, and what the hub is asked."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from unidle import __version__, wire
from unidle.errors import BadInput, CannotRun, StoreError
from unidle.gateway.identity import Identities, Right, User
from unidle.hub.file_parts import NotThere
from unidle.hub.place import has_hosts
from unidle.hub.reader import HostFiles
from unidle.store import statements
from unidle.store.open import open_store
from unidle.store.protocol import Request
from unidle.store.sql import SqlStore

READ: Final = Right("list")
RIGHTS: Final[Mapping[str, tuple[Right, ...]]] = {
    "submit": (Right("create"),),
    "cancel": (Right("delete"),),
    "remove": (Right("delete"),),
    "keep": (Right("patch"),),
    "guard": (Right("patch", "nodes", "", namespaced=False),),
}
"""By the kind of request."""
LOG: Final = Right("get", "jobs/log")
PROFILE: Final = Right("create", "jobs/profile")
NOW: Final = "SELECT {now}"
READING: Final = frozenset(
    text for name, text in vars(statements).items() if name.isupper() and str(text).startswith("SELECT ")
) | {NOW}
"""All statements that a command may have carried out."""
_IDLE: Final = 4  # connections to the store that wait for a call
_MOST_WAITING: Final = 64
_WAIT_S: Final = 20.0  # of one call for an answer
_FORGOTTEN_S: Final = 120.0
_CHANGING: Final = frozenset({"request", "ask", "answer"})
_MOST_DONE: Final = 32
_MOST_BODY: Final = 4 << 20


class Calls:
    """For several threads. ``address``: of the store; ``state``: its directory, for the hub."""

    def __init__(self, address: str, state: Path, identities: Identities) -> None:
        self._address, self._state, self._identities = address, state, identities
        self._stores: queue.LifoQueue[SqlStore] = queue.LifoQueue()
        self._files: queue.LifoQueue[HostFiles] = queue.LifoQueue()
        self._asked: dict[str, _Asked] = {}
        self._done: dict[tuple[str, str], Any] = {}  # values of calls, by user and id
        self._lock = threading.Lock()
        self._known: dict[str, Callable[[User, Mapping[str, Any]], Any]] = {
            "hello": self._hello,
            "query": self._query,
            "tables": self._tables,
            "request": self._request,
            "hosts": self._hosts,
            "part": self._part,
            "ask": self._ask,
            "answer": self._answer,
        }

    def carry_out(self, user: User, what: str, given: Mapping[str, Any], number: str = "") -> Any:
        """The value. ``number``: a call that changes something and comes again with it is not carried out again.

        Errors: CallForbidden, BadInput, StoreError, CannotRun, NotThere.
        """
        call = self._known.get(what)
        if call is None:
            raise BadInput("is no call of this controller", field="call", value=what, remedy=_release())
        if what not in _CHANGING or not number:
            return call(user, given)
        if (key := (user.name, number)) in self._done:
            return self._done[key]
        value = call(user, given)
        with self._lock:
            self._done[key] = value
            while len(self._done) > _MOST_DONE:
                del self._done[next(iter(self._done))]
        return value

    def close(self) -> None:
        for kept in (self._stores, self._files):
            while not kept.empty():
                kept.get().close()
        for asked in self._asked.values():
            asked.files.close()

    def _hello(self, user: User, _given: Mapping[str, Any]) -> Any:
        return {"user": user.name, "release": __version__, "namespace": self._identities.namespace}

    def _query(self, user: User, given: Mapping[str, Any]) -> Any:
        statement, params = given.get("statement"), given.get("params")
        if statement not in READING or not isinstance(params, list):
            raise BadInput("is no statement of this controller", field="query", remedy=_release())
        self._identities.need(user, READ)
        with self._store() as store:
            return store.database.query(statement, [_param(one) for one in params])

    def _tables(self, user: User, _given: Mapping[str, Any]) -> Any:
        self._identities.need(user, READ)
        with self._store() as store:
            return sorted(store.database.tables())

    def _request(self, user: User, given: Mapping[str, Any]) -> Any:
        kind, body = given.get("kind"), given.get("body")
        if not isinstance(kind, str) or kind not in RIGHTS or not isinstance(body, bytes):
            raise BadInput("is no request of this controller", field="request", value=kind, remedy=_release())
        if len(body) > _MOST_BODY:
            raise BadInput(f"has more than {_MOST_BODY} bytes", field="request", value=kind)
        self._identities.need(user, *RIGHTS[kind])
        with self._store() as store:
            now_ns = int(store.database.query(NOW)[0][0])
            return store.keep_request(Request(0, now_ns, kind, _signed(kind, body, user), user.name))

    def _hosts(self, user: User, _given: Mapping[str, Any]) -> Any:
        self._identities.need(user, READ)
        return has_hosts(self._state)

    def _part(self, user: User, given: Mapping[str, Any]) -> Any:
        self._identities.need(user, LOG)
        job, attempt, rank = given["place"]
        place = (str(job), int(attempt), int(rank))
        with self._reader() as files:
            part = files.part(
                str(given["node"]), place, str(given["file"]), int(given["offset"]), int(given["bytes"])
            )
        return [part.data, part.size_bytes, part.inode]

    def _ask(self, user: User, given: Mapping[str, Any]) -> Any:
        self._identities.need(user, PROFILE)
        if given.get("order") != wire.PROFILE or not isinstance(given.get("body"), dict):
            raise BadInput("is nothing that hosts are asked", field="ask", value=given.get("order"))
        self._forget_old()
        with self._lock:
            if len(self._asked) >= _MOST_WAITING:
                raise CannotRun("too many profiles are being made", remedy="try again later")
        files = HostFiles(self._state)
        number = secrets.token_hex(8)
        self._asked[number] = _Asked(
            files, files.ask(str(given["node"]), wire.PROFILE, given["body"]), user.name
        )
        return number

    def _answer(self, user: User, given: Mapping[str, Any]) -> Any:
        number = str(given.get("number"))
        asked = self._asked.get(number)
        if asked is None or asked.user != user.name:
            raise CannotRun("the controller has no such order any more", remedy="try again")
        with asked.lock:
            asked.used_s = time.monotonic()
            done = asked.files.answer(asked.number, min(float(given.get("within_s", 0.0)), _WAIT_S))
            if done is None:
                return None
            self._asked.pop(number, None)
            asked.files.close()
        return {"ok": done.ok, "why": done.why, "data": done.data}

    def _forget_old(self) -> None:
        before_s = time.monotonic() - _FORGOTTEN_S
        for number, asked in list(self._asked.items()):
            if asked.used_s < before_s and self._asked.pop(number, None) is not None:
                asked.files.close()

    @contextmanager
    def _store(self) -> Iterator[SqlStore]:
        """A connection of this call alone. One that an error broke is not used again."""
        try:
            store = self._stores.get_nowait()
        except queue.Empty:
            store = open_store(self._address, create=False)
        try:
            yield store
        except BaseException:
            store.close()
            raise
        self._put_back(self._stores, store)

    @contextmanager
    def _reader(self) -> Iterator[HostFiles]:
        try:
            files = self._files.get_nowait()
        except queue.Empty:
            if not has_hosts(self._state):
                raise CannotRun("the controller has no hub") from None
            files = HostFiles(self._state)
        try:
            yield files
        except NotThere:
            self._put_back(self._files, files)
            raise
        except BaseException:
            files.close()
            raise
        self._put_back(self._files, files)

    def _put_back(self, kept: queue.LifoQueue[Any], one: Any) -> None:
        if kept.qsize() >= _IDLE:
            one.close()
        else:
            kept.put(one)


class _Asked:
    """An order that an agent was given, and the connection that its answer comes on."""

    def __init__(self, files: HostFiles, number: int, user: str) -> None:
        self.files, self.number, self.user = files, number, user
        self.lock = threading.Lock()
        self.used_s = time.monotonic()


def _param(value: Any) -> int | str | bytes | None:
    if value is None or isinstance(value, int | str | bytes):
        return value
    raise BadInput("is no value of a statement", field="query", value=value)


def _signed(kind: str, body: bytes, user: User) -> bytes:
    """The request under the user's own name, whatever it has. Errors: BadInput for a job of another user."""
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInput(f"cannot be read: {error}", field="request", value=kind) from None
    if kind != "submit":
        return msgspec.json.encode({**found, "by": user.name})
    spec = found.get("spec")
    if not isinstance(spec, dict) or spec.get("user") != user.name:
        raise BadInput(
            "a job belongs to who submits it on a cluster", field="user",
            value=spec.get("user") if isinstance(spec, dict) else None, remedy=f"the user is {user.name}",
        )  # fmt: skip
    return body


def _release() -> str:
    return f"use unidle {__version__}, the release of the controller"


def told_of(error: Exception) -> dict[str, Any]:
    """An error for the client."""
    if isinstance(error, BadInput | CannotRun | StoreError):
        shown = None if error.value is None else str(error.value)
        more = {"problem": error.problem, "field": error.field, "value": shown, "remedy": error.remedy}
        return {"kind": type(error).__name__, **more}
    return {"kind": type(error).__name__, "problem": str(error)}
