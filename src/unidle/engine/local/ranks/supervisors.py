"""Supervisors of ranks as processes: their ends wake the owner, and what ranks left is cleared up after them."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from unidle.engine.local.ranks.cgroups import ControlGroup
    from unidle.engine.local.ranks.rank_watch import RankWatch


class Supervisors:
    """Followed by file descriptors of their processes, so that none is taken for another.

    ``poller``, where given, is also that of its owner, who waits on it for other descriptors too.
    """

    def __init__(self, poller: select.poll | None = None) -> None:
        self._poller = poller or select.poll()
        self._watched: dict[int, RankWatch] = {}
        # what others still have to let go of before it can be removed or collected
        self._groups: list[ControlGroup] = []
        self._children: set[int] = set()

    def follow(self, watch: RankWatch) -> None:
        """Wake up when the watch's supervisor ends."""
        if watch.pidfd is not None and watch.pidfd not in self._watched:
            self._watched[watch.pidfd] = watch
            self._poller.register(watch.pidfd, select.POLLIN)
            if watch.pid is not None:
                self._children.add(watch.pid)

    def unfollow(self, watch: RankWatch) -> None:
        """Do not wake up any more when the watch's supervisor ends."""
        for fd in [fd for fd, other in self._watched.items() if other is watch]:
            self._poller.unregister(fd)
            del self._watched[fd]

    def ended(self) -> list[RankWatch]:
        """Those whose supervisor has ended; they are followed no more."""
        found = [self._watched[fd] for fd, _ in self._poller.poll(0) if fd in self._watched]
        for watch in found:
            self.unfollow(watch)
        return found

    def wait(self, timeout_ms: int) -> None:
        """Return when a supervisor has ended, or after so long."""
        self._poller.poll(timeout_ms)

    def left(self, watch: RankWatch) -> None:
        """The rank has ended: its control group is removed as soon as it is empty."""
        self.unfollow(watch)
        self._groups.append(watch.group)

    def clean(self) -> None:
        """Remove control groups of ranks that ended, and collect supervisors that were our children."""
        self._groups = [group for group in self._groups if not group.remove()]
        for pid in list(self._children):
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self._children.discard(pid)
            except ChildProcessError:
                self._children.discard(pid)
