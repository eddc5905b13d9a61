"""The threads that deliver what is in a channel's queue. The controller does not wait for a delivery."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, MutableMapping
from typing import Final, TypeAlias

from unidle.errors import BadInput
from unidle.files.fleet_notices import CommandChannel, LogFile, NoticeChannel, Webhook, url_problem
from unidle.notices.model import Notice, encode
from unidle.notices.send_queue import Delivery, SendQueue

IN_FLIGHT_MOST: Final = 4
Send: TypeAlias = Callable[[Notice], Delivery]


def senders(
    channels: Iterable[NoticeChannel], environ: MutableMapping[str, str] = os.environ
) -> list[tuple[NoticeChannel, Send]]:
    """How each channel delivers one notice.

    Variables that hold a secret are taken out of ``environ``, so that neither jobs nor hooks inherit them.
    Errors: :class:`unidle.errors.BadInput` for a variable that is missing or of no use.
    """
    used: set[str] = set()
    found = [(channel, _sender(channel, environ, used)) for channel in channels]
    for name in used:
        environ.pop(name, None)
    return found


def _sender(channel: NoticeChannel, environ: MutableMapping[str, str], used: set[str]) -> Send:
    to = channel.to
    if isinstance(to, Webhook):
        return _poster(channel.field, to, environ, used)
    if isinstance(to, LogFile):
        path = to.path

        def append(notice: Notice) -> Delivery:
            from unidle.notices.sender import append

            return append(path, encode(notice))

        return append
    return _runner(to)


def _runner(to: CommandChannel) -> Send:
    def run(notice: Notice) -> Delivery:
        from unidle.notices.sender import run

        return run(to.argv, encode(notice))

    return run


def _poster(field: str, to: Webhook, environ: MutableMapping[str, str], used: set[str]) -> Send:
    def value(text: str, where: str) -> str:
        if not text.startswith("env:"):
            return text
        name = text.removeprefix("env:")
        found = environ.get(name, "")
        if not found:
            raise _bad(f"{field}.{where}", "the environment variable is not set, or empty", name)
        used.add(name)
        return found

    url = value(to.url, "webhook")
    if (problem := url_problem(url)) is not None:
        raise _bad(f"{field}.webhook", f"what the variable holds {problem}", to.url.removeprefix("env:"))
    headers = {name: value(text, f"headers.{name}") for name, text in to.headers.items()}
    for name, text in headers.items():
        if not (text.isascii() and text.isprintable()):
            raise _bad(f"{field}.headers.{name}", "must be one line of ASCII", None)
    secret_text = value(f"env:{to.secret_env}", "secret_env") if to.secret_env else ""

    def post(notice: Notice) -> Delivery:
        return _post(url, secret_text, headers, notice)

    _check_secret(field, to.secret_env, secret_text)
    return post


def _check_secret(field: str, name: str, text: str) -> None:
    if not text.startswith("whsec_"):
        return
    from unidle.notices.webhook import secret_bytes

    try:
        secret_bytes(text)
    except ValueError as error:
        raise _bad(f"{field}.secret_env", f"what the variable holds {error}", name) from None


def _post(url: str, secret_text: str, headers: dict[str, str], notice: Notice) -> Delivery:
    # only in the thread that sends: TLS and HTTP are a tenth of a second of imports
    from unidle.notices.webhook import WebhookTarget, post, secret_bytes

    target = WebhookTarget(url, secret_bytes(secret_text) if secret_text else b"", headers)
    return post(target, notice.id, encode(notice), time.time())


def _bad(field: str, problem: str, value: str | None) -> BadInput:
    return BadInput(problem, field=field, value=value, remedy="set it where the controller is started")


class SenderThreads:
    """The threads of one channel: as many as there is to do, at most ``most``."""

    def __init__(self, name: str, queue: SendQueue, send: Send, most: int) -> None:
        self._name, self._queue, self._send, self._most = name, queue, send, most
        self._threads = 0

    def wake(self, pending: int) -> None:
        """See that there are threads for ``pending`` notices."""
        while self._threads < min(pending, self._most):
            self._threads += 1
            name = f"notices {self._name} {self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (entry := self._queue.take()) is not None:
            try:
                answer = self._send(entry.notice)
            except Exception as error:
                answer = Delivery("again", f"failed inside unidle: {type(error).__name__}")
            self._queue.settle(entry, answer)


def in_flight_most(channel: NoticeChannel) -> int:
    """How many deliveries of a channel may be under way at once."""
    return IN_FLIGHT_MOST if isinstance(channel.to, Webhook) else 1


COMMAND_S: Final = 30.0


def append(path: str, body: bytes) -> Delivery:
    """Append one line. The file is opened again each time, so that it may be moved away between two lines."""
    try:
        # without O_NONBLOCK a pipe that nobody reads would be waited for
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return Delivery("again", "is not a file")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(file, body)
        finally:
            os.close(file)
    except OSError as error:
        return Delivery("again", (error.strerror or "cannot be written").lower())
    return Delivery("done")


def _write(file: int, body: bytes) -> None:
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":  # a line that was cut off by a full disk
        body = b"\n" + body
    left = memoryview(body + b"\n")
    try:
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
        raise


def run(argv: tuple[str, ...], body: bytes, limit_s: float = COMMAND_S) -> Delivery:
    """Run a command with the notice on its standard input; it has to exit 0 within ``limit_s``."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else None
        return Delivery("again", f"cannot be run: {(text or 'not a command').lower()}")
    try:
        process.communicate(body + b"\n", timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        return Delivery("again", f"did not end within {limit_s:g} s, and was killed")
    if process.returncode:
        how = (
            f"exited {process.returncode}"
            if process.returncode > 0
            else f"was killed by signal {-process.returncode}"
        )
        return Delivery("again", how)
    return Delivery("done")
