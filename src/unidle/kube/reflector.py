"""Follows all objects of one kind: a list, then a watch that continues where the last one ended.

A watch resumes at the version of its last event or bookmark. Where the server has forgotten that version (410), the list
is read again, and what differs from the last known objects becomes events, so that nothing is lost: objects that vanished
meanwhile are gone. A connection on which nothing comes is given up soon after the server should have ended it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from unidle.boot import boottime_ns
from unidle.errors import UnidleError
from unidle.kube.client import ApiClient, pause_s, selecting, target_of
from unidle.kube.mailbox import Mailbox
from unidle.kube.nulls import decoded
from unidle.kube.objects import AnyObject, HasMetadata, ObjectKind
from unidle.kube.protocol import (
    EVERYTHING,
    ApiRequest,
    Behind,
    KubeError,
    Put,
    Selected,
    Synced,
    Vanished,
    WatchEvent,
)
from unidle.kube.refusal import Status, of_status

T = TypeVar("T", bound=HasMetadata)
_FULL: Final = 100_000  # events that wait for a poll; then the server has to wait too
_FULL_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """How long one watch lasts (a random time between the two), and how much longer a silent server is waited for."""

    least_s: int = 60
    most_s: int = 90
    silent_s: float = 5.0


class _Line(msgspec.Struct, frozen=True):
    """One event of a watch."""

    type: str
    object: msgspec.Raw


def follow(
    client: ApiClient, kind: ObjectKind[T], which: Selected = EVERYTHING, times: WatchTimes | None = None
) -> Reflector[T]:
    """Begin to follow what ``which`` selects. Errors: OSError if no file descriptor is available."""
    return Reflector(client, kind, which, times or WatchTimes())


class Reflector(Generic[T]):
    """See :class:`unidle.kube.protocol.Watch`."""

    def __init__(self, client: ApiClient, kind: ObjectKind[T], which: Selected, times: WatchTimes) -> None:
        self._client = client.another(patience_s=0.0)
        self._kind, self._which, self._times = kind, which, times
        self._mailbox: Mailbox[WatchEvent[T]] = Mailbox()
        self._objects: dict[str, T] = {}  # of the polling thread
        self._synced = False
        self._seen: dict[str, T] = {}  # of this watch's own thread
        self._version = ""
        self._since_ns = 0
        self._behind = False
        self._lines = msgspec.json.Decoder(_Line)
        self._object = msgspec.json.Decoder(kind.type)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {kind}", daemon=True)
        self._thread.start()

    @property
    def wake_fd(self) -> int:
        """Readable once something is to be polled."""
        return self._mailbox.fd

    @property
    def objects(self) -> Mapping[str, T]:
        """By UID, what the polled events amount to."""
        return self._objects

    @property
    def synced(self) -> bool:
        """Whether a :class:`Synced` was polled."""
        return self._synced

    def poll(self) -> list[WatchEvent[T]]:
        """What is new since the last poll, in order. Never blocks."""
        events = self._mailbox.take()
        for event in events:
            if isinstance(event, Put):
                self._objects[event.object.metadata.uid] = event.object
            elif isinstance(event, Vanished):
                self._objects.pop(event.object.metadata.uid, None)
            elif isinstance(event, Synced):
                self._synced = True
        return events

    def close(self) -> None:
        """End its thread."""
        self._closed.set()
        self._client.close()
        self._thread.join()
        self._mailbox.close()

    # what follows runs in the watch's own thread

    def _run(self) -> None:
        tries = 0
        while not self._closed.is_set():
            try:
                if not self._version:
                    self._list()
                if self._watch():
                    tries = 0
                    continue
                error = None
            except KubeError as found:
                error = found
                if found.status == 410:  # the version, or the next page of a list, is forgotten
                    self._version, error = "", None
            except (
                UnidleError,
                OSError,
            ) as found:  # credentials that cannot be had, descriptors that are used up
                error = KubeError(
                    str(found),
                    verb="watch",
                    target=target_of(self._kind, self._which.namespace),
                    reason="Unreachable",
                )
            tries += 1
            if error is not None and not self._closed.is_set():
                self._fails(error, tries)
            self._closed.wait(pause_s(tries, error.retry_after_s if error else None))

    def _fails(self, error: KubeError, tries: int) -> None:
        """One broken connection is nothing to report; where the next one fails too, the watch is behind."""
        if tries == 1:
            self._since_ns = boottime_ns()
        if error.reason == "Unreadable":
            self._version = ""  # not past an object that was not read
        if not self._behind and (tries > 1 or not self._version or not error.may_pass):
            self._behind = True
            self._mailbox.put([Behind(error, self._since_ns)])

    def _works(self) -> None:
        if self._behind:
            self._behind = False
            self._mailbox.put([Behind(None, self._since_ns)])

    def _list(self) -> None:
        """Read all, and report what differs from what was known."""
        found: dict[str, T] = {}
        token = ""
        while True:
            page = self._client.page(self._kind, self._which, token)
            for item in page.items:
                known = self._seen.get(item.metadata.uid)
                same = known is not None and known.metadata.resource_version == item.metadata.resource_version
                found[item.metadata.uid] = known if same and known is not None else item
            token = page.next
            if not token:
                break
        self._works()
        gone = [Vanished(known) for uid, known in self._seen.items() if uid not in found]
        put = [
            Put(item, self._seen.get(uid)) for uid, item in found.items() if self._seen.get(uid) is not item
        ]
        self._seen, self._version = found, page.resource_version
        self._mailbox.put([*gone, *put, Synced(page.resource_version)])

    def _watch(self) -> bool:
        """One watch to its end; whether it brought anything or lasted as long as it should."""
        lasts_s = random.randint(self._times.least_s, self._times.most_s)
        request = self._request(lasts_s)
        begun_ns = boottime_ns()
        events = 0
        for block in self._client.blocks(request, lasts_s + self._times.silent_s):
            self._works()
            events += len(block)
            self._mailbox.put(self._read(block, request))
            while len(self._mailbox) > _FULL and not self._closed.wait(_FULL_LOOK_S):
                pass
        self._works()
        return events > 0 or boottime_ns() - begun_ns > 1_000_000_000

    def _request(self, lasts_s: int) -> ApiRequest:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(lasts_s),
            **selecting(self._which),
        }
        return ApiRequest(
            "watch",
            "GET",
            self._kind.path(self._which.namespace),
            target_of(self._kind, self._which.namespace),
            query,
        )

    def _read(self, block: list[bytes], request: ApiRequest) -> list[WatchEvent[T]]:
        events: list[WatchEvent[T]] = []
        try:
            for line in block:
                found = self._lines.decode(line)
                if found.type in ("ADDED", "MODIFIED", "DELETED"):
                    events.append(self._event(found))
                elif found.type == "BOOKMARK":
                    self._version = decoded(found.object, AnyObject).metadata.resource_version
                elif found.type == "ERROR":
                    self._mailbox.put(events)
                    status = decoded(found.object, Status)
                    raise of_status(request, status, status.code)
        except msgspec.DecodeError as error:
            self._mailbox.put(events)
            raise KubeError(
                f"an event cannot be read: {error}", verb="watch", target=request.target, reason="Unreadable"
            ) from None
        return events

    def _event(self, found: _Line) -> WatchEvent[T]:
        try:
            item: T = self._object.decode(found.object)
        except msgspec.ValidationError:
            item = decoded(found.object, self._kind.type)
        self._version = item.metadata.resource_version
        uid = item.metadata.uid
        if found.type == "DELETED":
            self._seen.pop(uid, None)
            return Vanished(item)
        old = self._seen.get(uid)
        self._seen[uid] = item
        return Put(item, old)
