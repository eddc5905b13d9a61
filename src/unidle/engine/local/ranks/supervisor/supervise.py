"""The supervisor of one rank: starts it, keeps its output, sees its end, leaves nothing of it behind.

It outlives the controller; what it sees goes into the rank's journal (``unidle.events.marks``). It
is one small process without threads, and sleeps while the rank is silent. Standard library only.

Signals: SIGTERM stops the rank (TERM to its whole tree, grace, KILL), SIGUSR1 kills it at once. With SIGCHLD, as with the
others, it restores a journal that was deleted.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time

from unidle.boot import boottime_ns

from .. import lease_file, process_tree, rundir
from ..cgroups import ControlGroup
from ..rundir import SupervisorOrders
from .child import CannotStart, become_subreaper, spawn
from .container_kills import kills_of, own_memory_group
from .journal import RankJournal
from .progress import RankProgress
from .rotated_log import LastBytes, RotatedLog

TYPE_CHECKING = False  # importing typing would slow every start
if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES = 256 * 1024
PIPE_BYTES = 1024 * 1024
F_SETPIPE_SZ = 1031
TICK_NS = 500_000_000
LEFTOVER_GRACE_NS = 2_000_000_000
UNKILLABLE_NS = 10_000_000_000
KILL_SPELL_NS = 50_000_000
WATCH_END_NS = 20_000_000
FULL_DISK_NS = 60_000_000_000
LAST_BYTES = 64 * 1024  # of each stream: a long traceback and what others print after it


class Supervisor:
    """Runs one rank from its orders to its exit mark."""

    def __init__(
        self,
        directory: str,
        orders: SupervisorOrders,
        become: Callable[[list[str], dict[str, str]], None] | None = None,
    ) -> None:
        self.directory = directory
        self.become = become  # in place of executing the command, in a process that was forked warm
        self.orders = orders
        self.offset_ns = orders.clock_offset_ns
        self.journal = RankJournal(f"{directory}/{rundir.JOURNAL}", f"{directory}/{rundir.RESERVE}")
        self.log = RotatedLog(
            f"{directory}/{rundir.LOG}", orders.log_file_bytes, orders.log_files, self._now_ns()
        )
        # in memory, because the disk may be full and its files may be rotated away
        self.last = {name: LastBytes(LAST_BYTES) for name in ("stdout", "stderr")}
        self.last["both"] = LastBytes(LAST_BYTES // 4)
        self.progress = _progress_of(orders)
        self.group = ControlGroup(dict(orders.groups))
        self.poller = select.poll()
        # one buffer for all reads: to make one for each costs more than to read
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.streams: dict[int, str] = {}
        self.pid: int | None = None
        self.childless = False
        self.exited: tuple[int, int] | None = None
        self.started_us = 0
        self.above: str | None = None  # the memory group of its container, where the rank has none
        self.kills_before: int | None = None
        self.cpu_ns = 0
        self.largest_bytes = 0
        self.stopping = False
        self.clearing = False
        self.kill_at_ns: int | None = None
        self.killed_ns: int | None = None
        self.ticked_ns = 0
        self.busy = False
        self.blind = False
        self.lease_ns = self._lease() if orders.lease else 0  # CLOCK_BOOTTIME; 0: none, or it is over

    def run(self) -> None:
        """The whole life of the rank; returns once its exit mark is written."""
        self._catch_signals()
        try:
            if not self._start():
                self.journal.add({"k": "lost", "t": self._now_ns(), "text": "stopped before it was started"})
                self._close()
                return
            while not self._is_over():
                self._turn()
        except CannotStart as error:
            self._note(str(error))
            self.exited = (error.code, self._now_ns())
        self._finish()

    # ---- start

    def _start(self) -> bool:
        """Start the rank; False when a stop was asked for before."""
        # supervisor.json first: a process that asks for a stop sees either it, or that the stop was read here
        pid = os.getpid()
        known: dict[str, object] = {"pid": pid, "ticks": process_tree.ticks_of(pid)}
        if self.orders.boot:
            known["boot"] = self.orders.boot
        rundir.write_json(f"{self.directory}/{rundir.SUPERVISOR}", known)
        if rundir.stop_grace_ns(self.directory) is not None:
            return False
        become_subreaper()
        self._make_group()
        if self.group.v1("memory") is None:
            self.above = own_memory_group()
            self.kills_before = kills_of(self.above)
        out, err, helper = self._pipe("stdout"), self._pipe("stderr"), self._pipe("helper")
        os.set_blocking(helper, False)
        env = self._environment()
        env["UNIDLE_RANK_FD"] = f"{helper}:{os.fstat(helper).st_ino}"
        orders = self.orders
        try:
            keep = [helper]
            self.pid, refused = spawn(
                orders.argv, orders.workdir, env, out, err, keep, self.group, self.become
            )
        finally:
            for fd in (out, err, helper):
                os.close(fd)
        self.started_us = time.monotonic_ns() // 1000
        self.journal.add(
            {"k": "spawn", "t": self._now_ns(), "pid": self.pid, "ticks": process_tree.ticks_of(self.pid)}
        )
        for path in refused:
            self._note(f"the control group {path} refused the rank: what it serves is not in force")
        return True

    def _make_group(self) -> None:
        orders = self.orders
        problems = self.group.create(cpu=orders.cpus is not None)
        for problem in problems + self.group.limit(orders.memory_bytes, orders.cpus, orders.pids):
            self._note(problem)

    def _environment(self) -> dict[str, str]:
        env = dict(os.environ)
        for name in self.orders.unset:
            env.pop(name, None)
        env.update(self.orders.env)
        if self.progress.service is not None:
            env["PORT"] = str(self.progress.service.port)
        return env

    def _pipe(self, stream: str) -> int:
        """A pipe whose read end this loop polls; returns the write end."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        if stream != "helper":
            try:
                fcntl.fcntl(read, F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:
                pass  # over the user's bound on pipe memory: the default size works, with more wake-ups
        self.streams[read] = stream
        self.poller.register(read, select.POLLIN)
        return write

    def _catch_signals(self) -> None:
        self.wake, wake = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake, False)
        self.poller.register(self.wake, select.POLLIN)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    # ---- loop

    def _turn(self) -> None:
        """Wait for something, and deal with it."""
        ready = [fd for fd, _ in self.poller.poll(self._timeout_ms())]
        for fd in ready:
            if fd == self.wake:
                self._hear(os.read(self.wake, 4096))
                self._reap()
                self.journal.restore()
            else:
                self._read(fd)
        now_ns = self._now_ns()
        if self.exited and not self.clearing:
            # what the rank left running holds its devices: end it before saying that the rank ended
            self.clearing = True
            self._end_tree(now_ns, LEFTOVER_GRACE_NS)
        if self.kill_at_ns is not None and now_ns >= self.kill_at_ns:
            self._kill(now_ns)
        if now_ns >= self.ticked_ns + TICK_NS:
            self._tick(now_ns)
        if self.lease_ns and boottime_ns() >= self.lease_ns:  # also while it takes the grace of a stop
            self._renew()

    def _timeout_ms(self) -> int | None:
        if self.exited or self.killed_ns is not None:
            return WATCH_END_NS // 1_000_000
        waits = []
        if self.kill_at_ns is not None:
            waits.append(self.kill_at_ns - self._now_ns())
        looks = self.orders.checkpoint_path is not None or self.progress.service is not None
        if self.busy or self.journal.waits or looks:
            waits.append(self.ticked_ns + TICK_NS - self._now_ns())
        if self.lease_ns:
            waits.append(self.lease_ns - boottime_ns())
        return max(0, min(waits) // 1_000_000 + 1) if waits else None

    def _hear(self, numbers: bytes) -> None:
        if signal.SIGUSR1 in numbers:
            self._stop(0)
        elif signal.SIGTERM in numbers:
            grace_ns = rundir.stop_grace_ns(self.directory)
            self._stop(self.orders.grace_ns if grace_ns is None else grace_ns)

    def _lease(self) -> int:
        return max(1, lease_file.read(self.orders.lease, self.orders.boot)[0])

    def _renew(self) -> None:
        """End the rank when its box has not renewed the lease: the rank may run elsewhere from now on."""
        self.lease_ns = self._lease()
        if boottime_ns() >= self.lease_ns:
            self.lease_ns = 0
            self._note("the lease of its box is over: nothing came from the controller in time")
            self._stop(0)

    def _stop(self, grace_ns: int) -> None:
        self.stopping = True
        self._end_tree(self._now_ns(), grace_ns)

    def _end_tree(self, now_ns: int, grace_ns: int) -> None:
        """SIGTERM to all; SIGKILL follows after the grace, which a later call can only shorten."""
        deadline_ns = now_ns + grace_ns
        self.kill_at_ns = deadline_ns if self.kill_at_ns is None else min(self.kill_at_ns, deadline_ns)
        if grace_ns and self.killed_ns is None:
            self.group.thaw()
            members = self._members()
            if self.pid in members:
                # first, so that it does not take the end of its workers for their failure
                process_tree.terminate({self.pid})
            process_tree.terminate(members - {self.pid})

    def _kill(self, now_ns: int) -> None:
        if self.killed_ns is None:
            self.killed_ns = now_ns
        if self.group.paths:
            self.group.kill()
        # also without groups, and for what left the group: stopped first, so that they cannot fork
        members = self._members()
        process_tree.send(members, signal.SIGSTOP)
        process_tree.send(members, signal.SIGKILL)
        # what a look at /proc misses, because it forks and exits all the time, is an orphan at once
        while not self.childless and self._now_ns() < now_ns + KILL_SPELL_NS:
            process_tree.send(process_tree.children(os.getpid()), signal.SIGKILL)
            self._reap()
        self.kill_at_ns = self._now_ns() + WATCH_END_NS

    def _members(self) -> set[int]:
        """Live processes of the rank."""
        found = process_tree.descendants(os.getpid())
        return found | {pid for pid in self.group.members() - found if process_tree.is_live(pid)}

    def _is_over(self) -> bool:
        """Whether the rank has ended and nothing of it is left."""
        if self.exited is None:
            return False
        # every orphan below becomes a child of this process, so without children there is nothing;
        # a look at /proc could miss processes that fork and exit all the time
        if self.childless and not self._members():
            return True
        if self.killed_ns is None or self._now_ns() < self.killed_ns + UNKILLABLE_NS:
            return False
        self._note(f"processes {sorted(self._members())} do not die; they may hold devices")
        return True

    def _read(self, fd: int) -> int:
        """Take what a pipe holds; returns how much."""
        try:
            count = os.readv(fd, [self.buffer])
        except BlockingIOError:
            return 0
        if not count:
            self.poller.unregister(fd)
            os.close(fd)
            del self.streams[fd]
            return 0
        data = self.buffer[:count].tobytes()
        self.busy = True
        stream, now_ns = self.streams[fd], self._now_ns()
        if stream == "helper":
            self._see(self.progress.helper, data, now_ns)
            return count
        self.log.write(data, now_ns)
        self.last[stream].feed(data)
        self.last["both"].feed(data)
        self._see(self.progress.output, stream, data, now_ns)
        text = self.log.note()
        if text:
            self._note(text)
        return count

    def _reap(self) -> None:
        """Collect every child that ended: the rank, and orphans of it."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            self.cpu_ns += int((used.ru_utime + used.ru_stime) * 1e9)
            self.largest_bytes = max(self.largest_bytes, used.ru_maxrss * 1024)
            if pid == self.pid:
                self.exited = (_exit_code(status), self._now_ns())

    def _tick(self, now_ns: int) -> None:
        self.ticked_ns = now_ns
        self.busy = False
        self._see(self.progress.tick, now_ns)
        self.journal.flush()
        self.journal.sync()

    # ---- end

    def _finish(self) -> None:
        """Drain what was printed, write the exit mark, remove the control group."""
        for fd in list(self.streams):
            for _ in range(64):  # bounded: an unkillable process may still be writing
                if not self._read(fd):
                    break
        self._see(self.progress.finish, self._now_ns())
        code, t_ns = self.exited or (-signal.SIGKILL, self._now_ns())
        info = self._info()
        exit_mark: dict[str, object] = {"k": "exit", "t": t_ns, "code": code, "info": info}
        if code and self.pid is not None:
            exit_mark.update(self._why(code, info))
        self.group.remove()
        self.journal.add(exit_mark)
        self._close()

    def _close(self) -> None:
        self._write_out()
        self.journal.sync()
        self.log.close()
        self.journal.close()

    def _info(self) -> dict[str, object]:
        info: dict[str, object] = {
            "cpu_ns": self.cpu_ns,
            "peak_bytes": self.largest_bytes,
            "oom": None,
            "log_bytes": self.log.bytes,
            "log_dropped_bytes": self.log.dropped_bytes,
            "log_dropped_lines": self.log.dropped_lines,
            "stopped": self.stopping,
        }
        info.update(self.group.usage())
        return info

    def _why(self, code: int, info: dict[str, object]) -> dict[str, object]:
        """What is known of a failure; of what the kernel did, in ``info``."""
        try:
            from .failure import evidence  # not before: few ranks fail

            return evidence(self, code, info)
        except Exception as error:
            self._note(f"the end of the output cannot be read: {type(error).__name__}: {error}")
            return {}

    def _write_out(self) -> None:
        """The exit record must reach the disk, at the cost of the reserve and of rotated logs."""
        if self.journal.flush():
            return
        self.journal.make_room()
        for k in range(self.orders.log_files - 1, 0, -1):
            if self.journal.flush():
                return
            try:
                os.unlink(f"{self.directory}/{rundir.LOG}.{k}")
            except OSError:
                continue
        give_up_ns = self._now_ns() + FULL_DISK_NS
        while not self.journal.flush() and self._now_ns() < give_up_ns:
            select.poll().poll(TICK_NS // 1_000_000)

    def _see(self, watch: Callable[..., list[dict[str, object]]], *what: object) -> None:
        """Write the marks of one of progress's watchers. A defect in it must not cost the rank its life."""
        if self.blind:
            return
        try:
            marks = watch(*what)
        except Exception as error:
            self.blind = True
            self._note(f"progress is not followed any more: {type(error).__name__}: {error}")
            return
        for mark in marks:
            self.journal.add(mark)

    def _note(self, text: str) -> None:
        self.journal.add({"k": "note", "t": self._now_ns(), "text": text[:1000]})

    def _now_ns(self) -> int:
        return boottime_ns() + self.offset_ns


def _progress_of(orders: SupervisorOrders) -> RankProgress:
    """What follows the rank; that of a service also looks whether it answers."""
    service = None
    if rundir.SERVICE in orders.env:
        from .progress.readiness import Readiness  # few ranks serve

        service = Readiness.ordered(orders.env[rundir.SERVICE])
    return RankProgress(orders.progress_pattern, orders.checkpoint_path, orders.clock_offset_ns, service)


def _exit_code(status: int) -> int:
    """What a process ended with, of the status that it left: 0 to 255, or minus the signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def main(arguments: list[str], become: Callable[[list[str], dict[str, str]], None] | None = None) -> int:
    """Supervise the rank of a directory; 0 also when another supervisor has or had it."""
    directory = arguments[0]
    inherited = [int(a) for a in arguments[1:]]
    _keep_only(inherited)
    # the lock comes locked from the engine; it and the gang's port stay open until this process ends
    lock = inherited[0] if inherited else rundir.try_lock(directory)
    if lock is None or not rundir.claim(directory):
        return 0
    orders = rundir.read_json(f"{directory}/{rundir.ORDERS}")
    if orders is None:
        sys.stderr.write(f"{rundir.ORDERS} cannot be read, or another user wrote it\n")
        return 1
    Supervisor(directory, SupervisorOrders.from_json(orders), become).run()
    return 0


def _keep_only(wanted: list[int]) -> None:
    """Close what the controller's own caller left open (locks, pipes); keep ``wanted`` from the rank."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd in wanted:
            os.set_inheritable(fd, False)
        elif fd > 2:
            try:
                os.close(fd)
            except OSError:
                continue  # the listing's own
