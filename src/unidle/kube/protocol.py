"""What the rooms above use of a cluster: a client, watches, a writer, and the one error of the API.

::

    access = load_access(kubeconfig, context)        # unidle.kube.kubeconfig
    client = open_client(access)                     # unidle.kube.client
    pods = follow(client, PODS, Selected(labels="unidle.dev/job"))   # unidle.kube.reflector: a Watch
    writer = open_writer(client)                     # unidle.kube.writer

A watch and a writer have threads of their own. The controller's loop registers ``wake_fd`` of each with its poller, and
calls ``poll``, which never blocks. All of them belong to the thread that polls; no method waits for the server except
those of :class:`Client`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from unidle.errors import UnidleError
from unidle.kube.nulls import decoded
from unidle.kube.objects import HasMetadata, ObjectKind

T = TypeVar("T", bound=HasMetadata)
Json = Mapping[str, Any]


class KubeError(UnidleError):
    """The API server refused a request, or cannot be reached.

    ``verb`` and ``target`` (``pods default/train-0``) name the request. ``status`` is the HTTP status, 0 where no answer
    came. ``reason`` is the server's word (``NotFound``, ``AlreadyExists``, ``Conflict``, ``Forbidden``, ``Invalid``,
    ``TooManyRequests``, ``Expired``, ``Unauthorized``), or ``Unreachable``, ``CutShort`` (the answer) and ``TimedOut``. ``causes`` are
    ``(reason, field, message)``. ``retry_after_s``: how long to wait by the server's word.
    """

    exit_code = 4

    def __init__(
        self,
        problem: str,
        *,
        verb: str = "",
        target: str = "",
        status: int = 0,
        reason: str = "",
        causes: Sequence[tuple[str, str, str]] = (),
        retry_after_s: float | None = None,
        remedy: str | None = None,
    ) -> None:
        self.verb, self.target, self.status, self.reason = verb, target, status, reason
        self.causes, self.retry_after_s = tuple(causes), retry_after_s
        super().__init__(problem, field=f"{verb} {target}".strip() or None, remedy=remedy)

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later: no answer, a server that is busy or broken, credentials that change."""
        return self.reason not in ("Untrusted", "Unreadable") and (
            self.status in (0, 401, 408, 429) or self.status >= 500
        )


# Watches


@dataclass(frozen=True, slots=True)
class Put(Generic[T]):
    """An object that is new, or is otherwise than before. ``old``: as it was."""

    object: T
    old: T | None = None


@dataclass(frozen=True, slots=True)
class Vanished(Generic[T]):
    """An object that is there no more, as it was last seen."""

    object: T


@dataclass(frozen=True, slots=True)
class Synced:
    """All that the server had at ``resource_version`` was reported. It comes after each list, also after one that was
    needed because the server had forgotten what was missed."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Behind:
    """The watch cannot be kept up since ``since_ns`` (boot-time clock), and is tried again; ``error`` None: it is again."""

    error: KubeError | None
    since_ns: int


WatchEvent = Put[T] | Vanished[T] | Synced | Behind


class Watch(Protocol[T]):
    """Follows all objects of one kind that a selector selects. An object is known by its UID.

    Where an object was deleted and another one of its name was made, the first is gone before the second is put.
    """

    @property
    def wake_fd(self) -> int:
        """Readable once something is to be polled."""

    @property
    def objects(self) -> Mapping[str, T]:
        """By UID, what the polled events amount to."""

    @property
    def synced(self) -> bool:
        """Whether a :class:`Synced` was polled."""

    def poll(self) -> list[WatchEvent[T]]:
        """What is new since the last poll, in order. Never blocks."""

    def close(self) -> None:
        """End its thread."""


# Writes

Manner = Literal["merge", "strategic", "json", "apply"]
"""Of a patch. ``apply`` is server-side apply: it makes the object where it is not there."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make ``body``, which has a name (and a namespace). One that exists is a success if it has all labels and owners of
    ``body``, also one that is being deleted: look at the object of :class:`WriteDone`."""

    kind: ObjectKind[Any]
    body: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object if it is still the one of ``uid`` (empty: whichever has the name). None there: a success.

    ``grace_s`` None: the object's own.
    """

    kind: ObjectKind[Any]
    namespace: str
    name: str
    uid: str = ""
    grace_s: int | None = None
    propagation: Literal["Background", "Foreground", "Orphan"] = "Background"


@dataclass(frozen=True, slots=True)
class Patch:
    """Change an object, or its subresource ``sub`` (``status``). ``uid``: refused with ``Conflict`` if it is another one.

    ``manner`` ``json`` takes ``{"ops": [...]}``. ``manager`` is the field manager; ``force`` takes fields over from
    others in an ``apply``.
    """

    kind: ObjectKind[Any]
    namespace: str
    name: str
    body: Json
    uid: str = ""
    manner: Manner = "merge"
    sub: str = ""
    manager: str = "unidle"
    force: bool = True


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a pod to a node. A pod of that UID that is on the node already is a success."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict a pod. It waits for as long as a PodDisruptionBudget forbids it (:class:`Delayed` reports that)."""

    namespace: str
    name: str
    uid: str
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class Emit:
    """An Event about an object. It is given up after some tries: nothing may depend on it.

    ``key`` makes its name: the same key again is the same Event.
    """

    about: Json  # {"apiVersion", "kind", "namespace", "name", "uid"}
    reason: str  # one word in CamelCase
    note: str
    key: str
    action: str = "Schedule"
    warning: bool = False


Write = Create | Delete | Patch | Bind | Evict | Emit


@dataclass(frozen=True, slots=True)
class WriteDone:
    """A write was carried out. ``existing``: it was already so. ``body``: the answer, undecoded (empty: none)."""

    write: Write
    existing: bool = False
    body: bytes = b""

    def object(self, kind: ObjectKind[T]) -> T:
        """The object of the answer. Errors: ``msgspec.DecodeError`` where the answer is none."""
        return decoded(self.body, kind.type)


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """The server will not carry a write out, however often it is sent."""

    write: Write
    error: KubeError


@dataclass(frozen=True, slots=True)
class Delayed:
    """A write fails for now and is tried again. Reported once for each new ``error`` of it."""

    write: Write
    error: KubeError
    tries: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The writer was fenced or closed before the write was known to be carried out; it may have been."""

    write: Write


WriteResult = WriteDone | WriteRefused | Delayed | Dropped


class KubeWriter(Protocol):
    """Carries writes out in threads. Writes to one object (kind, namespace, name) go one after the other, in order.

    Each write ends in exactly one of :class:`WriteDone`, :class:`WriteRefused` and :class:`Dropped`.
    """

    @property
    def wake_fd(self) -> int:
        """Readable once something is to be polled."""

    @property
    def waiting(self) -> int:
        """How many writes have no end yet."""

    def write(self, *writes: Write) -> None:
        """Queue them. Never blocks."""

    def poll(self) -> list[WriteResult]:
        """Results since the last poll. Never blocks."""

    def allow_until(self, boottime_ns: int | None) -> None:
        """Begin no request after this time of the boot-time clock (None: no limit). Renew it with the lease.

        Where it is over, writes wait; no request lasts longer than ``timeout_s`` of the writer.
        """

    def fence(self) -> None:
        """Begin no request any more and break those that run. All that is queued ends as :class:`Dropped`."""

    def close(self, drain_s: float = 0.0) -> None:
        """Let queued writes end for at most ``drain_s``, then fence and join the threads. Blocks that long."""


# The client


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. ``next``: the token of the next one, empty at the end."""

    items: Sequence[T]
    resource_version: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Selected:
    """Which objects a list or watch is about: a namespace (empty: all), a label and a field selector."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


EVERYTHING = Selected()


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request. ``target`` names the object in errors. ``body`` is JSON."""

    verb: str  # "get", "list", "create", ...: the word of RBAC
    method: str
    path: str
    target: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"


class Client(Protocol):
    """Blocking calls from any thread. Reads are tried again for a while; writes are sent once.

    Errors of all: :class:`KubeError`.
    """

    @property
    def namespace(self) -> str:
        """That of the context, else ``default``."""

    def call(self, request: ApiRequest, timeout_s: float | None = None) -> bytes:
        """Send one request once, with the credentials read again where they were refused. The body of the answer."""

    def get(self, kind: ObjectKind[T], name: str, namespace: str = "") -> T:
        """One object."""

    def list_all(self, kind: ObjectKind[T], which: Selected = EVERYTHING) -> Page[T]:
        """All objects, in as many requests as needed."""

    def read(self, kind: ObjectKind[Any], name: str, namespace: str = "", sub: str = "") -> bytes:
        """One object or subresource as JSON, undecoded."""

    def stream(self, request: ApiRequest, silent_s: float) -> Iterator[bytes]:
        """Lines of an answer without end, such as a watch or the log of a pod; ends where the server ends it.

        Errors: :class:`KubeError` with ``TimedOut`` after ``silent_s`` without a byte.
        """

    def break_off(self) -> None:
        """Break every request that runs, from any thread; each raises :class:`KubeError`. Later ones are as before."""

    def close(self) -> None:
        """Break what runs and close all connections."""
