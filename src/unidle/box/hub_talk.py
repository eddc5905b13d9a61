"""What a box and its hub tell each other: the connection from hello to end, pongs, marks, answers."""

from __future__ import annotations

import os
import select

from unidle import wire
from unidle.boot import boot_id, boottime_ns
from unidle.box.attempts import HeldAttempts
from unidle.box.commands import whole
from unidle.box.dialler import WITHIN_NS, Dialler
from unidle.box.lease import BoxLease
from unidle.box.link import FEED_BELOW, SERVER_NAME, HubLink, LinkEnded, tls_context
from unidle.box.output_feed import OutputBudget
from unidle.box.settings import BoxSettings
from unidle.engine.local.ranks.netns import interface_of

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

    from unidle.box.held_rank import HeldRank

SILENT_NS = 8_000_000_000  # without any frame of a hub: the connection is given up
HELLO_RANKS = 1200  # in a hello: so many fit into its bound
_FOREVER_NS = 1 << 62


class HubTalk:
    """At most one connection at a time, registered with ``poller``. Why it ended goes to standard error, each reason once."""

    def __init__(
        self, settings: BoxSettings, lease: BoxLease, attempts: HeldAttempts, poller: select.poll
    ) -> None:
        self._settings, self._lease, self._attempts = settings, lease, attempts
        self._poller = poller
        self._polled = (-1, 0)  # descriptor and events that the poller has
        self._dialler = _dialler(settings)
        self._link: HubLink | None = None
        self._greeted = False  # the hello was sent
        self._welcomed = False
        self.welcomed_ns = 0  # the newest welcome
        self._newer = False  # the hub is of a newer version
        self._length_ns = 0  # of the lease
        self._heard_ns = 0
        self._pongs = 0
        self._frames: list[dict[str, Any]] = []
        self._why = ""
        self.interface = ""  # by which the hub is reached
        self.ends = False  # by a signal: the ranks are ended on this host, and not by the hub
        self._announced = False  # the hub of this connection knows that
        self._budget = OutputBudget()

    # ---- the connection

    def turn(self, ready: set[int], now_ns: int) -> list[dict[str, Any]]:
        """Dial, read, answer pings; returns the frames that need more than this."""
        try:
            if self._link is None:
                self._dial(now_ns)
            elif self._link.fd in ready or self._link.has_more:
                self._hear(self._link, now_ns)
            if self._link is not None and now_ns > self._silent_ns:
                raise LinkEnded("the hub is silent")
        except LinkEnded as error:
            self.drop(str(error), wrong_name=error.wrong_name)
        except wire.Malformed as error:
            self.drop(f"a frame of the hub is not as agreed: {error}")
        self._poll()
        frames, self._frames = self._frames, []
        return frames

    def _dial(self, now_ns: int) -> None:
        self._link = self._dialler.dial(now_ns)
        self._heard_ns, self._pongs = now_ns, 0

    def _hear(self, link: HubLink, now_ns: int) -> None:
        frames = link.turn()
        if link.is_open and not self._greeted:
            self._greeted = True
            self._greet(link)
        for frame in frames:
            self._heard_ns = now_ns
            self._take(link, frame)

    def _greet(self, link: HubLink) -> None:
        try:
            token = self._settings.token()
        except OSError as error:
            raise LinkEnded(f"the token cannot be read: {error}") from None
        now_ns = boottime_ns()
        self._lease.begin(now_ns)
        hello = {
            "f": wire.HELLO, "v": wire.VERSION, "kind": "box", "node": self._settings.node, "job": self._settings.job,
            "token": token, "boot": boot_id(), "now": now_ns, "n": 0,
            "box": {"attempts": self._attempts.told(HELLO_RANKS)},
        }  # fmt: skip
        link.send(wire.encode(hello, wire.HELLO_BYTES))
        address = link.local_address
        self.interface = interface_of("", address) if ":" not in address else ""

    def _take(self, link: HubLink, frame: dict[str, Any]) -> None:
        name = frame["f"]
        if name == wire.REFUSED:
            remedy = frame.get("remedy")
            raise LinkEnded(f"the hub refused: {frame.get('why')}" + (f"; {remedy}" if remedy else ""))
        if name == wire.WELCOME:
            self._welcome(frame)
        elif not self._welcomed:
            raise wire.Malformed(f"{name[:64]} before the welcome")
        elif name == wire.PING:
            self._pong(link, frame)
        elif name in wire.TO_BOX:
            self._frames.append(frame)
        elif not self._newer:
            raise wire.Malformed(f"{name[:64]} is no frame for a box")

    def _welcome(self, frame: dict[str, Any]) -> None:
        version, fence = whole(frame, "v"), whole(frame, "fence")
        if not wire.speaks(version):
            raise LinkEnded(
                f"the hub speaks version {version}, this box {wire.VERSION}: update the older one"
            )
        if not self._lease.accept(fence):
            raise LinkEnded(
                f"the hub has an older fence, {fence}, than the newest one seen, {self._lease.fence}"
            )
        self._newer = version > wire.VERSION
        self._length_ns = whole(frame, "deadline_ns", most=_FOREVER_NS)
        self.welcomed_ns = boottime_ns()
        self._lease.renew(fence, whole(frame, "ack", 0), self._length_ns, self.welcomed_ns)
        self._welcomed, self._why = True, ""
        self._dialler.welcomed()

    def _pong(self, link: HubLink, frame: dict[str, Any]) -> None:
        fence, acknowledged, number = whole(frame, "fence"), whole(frame, "ack", 0), whole(frame, "n")
        self._lease.renew(fence, acknowledged, self._length_ns, boottime_ns())
        self._pongs += 1
        now_ns = boottime_ns()
        self._lease.sent(self._pongs, now_ns)
        link.send(wire.encode({"f": wire.PONG, "n": self._pongs, "ping": number, "now": now_ns}))

    def drop(self, why: str, *, wrong_name: bool = False) -> None:
        """Give the connection up, and dial again after a wait."""
        if why != self._why:
            self._why = why
            os.write(2, f"unidle box: {why}\n".encode(errors="replace"))
        if self._link is not None:
            self._leave_poller()
            self._link.close()
            self._link = None
        self._greeted = self._welcomed = self._announced = False
        self._frames = []
        self._attempts.hush()
        if not self._renew():
            self._dialler.failed(boottime_ns(), wrong_name=wrong_name)

    def _renew(self) -> bool:
        """Whether the settings are others now, as for a hub that has moved: it is dialled at once."""
        found = self._settings.renewed()
        if found is None:
            return False
        try:
            self._dialler = _dialler(found)
        except ValueError:  # no authority: the file is not used
            return False
        self._settings, self._why = found, ""
        host, port = found.hubs[0]
        os.write(
            2,
            f"unidle box: its settings have changed: it dials {host} port {port}\n".encode(errors="replace"),
        )
        return True

    def _poll(self) -> None:
        if self._link is None:
            return
        wanted = (self._link.fd, self._link.wants)
        if self._polled != wanted:
            self._poller.register(*wanted)
            self._polled = wanted

    def _leave_poller(self) -> None:
        if self._polled[0] >= 0:
            self._poller.unregister(self._polled[0])
            self._polled = (-1, 0)

    # ---- what the loop asks

    @property
    def _silent_ns(self) -> int:
        """When the hub has been silent for too long."""
        return self._heard_ns + (SILENT_NS if self._welcomed else WITHIN_NS)

    @property
    def next_ns(self) -> int:
        """When to call :meth:`turn` next, whatever happens."""
        if self._link is None:
            return self._dialler.next_ns
        return 0 if self._link.has_more else self._silent_ns + 1

    @property
    def may_feed(self) -> bool:
        """Whether marks can be sent now."""
        return self._link is not None and self._welcomed and self._link.unsent < FEED_BELOW

    @property
    def is_quiet(self) -> bool:
        """Whether a hub is there, and was sent all that was to be sent."""
        return self._link is not None and self._welcomed and not self._link.unsent

    # ---- what it sends

    def send(self, frame: bytes) -> None:
        """Send a frame; without a hub it is lost, as nothing but marks is of use to the next one."""
        if self._link is None or not self._welcomed:
            return
        try:
            self._link.send(frame)
        except LinkEnded as error:
            self.drop(str(error))
        self._poll()

    def feed(self) -> None:
        """Send the marks that the hub has not got, as far as it reads them; before any end of a rank, that this host ends them, and its output."""
        if self.ends and not self._announced and self._welcomed:
            self._announced = True
            self.send(wire.encode({"f": wire.SEEN, "what": wire.ENDS, "body": {}}))
        for attempt in self._attempts.by_number.values():
            for held in attempt.ranks.values():
                if held.feed is None or not self._feed_output(attempt.number, held) or not self.may_feed:
                    continue
                for first, marks in held.feed.read():
                    head = {"f": wire.MARKS, "attempt": attempt.number, "rank": held.rank, "first": first}
                    payload = wire.compact(head)[:-1] + b',"marks":[' + b",".join(marks) + b"]}"
                    self.send(wire.framed(payload))

    def _feed_output(self, attempt: int, held: HeldRank) -> bool:
        """Send what is due of the output of a rank; False while some is left that comes before its end."""
        printed, ended = held.printed, held.watch.state == "ended"
        if printed is None or printed.done:
            return True
        now_ns = boottime_ns()
        printed.look(now_ns, held.offset_ns, ended=ended)
        while (
            printed.is_due(now_ns, ended=ended) and self.may_feed and (ended or self._budget.allows(now_ns))
        ):
            count, body = printed.take()
            self._budget.spend(count)
            body.update(attempt=attempt, rank=held.rank)
            self.send(wire.encode({"f": wire.SEEN, "what": wire.OUTPUT, "body": body}))
            printed.look(now_ns, held.offset_ns, ended=ended)
        return printed.done or not ended

    def leave(self, why: str) -> None:
        """Announce the end of the box, if that can be sent at once."""
        self.send(wire.encode({"f": wire.BYE, "why": why}))
        if self._link is not None:
            self._leave_poller()
            self._link.close()
            self._link = None


def _dialler(settings: BoxSettings) -> Dialler:
    """Errors: ValueError for an authority that is no PEM."""
    return Dialler(settings.hubs, _names(settings), tls_context(settings.authority))


def _names(settings: BoxSettings) -> list[str]:
    """Names that the hub's certificate may have; empty: that of the host.

    An own authority gives all of its hubs one name; a site's may name the machine. Those of the system name machines only.
    """
    if settings.name:
        return [settings.name]
    return [SERVER_NAME, ""] if settings.authority else [""]
