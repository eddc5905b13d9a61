"""The fleet of ``unidle up`` where others say which nodes there are: hosts that join, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unidle.api.fleets import find_fleet_and_channels
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.control.kube_fleet import FleetFileGiven
    from unidle.files.fleet_notices import NoticeChannel
    from unidle.fleet import Fleet


def fleet_of_hosts(file: str | None) -> tuple[Fleet, tuple[NoticeChannel, ...]]:
    """Queues, policies and the network of a fleet file; its nodes are those that join."""
    from unidle.fleet import Fleet

    if file is None:
        return Fleet(), ()
    found, channels = find_fleet_and_channels(file, None, hosts_join=True)
    _refuse_nodes(found, file)
    return found, channels


def _refuse_nodes(found: Fleet, file: str) -> None:
    if found.nodes:
        raise BadInput(
            f"declares {counted(len(found.nodes), 'node')}, and with --listen nodes are the hosts that join",
            field="--fleet", value=file, remedy="leave `nodes` out, and start `unidle agent` on each host",
        )  # fmt: skip


def fleet_of_cluster(file: str | None) -> FleetFileGiven | None:
    """Queues, policies and the network of a fleet file, for a cluster. Errors: BadInput."""
    if file is None:
        return None
    from unidle.control.kube_fleet import FleetFileGiven
    from unidle.files.fleet_objects import fleet_of_file
    from unidle.files.fleet_queues import pointed
    from unidle.place.admission import tree_of_queues

    declared = fleet_of_file(file)
    _refuse_nodes(declared.fleet, file)
    if declared.fleet.host_devices:
        raise BadInput(
            "`hosts` cuts devices of hosts with an agent, and pods have whole ones", field="--fleet", value=file,
            remedy="leave `hosts` out",
        )  # fmt: skip
    try:
        tree_of_queues(declared.fleet)
    except BadInput as error:
        raise (pointed(file, error) if file != "-" else error) from None
    return FleetFileGiven(file, declared)
