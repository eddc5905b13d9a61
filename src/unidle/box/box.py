"""The loop of a box: frames of the hub, marks of its ranks, its lease."""

from __future__ import annotations

import os
import select
import signal
import sys

from unidle import wire
from unidle.boot import boot_id, boottime_ns
from unidle.box.attempts import HeldAttempts
from unidle.box.commands import COMMANDS, HubCommands, by_rank, whole
from unidle.box.given_back import give_back
from unidle.box.hub_talk import HubTalk
from unidle.box.journal_changes import FileChanges
from unidle.box.lease import BoxLease
from unidle.box.output_copy import OutputCopy, OwnOutput
from unidle.box.settings import BoxSettings
from unidle.engine.local.ranks import lease_file
from unidle.engine.local.ranks.rundir import JOURNAL

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

STARTING_TICK_NS = 10_000_000  # something is expected within milliseconds
BLIND_TICK_NS = 25_000_000  # without inotify
OUTPUT_TICK_NS = 50_000_000
STOPPING_TICK_NS = 500_000_000
STEADY_TICK_NS = 2_000_000_000
GATHER_NS = 4_000_000  # marks that come within so long go in one look
AT_REST_NS = 10_000_000_000  # after the newest welcome and command
LAST_WORDS_NS = 3_000_000_000  # for marks that the hub has not got when all ranks have ended


class Box:
    """Of one job on one node; see :func:`unidle.box.command.main`. Errors: ValueError for an authority that is no PEM."""

    def __init__(self, settings: BoxSettings, *, output: bool = False) -> None:
        self._poller = select.poll()
        self._lease = BoxLease(f"{settings.job_directory}/{lease_file.NAME}", boot_id())
        self._attempts = HeldAttempts(settings, self._lease, self._poller)
        self._commands = HubCommands(settings, self._lease, self._attempts)
        self._talk = HubTalk(settings, self._lease, self._attempts, self._poller)
        self._changes = FileChanges()
        self._output = OwnOutput() if output else None
        self._attempts.sends_output = output
        self._looked_ns = 0
        self._obeyed_ns = self._rested_ns = 0  # the newest command; when memory was given back
        self._changed = False  # a journal has grown since the last look
        self._over_ns = 0  # since when no rank lives and none will
        self._held_lease = False
        self._is_first = os.getpid() == 1

    def run(self) -> int:
        """Until its work is over; the exit code."""
        self._catch_signals()
        if self._changes.fd >= 0:
            self._poller.register(self._changes.fd, select.POLLIN)
        self._attempts.adopt()
        self._held_lease = any(held.lives for held in self._attempts.ranks())
        while not self._is_over():
            self._turn()
        self._talk.leave("its work is over")
        self._attempts.close()
        self._changes.close()
        return 0

    # ---- one turn

    def _turn(self) -> None:
        ready = {fd for fd, _ in self._poller.poll(self._timeout_ms())}
        if self._wake in ready:
            self._hear(os.read(self._wake, 4096))
        if self._changes.fd in ready:
            self._changes.drain()
            self._changed = True
        now_ns = boottime_ns()
        self._mind_lease(now_ns)  # before any frame: what comes after the lease is over is not heard
        for frame in self._talk.turn(ready, now_ns):
            try:
                self._obey(frame)
            except wire.Malformed as error:
                self._talk.drop(f"a frame of the hub is not as agreed: {error}")
                break
        if now_ns - self._looked_ns >= GATHER_NS:
            self._look(now_ns)
        if self._is_first:
            _reap()

    def _timeout_ms(self) -> int:
        now_ns = boottime_ns()
        look_ns = self._looked_ns + (GATHER_NS if self._changed else self._tick_ns())
        until_ns = min(look_ns, self._talk.next_ns)
        if self._held_lease:
            until_ns = min(until_ns, self._lease.deadline_ns)
        return max(0, until_ns - now_ns + 999_999) // 1_000_000

    def _tick_ns(self) -> int:
        """After how long to look at the ranks again, though nothing wakes the box."""
        if self._over_ns or self._attempts.saves.busy:
            return STARTING_TICK_NS
        tick_ns = STEADY_TICK_NS
        for held in self._attempts.ranks():
            watch = held.watch
            if held.waiting is not None:
                return STARTING_TICK_NS
            if not held.lives and not held.is_behind:
                continue
            if watch.state != "alive" or watch.unsettled:
                return STARTING_TICK_NS
            if held.is_behind and self._talk.may_feed:
                return 0
            if watch.stop_asked:
                tick_ns = min(tick_ns, STOPPING_TICK_NS)
            if self._changes.fd < 0:
                tick_ns = min(tick_ns, BLIND_TICK_NS)
        if self._output is not None and tick_ns > OUTPUT_TICK_NS and self._copies:
            tick_ns = OUTPUT_TICK_NS
        return tick_ns

    @property
    def _copies(self) -> bool:
        """Whether output may come, or waits to be taken."""
        return (self._output is not None and self._output.waits) or any(
            h.lives for h in self._attempts.ranks()
        )

    def _look(self, now_ns: int) -> None:
        """Take in what the ranks did, and tell the hub."""
        self._looked_ns, self._changed = now_ns, False
        self._attempts.advance()
        for held in self._attempts.ranks():
            if held.watch.state == "ended":
                self._changes.leave(f"{held.directory}/{JOURNAL}")
            elif held.watch.state != "unstarted":
                self._changes.follow(f"{held.directory}/{JOURNAL}")
        self._talk.feed()
        for body in self._attempts.saves.news() if self._talk.may_feed else ():
            self._talk.send(wire.encode({"f": wire.SEEN, "what": wire.LOOKED, "body": body}))
        self._lease.write_behind(now_ns)
        self._copy_output()
        stirred_ns = max(self._obeyed_ns, self._talk.welcomed_ns)
        if stirred_ns > self._rested_ns and now_ns - stirred_ns > AT_REST_NS:
            self._rested_ns = now_ns
            give_back()

    # ---- what it obeys

    def _obey(self, frame: dict[str, Any]) -> None:
        """Carry out a frame. Errors: wire.Malformed."""
        name = frame["f"]
        self._commands.interface = self._talk.interface
        if name in COMMANDS:
            done = self._commands.answer(frame)
            self._talk.send(wire.encode(done))
        elif name == wire.RESUME:
            printed = by_rank(frame, "output") if "output" in frame else None
            self._attempts.resume(whole(frame, "attempt"), by_rank(frame, "known"), printed)
        elif name == wire.END and self._lease.accept(whole(frame, "fence")):
            self._commands.ending = True
            self._attempts.saves.holder.end()
        self._looked_ns, self._obeyed_ns = 0, boottime_ns()  # what it brings about is near

    def _hear(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._commands.ending = self._talk.ends = True
            self._talk.feed()
            self._attempts.stop_all()

    def _mind_lease(self, now_ns: int) -> None:
        """Once the lease is over, end all ranks at once: they may be started elsewhere from now on."""
        if self._lease.holds(now_ns):
            self._held_lease = True
        elif self._held_lease:
            self._held_lease = False
            sys.stderr.write("unidle box: the lease is over: its ranks are ended\n")
            sys.stderr.flush()
            self._attempts.kill_all()
            self._looked_ns = 0
            self._talk.drop("the lease is over")

    def _is_over(self) -> bool:
        """Whether it was asked to end, no rank lives, and the hub has all marks or had time to take them."""
        if not self._commands.ending or any(held.lives for held in self._attempts.ranks()):
            return False
        if self._is_first and self._attempts.saves.holder.is_ending:
            return False  # it would end with the container
        now_ns = boottime_ns()
        self._over_ns = self._over_ns or now_ns
        if now_ns - self._over_ns > LAST_WORDS_NS:
            return True
        told = all(held.feed is not None and not held.is_behind for held in self._attempts.ranks())
        printed = self._output is None or not self._output.waits
        return self._looked_ns > self._over_ns and told and self._talk.is_quiet and printed

    # ---- output, signals

    def _copy_output(self) -> None:
        if self._output is None:
            return
        for held in self._attempts.ranks():
            if held.watch.state == "unstarted":
                continue
            if held.output is None:  # what an earlier box copied is not copied again
                held.output = OutputCopy(held.directory, held.rank, from_end=held.adopted)
            while not self._output.is_full:
                data = held.output.read()
                if not data and held.watch.state == "ended":
                    data = held.output.finish()
                if not data:
                    break
                self._output.add(data)
        self._output.flush()

    def _catch_signals(self) -> None:
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake):
            os.set_blocking(fd, False)
        self._poller.register(self._wake, select.POLLIN)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)


def _reap() -> None:
    """Collect orphans: the first process of a container is the parent of all of them."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return
