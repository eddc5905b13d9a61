"""What ranks on hosts are started with: the local engine's environment and orders, with the address and clock of their host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unidle.engine.hosts.gang_state import RankState
from unidle.engine.local import launch
from unidle.engine.protocol import StartGang
from unidle.fleet import Fleet
from unidle.hub import frames

RANKS_PER_FRAME = 16  # a frame has at most 1 MiB, and a rank's environment some KiB
SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class BoxHost:
    """What is known of the host of a box. ``interface`` is the one by which it reaches others, empty if not known."""

    boot: str
    clock_offset_ns: int
    interface: str = ""


def rank_orders(
    command: StartGang, fleet: Fleet, port: int, name: str, hosts: Mapping[str, BoxHost]
) -> list[frames.RankOrders]:
    """The orders of all ranks, in rank order; ``hosts`` by node. ``name`` makes the gang's run id unique."""
    addresses = {node.id: node.address for node in fleet.nodes}
    address = addresses.get(command.places[0].node, launch.MASTER_ADDR)
    found = []
    for place, env in zip(
        command.places, launch.environments(command, fleet, port, name, {}, address), strict=True
    ):
        host = hosts[place.node]
        if "PATH" not in command.spec.env:
            env.pop("PATH", None)  # that of the controller's machine
        if host.interface and command.spec.rendezvous == "torchrun":
            env |= {key: host.interface for key in SOCKETS if key not in command.spec.env}
        orders = launch.orders_for(command, place.rank, env, {}, host.clock_offset_ns)
        orders.boot = host.boot
        found.append(frames.RankOrders(place.rank, orders.as_json(), leader=place.rank == 0))
    return found


def start_frames(
    orders: Sequence[frames.RankOrders], ranks: Sequence[RankState]
) -> list[list[frames.RankOrders]]:
    """The orders of these ranks, in as many lists as frames are needed."""
    wanted = [orders[rank.rank] for rank in ranks]
    return [wanted[at : at + RANKS_PER_FRAME] for at in range(0, len(wanted), RANKS_PER_FRAME)]
