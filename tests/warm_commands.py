"""Commands of unidle as processes of their own, forked from one that has imported what they need.

A command takes 0.3 s of processor time to start, a controller 0.5 s, and tests run thousands. What a command does, prints
and ends with is as from a shell: it has its own number, descriptors, directory, environment and arguments. Only what
Python decides when it starts is that of the first process, so a changed variable for Python itself, or a locale, starts a
new one. `/proc/PID/environ` and `/proc/PID/cmdline` are those of the first process, too.
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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

_FIXED = ("PYTHON", "LC_", "LANG", "LD_")
_LENGTH_BYTES = 8
ROOMS = ("cli", "control", "engine.local", "files", "ledger", "predict", "report", "store", "view")
_SPAN = (
    "span.cli.run",
    "span.cli.run_report",
    "span.cli.site",
    "span.files.train",
    "span.run.coordinator",
    "span.run.gang",
)


class WarmPopen(subprocess.Popen[Any]):
    """A process that was forked from a warm one. Its parent is the warm one, so what waits for it asks that."""

    def __init__(
        self, warm: WarmCommands, words: list[str], *, cwd: Any = None, env: Any = None,
        start_new_session: bool = False, **streams: Any,
    ) -> None:  # fmt: skip
        self._warm = warm
        self._task = {
            "words": words, "cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env),
            "new_session": start_new_session,
        }  # fmt: skip
        super().__init__(words, **streams)

    def _execute_child(self, words: list[str], *given: Any) -> None:  # type: ignore[override]
        pipes = given[9:15]  # to and from stdin, stdout, stderr; -1: as in this process
        ours = zip((pipes[0], pipes[3], pipes[5]), range(3), strict=True)
        try:
            self._answers = self._warm.ask(self._task, [fd if fd != -1 else usual for fd, usual in ours])
            self.pid = int(_take(self._answers))
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with contextlib.suppress(OSError, ValueError):  # another thread has waited
                if not select.select([self._answers], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return super().wait(timeout)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """As ``os.waitpid``."""
        try:
            answer = self._answers.recv(32, socket.MSG_DONTWAIT if flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._answers.close()
        return self.pid, int(answer or signal.SIGKILL)  # the warm one has ended

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


class WarmCommands:
    """The client's end: one warm process for this one, started when it is first needed.

    ``script`` serves (:func:`serve`); ``env`` is added to its environment.
    """

    def __init__(self, script: Path = Path(__file__), env: dict[str, str] | None = None) -> None:
        self._script, self._env = script, env or {}
        self._server: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._lock = threading.Lock()

    def run(self, words: list[str], *, timeout_s: float, **more: Any) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` of ``unidle words`` with text that is captured. ``more``: ``cwd``, ``env`` and ``input``."""
        given = more.pop("input", None)
        with contextlib.ExitStack() as held:
            out, err, into = (held.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            into.write((given or "").encode())
            into.seek(0)
            stdin = None if given is None else into
            process = self.start(words, stdin=stdin, stdout=out, stderr=err, **more)
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode().replace("\r\n", "\n"))
        return subprocess.CompletedProcess(words, code, *texts)

    def start(self, words: list[str], **more: Any) -> WarmPopen:
        """As ``subprocess.Popen`` of ``unidle words``. ``more``: what :func:`can_start` allows."""
        return WarmPopen(self, words, **more)

    def close(self) -> None:
        """End the warm process; those that it started have ended."""
        if self._server is not None and self._line is not None:
            self._line.close()
            self._server.wait()
        self._server = self._line = None

    @property
    def pid(self) -> int | None:
        """Of the warm process, where there is one."""
        return None if self._server is None else self._server.pid

    def ask(self, task: dict[str, Any], descriptors: list[int]) -> socket.socket:
        """Have a process forked for a task. The socket gives its pid, and in the end its status, each on a line."""
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
            command = [sys.executable, "-X", "faulthandler", str(self._script), str(its.fileno())]
            self._server = subprocess.Popen(
                command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, **self._env}
            )
        atexit.register(self.close)


WARM = WarmCommands()
"""The one of this session, ended by ``conftest``."""


def can_run(more: dict[str, Any]) -> bool:
    """Whether what a caller wishes of ``subprocess.run`` can be had from a warm process."""
    return not more.keys() - {"cwd", "env", "input"} and _can_be(more.get("env"))


def can_start(more: dict[str, Any]) -> bool:
    """Whether what a caller wishes of ``subprocess.Popen`` can be had from a warm process."""
    known = {"cwd", "env", "stdin", "stdout", "stderr", "start_new_session", "text", "bufsize"}
    return not more.keys() - known and _can_be(more.get("env"))


def _can_be(environ: Any) -> bool:
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


def serve(line: socket.socket, become: Callable[[dict[str, Any], list[int]], NoReturn]) -> None:
    """Fork a process for each task until the line is closed, and report how each ends. ``become``: what it is then."""
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
            try:
                for other in (line, woken, wake, answers, *running.values()):
                    other.close()
                become(json.loads(data), streams)
            except KeyboardInterrupt:
                os._exit(130)
        for fd in streams:
            os.close(fd)
        answers.sendall(b"%d\n" % pid)
        running[pid] = answers


def _report(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as answers, contextlib.suppress(BrokenPipeError):
                answers.sendall(b"%d\n" % status)


def take_on(task: dict[str, Any], streams: list[int]) -> None:
    """The descriptors, session, directory and environment of a task, for this process."""
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
    for stream in streams:
        if stream > 2:
            os.close(stream)
    if task["new_session"]:
        os.setsid()
    os.chdir(task["cwd"])
    os.environ.clear()
    os.environ.update(task["env"])
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, name)
        stream = open(fd, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115 - for life
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _become(task: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the command, as if Python had just started with it."""
    take_on(task, streams)
    import unidle.__main__

    sys.path[0] = task["cwd"]
    sys.argv = [unidle.__main__.__file__, *task["words"]]
    run_to_end(unidle.__main__.main)


def run_to_end(main: Callable[[], object]) -> NoReturn:
    """Call, and end as Python does, but leave the objects as they are: to free them copies all that is shared."""
    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit((code or 0) & 0xFF)


def import_all(rooms: Iterable[str] = ROOMS) -> None:
    """What commands import, so that it is there when one is forked."""
    import gc
    import pkgutil
    from importlib import import_module

    for room in rooms:
        for module in pkgutil.walk_packages(import_module(f"unidle.{room}").__path__, f"unidle.{room}."):
            with contextlib.suppress(ImportError):  # what is not installed is not missed until it is used
                import_module(module.name)
    for name in _SPAN:  # only these: ranks of a span import PyTorch
        import_module(f"unidle.{name}")
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as its_line:
        os.set_inheritable(its_line.fileno(), False)
        import_all()
        serve(its_line, _become)
