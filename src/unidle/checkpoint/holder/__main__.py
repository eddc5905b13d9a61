"""``python -m unidle.checkpoint.holder``: start one for a node and a checkpoint directory, once; or end it."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from typing import Final

from unidle.checkpoint.holder import hold_paths, wire
from unidle.checkpoint.holder.server import MemoryHolder, arguments
from unidle.checkpoint.holder.wire import Gone

END_WITHIN_S: Final = 900.0  # as long as a save may take


def main() -> int:
    """Exit codes: 0 it runs (or did already), 1 it cannot."""
    given = arguments().parse_args()
    if given.end:
        return _end(given.storage, given.node, given.hold)
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


def _end(storage: str, node: str, hold: str | None) -> int:
    """End the holder of a node and wait for that. What one that was killed has left is removed."""
    try:
        hold = hold or wire.hold_directory(storage, node, hold_paths.known_id(storage))
        until_s = time.monotonic() + END_WITHIN_S
        while (address := wire.running(hold)) is not None:
            if time.monotonic() > until_s:
                print("unidle holder: it still writes to storage", file=sys.stderr)
                return 1
            with contextlib.suppress(Gone), wire.connect(address.on_this_host()) as link:
                wire.ask(link, {"do": "end"})
            time.sleep(0.2)
        if os.path.exists(hold) or os.path.exists(hold + hold_paths.GATE):
            gate = hold_paths.gate(hold)
            if wire.running(hold) is None:
                hold_paths.clear(hold)
                with contextlib.suppress(OSError), hold_paths.inner(storage, wire.HOLDERS) as holders:
                    os.unlink(os.path.basename(hold) + ".json", dir_fd=holders)
            os.close(gate)
    except FileNotFoundError:
        pass  # there never was one
    except OSError as error:
        print(f"unidle holder: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
