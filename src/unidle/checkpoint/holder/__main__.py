"""``python -m unidle.checkpoint.holder``: start one for a node and a checkpoint directory, once."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from unidle.checkpoint.holder import hold_paths, wire
from unidle.checkpoint.holder.server import MemoryHolder, arguments


def main() -> int:
    """Exit codes: 0 it runs (or did already), 1 it cannot."""
    given = arguments().parse_args()
    try:
        if given.hold is None:
            given.hold = wire.hold_directory(given.storage, given.node, wire.directory_id(given.storage))
        os.makedirs(os.path.dirname(os.path.dirname(os.path.abspath(given.hold))), exist_ok=True)
        gate = hold_paths.gate(given.hold)
        os.close(hold_paths.open_hold(given.hold, create=True))
        if wire.running(given.hold) is not None:
            return 0
    except OSError as error:
        print(f"unidle holder: {error.strerror or error}", file=sys.stderr)
        return 1
    if given.foreground:
        return _serve(given, gate, -1)
    started, tell = os.pipe()
    if os.fork() == 0:  # before any thread
        os.close(started)
        os.setsid()
        return _serve(given, gate, tell)
    os.close(tell)
    os.close(gate)
    return 0 if os.read(started, 1) else 1


def _serve(given: argparse.Namespace, gate: int, tell: int) -> int:
    try:
        holder = MemoryHolder(given.storage, given.hold, given.node, given.host, given.linger)
    except OSError as error:
        print(f"unidle holder: cannot listen at {given.host}: {error.strerror or error}", file=sys.stderr)
        return 1
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: holder.finish())
    holder.publish()
    os.close(gate)
    if tell >= 0:
        os.write(tell, b"1")
        os.close(tell)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
    holder.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
