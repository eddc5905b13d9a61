"""Small Python processes of unidle next to ranks, each in its own session, so that they can outlive who starts them."""

from __future__ import annotations

import os

from unidle.engine.local.ranks.own_python import own_python

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", ".."))


class SideProcess:
    """A child of this process that may outlive it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None  # how it ended, once it has: as in subprocess

    @property
    def alive(self) -> bool:
        if self.code is None:
            try:
                done, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                done, status = self.pid, 0  # somebody else collected it
            if done:
                self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.code is None


def can_start(module: str) -> bool:
    """Whether a module of unidle is here: a box that is one file has only itself."""
    return os.path.exists(os.path.join(ROOT, *module.split(".")) + ".py")


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """That of such a process: ``own``, and where unidle is."""
    path = os.pathsep.join(filter(None, (ROOT, own.get("PYTHONPATH"))))
    return {**own, "PYTHONPATH": path}


def start(
    arguments: Sequence[str], env: Mapping[str, str], out: int | None = None, errors: str = os.devnull
) -> SideProcess:
    """``python ARGUMENTS`` with nothing imported from the working directory; ``out`` is its standard output. OSError where there can be none."""
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0 if out is None else out, 1),
        (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    command = [*own_python(), "-P", *arguments]
    return SideProcess(os.posix_spawn(command[0], command, env, file_actions=actions, setsid=True))
