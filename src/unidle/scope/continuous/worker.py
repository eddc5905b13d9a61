"""The process that profiles running ranks again and again. Orders come on standard input, results go to standard output.

Lines of JSON both ways. In: first :class:`WorkerConfig`, then a :class:`WorkerLine` whenever other attempts run, or a profile is to be kept. Out: an event of
``unidle.events.scope`` as ``[kind, body]``, ``["row", row]`` without a store, or ``["next", seconds]``: the next line follows within that time. When
its input ends so does the process: no profiler outlives its controller for longer than one look.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import msgspec

from unidle.errors import CannotRun, LeaseLost, StoreError, UnidleError
from unidle.events import scope as ev
from unidle.events import types
from unidle.fleet.policies import ProfilePolicy
from unidle.scope.continuous import rank_processes, windows
from unidle.scope.continuous.keeper import Keeper
from unidle.scope.continuous.per_rank import RankFinding, findings_of, leaves_of
from unidle.scope.continuous.rank_processes import RunningAttempt
from unidle.scope.continuous.windows import APART
from unidle.scope.merge import renumbered
from unidle.scope.model import Profile
from unidle.store.open import open_store
from unidle.store.profiles import ProfileRow, ProfileShelf

NICE: Final = 19
REFUSED: Final = 3  # the exit code where looking is not permitted or not possible here
LOST: Final = 4  # the exit code where another controller has the store
SETTLE: Final = 0.25  # of the time between looks: what begins imports first, which tells little
_AGAIN_S: Final = 1.0  # ranks that are being started are looked for again
_LINE_MOST: Final = 1 << 20

AIM: Final = 0.8  # of the share that is allowed: the next look may cost more than the last one did
HZ_LEAST: Final = 19
_DEAR: Final = 2.0  # looks come so many times less often than they should: sample less


@dataclass(slots=True)
class Duty:
    """Keeps an account of CPU time: looks are paid for by waiting. ``share`` is of one core.

    ``every_s`` and ``hz_wanted`` are the requested rates. Times are of a clock that does not jump, in seconds.
    """

    share: float
    every_s: float
    hz_wanted: int
    hz: int = 0
    _owed_s: float = 0.0
    _at_s: float | None = None
    _last_s: float | None = None

    def __post_init__(self) -> None:
        self.hz = self.hz or self.hz_wanted

    def used(self, now_s: float, cpu_s: float) -> None:
        """So much CPU time was used since the last call."""
        if self._at_s is not None:
            self._owed_s -= max(now_s - self._at_s, 0.0) * self.share * AIM
        self._owed_s = max(self._owed_s, 0.0) + max(cpu_s, 0.0)
        self._at_s = now_s

    def looked(self, now_s: float, cpu_s: float) -> None:
        """A look is over; ``cpu_s`` as in :meth:`used`. What is sampled the next time follows from what it cost."""
        self.used(now_s, cpu_s)
        self._last_s = now_s
        cycle_s = self._owed_s / (self.share * AIM)
        if cycle_s > _DEAR * self.every_s and self.hz > HZ_LEAST:
            self.hz = max(self.hz // 2, min(HZ_LEAST, self.hz_wanted))
        elif cycle_s < self.every_s / 4 and self.hz < self.hz_wanted:
            self.hz = min(self.hz * 2, self.hz_wanted)

    def next_s(self, now_s: float, *, news_s: float | None = None) -> float:
        """When the next look is due. From ``news_s`` on there is something that was never profiled, so that it need not
        wait its turn; the very first look need not be paid for before.
        """
        paid_s = (self._at_s if self._at_s is not None else now_s) + self._owed_s / (self.share * AIM)
        if self._last_s is None:
            return now_s if news_s is None else max(now_s, news_s)
        turn_s = self._last_s + self.every_s
        return max(paid_s, turn_s if news_s is None else min(turn_s, news_s), now_s)


class Sampler(Protocol):
    """See ``unidle.scope.tiers.look``."""

    def __call__(self, pids: Sequence[int], seconds: float, *, hz: int) -> Profile: ...


Judge = Callable[[Profile], Mapping[int, RankFinding]]


class WorkerConfig(msgspec.Struct, frozen=True):
    """The first line. ``offset_ns`` turns the boot-time clock into the log's; ``token`` is the controller's lease.

    ``store`` is empty on a host: profiles are output, with process numbers that are apart from those of other hosts.
    ``runs``: there, the run root in the directory of each job below ``run_root``.
    """

    store: str
    run_root: str
    token: int
    offset_ns: int
    policy: ProfilePolicy
    runs: str = ""


class WorkerLine(msgspec.Struct, frozen=True):
    """The attempts that run now, if they are others; a profile of another host to keep."""

    live: tuple[RunningAttempt, ...] | None = None
    row: ProfileRow | None = None


@dataclass(slots=True)
class Worker:
    """Profiles ranks, keeps the results and reports them.

    ``tell`` sends one line to the controller; it must not be called from two threads.
    """

    orders: WorkerConfig
    look: Sampler
    judge: Judge
    keeper: Keeper | None
    tell: Callable[[str, object], None]
    duty: Duty = field(init=False)
    finder: rank_processes.RankFinder = field(init=False)
    live: tuple[RunningAttempt, ...] = ()
    _seen: set[tuple[str, int]] = field(default_factory=set)
    _since: dict[tuple[str, int], float] = field(default_factory=dict)  # when it was first heard of
    _told: str | None = None
    kernel_s: float = 0.0  # what looking cost in the kernel, on the account of those who were looked at
    _eyes: dict[tuple[str, int, int], tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy = self.orders.policy
        self.duty = Duty(policy.most_ppm / 1e6, policy.every_ns / 1e9, policy.hz)
        self.finder = rank_processes.RankFinder(self.orders.run_root, self.orders.runs)

    def due_s(self, now_s: float) -> float | None:
        """When to look the next time; None while nothing runs."""
        if not self.live:
            return None
        ripe_s = self.duty.every_s * SETTLE
        news = [since_s + ripe_s for key, since_s in self._since.items() if key not in self._seen]
        return self.duty.next_s(now_s, news_s=min(news, default=None))

    def attend(self, live: tuple[RunningAttempt, ...], now_s: float = 0.0) -> None:
        """These run now, at ``now_s`` of the clock of :meth:`due_s`."""
        self.live = live
        names = {a[:2] for a in live}
        self._since = {name: self._since.get(name, now_s) for name in names}
        self._seen &= names
        self._eyes = {key: eye for key, eye in self._eyes.items() if key[:2] in names}

    def take(self, told: WorkerLine) -> None:
        """One line of the input."""
        if told.live is not None:
            self.attend(told.live, time.monotonic())
        if told.row is not None:
            self._keep([told.row], time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self.orders.offset_ns)

    def once(self) -> bool:
        """Profile all that runs, once; False where no rank was there to profile."""
        roots = self.finder.roots(self.live)
        if not roots:
            return False
        before = {attempt: rank_processes.trees(ranks) for attempt, ranks in roots.items()}
        pids = sorted({pid for ranks in before.values() for found in ranks.values() for pid in found})
        try:
            profile = self.look(pids, self.orders.policy.look_ns / 1e9, hz=self.duty.hz)
        except (PermissionError, CannotRun) as error:
            raise CannotRun(f"running jobs cannot be profiled: {error}") from error
        except UnidleError as error:  # for instance: all of them ended before anything was seen
            self._say(f"the last profile failed: {error}")
            return False
        except OSError as error:
            self._say(f"the last profile failed: {error}")
            return False
        self.kernel_s += (profile.quality.bpf_cpu_pct or 0.0) / 100 * profile.seconds
        offset_ns = rank_processes.log_offset_ns(self.orders.offset_ns)
        rows: list[ProfileRow] = []
        for attempt, ranks in roots.items():
            rows += self._of_attempt(profile, attempt, ranks, before[attempt], offset_ns)
        self._keep(rows, time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self.orders.offset_ns)
        return True

    def _of_attempt(
        self, profile: Profile, attempt: RunningAttempt, roots: Mapping[int, int], before: Mapping[int, set[int]], offset_ns: int
    ) -> list[ProfileRow]:  # fmt: skip
        owned = rank_processes.belonging(profile, before)
        parts: dict[int, Profile] = {}
        for rank, pids in owned.items():
            worker = rank_processes.worker_of(profile, roots[rank], pids)
            part = windows.part_of(profile, pids, rank=rank, job=attempt.job, root=worker)
            if part.samples or part.threads or part.calls:
                parts[rank] = part
        if not parts:
            return []
        self._seen.add(attempt[:2])
        start_ns, end_ns = profile.start_ns + offset_ns, profile.end_ns + offset_ns
        processes = tuple(p for part in parts.values() for p in part.processes)
        gang = replace(profile.of_processes([p.pid for p in processes]), processes=processes)
        self._tell_findings(gang, attempt, self.judge(gang), (start_ns, end_ns), offset_ns)
        apart = self.finder.number_of(attempt) * APART
        return [
            ProfileRow(attempt.job, start_ns, attempt.attempt, rank, end_ns, 1, _body(part, apart))
            for rank, part in parts.items()
        ]

    def _tell_findings(
        self, profile: Profile, attempt: RunningAttempt, found: Mapping[int, RankFinding], window: tuple[int, int], offset_ns: int
    ) -> None:  # fmt: skip
        length_ns = window[1] - window[0]
        leaves = {
            rank: leaves_of(one.budget, length_ns, late_share=one.late_share)
            for rank, one in found.items()
            if one.budget
        }
        if leaves:
            self._event(ev.BudgetMeasured(attempt.job, attempt.attempt, *window, leaves))
        steps: dict[int, tuple[int, ...]] = {}
        for rank, one in found.items():
            key, eye = (attempt.job, attempt.attempt, rank), (profile.tier, profile.misses)
            if one.steps_ns:
                self._eyes[key] = eye
            elif self._eyes.get(key) != eye or profile.quality.spans_dropped:
                continue  # no steps because they cannot be seen now: that says nothing
            steps[rank] = tuple(t + offset_ns for t in one.steps_ns[-64:])
        if steps:
            self._event(ev.StepsWatched(attempt.job, attempt.attempt, *window, steps))

    def _keep(self, rows: Sequence[ProfileRow], now_ns: int) -> None:
        if self.keeper is None:
            for row in rows:
                self.tell("row", row)
            return
        if not rows:
            return
        try:
            self.keeper.keep(rows, now_ns)
        except LeaseLost:
            raise
        except StoreError as error:  # a full disk: what is measured still goes to the controller
            self._say(f"the profile cannot be stored: {error}")
        else:
            self._say("")

    def _say(self, why_not: str) -> None:
        """Tell once that something does not work, and that it works again."""
        if why_not != self._told:
            self._told = why_not
            self._event(ev.ProfilerSet(why_not))

    def _event(self, event: types.Event) -> None:
        kind, body = types.encode(event)
        self.tell(kind, msgspec.Raw(body))


def _body(part: Profile, apart: int) -> bytes:
    """What is kept of a rank, with process numbers moved by ``apart``."""
    if apart:
        pids = {p.pid for p in part.processes} | {s.pid for s in part.samples}
        part = renumbered(part, {pid: pid + apart for pid in pids})
    return windows.packed(windows.small(part))


# -- the process ---------------------------------------------------------------------------------------


class _Lines:
    """Whole lines of standard input as they come."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, b""
        self.ended = False

    def wait(self, seconds: float | None) -> list[bytes]:
        """Lines that are there after at most so many seconds (None: however long it takes)."""
        ready, _, _ = select.select([self._fd], [], [], seconds)
        if not ready:
            return []
        data = os.read(self._fd, _LINE_MOST)
        if not data:
            self.ended = True
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def serve(look: Sampler, judge: Judge = findings_of) -> int:
    """The process's life; its exit code."""
    os.nice(NICE)
    lines = _Lines(sys.stdin.fileno())
    first: list[bytes] = []
    while not first and not lines.ended:
        first = lines.wait(None)
    if not first:
        return 0
    orders = msgspec.json.decode(first[0], type=WorkerConfig)

    def tell(kind: str, body: object) -> None:
        os.write(sys.stdout.fileno(), msgspec.json.encode([kind, body]) + b"\n")

    store = open_store(orders.store, create=False) if orders.store else None
    try:
        keeper = None if store is None else Keeper(ProfileShelf(store, orders.token), orders.policy)
        _serve(Worker(orders, look, judge, keeper, tell), lines, first[1:])
    except BrokenPipeError:
        return 0  # the controller is gone
    except LeaseLost as error:
        sys.stderr.write(f"{error}\n")
        return LOST
    except CannotRun as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    finally:
        if store is not None:
            store.close()
    return 0


def _serve(worker: Worker, lines: _Lines, come: list[bytes]) -> None:
    cpu_s = 0.0  # what importing cost is paid for, too

    def used() -> float:
        nonlocal cpu_s
        before, cpu_s = cpu_s, _cpu_s() + worker.kernel_s
        return cpu_s - before

    while True:
        for line in come:
            worker.take(msgspec.json.decode(line, type=WorkerLine))
        now_s = time.monotonic()
        worker.duty.used(now_s, used())
        due_s = worker.due_s(now_s)
        if due_s is not None and due_s <= now_s:
            found = worker.once()
            now_s = time.monotonic()
            if found:
                worker.duty.looked(now_s, used())
                due_s = worker.due_s(now_s)
            else:
                worker.duty.used(now_s, used())
                due_s = max(worker.due_s(now_s) or 0.0, now_s + _AGAIN_S)
        pause_s = None if due_s is None else max(due_s - now_s, 0.0)
        if pause_s is not None:
            worker.tell("next", pause_s)
        come = lines.wait(pause_s)
        if lines.ended:
            return


def _cpu_s() -> float:
    """CPU time of this process and of the programs that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> int:
    """``python -m unidle.scope.continuous``: see the head of this file."""
    from unidle.scope.tiers import look

    return serve(look)
