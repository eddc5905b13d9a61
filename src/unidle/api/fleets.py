"""The fleet that a command works on: that of a fleet file, or the devices of this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from unidle.errors import BadInput, CannotRun

if TYPE_CHECKING:
    from unidle.files.fleet_notices import NoticeChannel
    from unidle.fleet import Fleet
    from unidle.jobs import JobSpec
    from unidle.store.protocol import Store


MOST_CPU_DEVICES: Final = 4096
_BY_QUEUE: Final = {
    "no_queue": "name one of these (`queue`), or declare it in the fleet file",
    "over_limit": "ask for less, or raise the limit in the fleet file",
}
"""Remedies for jobs that their queue keeps from starting, by the code of the reason."""


def find_fleet(path: str | None, cpu_devices: int | None) -> Fleet:
    """The declared fleet, otherwise the devices of this machine."""
    return find_fleet_and_channels(path, cpu_devices)[0]


def find_fleet_and_channels(
    path: str | None, cpu_devices: int | None, needed: int = 0, *, hosts_join: bool = False
) -> tuple[Fleet, tuple[NoticeChannel, ...]]:
    """As :func:`find_fleet`, with the channels that the fleet file sends notices to.

    Without a given number, there are at least ``needed`` CPU devices. ``hosts_join``: the file may have no nodes.
    """
    if path is not None:
        from unidle.files.fleet import load_fleet_and_notices

        fleet, channels = load_fleet_and_notices(path, hosts_join=hosts_join)
        if fleet.queues:
            _check_queues(path, fleet)
        return fleet, channels
    from unidle.engine.local.devices.discovery import discover

    found = discover(cpu_devices)
    return (with_cpu_devices(found, needed) if cpu_devices is None else found), ()


def with_cpu_devices(fleet: Fleet, needed: int) -> Fleet:
    """A fleet that was discovered, with at least so many CPU devices where it has no others."""
    if needed <= len(fleet.devices()) or any(device.kind != "cpu" for device in fleet.devices()):
        return fleet
    from unidle.engine.local.devices.discovery import discover

    return replace(discover(min(needed, MOST_CPU_DEVICES)), profile=fleet.profile)


def with_devices_of_jobs(fleet: Fleet, store: Store) -> Fleet:
    """A discovered fleet with the CPU devices that jobs of ``store`` began on: an earlier controller may have had more."""
    from unidle.fleet import device_of
    from unidle.view.snapshot import load_view

    if not store.last()[0]:
        return fleet
    begun = [job for job in load_view(store).jobs.open.awake() if job.attempts]
    held = [device_of(s) for job in begun for place in job.attempts[-1].places for s in place.slices]
    numbers = [int(d.rpartition("/")[2]) + 1 for d in held if d.rpartition("/")[2].isdigit()]
    sizes = [job.spec.devices for job in begun if job.spec.device != "gpu"]
    return with_cpu_devices(fleet, max([*numbers, *sizes], default=0))


def looked_at(fleet: Fleet) -> Fleet:
    """The fleet with continuous profiling, as its file declares or with the defaults."""
    return replace(fleet, profile=replace(fleet.profile, on=True))


def _check_queues(path: str, fleet: Fleet) -> None:
    from unidle.files.fleet_queues import pointed
    from unidle.place.admission import check_queues

    try:
        check_queues(fleet)
    except BadInput as error:
        raise (pointed(path, error) if path != "-" else error) from None


def refuse_impossible(spec: JobSpec, fleet: Fleet) -> None:
    """Refuse a job that this fleet can never hold, before it is submitted. Errors: CannotRun."""
    from unidle.control.queries.waiting import cpu_devices_for

    file, many = "a fleet file (`--fleet`)", cpu_devices_for(spec, fleet)
    remedy = f"use fewer ranks or devices, or {file}"
    if many is not None and many <= MOST_CPU_DEVICES:
        remedy = f"use fewer ranks or devices, `--cpu-devices {many}`, or {file}"
    elif spec.device == "gpu" and all(device.kind == "cpu" for device in fleet.devices()):
        remedy = f"`unidle doctor` shows why no GPU was found; or use {file}"
    _refuse(spec, fleet, remedy)


def refuse_where_driven(spec: JobSpec, fleet: Fleet) -> None:
    """As :func:`refuse_impossible`, on the fleet of a controller that runs already: the caller cannot give it more devices."""
    _refuse(
        spec,
        fleet,
        "another process drives the store with these devices: use fewer ranks or another store, or wait for its end",
    )


def refuse_to_queue(spec: JobSpec, fleet: Fleet, *, hold: bool) -> str | None:
    """As :func:`refuse_impossible`, for a job that another process will run. With ``hold`` it is not refused.

    Returns a note for the submitter if the job is accepted without a check or with ``hold``, or will have few CPUs, otherwise None.
    """
    from unidle.control.queries.waiting import cpu_devices_for
    from unidle.fleet.labels import HOST_KEY
    from unidle.jobs.pod import NO_CPUS

    if not fleet.nodes and not _is_for_whole_devices(spec, fleet):
        return "the fleet of this store is not known yet: whether the job can start was not checked"
    remedy, many = "`--hold` keeps the job until the fleet changes", cpu_devices_for(spec, fleet)
    if many is not None and many <= MOST_CPU_DEVICES:
        remedy = f"`unidle up --cpu-devices {many}` has as many, and `--hold` keeps the job until it runs"
    try:
        _refuse(spec, fleet, remedy)
    except CannotRun as error:
        if not hold:
            raise
        return f"held: {error.problem}; it starts once the fleet can hold it"
    of_cluster = any(HOST_KEY in node.labels for node in fleet.nodes)
    return NO_CPUS if of_cluster and not spec.requests.cpu_milli else None


def _refuse(spec: JobSpec, fleet: Fleet, remedy: str) -> None:
    from unidle.place.policy import Unidle, on_this_fleet
    from unidle.view.state import View

    if _is_for_whole_devices(spec, fleet):
        raise CannotRun(
            "no device of the hosts may be cut", field="share",
            remedy="request whole devices, or name those that may be cut in `hosts` of the controller's fleet file",
        )  # fmt: skip
    policy, view = Unidle(), View(fleet=fleet)
    smallest = on_this_fleet(spec.at_size(spec.sizes[-1]), view)  # an elastic one starts with its least
    because = policy.why_not(view, smallest)
    if because is not None and not policy.ever(view, smallest):
        raise CannotRun(because.text, field=spec.name, remedy=_BY_QUEUE.get(because.code, remedy))


def _is_for_whole_devices(spec: JobSpec, fleet: Fleet) -> bool:
    """Whether the fleet can never have the parts of devices that the job requests."""
    from unidle.fleet import HOSTS

    rules = fleet.host_devices
    return spec.share is not None and fleet.source == HOSTS and not rules
