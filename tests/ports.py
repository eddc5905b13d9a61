"""Ports for programs that are given their numbers before they listen."""

from __future__ import annotations

import atexit
import contextlib
import errno
import random
import socket

EACH = 30
"""So many ports follow each other in a block."""
_FROM, _TO = 18_000, 30_000  # below those that the kernel gives to clients
_held = contextlib.ExitStack()
atexit.register(_held.close)


def block() -> int:
    """The first of :data:`EACH` ports on which nothing listens. No other test of this machine gets them until this process ends."""
    for first in random.sample(range(_FROM, _TO, EACH), (_TO - _FROM) // EACH):
        with contextlib.ExitStack() as trial:
            # an abstract name is of the network namespace, as ports are, and the kernel frees it with its process
            hold = trial.enter_context(socket.socket(socket.AF_UNIX))
            try:
                hold.bind(f"\0unidle-test-ports-{first}")
                for port in range(first, first + EACH):
                    with socket.socket() as one:
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        one.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            _held.enter_context(trial.pop_all())
            return first
    raise AssertionError(f"all ports from {_FROM} to {_TO} are taken")
