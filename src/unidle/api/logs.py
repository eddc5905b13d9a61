"""What the ranks of a job printed, line by line, over rotations and restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from unidle.api.stores import data_dir
from unidle.api.watching import LOOK_S, Watch
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.view.jobs import JobView

_LONGEST: Final = 1 << 20


class Lines:
    """The lines of some ranks that were not read yet. With several ranks each line begins with its rank's number."""

    def __init__(
        self, watch: Watch, job: str, ranks: Sequence[int] | None, attempt: int | None = None, *, first: int = 0
    ) -> None:  # fmt: skip
        from unidle.control.session import run_root

        self._root = run_root(watch.store, data_dir())
        self._job, self._ranks, self._attempt = job, ranks, attempt
        self._number = first  # of the attempt that is read next; 0: the last one
        self._readers: list[_Rank] = []

    def new(self, job: JobView | None) -> Iterator[str]:
        """Lines that have come since; ``job`` as it was before this call."""
        while job is not None and self._open(job):
            over = job.terminal or not job.attempts[self._number - 1].live
            for reader in self._readers:
                yield from reader.lines(rest=over)
            if not over:
                return
            self.close()
            self._number += 1

    @property
    def over(self) -> bool:
        """Whether the one attempt that is wanted was read to its end."""
        return self._attempt is not None and self._number > self._attempt

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers = []

    def _open(self, job: JobView) -> bool:
        """See that the attempt that is read next is open; False where there is none now."""
        if not self._number:
            self._number = self._attempt or max(len(job.attempts), 1)
        if self.over or self._number > len(job.attempts):
            return False
        if not self._readers:
            places = range(len(job.attempts[self._number - 1].places))
            ranks = [rank for rank in (self._ranks if self._ranks is not None else places) if rank in places]
            marked = self._ranks is None or len(self._ranks) > 1
            self._readers = [_Rank(self._root, self._job, self._number, rank, marked) for rank in ranks]
        return True


class _Rank:
    def __init__(self, root: object, job: str, attempt: int, rank: int, marked: bool) -> None:
        from unidle.engine.local import rundir
        from unidle.engine.local.logs import LogReader

        self._reader = LogReader(rundir.rank_dir(str(root), job, attempt, rank))
        self._mark = f"[{rank}] " if marked else ""
        self._rest = b""

    def lines(self, *, rest: bool) -> Iterator[str]:
        """Whole lines; ``rest``: nothing will follow, so the beginning of a line is one, too."""
        while chunk := self._reader.read():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                yield self._mark + line.decode("utf-8", "replace")
            if len(self._rest) > _LONGEST:  # a line without an end is given in parts
                yield self._mark + self._rest.decode("utf-8", "replace")
                self._rest = b""
        if rest and self._rest:
            yield self._mark + self._rest.decode("utf-8", "replace")
            self._rest = b""

    def close(self) -> None:
        self._reader.close()


def lines_of(address: str, job: str, rank: int | None, attempt: int | None, *, follow: bool) -> Iterator[str]:
    """See :meth:`unidle.api.job_object.Job.logs`."""
    with Watch(address, job) as watch:
        found = watch.news()
        if found is not None:
            _check(found, rank, attempt)
        lines = Lines(watch, job, None if rank is None else [rank], attempt)
        try:
            while True:
                ended = watch.ended() if follow else found
                yield from lines.new(watch.view.jobs.get(job))
                if ended is not None or not follow or lines.over:
                    return
                time.sleep(LOOK_S)
        finally:
            lines.close()


def _check(job: JobView, rank: int | None, attempt: int | None) -> None:
    most = max([len(one.places) for one in job.attempts], default=job.spec.ranks)
    if rank is not None and not 0 <= rank < most:
        raise BadInput("the job has no such rank", field="rank", value=rank, remedy=f"0 to {most - 1}")
    if attempt is not None and not 1 <= attempt <= max(len(job.attempts), 1):
        raise BadInput("the job has no such attempt", field="attempt", value=attempt, remedy=f"1 to {len(job.attempts)}")  # fmt: skip
