"""Which devices each pod of this node really has, as its kubelet lists them (``PodResourcesLister``, version v1).

``k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`` is the source. It is read in a thread, as a kubelet may hang.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from unidle.agent.pods.unary_call import unary_call

EVERY_S: Final = 2.0
"""Between two looks. A gang that is to start does not wait for the next one."""
_WITHIN_S: Final = 2.0
_SERVICE: Final = "/v1.PodResourcesLister/"
_MOST_BYTES: Final = 512 * 1024  # of a report, which is one frame
_MOST_ID: Final = 256

Ids = dict[str, list[str]]
"""By resource (or driver), the ids of devices."""


@dataclass(frozen=True, slots=True)
class Given:
    """``allocatable``: the devices that pods can have; ``pods``: those that have some, by ``NAMESPACE/NAME``."""

    allocatable: Ids = field(default_factory=dict)
    pods: dict[str, Ids] = field(default_factory=dict)


def given_by(path: str, within_s: float = _WITHIN_S) -> Given:
    """What the kubelet lists at the socket ``path``. Errors: OSError; ValueError for an answer that cannot be read."""
    offered = unary_call(path, f"{_SERVICE}GetAllocatableResources", within_s)
    found = Given(_plain(_devices(offered, 1)))
    for number, content in fields(unary_call(path, f"{_SERVICE}List", within_s)):
        if number == 1 and isinstance(content, bytes):
            name, ids = _pod(content)
            if ids:
                found.pods[name] = ids
    size = len(json.dumps([found.allocatable, found.pods]))
    if size > _MOST_BYTES:
        raise ValueError(f"the devices of its pods take {size} bytes, and {_MOST_BYTES} are reported at most")
    return found


def _pod(content: bytes) -> tuple[str, Ids]:
    name = namespace = ""
    found: Ids = {}
    for number, value in fields(content):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            name = _text(value)
        elif number == 2:
            namespace = _text(value)
        elif number == 3:
            for part in (_devices(value, 2), _claimed(value)):
                for resource, ids in part.items():
                    found.setdefault(resource, []).extend(ids)
    return f"{namespace}/{name}", _plain(found)


def _devices(content: bytes, field_number: int) -> Ids:
    """Of ``ContainerDevices``: one for each resource and NUMA node."""
    found: Ids = {}
    for number, value in fields(content):
        if number == field_number and isinstance(value, bytes):
            inside = list(fields(value))
            resource = next((_text(one) for k, one in inside if k == 1 and isinstance(one, bytes)), "")
            found.setdefault(resource, []).extend(
                _text(one) for k, one in inside if k == 2 and isinstance(one, bytes)
            )
    return found


def _claimed(container: bytes) -> Ids:
    """Of ``DynamicResource``: by driver, the names of devices in its ResourceSlices."""
    found: Ids = {}
    for number, value in fields(container):
        if number != 5 or not isinstance(value, bytes):
            continue
        for inner, claim in fields(value):
            if inner == 4 and isinstance(claim, bytes):
                told = {k: _text(one) for k, one in fields(claim) if k in (2, 4) and isinstance(one, bytes)}
                if told.get(2) and told.get(4):
                    found.setdefault(told[2], []).append(told[4])
    return found


def _plain(ids: Ids) -> Ids:
    """In an order of their own: the kubelet's is that of a map."""
    return {resource: sorted(set(found)) for resource, found in sorted(ids.items()) if found}


def _text(content: bytes) -> str:
    if len(content) > _MOST_ID:
        raise ValueError(f"a name is above the limit of {_MOST_ID} bytes")
    return content.decode()


def fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message of protobuf. Errors: ValueError."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, at = _varint(content, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field has the unknown type {kind}")
        if at + length > len(content):
            raise ValueError("a field is cut short")
        yield tag >> 3, content[at : at + length]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            break
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is cut short, or above 64 bits")


class PodResources:
    """Looks every :data:`EVERY_S`, and at once for a question. ``path``: the kubelet's socket; empty: the agent has none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._closed = False
        self._begun = self._ended = 0  # looks
        self._now: dict[str, Any] | None = None  # body of the last one
        self._sent: dict[str, Any] | None = None
        self._asked: dict[int, tuple[str, int]] = {}  # command -> pod, and the look that answers it
        self._thread: threading.Thread | None = None
        if path:
            self._thread = threading.Thread(target=self._run, name="unidle-pod-resources", daemon=True)
            self._thread.start()
        else:
            self._now = _unknown("the agent was started without --pod-resources")

    # -- in its thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            self._due.clear()
            with self._lock:
                self._begun += 1
            found = self._look()
            with self._lock:
                self._now, self._ended = found, self._begun
            self._due.wait(EVERY_S)

    def _look(self) -> dict[str, Any]:
        try:
            given = given_by(self._path)
        except FileNotFoundError:
            return _unknown(f"there is no socket {self._path}")
        except (OSError, ValueError) as error:
            return _unknown(f"{self._path}: {error}")
        return {"why": "", "allocatable": given.allocatable, "pods": given.pods}

    # -- in that of the agent --------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a question waits for its answer."""
        return bool(self._asked)

    @property
    def why_not(self) -> str:
        """Why it is not known which devices pods have; empty where it is, and before the first look."""
        with self._lock:
            return "" if self._now is None else str(self._now["why"])

    def ask(self, command: int, body: dict[str, Any]) -> str:
        """Which devices a pod (``NAMESPACE/NAME`` in ``pod``) has is to be answered. Why it cannot be, else empty."""
        pod = body.get("pod")
        if not isinstance(pod, str) or self._thread is None:
            return "the order is not as agreed" if self._thread is not None else "this agent has no kubelet"
        with self._lock:
            self._asked[command] = (pod, self._begun + 1)
        self._due.set()
        return ""

    def answers(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """To questions: command, why there is no answer, and the data."""
        with self._lock:
            now, ended = self._now or {}, self._ended
        for command, (pod, look) in list(self._asked.items()):
            if ended >= look:
                del self._asked[command]
                why = str(now.get("why", ""))
                yield command, why, {} if why else {"devices": now["pods"].get(pod, {})}

    def report(self) -> dict[str, Any] | None:
        """The body of ``seen what=devices``, if it is another than was sent."""
        with self._lock:
            now = self._now
        if now is None or now == self._sent:
            return None
        self._sent = now
        return now

    def lost(self) -> None:
        """The connection broke: all is sent again, and no question waits."""
        self._sent = None
        self._asked.clear()

    def close(self) -> None:
        """End the thread, after the look that it may be in."""
        self._closed = True
        self._due.set()
        if self._thread is not None:
            self._thread.join(_WITHIN_S + 1)


def _unknown(why: str) -> dict[str, Any]:
    return {"why": why[:1000], "allocatable": {}, "pods": {}}
