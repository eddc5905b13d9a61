"""Starts supervisors of ranks, and holds the port of a gang until rank 0 has it. Standard library only."""

from __future__ import annotations

import fcntl
import os
import signal
import socket

from unidle.engine.local.ranks import netns, rundir
from unidle.engine.local.ranks.own_python import own_python

ANY_V4 = "0.0.0.0"  # noqa: S104 - ranks may listen on any address, so all must be free
SUPERVISOR_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor", "entry.py")
LOCK_FD = 3
PORT_FD = 4


def reserve_port(space: str = "", port: int = 0) -> socket.socket:
    """A socket bound to a free port of every address (of network namespace ``space``), not listening; to ``port`` where given.

    While it is open, the kernel gives the port to no process that requests a free port, and to none that requests
    this port without SO_REUSEADDR. Rank 0 can listen on it, because its store sets that option.
    """
    return netns.within(space, lambda: _reserve(port))


def _reserve(port: int) -> socket.socket:
    try:
        bound = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return _bind(socket.socket(socket.AF_INET, socket.SOCK_STREAM), ANY_V4, port)
    try:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _bind(bound, "::", port)
    except OSError:
        bound.close()
        return _bind(socket.socket(socket.AF_INET, socket.SOCK_STREAM), ANY_V4, port)


def _bind(bound: socket.socket, address: str, port: int) -> socket.socket:
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def spawn_supervisor(directory: str, lock_fd: int, port_fd: int | None, space: str = "") -> int:
    """Start the supervisor of a rank directory, in a session (and network namespace) of its own; returns its pid.

    It inherits the rank's lock, held by ``lock_fd``, and for rank 0 the gang's bound port. Its
    signals are blocked until it can handle them, so that no stop is lost.
    """
    fds = {LOCK_FD: lock_fd} if port_fd is None else {LOCK_FD: lock_fd, PORT_FD: port_fd}
    errors = f"{directory}/{rundir.ERRORS}"
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    high = {number: _high(fd) for number, fd in fds.items()}
    actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in high.items()]
    arguments = [*own_python(), "-I", "-S", "-E", SUPERVISOR_PATH, directory, *map(str, fds)]

    def spawn() -> int:
        return os.posix_spawn(
            arguments[0],
            arguments,
            os.environ,
            file_actions=actions,
            setsid=True,
            setsigmask=[signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP],
            setsigdef=[signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD],
        )

    try:
        return netns.within(space, spawn)
    finally:
        for fd in high.values():
            os.close(fd)


def _high(fd: int) -> int:
    """A copy of a descriptor above those that the supervisor is given, closed on exec."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)
