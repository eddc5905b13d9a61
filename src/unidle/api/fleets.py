"""The fleet that a command works on: a fleet file's, or what this machine has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from unidle.errors import BadInput, CannotRun

if TYPE_CHECKING:
    from unidle.files.fleet_notices import Channel
    from unidle.fleet import Fleet
    from unidle.jobs import JobSpec
    from unidle.store.protocol import Store


MOST_CPU_DEVICES: Final = 4096


def find_fleet(path: str | None, cpu_devices: int | None) -> Fleet:
    """The declared fleet, else what this machine has."""
    return find_fleet_and_channels(path, cpu_devices)[0]


def find_fleet_and_channels(
    path: str | None, cpu_devices: int | None, needed: int = 0
) -> tuple[Fleet, tuple[Channel, ...]]:
    """As :func:`find_fleet`, with the channels that the fleet file sends notices to.

    Where no number of CPU devices is given they are at least ``needed``.
    """
    if path is not None:
        from unidle.files.fleet import load_fleet_and_notices

        fleet, channels = load_fleet_and_notices(path)
        if fleet.queues:
            _check_queues(path, fleet)
        return fleet, channels
    from unidle.engine.local.devices import discover

    found = discover(cpu_devices)
    return (with_cpu_devices(found, needed) if cpu_devices is None else found), ()


def with_cpu_devices(fleet: Fleet, needed: int) -> Fleet:
    """A fleet that was discovered, with at least so many CPU devices where it has no others."""
    if needed <= len(fleet.devices()) or any(device.kind != "cpu" for device in fleet.devices()):
        return fleet
    from unidle.engine.local.devices import discover

    return replace(discover(min(needed, MOST_CPU_DEVICES)), profile=fleet.profile)


def with_devices_of_jobs(fleet: Fleet, store: Store) -> Fleet:
    """A discovered fleet with the CPU devices that jobs of ``store`` began on: an earlier controller may have had more."""
    from unidle.fleet import device_of
    from unidle.view.snapshot import load_view

    if not store.last()[0]:
        return fleet
    begun = [job for job in load_view(store).jobs.open.values() if job.attempts]
    held = [device_of(s) for job in begun for place in job.attempts[-1].places for s in place.slices]
    numbers = [int(d.rpartition("/")[2]) + 1 for d in held if d.rpartition("/")[2].isdigit()]
    sizes = [job.spec.devices for job in begun if job.spec.device != "gpu"]
    return with_cpu_devices(fleet, max([*numbers, *sizes], default=0))


def looked_at(fleet: Fleet) -> Fleet:
    """The fleet, its running jobs looked at all the time as its file says, or as is usual."""
    return replace(fleet, profile=replace(fleet.profile, on=True))


def _check_queues(path: str, fleet: Fleet) -> None:
    from unidle.files.fleet_queues import pointed
    from unidle.place.fleet_queues import check_queues

    try:
        check_queues(fleet)
    except BadInput as error:
        raise (pointed(path, error) if path != "-" else error) from None


def refuse_impossible(
    spec: JobSpec, fleet: Fleet,
    remedy: str = "use fewer ranks or devices, `--cpu-devices N`, or a fleet file (`--fleet`)",
) -> None:  # fmt: skip
    """A job that no state of this fleet can hold is refused before it is submitted."""
    from unidle.place.policy import Unidle, on_this_fleet
    from unidle.view.state import View

    policy, view = Unidle(), View(fleet=fleet)
    spec = on_this_fleet(spec.at_size(spec.sizes[-1]), view)  # an elastic one starts with its least
    because = policy.why_not(view, spec)
    if because is not None and not policy.ever(view, spec):
        raise CannotRun(because.text, field=spec.name, remedy=remedy)
