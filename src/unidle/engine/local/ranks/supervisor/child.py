"""Starts a rank's process: own session, tied to its supervisor's life. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal

from ..cgroups import ControlGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CANNOT_EXECUTE = 126
NOT_FOUND = 127

_LIBC = ctypes.CDLL(None, use_errno=True)


class CannotStart(Exception):
    """The command cannot be executed; ``code`` is what a shell would exit with."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def become_subreaper() -> None:
    """Orphans of this process's descendants become its own children."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(
    argv: list[str],
    workdir: str,
    env: dict[str, str],
    out: int,
    err: int,
    keep: list[int],
    group: ControlGroup,
    become: Callable[[list[str], dict[str, str]], None] | None = None,
) -> tuple[int, list[str]]:
    """Start ``argv`` in ``workdir``; returns its pid and the control groups that refused it.

    ``out`` and ``err`` become its output, descriptors in ``keep`` stay open in it. It joins
    ``group`` before its first instruction, leads a session and process group of its own, and gets
    SIGKILL when this process dies. ``become``, where given, runs the command without executing it.
    Raises :class:`CannotStart` when the command cannot be executed.
    """
    told, tell = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_child(
            argv,
            workdir,
            tell,
            lambda: _prepare(out, err, keep, group, tell, parent),
            lambda: _execute(argv, env, keep, become),
        )
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        *refused, failure = pipe.read().decode("utf-8", "replace").split("\n")
    if failure:
        os.waitpid(pid, 0)
        number, why = failure.split(" ", 1)
        raise CannotStart(int(number), why)
    return pid, refused


def _prepare(out: int, err: int, keep: list[int], group: ControlGroup, tell: int, parent: int) -> None:
    """Session, control group and descriptors of the child."""
    os.setsid()
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(CANNOT_EXECUTE)  # the supervisor died before the line above took effect
    for path in group.join():
        os.write(tell, f"{path}\n".encode())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in keep:
        os.set_inheritable(fd, True)


def _execute(
    argv: list[str],
    env: dict[str, str],
    keep: list[int],
    become: Callable[[list[str], dict[str, str]], None] | None,
) -> None:
    _default_signals()
    if become is not None:
        _close_all_but({0, 1, 2, *keep})  # as an exec would
        become(argv, env)
    os.execvpe(argv[0], argv, env)  # noqa: S606


def _run_child(
    argv: list[str], workdir: str, tell: int, prepare: Callable[[], None], execute: Callable[[], None]
) -> None:
    """The child's side: never returns."""
    code, where = CANNOT_EXECUTE, "workdir"
    try:
        prepare()
        os.chdir(workdir)
        where = "command"
        execute()
    except FileNotFoundError as error:
        code = NOT_FOUND
        missing = _short(argv[0] if where == "command" else workdir)
        if where == "command" and (interpreter := _interpreter(argv[0])):
            missing = f"{_short(interpreter)}, the interpreter in the first line of {missing}"
        os.write(tell, f"{code} {where}: {error.strerror}: {missing}".encode())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        os.write(
            tell, f"{code} {where}: {why}: {_short(argv[0] if where == 'command' else workdir)}".encode()
        )
    finally:
        os._exit(code)


def _interpreter(file: str) -> str:
    """The interpreter that a script names in its first line; empty if the file is no script or cannot be read."""
    try:
        fd = os.open(file, os.O_RDONLY)
        words = os.read(fd, 256).partition(b"\n")[0].decode("utf-8", "replace").split()
    except OSError:
        return ""
    first = words[0] if words else ""
    return (first[2:] or "".join(words[1:2])) if first.startswith("#!") else ""


def _close_all_but(wanted: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            try:
                os.close(int(name))
            except OSError:
                continue  # the listing's own


def _default_signals() -> None:
    """As a shell would start it: Python ignores some signals, and an ignored one stays so over exec."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _short(text: str) -> str:
    return repr(text[:200])
