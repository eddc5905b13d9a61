"""A real hub for agents and boxes under test: its own authority, tokens and sockets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from unidle.clock import RealClock
from unidle.hub import frames
from unidle.hub.authority import OwnIdentity, ServerIdentity, SiteIdentity
from unidle.hub.listening import listening, names_of
from unidle.hub.protocol import Joined, Left, Peer, Received
from unidle.hub.server import HubServer
from unidle.hub.tokens import Tokens

T = TypeVar("T")
WITHIN_S = 60.0


class TestHub:
    """A hub and all that it heard. ``place``: of its state; the same place is the same fleet.

    ``site``: certificate and key of the site, instead of an authority of its own.
    """

    __test__ = False

    def __init__(
        self, place: Path, listen: str = "127.0.0.1:0", fence: int = 3, site: tuple[str, str] | None = None
    ) -> None:
        self.place = place
        place.mkdir(mode=0o700, exist_ok=True)
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        sockets = listening(listen)
        identity: ServerIdentity = (
            SiteIdentity(*site) if site else OwnIdentity(folder, str(place), names_of(sockets), time.time())
        )
        tokens = Tokens(folder, str(place))
        tokens.write_join(identity.authority)
        os.close(folder)
        self.server = HubServer(sockets, identity, tokens, RealClock(), fence)
        host, port = self.server.addresses[0]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.fence = fence
        self.heard: list[Joined | Left | Received] = []
        self._command = 0

    @property
    def join_file(self) -> Path:
        return self.place / "join"

    def until(self, find: Callable[[], T | None], what: str) -> T:
        """Poll until it finds something."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            self.heard += self.server.poll()
            found = find()
            if found is not None and found is not False:
                return found
            assert time.monotonic() < deadline, f"{what}: {self.heard[-10:]}"
            time.sleep(0.01)

    def joined(self, kind: str = "agent", count: int = 1) -> Peer:
        """The newest peer of a kind, once so many have joined."""

        def find() -> Peer | None:
            peers = [one.peer for one in self.heard if isinstance(one, Joined) and one.peer.kind == kind]
            return peers[-1] if len(peers) >= count else None

        return self.until(find, f"{kind} to join")

    def left(self, peer: Peer) -> Left:
        """How its connection ended."""
        return self.until(
            lambda: next((one for one in self.heard if isinstance(one, Left) and one.peer == peer.id), None),
            "the end of a connection",
        )

    def seen(self, what: str, suits: Callable[[frames.Seen], object] = bool) -> frames.Seen:
        """The first report of this kind that suits."""

        def find() -> frames.Seen | None:
            for one in self.heard:
                frame = one.frame if isinstance(one, Received) else None
                if isinstance(frame, frames.Seen) and frame.what == what and suits(frame):
                    return frame
            return None

        return self.until(find, what)

    def ask(self, peer: Peer, make: Callable[[int], frames.Command]) -> frames.Done:
        """Send the command that ``make`` gives for an id, and wait for its answer."""
        self._command += 1
        command = self._command
        self.server.send(peer.id, make(command))

        def find() -> frames.Done | None:
            for one in self.heard:
                frame = one.frame if isinstance(one, Received) else None
                if isinstance(frame, frames.Done) and frame.id == command:
                    return frame
            return None

        return self.until(find, f"the answer to command {command}")

    def box(self, peer: Peer, job: str, **env: str) -> frames.Done:
        """Have an agent start the box of a job."""
        token = self.server.box_token(peer.node, job)
        return self.ask(peer, lambda command: frames.Box(command, self.fence, job, token, env))

    def close(self) -> None:
        self.server.close()
