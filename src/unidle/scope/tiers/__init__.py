"""Ways to look at running processes: the best one that works here is found by trying, and reports what it misses.

- T0: BPF programs (Linux 5.17 and later with BTF; CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or root)
- T1: perf events, T2: reads of ``/proc`` and of memory, T3: files of other profilers (``imported``)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, Self, TypedDict, Unpack, cast, get_args

from unidle.errors import BadInput
from unidle.scope.model import Profile, Tier

__all__ = ["HZ", "ProfilerWatch", "WatchOptions", "look", "watch"]

HZ: Final = 99  # not 100: what happens every 10 ms is not always met at the same moment
_PROGRESS_S: Final = 0.25

LiveTier = Literal["T0", "T1", "T2"]


class ProfilerWatch(Protocol):
    """A look that lasts: run, take, run, take. A context manager, because probes have to go away."""

    @property
    def tier(self) -> Tier: ...
    @property
    def misses(self) -> tuple[str, ...]: ...
    def run(self, seconds: float) -> int:
        """Look for that long, or until no process lives. How many live."""

    def add(self, pid: int) -> None:
        """Watch one more process. Raises :class:`BadInput` if no such process exists."""

    def take(self) -> Profile:
        """What came since the last take."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class WatchOptions(TypedDict, total=False):
    """What :func:`watch` takes next to the processes."""

    hz: int
    off_cpu: bool
    follow: bool
    operators: bool
    memory: bool
    tier: str | None


def watch(
    pids: Sequence[int],
    *,
    hz: int = HZ,
    off_cpu: bool = True,
    follow: bool = True,
    operators: bool = False,
    memory: bool = False,
    tier: str | None = None,
) -> ProfilerWatch:
    """Start to look at processes, and at their children if ``follow``.

    ``off_cpu``: also at threads that wait. ``operators``, ``memory``: also count calls by probes, which costs more.
    ``tier``: only this one. Raises :class:`BadInput` for a process that is not there, :class:`CannotRun` where no tier
    works: one line with what is missing.
    """
    _check(pids, hz)
    if tier == "T3":
        raise BadInput(
            "is for files of other profilers", field="tier", value=tier, remedy="give one with --from"
        )
    if tier is not None and tier not in get_args(LiveTier):
        raise BadInput("is none", field="tier", value=tier, remedy="T0, T1 and T2 are for running processes")
    from unidle.scope.tiers import native

    return native.attach(
        pids, hz=hz, off_cpu=off_cpu, follow=follow, operators=operators, memory=memory,
        tier=cast("LiveTier | None", tier),
    )  # fmt: skip


def look(
    pids: Sequence[int],
    seconds: float,
    *,
    while_looking: Callable[[float], object] | None = None,
    **options: Unpack[WatchOptions],
) -> Profile:
    """Look at running processes for ``seconds``, or until all have ended. Options and errors: :func:`watch`.

    ``while_looking`` is called about four times a second with the seconds that have passed.
    """
    if not 0 < seconds < 1e9:
        raise BadInput("must be more than 0", field="seconds", value=seconds)
    with watch(pids, **options) as watched:
        started = time.monotonic()
        while (left := seconds - (time.monotonic() - started)) > 0:
            live = watched.run(min(left, _PROGRESS_S) if while_looking else left)
            if while_looking:
                while_looking(time.monotonic() - started)
            if not live:
                break
        return watched.take()


def _check(pids: Sequence[int], hz: int) -> None:
    if not pids:
        raise BadInput("names no process", field="pid")
    for pid in pids:
        if not 0 < pid < 1 << 22:
            raise BadInput("is no process number", field="pid", value=pid, remedy="1 to 4194303 is possible")
    if not 1 <= hz <= 1_000:
        raise BadInput("is not possible", field="hz", value=hz, remedy="1 to 1000 is")
