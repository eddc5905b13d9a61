"""An agent at rest: memory and processor time of `unidle agent` on a host where nothing happens, and how soon a host is in the fleet.

The hub is in this process, so its time is not counted. The agent has its detectors (kernel log, machine, GPUs if
there are any) and one connection over TLS, with a ping a second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _process import POLL_S, UNIDLE, cpu_s, environment, memory_bytes, started, until
from _table import Row, main
from unidle.clock import RealClock
from unidle.hub.authority import OwnIdentity
from unidle.hub.listening import listening, names_of
from unidle.hub.protocol import Joined
from unidle.hub.server import HubServer
from unidle.hub.tokens import Tokens

MOST_MB, MOST_PCT = 60.0, 0.5
SETTLE_S = 5.0  # what it imports and finds at its start is not rest
WITHIN_S = 60.0


def hub_at(place: Path) -> HubServer:
    """A hub that listens on this machine; its join file is ``place/join``."""
    place.mkdir(mode=0o700)
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    sockets = listening("127.0.0.1:0")
    identity = OwnIdentity(folder, str(place), names_of(sockets), time.time())
    tokens = Tokens(folder, str(place))
    tokens.write_join(identity.authority)
    os.close(folder)
    return HubServer(sockets, identity, tokens, RealClock(), 1)


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        hub = hub_at(place / "hub")
        try:
            yield from measured(hub, place, arguments.seconds)
        finally:
            hub.close()


def measured(hub: HubServer, place: Path, seconds: float) -> Iterator[Row]:
    """Rows of one agent."""
    host, port = hub.addresses[0]
    command = [*UNIDLE, "agent", "--join", f"{host}:{port}", "--token-file", str(place / "hub" / "join")]
    command += ["--node", "bench", "--state", str(place / "state")]
    began_s = time.monotonic()
    with started(command, place, environment()) as process:
        joined = until(lambda: any(isinstance(one, Joined) for one in hub.poll()), WITHIN_S)
        if not joined:
            raise SystemExit((place / "err").read_text())
        join_s = time.monotonic() - began_s
        until(lambda: bool(hub.poll()) and False, SETTLE_S)
        before_s, from_s = cpu_s(process.pid), time.monotonic()
        while time.monotonic() - from_s < seconds:
            hub.poll()
            time.sleep(POLL_S)
        share_pct = (cpu_s(process.pid) - before_s) / (time.monotonic() - from_s) * 100
        rss, pss = memory_bytes(process.pid)
    how = f"measured here, {seconds:.0f} s after {SETTLE_S:.0f} s"
    yield Row(
        "agent at rest, memory (RSS)",
        "MB",
        rss / 1e6,
        goal=f"at most {MOST_MB:.0f}",
        holds=rss / 1e6 <= MOST_MB,
        how=how,
    )
    yield Row("agent at rest, memory (PSS)", "MB", pss / 1e6, how=how)
    yield Row(
        "agent at rest",
        "% of one core",
        share_pct,
        goal=f"at most {MOST_PCT}",
        holds=share_pct <= MOST_PCT,
        how=how,
    )
    yield Row("from the command to the node in the fleet", "s", join_s, how="measured here, one run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is observed")


if __name__ == "__main__":
    main("agent", rows, add_arguments)
