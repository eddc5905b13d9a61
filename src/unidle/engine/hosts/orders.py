"""What ranks on hosts are started with: the local engine's environment and orders, with the address and clock of their host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from unidle import wire
from unidle.engine.hosts.gang_state import RankState
from unidle.engine.hosts.grants import RankGrant
from unidle.engine.hosts.job_saves import HOLD_DIR
from unidle.engine.local import launch
from unidle.engine.protocol import StartGang
from unidle.errors import CannotRun
from unidle.fleet import Fleet
from unidle.hub import frames
from unidle.jobs import Limits

FRAME_ORDERS_BYTES = wire.FRAME_BYTES - 64 * 1024  # of orders in one frame
SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class BoxHost:
    """What is known of the host of a box. ``address``: where its ranks are reached; ``interface`` is the one by which it
    reaches others, empty if not known.
    """

    boot: str
    clock_offset_ns: int
    address: str = launch.MASTER_ADDR
    interface: str = ""


def rank_orders(
    command: StartGang, fleet: Fleet, port: int, name: str, hosts: Mapping[str, BoxHost]
) -> list[frames.RankOrders]:
    """The orders of all ranks, in rank order; ``hosts`` by node. ``name`` makes the gang's run id unique."""
    address = hosts[command.places[0].node].address
    warm = _warm(command) if command.spec.restart.warm else None
    found = []
    for place, env in zip(
        command.places, launch.environments(command, fleet, port, name, {}, address), strict=True
    ):
        host = hosts[place.node]
        if "PATH" not in command.spec.env:
            env.pop("PATH", None)  # that of the controller's machine
        env.pop(HOLD_DIR, None)  # that of the controller's machine
        if HOLD_DIR in command.spec.env:
            env[HOLD_DIR] = command.spec.env[HOLD_DIR]
        if host.interface and command.spec.rendezvous == "torchrun":
            env |= {key: host.interface for key in SOCKETS if key not in command.spec.env}
        orders = launch.orders_for(command, place.rank, env, {}, host.clock_offset_ns)
        orders.boot = host.boot
        content = orders.as_json() if warm is None else {**orders.as_json(), "warm": warm}
        found.append(frames.RankOrders(place.rank, content, leader=place.rank == 0))
    return found


def granted(orders: Sequence[frames.RankOrders], grants: Mapping[int, RankGrant]) -> list[frames.RankOrders]:
    """The orders with what hosts give ranks of devices that are cut: variables, and the tighter one of two bounds."""
    return [one if one.rank not in grants else _granted(one, grants[one.rank]) for one in orders]


def _granted(one: frames.RankOrders, given: RankGrant) -> frames.RankOrders:
    from unidle.engine.local.devices.slicing import Grant  # most jobs have whole devices

    grant = Grant(given.env, given.cpus, given.memory_bytes)
    own = one.orders
    limits = grant.bound(Limits(own.get("memory_bytes"), own.get("cpus"), own.get("pids")))
    bounds = {"memory_bytes": limits.memory_bytes, "cpus": limits.cpus}
    return msgspec.structs.replace(one, orders={**own, **bounds, "env": {**own["env"], **grant.env}})


def _warm(command: StartGang) -> dict[str, str]:
    """What all ranks of all attempts have in their environment, beyond that of their host."""
    env = launch.common_environment(command, {})
    if "PATH" not in command.spec.env:
        env.pop("PATH", None)
    return env


def start_frames(
    orders: Sequence[frames.RankOrders], ranks: Sequence[RankState]
) -> list[list[frames.RankOrders]]:
    """The orders of these ranks, in as many lists as frames are needed. Errors: CannotRun where one is above a frame."""
    found: list[list[frames.RankOrders]] = []
    left = 0
    for rank in ranks:
        one = orders[rank.rank]
        size = len(msgspec.json.encode(one))
        if size > FRAME_ORDERS_BYTES:
            raise CannotRun(
                f"rank {rank.rank} has {size} bytes of orders, and a host takes {FRAME_ORDERS_BYTES}",
                remedy="make its environment and command smaller",
            )
        if size > left:
            found.append([])
            left = FRAME_ORDERS_BYTES
        found[-1].append(one)
        left -= size
    return found
