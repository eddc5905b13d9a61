"""Commands of unidle as processes of their own, forked from one that has imported what they need.

A command takes 0.3 s of processor time to start, and tests run thousands. What a command does, prints and ends with is as
from a shell: it has its own number, descriptors, directory, environment and arguments. Only what Python decides when it
starts is that of the first process, so a changed variable for Python itself, or a locale, starts a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

_FIXED = ("PYTHON", "LC_", "LANG", "LD_")
_LENGTH_BYTES = 8
_ROOMS = ("cli", "control", "engine.local", "files", "ledger", "predict", "report", "store", "view")


class WarmCommands:
    """The client's end: one warm process for this one, started when it is first needed."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._lock = threading.Lock()

    def run(
        self,
        words: list[str],
        *,
        timeout_s: float,
        cwd: Any = None,
        env: Any = None,
        **more: str,
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` of ``unidle words`` with text that is captured."""
        given = more.get("input")
        environ = dict(os.environ if env is None else env)
        with contextlib.ExitStack() as held:
            out, err, into = (held.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            into.write((given or "").encode())
            into.seek(0)
            stdin = into if given is not None else None
            task = {"words": words, "cwd": str(cwd or Path.cwd()), "env": environ}
            answers = held.enter_context(
                self._ask(task, [0 if stdin is None else stdin.fileno(), out.fileno(), err.fileno()])
            )
            answers.settimeout(timeout_s)
            pid = int(_take(answers))
            try:
                code = int(_take(answers))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, timeout_s) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode().replace("\r\n", "\n"))
        return subprocess.CompletedProcess(words, code, *texts)

    def close(self) -> None:
        """End the warm process; those that it started have ended."""
        if self._server is not None and self._line is not None:
            self._line.close()
            self._server.wait()
        self._server = self._line = None

    def _ask(self, task: dict[str, Any], descriptors: list[int]) -> socket.socket:
        mine, its = socket.socketpair()
        with self._lock, its:
            if self._line is None:
                self._start()
            assert self._line is not None
            data = json.dumps(task).encode()
            socket.send_fds(self._line, [len(data).to_bytes(_LENGTH_BYTES)], [*descriptors, its.fileno()])
            self._line.sendall(data)
        return mine

    def _start(self) -> None:
        self._line, its = socket.socketpair()
        with its:
            command = [sys.executable, "-X", "faulthandler", __file__, str(its.fileno())]
            self._server = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self.close)


WARM = WarmCommands()
"""The one of this session, ended by ``conftest``."""


def can_run(more: dict[str, Any]) -> bool:
    """Whether what a caller wishes for a process can be had from a warm one."""
    if more.keys() - {"cwd", "env", "input"}:
        return False
    environ = more.get("env")
    return environ is None or _fixed(environ) == _fixed(os.environ)


def _fixed(environ: Any) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_FIXED) or name == "HOME"}


def _take(line: socket.socket) -> bytes:
    """The next line of text; empty at the end."""
    data = b""
    while not data.endswith(b"\n") and (more := line.recv(1)):
        data += more
    return data


# -- the warm process ----------------------------------------------------------------------------


def _serve(line: socket.socket) -> None:
    """Start a process for each task until the line is closed, and report how each ends."""
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([line, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                woken.recv(4096)
            _report(running)
        if line not in ready:
            continue
        head, descriptors, _, _ = socket.recv_fds(line, _LENGTH_BYTES, 4)
        if not head:
            return
        data, length = b"", int.from_bytes(head)
        while len(data) < length and (more := line.recv(length - len(data))):
            data += more
        *streams, answers_fd = descriptors
        answers = socket.socket(fileno=answers_fd)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (line, woken, wake, answers, *running.values()):
                other.close()
            _become(json.loads(data), streams)
        for fd in streams:
            os.close(fd)
        answers.sendall(b"%d\n" % pid)
        running[pid] = answers


def _report(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as answers, contextlib.suppress(BrokenPipeError):
                answers.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(task: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the command, as if Python had just started with it."""
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
    for stream in streams:
        if stream > 2:
            os.close(stream)
    os.chdir(task["cwd"])
    os.environ.clear()
    os.environ.update(task["env"])
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, name)
        stream = open(fd, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115 - for life
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    import unidle.__main__

    sys.path[0] = task["cwd"]
    sys.argv = [unidle.__main__.__file__, *task["words"]]
    unidle.__main__.main()
    sys.exit(0)


def _import_all() -> None:
    import gc
    import pkgutil
    from importlib import import_module

    for room in _ROOMS:
        for module in pkgutil.walk_packages(import_module(f"unidle.{room}").__path__, f"unidle.{room}."):
            with contextlib.suppress(ImportError):  # what is not installed is not missed until it is used
                import_module(module.name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as its_line:
        os.set_inheritable(its_line.fileno(), False)
        _import_all()
        _serve(its_line)
