"""Carries writes out in a few threads, each until it is done or refused, without ever making the caller wait.

Writes to one object are a lane: they go one after the other. A lane whose write failed waits; where the server itself
does not answer, all lanes wait, so that it is not met by all of them at once. Of those that are due, Events come last.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from unidle.boot import boottime_ns
from unidle.errors import UnidleError
from unidle.kube.client import ApiClient, pause_s
from unidle.kube.mailbox import Mailbox
from unidle.kube.protocol import (
    ApiRequest,
    Delayed,
    Dropped,
    Emit,
    KubeError,
    Write,
    WriteDone,
    WriteRefused,
    WriteResult,
)
from unidle.kube.writes import carry_out, lane_of, of_one_object, passes

THREADS: Final = 8
TIMEOUT_S: Final = 10.0
_LONGEST_WAIT_S: Final = 1.0
Key = tuple[str, str, str]


@dataclass(slots=True)
class _Lane:
    writes: deque[Write] = field(default_factory=deque)
    tries: int = 0  # of the first one
    reported: str = ""


def open_writer(client: ApiClient, *, threads: int = THREADS, timeout_s: float = TIMEOUT_S) -> ApiWriter:
    """A writer with connections of its own. ``timeout_s`` bounds each request: keep it under half the lease.

    Errors: OSError if no file descriptor is available.
    """
    return ApiWriter(client, threads, timeout_s)


class ApiWriter:
    """See :class:`unidle.kube.protocol.Writer`."""

    def __init__(self, client: ApiClient, threads: int, timeout_s: float) -> None:
        self._client = client.another(timeout_s=timeout_s, patience_s=0.0)
        self._timeout_s = timeout_s
        self._mailbox: Mailbox[WriteResult] = Mailbox()
        self._changed = threading.Condition()
        self._lanes: dict[Key, _Lane] = {}
        self._due: list[tuple[bool, int, Key]] = []  # events last, then in order
        self._later: list[tuple[float, int, Key]] = []  # by the monotonic time at which they are due
        self._running: set[Key] = set()
        self._order = 0
        self._waiting = 0
        self._hold_until_s = 0.0  # the server does not answer
        self._failures = 0
        self._allowed_ns: int | None = None
        self._fenced = False
        self._threads = [
            threading.Thread(target=self._run, name=f"kube writer {number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def wake_fd(self) -> int:
        """Readable once something is to be polled."""
        return self._mailbox.fd

    @property
    def waiting(self) -> int:
        """How many writes have no end yet."""
        return self._waiting

    def write(self, *writes: Write) -> None:
        """Queue them. Never blocks."""
        with self._changed:
            if self._fenced:
                self._mailbox.put(Dropped(write) for write in writes)
                return
            for write in writes:
                self._waiting += 1
                key = lane_of(write)
                lane = self._lanes.get(key)
                if lane is not None:
                    lane.writes.append(write)
                    continue
                self._lanes[key] = _Lane(deque((write,)))
                self._add_due(key, write)
            self._changed.notify(len(writes))

    def poll(self) -> list[WriteResult]:
        """Results since the last poll. Never blocks."""
        return self._mailbox.take()

    def allow_until(self, boottime_ns: int | None) -> None:
        """Begin no request after this time of the boot-time clock, and let none last longer (None: no limit)."""
        with self._changed:
            self._allowed_ns = boottime_ns
            self._changed.notify_all()

    def fence(self) -> None:
        """Begin no request any more and break those that run. All that is queued ends as :class:`Dropped`."""
        with self._changed:
            if self._fenced:
                return
            self._fenced = True
            dropped: list[Write] = []
            for key, lane in list(self._lanes.items()):
                first = 1 if key in self._running else 0  # its thread reports how that one ended
                dropped += list(lane.writes)[first:]
                if first:
                    lane.writes = deque((lane.writes[0],))
                else:
                    del self._lanes[key]
            self._due, self._later = [], []
            self._ended(len(dropped))
            self._mailbox.put(Dropped(write) for write in dropped)
            self._changed.notify_all()
        self._client.close()

    def close(self, drain_s: float = 0.0) -> None:
        """Let queued writes end for at most ``drain_s``, then fence and join the threads. Blocks that long."""
        until_s = time.monotonic() + drain_s
        with self._changed:
            while self._waiting and not self._fenced and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
        self.fence()
        for thread in self._threads:
            thread.join()
        self._mailbox.close()

    def _add_due(self, key: Key, write: Write) -> None:
        self._order += 1
        heapq.heappush(self._due, (isinstance(write, Emit), self._order, key))

    def _ended(self, count: int = 1) -> None:
        self._waiting -= count
        if not self._waiting:
            self._changed.notify_all()  # close() waits for it

    # what follows runs in the writer's threads

    def _run(self) -> None:
        while (key := self._next()) is not None:
            lane = self._lanes[key]
            write = lane.writes[0]
            try:
                result: WriteResult | KubeError = carry_out(write, self._call)
            except KubeError as error:
                result = error
            except UnidleError as error:  # credentials that cannot be had for now
                result = KubeError(str(error), verb="write", target=key[0], reason="Unreachable")
            except Exception as error:  # a body that is no JSON, an answer of another form
                result = WriteRefused(
                    write, KubeError(f"{type(error).__name__}: {error}", target=" ".join(key))
                )
            with self._changed:
                self._after(key, lane, write, result)

    def _next(self) -> Key | None:
        """The lane to serve, once one may be; None: the writer is fenced."""
        with self._changed:
            while not self._fenced:
                now_s = time.monotonic()
                while self._later and self._later[0][0] <= now_s:
                    _, _, key = heapq.heappop(self._later)
                    self._add_due(key, self._lanes[key].writes[0])
                wait_s = self._barred_s(now_s)
                if wait_s <= 0 and self._due:
                    key = heapq.heappop(self._due)[2]
                    self._running.add(key)
                    return key
                if wait_s <= 0:
                    wait_s = self._later[0][0] - now_s if self._later else _LONGEST_WAIT_S * 60
                elif not self._due and not self._later:
                    wait_s = _LONGEST_WAIT_S * 60
                self._changed.wait(max(0.001, wait_s))
            return None

    def _barred_s(self, now_s: float) -> float:
        """How long no request may begin, as far as is known."""
        if self._allowed_ns is not None and boottime_ns() >= self._allowed_ns:
            return _LONGEST_WAIT_S
        return self._hold_until_s - now_s

    def _call(self, request: ApiRequest) -> bytes:
        """One request of a write, which may take several: none begins without a lease."""
        allowed_ns = self._allowed_ns
        left_s = self._timeout_s
        if allowed_ns is not None:
            left_s = min(left_s, (allowed_ns - boottime_ns()) / 1e9)
        if self._fenced or left_s <= 0:
            raise KubeError(
                "the lease is over", verb=request.verb, target=request.target, reason="NotAllowed"
            )
        return self._client.call(request, left_s)

    def _after(self, key: Key, lane: _Lane, write: Write, result: WriteResult | KubeError) -> None:
        self._running.discard(key)
        if isinstance(result, WriteDone):
            self._failures = 0
            self._hold_until_s = 0.0
        if isinstance(result, KubeError):
            lane.tries += 1
            if passes(write, result, lane.tries) and not self._fenced:
                self._again(key, lane, write, result)
                return
            broken = self._fenced and result.may_pass
            result = Dropped(write) if broken else WriteRefused(write, result)
        lane.writes.popleft()
        lane.tries, lane.reported = 0, ""
        self._mailbox.put((result,))
        if lane.writes:
            self._add_due(key, lane.writes[0])
            self._changed.notify()
        else:
            del self._lanes[key]
        self._ended()

    def _again(self, key: Key, lane: _Lane, write: Write, error: KubeError) -> None:
        now_s = time.monotonic()
        if error.reason == "NotAllowed":
            lane.tries -= 1
            due_s = now_s
        else:
            due_s = now_s + pause_s(lane.tries, error.retry_after_s)
            if not of_one_object(error):
                if now_s >= self._hold_until_s:  # not each of those that were sent at the same time
                    self._failures += 1
                self._hold_until_s = max(
                    self._hold_until_s, now_s + pause_s(self._failures, error.retry_after_s)
                )
            if error.problem != lane.reported:
                lane.reported = error.problem
                self._mailbox.put((Delayed(write, error, lane.tries),))
        self._order += 1
        heapq.heappush(self._later, (due_s, self._order, key))
        self._changed.notify()
