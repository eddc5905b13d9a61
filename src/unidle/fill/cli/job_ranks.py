"""The ranks of a job whose waits are filled: found by way of its store, attempt by attempt."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.cli.common import data_dir, read_view
from unidle.errors import BadInput, CannotRun

if TYPE_CHECKING:
    from unidle.fill.runtime.ranks import FilledRank
    from unidle.store.protocol import Store

_LOOK_S: Final = 0.2
_LOCK: Final = "fill.lock"


@dataclass(slots=True)
class JobRanks:
    """``chosen``: numbers of ranks, None for all. ``by_kernel``: also ranks that show no waits. ``wait_s``: how long to wait for ranks of the
    first attempt, and for waits of each. ``number``: the attempt that was returned last.
    """

    opened: Store
    job: str
    chosen: tuple[int, ...] | None
    by_kernel: bool
    wait_s: float
    interrupted: Callable[[], bool]
    number: int = 0

    def started(self) -> bool:
        """Once all ranks of an attempt have processes; false when ``interrupted``. Errors: CannotRun."""
        return self._next() is not None

    def following(self) -> list[FilledRank] | None:
        """Those of the next attempt, once all of them show their waits; empty where it ended before that.

        None once the job has ended, or ``interrupted``. Errors: CannotRun, BadInput for a rank that it does not have.
        """
        if (found := self._next()) is None:
            return None
        self.number, pids = found
        return showing(self.chosen, pids, self.wait_s, self._over, by_kernel=self.by_kernel)

    def _next(self) -> tuple[int, dict[int, int]] | None:
        """Number and processes of the attempt after ``number``."""
        until = time.monotonic() + self.wait_s
        while not self.interrupted():
            job = read_view(self.opened).jobs[self.job]
            if job.terminal:
                if self.number:
                    return None
                raise CannotRun(
                    f"the job has {job.state}", field="--job", value=self.job, remedy="name a job that runs"
                )
            attempt = job.live
            pids = {k: rank.pid for k, rank in enumerate(attempt.ranks) if rank.pid} if attempt else {}
            if attempt is not None and attempt.number != self.number and len(pids) == len(attempt.ranks):
                return attempt.number, pids
            if not self.number and time.monotonic() > until:
                raise CannotRun(
                    "no rank of the job runs",
                    field="--job",
                    value=self.job,
                    remedy="wait until it has started",
                )
            time.sleep(_LOOK_S)
        return None

    def _over(self) -> bool:
        live = read_view(self.opened).jobs[self.job].live
        return live is None or live.number != self.number or self.interrupted()


def showing(
    chosen: Sequence[int] | None,
    pids: Mapping[int, int],
    wait_s: float,
    over: Callable[[], bool],
    *,
    by_kernel: bool,
) -> list[FilledRank]:
    """The ``chosen`` ranks, once all show their waits; empty where training is ``over`` before that.

    ``pids``: the process of each rank, or one above it. ``by_kernel``: whether they show waits or not. Errors: BadInput, CannotRun.
    """
    from unidle.fill.runtime.ranks import FilledRank, rank_below

    chosen = tuple(pids) if chosen is None else chosen
    for number in chosen:
        if number not in pids:
            raise BadInput("is no rank of it", field="ranks", value=number, remedy=f"0 to {len(pids) - 1}")
    if by_kernel:
        return [rank_below(k, pids[k]) or FilledRank(k, pids[k], None) for k in chosen]
    until = time.monotonic() + wait_s
    while True:
        found = [rank for number in chosen if (rank := rank_below(number, pids[number])) is not None]
        if len(found) == len(chosen):
            return found
        if over():
            return []
        if time.monotonic() > until:
            missing = next(number for number in chosen if number not in {rank.number for rank in found})
            raise CannotRun(
                f"rank {missing} shows no waits", field="--job", remedy="call unidle.rank.waiting() in its script, or use `windows: kernel`"
            )  # fmt: skip
        time.sleep(_LOOK_S)


def directory_of(opened: Store, job: str) -> Path:
    """Where a job's records of fillers are."""
    from unidle.control.store_files import run_root

    return run_root(opened, data_dir()) / job


@contextmanager
def alone(directory: Path, job: str) -> Iterator[None]:
    """The only one that fills the job: two fillers in one wait would hinder each other. Errors: CannotRun."""
    if not directory.is_dir():
        raise CannotRun(
            "the job does not run on this machine", field="--job", value=job, remedy="run `unidle fill` where it runs"
        )  # fmt: skip
    with open(directory / _LOCK, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotRun(
                "the job has fillers already", field="--job", value=job, remedy="end the other `unidle fill`, or wait for its end"
            ) from None  # fmt: skip
        yield
