"""Controllers that this process has started: one for each store, shared by all threads (see
``unidle.api.serve``).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from typing import Any, Final

import msgspec

from unidle import errors
from unidle.api.serve import ServeOrder
from unidle.errors import BadInput, StoreError, StoreHeld, UnidleError

_END_S: Final = 10.0
_LOOK_MS: Final = 100
_ERROR_BYTES: Final = 4000


class Server:
    """A controller in a process of its own, which ends the caller's jobs when the caller's end of the pipe closes.

    Errors: those of the controller, such as :class:`StoreHeld`.
    """

    def __init__(self, order: ServeOrder, job: str) -> None:
        self.order = order
        self._jobs = {job}
        self._sent = 1  # jobs, whether they have ended or not
        self._lock = threading.Lock()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process ends without an answer
        self._process = subprocess.Popen(
            # -P: a file of the user's must not stand for a module of the controller's
            [sys.executable, "-P", "-m", "unidle.api.serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._stderr, start_new_session=True, bufsize=0,
        )  # fmt: skip
        try:
            self._send(msgspec.json.encode(order) + b"\n" + _line(job=job))
            self._take_answer()
        except BaseException:
            self.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def add(self, job: str) -> None:
        """The job belongs to this process from now on."""
        self._jobs.add(job)
        self._sent += 1
        self._send(_line(job=job))

    def kill(self, job: str) -> None:
        """Kill the job without a further grace period."""
        self._send(_line(kill=job))

    def over(self, job: str) -> None:
        """The job has ended. After the last job the controller ends, too, and the store is free when this
        returns.
        """
        with self._lock:
            self._jobs.discard(job)
            stdout = self._process.stdout
            if self._jobs or stdout is None or stdout.closed:
                return
            # it closes its output, or answers that it serves what others have submitted
            words = select.poll()  # select() has no numbers above 1023
            words.register(stdout, select.POLLIN)
            while not self._jobs:
                if not words.poll(_LOOK_MS):
                    continue
                line = stdout.readline()
                if not line:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_END_S)
                    self.close()
                    return
                if json.loads(line).get("stays") == self._sent:  # else it is about earlier jobs alone
                    return

    def close(self) -> None:
        """Close the pipes, and reap the process if it has ended."""
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.poll()

    def _send(self, lines: bytes) -> None:
        """A controller that has just ended takes nothing; who waits for the job sees that, and starts another."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(lines)

    def _take_answer(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _ERROR_BYTES))
            words = self._stderr.read().decode("utf-8", "replace").strip()
            raise StoreError(
                f"the controller ended with exit code {code}: {words[-500:] or 'it printed nothing'}",
                field=self.order.store,
            )
        answer = json.loads(line)
        if "error" in answer:
            raise _error_of(answer)


_LOCK: Final = threading.Lock()
_SERVERS: dict[str, Server] = {}


def serve(order: ServeOrder, job: str) -> Server | None:
    """This process's controller of the store, which now has the job; None if another process drives the store.

    Errors: :class:`BadInput` where it was started for another fleet; else see :class:`Server`.
    """
    with _LOCK:
        server = _SERVERS.get(order.store)
        if server is not None and server.alive:
            if order.place and server.order.place and not order.alike(server.order):
                raise BadInput(
                    "this process serves the store with other devices now", field="fleet, cpu_devices, profile",
                    remedy="wait for its jobs, or name another store",
                )  # fmt: skip
            server.add(job)
            return server
        if server is not None:
            _SERVERS.pop(order.store).close()
        try:
            server = Server(order, job)
        except StoreHeld:
            return None
        _SERVERS[order.store] = server
        return server


def is_served(order: ServeOrder) -> bool:
    """Whether this process's own controller serves the store, on the same devices."""
    with _LOCK:
        server = _SERVERS.get(order.store)
        return server is not None and server.alive and server.order.alike(order)


def over(store: str, job: str) -> None:
    """The job has ended; the controller of this process does not have to stay for it."""
    with _LOCK:
        server = _SERVERS.get(store)
    if server is not None:
        server.over(job)


def kill(store: str, job: str) -> None:
    """Kill a job of this process without a further grace period."""
    with _LOCK:
        server = _SERVERS.get(store)
    if server is not None:
        server.kill(job)


def _forget() -> None:
    """A forked child is not the caller: its copies of the pipes must not keep the jobs alive."""
    global _LOCK
    _LOCK = threading.Lock()  # type: ignore[misc]
    for server in _SERVERS.values():
        server.close()
    _SERVERS.clear()


os.register_at_fork(after_in_child=_forget)


def _line(**content: Any) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _error_of(answer: dict[str, Any]) -> UnidleError:
    content = answer["error"]
    kind = getattr(errors, answer["kind"], UnidleError)
    if not (isinstance(kind, type) and issubclass(kind, UnidleError)):
        kind = UnidleError
    return kind(content["problem"], field=content["field"], value=content["value"], remedy=content["remedy"])
