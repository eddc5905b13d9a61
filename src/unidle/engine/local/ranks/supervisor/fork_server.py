"""A warm Python: it has imported what takes long, and forks supervisors whose ranks begin with that.

Runs under the job's own interpreter and environment, with the standard library only. Over the socket
whose descriptor it is given, it first sends what it has imported. Each request is then the directory of a
rank, with the rank's lock and perhaps the gang's port. The answer is the pid of a supervisor. The
supervisor forks the rank, which becomes the script without an exec. A warm Python holds no device, runs
nothing and ends with the socket's other end; the ranks that came from it do not.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import signal
import socket
import time

from .. import netns, rundir
from . import supervise
from .script_runner import become

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGE_BYTES = 65536
_CAP_SYS_NICE = 23
BLOCKED = {signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP}


def main(arguments: Sequence[str]) -> None:
    """Import ``arguments[1:]``, then serve the socket whose descriptor is ``arguments[0]``."""
    server = socket.socket(fileno=int(arguments[0]))
    server.set_inheritable(False)
    usual = _run_when_idle()
    began = time.monotonic()
    gc.disable()  # nothing of an import becomes garbage, and to look for it is a fifth of its time
    missing = [name for name in arguments[1:] if not _imported(name)]
    threads = len(os.listdir("/proc/self/task"))
    gc.freeze()  # a collection in a rank would else copy every page that it shares with the others
    gc.enable()
    told = {"missing": missing, "threads": threads, "seconds": time.monotonic() - began}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server.sendall(json.dumps(told).encode())
        while _serve(server, usual):
            pass
    except (BrokenPipeError, ConnectionResetError):
        pass  # the engine is gone


def _imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:  # whatever a library does at its import, the script will see it again
        return False
    return True


def _run_when_idle() -> int | None:
    """Use only idle CPU time, if that can be undone for the ranks. Returns the policy for the ranks; None if nothing changed."""
    if not _may_undo_idle():
        return None
    try:
        usual = os.sched_getscheduler(0)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        return None
    return usual if usual in (os.SCHED_BATCH, os.SCHED_IDLE) else os.SCHED_OTHER


def _may_undo_idle() -> bool:
    """Whether this process has CAP_SYS_NICE. Root in a container mostly has not: its ranks could then never be started."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            held = next((line.split()[1] for line in file if line.startswith("CapEff:")), "0")
        return bool(int(held, 16) >> _CAP_SYS_NICE & 1)
    except (OSError, ValueError, IndexError):
        return False


def _serve(server: socket.socket, usual: int | None) -> bool:
    """Answer one request; False when there will be no more."""
    message, fds = _receive(server)
    if not message:
        return False
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    pid = os.fork()
    if pid == 0:
        request = json.loads(message)
        _supervise(request["directory"], fds, usual, request["netns"])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    for fd in fds:
        os.close(fd)
    server.sendall(json.dumps({"pid": pid}).encode())
    return True


def _receive(server: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    message, ancillary, _, _ = server.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(2 * fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)


def _supervise(directory: str, fds: list[int], usual: int | None, space: str) -> None:
    """The child's side: the supervisor of one rank, as if it had been started for it. Never returns."""
    code = 1
    try:
        os.setsid()
        if usual is not None:
            os.sched_setscheduler(0, usual, os.sched_param(0))
        if space:
            netns.enter(space)
        null = os.open(os.devnull, os.O_RDWR)
        errors = os.open(f"{directory}/{rundir.ERRORS}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for target, fd in ((0, null), (1, null), (2, errors)):
            os.dup2(fd, target)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = supervise.main([directory, *map(str, fds)], become)
    except BaseException as error:  # the last words go where the engine looks for them
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)
