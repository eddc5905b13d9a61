"""A job as an object: wait for it, read its output, explain its state and show where its device time went."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from unidle.api.job_watch import LOOK_S, JobWatch
from unidle.api.stores import address_of, data_dir, read_store, read_view, without_password
from unidle.control.queries.find import find_job
from unidle.errors import BadInput, JobFailed
from unidle.guard.failure import failure_of_job
from unidle.guard.failure_words import failure_lines
from unidle.login import login_name

if TYPE_CHECKING:
    import polars as pl

    from unidle.api.results import Explanation, Profiled
    from unidle.jobs import JobState
    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView
    from unidle.view.state import View

ResultT = TypeVar("ResultT", covariant=True)


class Job(Generic[ResultT]):
    """One job of a store. The object has no state of its own: each method reads the store.

    ``id`` is its name with six random characters, ``store`` the address of its store. Errors of every method:
    :class:`unidle.errors.StoreError` where the store cannot be read.
    """

    __slots__ = ("id", "store")

    def __init__(self, id: str, store: str) -> None:  # noqa: A002 - the field's own name
        self.id = id
        self.store = store

    def __repr__(self) -> str:
        return f"Job({self.id!r}, store={without_password(self.store)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.id, self.store) == (other.id, other.store)

    def __hash__(self) -> int:
        return hash((self.id, self.store))

    # -- where it is -----------------------------------------------------------------------------

    @property
    def state(self) -> JobState:
        """queued, starting, running, restarting, succeeded, failed or cancelled."""
        return self._read().state

    @property
    def ended(self) -> bool:
        """Whether it has succeeded, failed or been cancelled."""
        return self._read().terminal

    def details(self) -> dict[str, Any]:
        """Its attempts and ranks, as ``unidle show --json`` prints them."""
        from unidle.control.queries.describe import job_detail

        opened, view = self._open()
        with closing(opened):
            return job_detail(view, find_job(view, self.id), _named(self.store))

    def explain(self) -> Explanation:
        """Why it is in its state: what it waits for, where it was placed and why, and how it ended."""
        from unidle.api.results import explanation
        from unidle.control.queries.describe import explain

        opened, view = self._open()
        with closing(opened):
            return explanation(explain(view, find_job(view, self.id), _named(self.store)))

    # -- until it ends ---------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until it has ended, in any state. Ctrl-C ends the wait, not the job.

        Errors: :class:`TimeoutError` after ``timeout`` seconds; :class:`unidle.errors.CannotRun` if no controller
        runs on its store; :class:`unidle.errors.BadInput` for a ``timeout`` that is not a number.
        """
        from unidle.api.controller_process import over

        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
            raise BadInput(
                "is not a number of seconds", field="timeout", value=timeout, remedy="such as 90 or 0.5"
            )

        deadline = None if timeout is None else time.monotonic() + timeout
        with JobWatch(self.store, self.id) as watch:
            while watch.ended() is None:
                left = LOOK_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{self.id} has not ended after {timeout:g} s")
                time.sleep(min(left, LOOK_S))
        over(self.store, self.id)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """As :meth:`wait`, without keeping an event loop from its other tasks."""
        return self._until_ended().__await__()

    async def _until_ended(self) -> Self:
        with JobWatch(self.store, self.id) as watch:
            while watch.ended() is None:
                await asyncio.sleep(LOOK_S)
        return self

    def result(self, timeout: float | None = None) -> ResultT:
        """The return value of the function in rank 0. Waits until the job has succeeded.

        Errors: :class:`unidle.errors.JobFailed`; :class:`unidle.errors.BadInput` if the job is a command, or if
        the value cannot be sent back; otherwise as :meth:`wait`.
        """
        from unidle.api.function_call import archived, is_call, read_result

        job = self._after(timeout)
        if not is_call(job.spec.command):
            raise BadInput("the job is a command; only functions have a result", field="result", value=self.id,
                           remedy="read its files, or Job.logs()")  # fmt: skip
        raise_if_failed(job, self.store)
        return read_result(archived(self.store, self.id, Path(job.spec.command[-1])))  # type: ignore[return-value]

    def cancel(self) -> Self:
        """Send SIGTERM to all processes of every rank, and SIGKILL after the job's ``grace_s``. Returns when no
        process is left.

        A job that has ended is not changed.
        """
        if not self.ended:
            self.ask_to_end()
            self.until_gone()
        return self

    def ask_to_end(self) -> None:
        """The first half of :meth:`cancel`: returns at once."""
        import msgspec

        from unidle.control.inbox import CancelRequest

        inbox = read_store(self.store, requests=True)
        try:
            inbox.request("cancel", msgspec.json.encode(CancelRequest(self.id, login_name())))
        finally:
            inbox.close()

    def until_gone(self) -> None:
        """The second half of :meth:`cancel`. Where no controller runs on the store, one is started to end the job."""
        from unidle.api.controller_process import over, serve
        from unidle.api.serve import ServeOrder

        with JobWatch(self.store, self.id) as watch:
            while (job := watch.news()) is None or not job.terminal:
                if watch.is_free():
                    serve(ServeOrder(self.store, place=False), self.id)
                time.sleep(LOOK_S)
        over(self.store, self.id)

    # -- what it did -----------------------------------------------------------------------------

    def logs(
        self, rank: int | None = 0, *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        """Lines of a rank's standard output and error in its last attempt, or in ``attempt``.

        ``rank=None``: all ranks, each line after ``[rank]``. ``follow``: continue with new output, across
        restarts, until the job ends. Errors: :class:`unidle.errors.BadInput` for a rank or attempt that does not
        exist.
        """
        from unidle.api.logs import lines_of

        return lines_of(self.store, self.id, rank, attempt, follow=follow)

    @overload
    def ledger(self, by: str | Sequence[str] = ("leaf",), *, rows: Literal["polars"] = "polars") -> pl.DataFrame: ...  # fmt: skip

    @overload
    def ledger(
        self, by: str | Sequence[str] = ("leaf",), *, rows: Literal["dict"]
    ) -> list[dict[str, Any]]: ...

    def ledger(
        self, by: str | Sequence[str] = ("leaf",), *, rows: str = "polars"
    ) -> pl.DataFrame | list[dict[str, Any]]:
        """Its device time: a row for each value of ``by`` with ``ns``, ``seconds``, ``percent`` and ``cost``.

        ``by`` names dimensions as ``unidle ledger --by`` does: leaf, group, attempt, node, device, ...
        ``percent`` is of all device time of the job; ``cost`` is None without a price. ``rows``: ``"polars"``, for
        which the extra ``unidle[polars]`` is needed, or ``"dict"``.
        """
        from unidle.api.results import ledger_rows

        opened, view = self._open()
        with closing(opened):
            found = ledger_rows(opened, view, self.id, [by] if isinstance(by, str) else list(by))
        return found.rows(rows)

    def profile(self, seconds: float = 10, *, rank: int | None = None, hz: int = 99) -> Profiled:
        """Profile its running ranks, or one of them, as ``unidle profile`` does.

        Errors: :class:`unidle.errors.CannotRun` if it does not run on this machine or access is not permitted,
        :class:`unidle.errors.TargetEnded`, :class:`unidle.errors.BadInput`.
        """
        from unidle.api.host_profiles import look_on_hosts, ranks_on_hosts
        from unidle.api.profiling import look, ranks_of
        from unidle.api.results import Profiled

        opened, view = self._open()
        chosen = None if rank is None else [rank]
        with closing(opened):
            job = find_job(view, self.id)
            if (hosts := ranks_on_hosts(opened, job, chosen)) is not None:
                return Profiled.of(look_on_hosts(hosts, seconds, hz=hz), None)
            target = ranks_of(opened, job, chosen)
        return Profiled.of(*look(target, seconds, hz=hz))

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write its report, an HTML page that needs no other file, as ``unidle report`` does; returns the path.

        ``path`` None: a name next to the store. Errors: :class:`unidle.errors.BadInput` if no controller has read
        the job yet, or if the file cannot be written.
        """
        from unidle.api.rank_output import rank_output
        from unidle.control.inbox import NOT_TAKEN_UP
        from unidle.report.write import write_report

        opened, view = self._open()
        with closing(opened):
            if find_job(view, self.id).verdict is NOT_TAKEN_UP:
                raise BadInput("there is nothing to report yet: no controller has read the job", field="job",
                               value=self.id, remedy="`unidle up` runs the jobs of a store")  # fmt: skip
            try:
                with rank_output(opened, data_dir(), self.id) as output:
                    return write_report(
                        opened, None if path is None else Path(path), output, self.id, data_dir()
                    )
            except OSError as error:
                raise BadInput(f"cannot be written: {error.strerror}", field="path",
                               value=os.fspath(path or error.filename), remedy="name a file that can be written") from error  # fmt: skip

    # --------------------------------------------------------------------------------------------

    def _after(self, timeout: float | None) -> JobView:
        self.wait(timeout)
        return self._read()

    def _read(self) -> JobView:
        opened, view = self._open()
        with closing(opened):
            return find_job(view, self.id)

    def _open(self) -> tuple[Store, View]:
        opened = read_store(self.store)
        try:
            return opened, read_view(opened)
        except BaseException:
            opened.close()
            raise


def raise_if_failed(job: JobView, store: str) -> None:
    """Raise :class:`JobFailed` with the reason and the last output of the rank that failed first."""
    if job.state == "succeeded":
        return
    because = job.because.text if job.because is not None else job.state
    named = _named(store)
    where = "" if named is None else f", store={named!r}"
    failed = JobFailed(
        because, field=f"{job.id} {job.state}", state=job.state,
        remedy=f"see unidle.job({job.id!r}{where}).explain()",
    )  # fmt: skip
    failure = failure_of_job(job)
    if failure is not None:
        failed.add_note("\n".join(failure_lines(failure.as_json(named))))
    raise failed


def _named(store: str) -> str | None:
    """The store as a command has to name it; None where it is found without that."""
    return None if store == address_of(None) else without_password(store)
