"""``unidle.run`` and ``unidle.submit``: a command or a function becomes a job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, get_args, overload

import msgspec

from unidle.api.controller_process import is_served, kill, over, serve
from unidle.api.fleets import (
    MOST_CPU_DEVICES,
    find_fleet_and_channels,
    refuse_impossible,
    refuse_to_queue,
    refuse_where_driven,
)
from unidle.api.function_call import command_of, packed, write_call
from unidle.api.job_fields import Command, spec_of
from unidle.api.job_object import Job, raise_if_failed
from unidle.api.job_watch import LOOK_S, JobWatch
from unidle.api.logs import Output
from unidle.api.serve import ServeOrder
from unidle.api.stores import (
    address_of,
    data_dir,
    make_parent,
    mode_of,
    read_store,
    read_view,
    without_password,
)
from unidle.atomic import PRIVATE
from unidle.control.inbox import SubmitRequest, signed
from unidle.control.job_ids import new_job_id
from unidle.control.queries.find import find_job
from unidle.control.store_files import make_run_root
from unidle.errors import BadInput, CannotRun, StoreError, StoreHeld
from unidle.fleet import Fleet, as_declared
from unidle.jobs import NEVER, JobState
from unidle.store.open import open_store

if TYPE_CHECKING:
    from unidle.files.job_file import JobFields
    from unidle.jobs import JobSpec, Reason
    from unidle.view.jobs import JobView

T = TypeVar("T")
Logs = int | Literal["all", "none"]
_Path = str | os.PathLike[str]


@overload
def run(
    target: Callable[..., T], /, *, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
    store: _Path | None = None, mode: str | int = PRIVATE, fleet: _Path | None = None, cpu_devices: int | None = None,
    profile: bool = False, logs: Logs = 0, wait: bool = True, check: bool = True, **fields: Unpack[JobFields],
) -> Job[T]: ...  # fmt: skip


@overload
def run(
    target: Command | _Path, /, *, store: _Path | None = None, mode: str | int = PRIVATE, fleet: _Path | None = None,
    cpu_devices: int | None = None, profile: bool = False, logs: Logs = 0, wait: bool = True, check: bool = True,
    **fields: Unpack[JobFields],
) -> Job[None]: ...  # fmt: skip


def run(
    target: Any, /, *, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, store: _Path | None = None,
    mode: str | int = PRIVATE, fleet: _Path | None = None, cpu_devices: int | None = None, profile: bool = False,
    logs: Logs = 0, wait: bool = True, check: bool = True, **fields: Unpack[JobFields],
) -> Job[Any]:  # fmt: skip
    """Run a command (a list of words) or a function as a job on this machine, and wait for its end.

    ``fields`` are those of a job file: ``ranks=4, restart={"max": 2}``. ``args`` and ``kwargs`` go to the
    function, in every rank; :meth:`Job.result` is the return value of rank 0. ``store``, ``fleet``,
    ``cpu_devices`` and ``profile`` are as the options of ``unidle run``. ``mode``: permissions of the store, if it is
    made now: a number, or octal digits such as ``"0660"``. ``logs``: the rank whose output is
    printed, ``"all"`` or ``"none"``.

    The job belongs to this process: Ctrl-C (KeyboardInterrupt) and the end of the process cancel it.
    ``wait=False`` returns at once. ``check=False`` returns a job that failed instead of raising
    :class:`unidle.errors.JobFailed`. If another process drives the store, the job runs there.

    Errors: :class:`unidle.errors.BadInput`, :class:`unidle.errors.CannotRun`, :class:`unidle.errors.StoreError`,
    :class:`unidle.errors.JobFailed`.
    """
    _check_cpu_devices(cpu_devices)
    store_mode = mode_of(mode, "mode")
    new = _New.of(target, args, kwargs, fields, "unidle.run")
    _check_logs(logs, new.spec.ranks)
    order = _order(new.spec, address_of(store), fleet, cpu_devices, profile=profile)
    _refuse(new.spec, order)
    job = new.put(order.store, store_mode)
    try:
        serve(order, job.id)
        if not wait:
            _until_taken(job, order)
            return job
        ended = _to_its_end(job, order, logs)
    except BaseException:
        _end(job)
        raise
    over(order.store, job.id)
    if check:
        raise_if_failed(ended, order.store)
    return job


@overload
def submit(
    target: Callable[..., T], /, *, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
    store: _Path | None = None, mode: str | int = PRIVATE, hold: bool = False, **fields: Unpack[JobFields],
) -> Job[T]: ...  # fmt: skip


@overload
def submit(
    target: Command | _Path,
    /,
    *,
    store: _Path | None = None,
    mode: str | int = PRIVATE,
    hold: bool = False,
    **fields: Unpack[JobFields],
) -> Job[None]: ...


def submit(
    target: Any, /, *, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, store: _Path | None = None,
    mode: str | int = PRIVATE, hold: bool = False, **fields: Unpack[JobFields],
) -> Job[Any]:  # fmt: skip
    """Put a command or a function into the queue of a store, and return at once; ``unidle up`` on that store runs it.

    A job that the fleet of the store's last controller can never hold is refused
    (:class:`unidle.errors.CannotRun`); ``hold`` keeps it until the fleet changes. Other parameters and errors are
    as for :func:`run`. The job outlives this process.
    """
    store_mode = mode_of(mode, "mode")
    new, address = _New.of(target, args, kwargs, fields, "unidle.submit"), address_of(store)
    refuse_to_queue(new.spec, _known_fleet(address), hold=hold)
    return new.put(address, store_mode)


def job(name: str, *, store: _Path | None = None) -> Job[Any]:
    """The job with this id or unique prefix of an id, or the newest job with this name. Errors: BadInput."""
    address = address_of(store)
    opened = read_store(address)
    try:
        return Job(find_job(read_view(opened), name).id, address)
    finally:
        opened.close()


def list_jobs(*, store: _Path | None = None, state: JobState | None = None) -> list[Job[Any]]:
    """All jobs of a store, the oldest first; ``state``: only those in this state."""
    if state is not None and state not in get_args(JobState):
        raise BadInput(
            "is not a state of a job", field="state", value=state, remedy=", ".join(get_args(JobState))
        )
    address = address_of(store)
    opened = read_store(address)
    try:
        view = read_view(opened)
        return [Job(one.id, address) for one in view.jobs.values() if state in (None, one.state)]
    finally:
        opened.close()


class _New:
    """A job that is not in a store yet."""

    def __init__(self, spec: JobSpec, content: bytes | None) -> None:
        self.spec, self._content = spec, content

    @classmethod
    def of(
        cls, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, fields: JobFields, source: str
    ) -> _New:  # fmt: skip
        spec = spec_of(target, fields, source)
        if callable(target):
            return cls(spec, packed(target, args, kwargs if kwargs is not None else {}))
        if args or kwargs:
            raise BadInput(
                "are for a function", field="args, kwargs", value=args or kwargs,
                remedy="write a command's arguments into its list",
            )  # fmt: skip
        return cls(spec, None)

    def put(self, address: str, mode: int) -> Job[Any]:
        """Into the store's inbox. ``mode``: of a store that is made; the process that serves it finds it made."""
        make_parent(address)
        store = open_store(address, create=True, mode=mode)
        try:
            name, spec = new_job_id(self.spec.name), signed(store, self.spec)[0]
            if self._content is not None:
                call = write_call(make_run_root(store, data_dir()) / name, self._content)
                spec = replace(spec, command=command_of(call))
            store.request("submit", msgspec.json.encode(SubmitRequest(name, spec)))
        finally:
            store.close()
        return Job(name, address)


def _order(
    spec: JobSpec, address: str, fleet: _Path | None, cpu_devices: int | None, *, profile: bool
) -> ServeOrder:
    """What the controller of the store is started with for the job."""
    path = None if fleet is None else os.path.abspath(fleet)  # noqa: PTH100
    needed = 0 if spec.device == "gpu" else spec.devices
    return ServeOrder(address, path, cpu_devices, profile, needed=needed)


def _check_logs(logs: object, ranks: int) -> None:
    if logs not in ("all", "none") and (not isinstance(logs, int) or isinstance(logs, bool) or logs < 0):
        raise BadInput("is not a choice of ranks", field="logs", value=logs, remedy="a rank, 'all' or 'none'")
    if isinstance(logs, int) and logs >= ranks:
        raise BadInput(
            "the job has no such rank", field="logs", value=logs, remedy=f"0 to {ranks - 1}, 'all' or 'none'"
        )


def _check_cpu_devices(number: object) -> None:
    whole = isinstance(number, int) and not isinstance(number, bool)
    if number is not None and (not whole or not 1 <= number <= MOST_CPU_DEVICES):  # type: ignore[operator]
        raise BadInput(
            f"must be a whole number from 1 to {MOST_CPU_DEVICES:,}", field="cpu_devices", value=number,
            remedy="leave it out for one device for each core",
        )  # fmt: skip


def _refuse(spec: JobSpec, order: ServeOrder) -> None:
    """What can never run is refused before it is in the store: on the fleet of who drives that, else on the one named."""
    driven = _driven(order.store)
    if driven is None:
        refuse_impossible(spec, find_fleet_and_channels(order.fleet, order.cpu_devices, order.needed)[0])
        return
    if not order.alike(ServeOrder(order.store)) and not is_served(order):
        raise StoreHeld(
            "another process drives the store, on its own devices", field="fleet, cpu_devices, profile",
            value=without_password(order.store), remedy="leave them out, or name another store",
        )  # fmt: skip
    if driven.nodes:
        refuse_where_driven(spec, driven)


def _driven(address: str) -> Fleet | None:
    """The fleet of the controller that runs on the store now; None where none does."""
    try:
        opened = read_store(address)
    except StoreError:
        return None  # it is made later, or says then what is wrong with it
    try:
        return as_declared(read_view(opened).fleet) if opened.holder() is not None else None
    finally:
        opened.close()


def _known_fleet(address: str) -> Fleet:
    """The fleet of the store's last controller; empty where there was none."""
    try:
        opened = read_store(address)
    except StoreError:
        return Fleet()
    try:
        return as_declared(read_view(opened).fleet)
    finally:
        opened.close()


def _until_taken(job: Job[Any], order: ServeOrder) -> None:
    """Until the job is in the log: from then on its controller does not end before it."""
    with JobWatch(job.store, job.id) as watch:
        while watch.news() is None:
            if watch.is_free():
                serve(order, job.id)
            time.sleep(LOOK_S)


def _to_its_end(job: Job[Any], order: ServeOrder, logs: Logs) -> JobView:
    """Wait, and print lines as they come. Errors: CannotRun where it can never start."""
    ranks = None if logs == "all" else [] if logs == "none" else [int(logs)]
    with JobWatch(job.store, job.id) as watch:
        output = Output(watch.store, job.id, ranks, first=1)
        try:
            while True:
                found = watch.news()
                for line in output.new(found):
                    _print(line.decode("utf-8", "replace"))
                if found is not None and found.terminal:
                    return found
                if found is not None and (never := _never(found)) is not None:
                    raise CannotRun(
                        never.text, field=job.id, remedy="`unidle doctor` shows what this machine offers"
                    )
                if watch.is_free():  # its controller was killed, or stopped by its owner
                    serve(order, job.id)
                time.sleep(LOOK_S)
        finally:
            output.close()


def _never(job: JobView) -> Reason | None:
    """Why it waits in vain, if it does: what the machine does not offer is known only once its engine was asked."""
    waits = job.verdict if job.state == "queued" else None
    return waits if waits is not None and waits.code in NEVER else None


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except UnicodeEncodeError:  # a terminal without these characters must not end the job
        print(line.encode("ascii", "replace").decode(), flush=True)


def _end(job: Job[Any]) -> None:
    """Leave nothing of it running. A second Ctrl-C ends its grace."""
    try:
        job.ask_to_end()
        print(f"unidle: stopping {job.id}; interrupt again to kill it at once", file=sys.stderr)
        job.until_gone()
    except KeyboardInterrupt:  # wherever it came: the first half may not have been reached
        job.ask_to_end()
        kill(job.store, job.id)
        job.until_gone()
