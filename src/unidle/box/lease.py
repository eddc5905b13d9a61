"""Until when the ranks of this box may run. The box renews, the hub acknowledges; no clock is compared with another.

The lease counts from when a frame was sent that the hub acknowledges, on this machine's own clock since boot. The hub
counts from when it received the same frame, which is later whatever the network does, so it never starts the gang
elsewhere while this lease holds.
"""

from __future__ import annotations

from unidle.engine.local.ranks import lease_file

_EXACT_NS = 2_000_000_000  # without a renewal for so long, the file has the exact deadline
_KEPT = 4096  # pongs without an answer: a hub that pings and never acknowledges


class BoxLease:
    """``fence`` is the newest one that was seen, also by an earlier box of the job; ``deadline_ns`` is on CLOCK_BOOTTIME."""

    def __init__(self, path: str, boot: str) -> None:
        self.path = path
        self._file = lease_file.LeaseFile(path)
        self._boot = boot
        self.deadline_ns, self.fence = lease_file.read(path, boot)
        self._written_ns = self.deadline_ns
        self._renewed_ns = 0
        self._length_ns = 0
        self._sent: dict[int, int] = {}

    def begin(self, now_ns: int) -> None:
        """A connection begins: its hello, which counts as pong 0, is sent now."""
        self._sent = {0: now_ns}

    def sent(self, number: int, now_ns: int) -> None:
        """Pong ``number`` is sent now."""
        self._sent[number] = now_ns
        if len(self._sent) > _KEPT:
            del self._sent[next(iter(self._sent))]

    def accept(self, fence: int) -> bool:
        """Whether the fence is not older than the newest one seen; a newer one is kept."""
        if fence < self.fence:
            return False
        if fence > self.fence:
            self.fence = fence
            self._write(durable=True)
        return True

    def renew(self, fence: int, acknowledged: int, length_ns: int, now_ns: int) -> None:
        """The hub acknowledges a pong under ``fence``: the lease holds for ``length_ns`` from when that was sent."""
        if not self.accept(fence) or acknowledged not in self._sent:
            return
        self._length_ns = length_ns
        deadline_ns = self._sent[acknowledged] + length_ns
        if deadline_ns > self.deadline_ns:
            self.deadline_ns, self._renewed_ns = deadline_ns, now_ns
        for number in [n for n in self._sent if n < acknowledged]:
            del self._sent[number]
        self.write_behind(now_ns)

    def holds(self, now_ns: int) -> bool:
        return now_ns < self.deadline_ns

    def write_behind(self, now_ns: int) -> None:
        """Bring the file up to date, not with each renewal: only once it is a quarter behind, or renewals stay away."""
        behind_ns = self.deadline_ns - self._written_ns
        if behind_ns > self._length_ns // 4 or (behind_ns and now_ns - self._renewed_ns > _EXACT_NS):
            self._write()

    def write_now(self) -> None:
        """Bring the file up to date, for a supervisor that starts."""
        if self._written_ns != self.deadline_ns:
            self._write()

    def _write(self, *, durable: bool = False) -> None:
        if self._file.write(self._boot, self.deadline_ns, self.fence, durable=durable):
            self._written_ns = self.deadline_ns
