"""Ranks as the engine sees them: the journal of each, and whether its supervisor lives."""

from __future__ import annotations

import os
import signal

from unidle.boot import boot_id
from unidle.engine.local.ranks import descriptors, pidfd, process_tree, rundir
from unidle.engine.local.ranks.cgroups import ControlGroup
from unidle.engine.local.ranks.journal_tail import JournalTail
from unidle.engine.local.ranks.mark_forms import RawMarks

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any, Literal

    State = Literal["unknown", "unstarted", "alive", "gone", "ended"]

BURY_NS = 5_000_000_000
OVERDUE_NS = 90_000_000_000
SEARCH_NS = 1_000_000_000
KILL_NS = 3_000_000_000


class Logged:
    """What the log has of a rank that an earlier engine may have started; ``ended``: its end is one of the marks."""

    __slots__ = ("ended", "marks")

    def __init__(self, marks: int = 0, ended: bool = False) -> None:
        self.marks = marks
        self.ended = ended


class RankWatch:
    """Follows one rank of one attempt.

    ``unknown``: not checked yet, or its supervisor is just being started; ``unstarted``: no one
    has begun it, and this engine holds its lock; ``alive``: its supervisor runs; ``gone``: its
    supervisor does not, and the journal has no end yet; ``ended``: its end was read. Its marks are what ``form`` makes.
    """

    def __init__(
        self,
        directory: str,
        rank: int,
        run_id: str,
        groups: dict[str, str],
        form: RawMarks,
        logged: Logged | None = None,
    ) -> None:
        self.directory = directory
        self.rank = rank
        self.state: State = "unknown"
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.lock_fd: int | None = None
        self.group = ControlGroup(groups)
        self.run_id = run_id
        self._logged = logged
        self._form = form
        self._tail = JournalTail(f"{directory}/{rundir.JOURNAL}", form, logged.marks if logged else 0)
        self._news: list[tuple[int, tuple[Any, ...]]] = []
        self._stop_grace_ns: int | None = None
        self._stop_sent_ns: int | None = None
        self._overdue_ns: int | None = None
        self._give_up_ns: int | None = None
        self._searched_ns: int | None = None

    @property
    def unsettled(self) -> bool:
        """Whether news of this rank is expected within milliseconds, or was read and is not reported yet."""
        if self._news:
            return True
        if self.state == "alive":
            return self._tail.spawned is None or self._tail.behind
        return self.state != "ended"

    @property
    def spawned(self) -> int | None:
        """The rank's own process, from its spawn mark until its end."""
        return None if self._tail.spawned is None or self._tail.ended else self._tail.spawned[0]

    @property
    def stop_asked(self) -> bool:
        return self._stop_grace_ns is not None

    @property
    def marks(self) -> int:
        """How many marks of it are known."""
        return self._tail.next

    @property
    def behind(self) -> bool:
        """Whether its journal has more than one look takes."""
        return self._tail.behind

    @property
    def unwritten(self) -> Any:
        """An end that the disk refused: it has the last number, and is in no file."""
        return self._tail.unwritten

    def news(self) -> list[tuple[int, tuple[Any, ...]]]:
        """What was read since the last call: ordinal of the first mark, and the marks."""
        news, self._news = self._news, []
        return news

    def advance(self, now_ns: int) -> None:
        """Take in what happened; ends the watch once the rank's end is known."""
        if self.state == "ended":
            return
        if self._logged is not None and self._logged.ended:
            self._close()  # whatever the files say by now
            return
        self.look(now_ns)
        self._read()
        if self._tail.ended:
            self._close()
            return
        if self._stop_grace_ns is not None:
            self._carry_out_stop(now_ns)
        if self.state == "gone" and not self._tail.behind:
            self._bury(now_ns)

    def look(self, now_ns: int) -> None:
        """Find out how the rank stands, and take its lock where no one else has it."""
        if self.state != "unknown" or (self._logged is not None and self._logged.ended):
            return
        try:
            if self._find_supervisor():
                return
            os.makedirs(self.directory, 0o700, exist_ok=True)
            self.lock_fd = rundir.try_lock(self.directory)
        except OSError as error:
            if descriptors.exhausted(error):
                return  # it may run: the next look finds out
            self.fail(now_ns, f"the rank cannot be started: {error}")
        if self.lock_fd is None:
            self._search(now_ns)  # else a supervisor is on its way
            return
        self._read()
        self.state = "gone" if self._was_begun() else "unstarted"

    def started(self, pid: int) -> None:
        """The engine started a supervisor, which has the lock from now on."""
        self._release_lock()
        self.pid, self.pidfd = pid, pidfd.open_pid(pid)
        self.state = "alive"

    def died(self) -> None:
        """The supervisor's process has ended."""
        self._close_pidfd()
        if self.state == "alive":
            self.state = "gone"

    def ask_stop(self, grace_ns: int, now_ns: int) -> None:
        """Stop the rank; a second call can only shorten the grace."""
        if self.state == "ended":
            return
        try:
            grace_ns = rundir.ask_stop(self.directory, grace_ns)
        except OSError:
            pass  # a full disk: the supervisor then takes the grace from its orders
        self._stop_grace_ns = grace_ns
        self._overdue_ns = now_ns + grace_ns + OVERDUE_NS
        self.look(now_ns)
        self._carry_out_stop(now_ns)

    def kill(self, now_ns: int, within_ns: int = KILL_NS) -> None:
        """End the rank at once, whatever its supervisor does; that one is killed too where it writes no end in time."""
        if self.state == "ended":
            return
        self.ask_stop(0, now_ns)
        if self.state != "alive":
            return
        self._overdue_ns = now_ns + within_ns
        self._signal(signal.SIGUSR1)
        self.group.kill()
        process_tree.send(self.pids(), signal.SIGKILL)

    def fail(self, t_ns: int, why: str, *, refused: bool = False) -> None:
        """The rank cannot be started: say so in its journal, and never start it.

        ``refused``: its part of a device cannot be made here.
        """
        self._end(self._form.make("lost", t_ns, why, {"refused": True} if refused else None))

    def refuse(self, t_ns: int, why: str) -> None:
        """As :meth:`fail`, for a rank of a gang that is not started at all. A rank that someone has begun is left alone."""
        try:
            os.makedirs(self.directory, 0o700, exist_ok=True)
            begun = rundir.is_claimed(self.directory)
        except OSError:
            begun = False
        if not begun:
            self.fail(t_ns, f"the rank cannot be started: {why}")

    def signal_tree(self, number: int) -> None:
        """Signal every process of the rank."""
        process_tree.send(self.pids(), number)

    def pids(self) -> set[int]:
        """Every process of the rank; where there is a group, it is used to find them."""
        members = self.group.members()
        if self.pid is not None:
            members |= process_tree.descendants(self.pid)
        return members

    def cpu_ns(self) -> int | None:
        """CPU time that the rank has used: its group's, else its processes'; None where neither can be read."""
        used_ns = self.group.cpu_ns()
        if used_ns is None and self.pid is not None:
            used_ns = process_tree.cpu_ns(self.pid)
        return used_ns

    def let_go(self) -> None:
        """Close what is open without touching the rank."""
        self._release_lock()
        self._close_pidfd()
        self._tail.close()

    def _was_begun(self) -> bool:
        """Whether the rank was ever started: by its files, by the log, and by what runs.

        Missing files alone prove nothing: they may be deleted, or lost in a power cut.
        """
        if rundir.is_claimed(self.directory) or self._tail.count:
            return True
        return self._logged is not None and (self._logged.marks > 0 or bool(self._left()))

    def _find_supervisor(self) -> bool:
        known = rundir.read_json(f"{self.directory}/{rundir.SUPERVISOR}") or {}
        pid, ticks = known.get("pid"), known.get("ticks")
        if not isinstance(pid, int) or not _of_this_boot(known):
            return False
        return self._follow(pid, ticks)

    def _follow(self, pid: int, ticks: object) -> bool:
        try:
            fd = pidfd.open_pid(pid)
        except OSError as error:
            if descriptors.exhausted(error):
                raise
            return False
        if process_tree.ticks_of(pid) != ticks or not process_tree.is_live(pid):
            os.close(fd)
            return False
        self.pid, self.pidfd, self.state = pid, fd, "alive"
        if self._tail.missing:
            self._signal(signal.SIGCHLD)  # it restores a journal that was deleted, and is not stopped by that
        return True

    def _search(self, now_ns: int) -> None:
        """Find the supervisor of a rank that was begun although the file that names it was deleted: it holds the
        rank's lock, and is the parent of the rank. Without it the rank could not be stopped.
        """
        if not self._tail.count and (self._logged is None or not self._logged.marks):
            return
        if self._searched_ns is not None and now_ns < self._searched_ns + SEARCH_NS:
            return
        self._searched_ns = now_ns
        stats = [process_tree.stat_of(pid) for pid in self._left()]
        for parent in {stat[1] for stat in stats if stat is not None}:
            ticks = process_tree.ticks_of(parent)
            if process_tree.has_open(parent, f"{self.directory}/{rundir.LOCK}") and self._follow(
                parent, ticks
            ):
                return

    def _read(self) -> None:
        first, marks = self._tail.read()
        if marks:
            self._news.append((first, marks))
        end, self._tail.known_end = self._tail.known_end, None
        if end is not None:  # a power cut took lines before it, so its number is another mark's in the log
            self._news.append((self._tail.next, (end,)))

    def _carry_out_stop(self, now_ns: int) -> None:
        if self.state == "unstarted":
            self._end(self._form.make("lost", now_ns, "stopped before it was started"))
        elif self.state == "alive" and self.pidfd is not None:
            if self._stop_sent_ns != self._stop_grace_ns:
                self._stop_sent_ns = self._stop_grace_ns
                self._signal(signal.SIGTERM)
                self._signal(signal.SIGCONT)
            elif self._overdue_ns is not None and now_ns > self._overdue_ns:
                self._signal(signal.SIGKILL)  # it does not do its work: do it ourselves

    def _signal(self, number: int) -> None:
        assert self.pidfd is not None
        try:
            pidfd.send(self.pidfd, number)
        except ProcessLookupError:
            pass  # its end will be noticed

    def _bury(self, now_ns: int) -> None:
        """End what a supervisor that is gone left running, and write the end that it did not."""
        failed = False
        if self.lock_fd is None:
            try:
                self.lock_fd = rundir.try_lock(self.directory)
            except OSError as error:
                if descriptors.exhausted(error):
                    return
                failed = True  # the disk may recover; if not, a lock without a file protects nothing
            else:
                if self.lock_fd is None:
                    return
        if self._give_up_ns is None:
            self._give_up_ns = now_ns + BURY_NS
        left = self._left()
        if (left or failed) and now_ns < self._give_up_ns:
            self.group.kill()
            process_tree.send(left, signal.SIGKILL)
            return
        text = "its supervisor ended without a record of its exit code"
        if self._logged is not None and self._tail.count < self._logged.marks:
            text = (
                f"{self._tail.count} of the {self._logged.marks} marks in the log are left in its journal, "
                "and no exit code: a power cut, or deleted files"
            )
        errors = _last_line(f"{self.directory}/{rundir.ERRORS}")
        if left:
            text += f"; processes {sorted(left)} do not die"
        self._end(self._form.make("lost", now_ns, f"{text}: {errors}" if errors else text))

    def _left(self) -> set[int]:
        left = {pid for pid in self.group.members() if process_tree.is_live(pid)}
        left |= process_tree.with_environment(f"UNIDLE_RUN_ID={self.run_id}", f"UNIDLE_RANK={self.rank}")
        # ranks that an earlier version started have no such variables
        left |= process_tree.with_environment(f"TORCHELASTIC_RUN_ID={self.run_id}", f"RANK={self.rank}")
        spawned = self._tail.spawned
        if not _of_this_boot(rundir.read_json(f"{self.directory}/{rundir.SUPERVISOR}") or {}):
            spawned = None  # its number may be another process's by now
        if spawned and process_tree.ticks_of(spawned[0]) == spawned[1] and process_tree.is_live(spawned[0]):
            left.add(spawned[0])
        return left

    def _end(self, mark: Any) -> None:
        try:
            rundir.claim(self.directory)
        except OSError:
            pass  # the mark below says the same
        self._append(mark)
        self._close()

    def _append(self, mark: Any) -> None:
        first = self._tail.next
        self._news.append((first, (self._tail.append(mark),)))

    def _close(self) -> None:
        self.state = "ended"
        self.let_go()

    def _release_lock(self) -> None:
        if self.lock_fd is not None:
            os.close(self.lock_fd)
            self.lock_fd = None

    def _close_pidfd(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def _of_this_boot(supervisor: dict[str, object]) -> bool:
    """Whether a record of a supervisor is of this boot; one of an earlier version of unidle has none."""
    return supervisor.get("boot", boot_id()) == boot_id()


def _last_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            lines = file.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
