"""Faults of the network between a controller and its hosts. Each makes one fault on a gang that trains, and returns its end."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from host_faults.lossy_wire import LossyWire
from host_faults.rig import HOSTS, Rig
from unidle.drill.lab import INTERFACE

NOWHERE = "02:00:00:00:00:01"  # nobody has this address


def finished(rig: Rig, name: str, job: str) -> str:
    """Let the ranks end; how the job ended."""
    rig.go(name)
    found = rig.ended(job)
    count = len(found.attempts)
    return f"{found.state}, {count} attempt{'s' if count > 1 else ''}"


def nodes_of(rig: Rig, job: str) -> list[str]:
    found = rig.job(job)
    assert found is not None
    return sorted({place.node for place in found.attempts[-1].places})


def cable(rig: Rig, dice: random.Random, number: int, seconds: float) -> str:
    """The cable of a host of the gang, or of the controller, is pulled and put back."""
    name = f"cable{seconds:g}-{number}"
    job = rig.submit(name)
    rig.trains(job)
    node = dice.choice([*nodes_of(rig, job), "hub"])
    rig.lab.cut(node)
    time.sleep(seconds)  # the fault itself
    rig.lab.mend(node)
    rig.joined()
    return finished(rig, name, job)


def bad_wire(
    rig: Rig, dice: random.Random, number: int, loss: float, delay_ms: float, seconds: float = 20
) -> str:
    """A gang starts and trains over bad wires of all hosts, which become good again."""
    name = f"wire-{loss:g}-{delay_ms:g}-{number}"
    wires = [LossyWire(rig.lab, node, loss, delay_ms, dice.randrange(1 << 30)) for node in HOSTS]
    try:
        job = rig.submit(name)
        rig.trains(job)
        time.sleep(seconds)
    finally:
        for wire in wires:
            wire.close()
    rig.joined()
    return finished(rig, name, job)


@contextmanager
def one_way(rig: Rig, node: str, *, to_hub: bool) -> Iterator[None]:
    """What one end sends is lost, and neither end gets an error."""
    here, there = (node, "hub") if to_hub else ("hub", node)
    address, space = rig.lab.address(there), rig.lab.space(here)
    change = f"neigh replace {address} lladdr {NOWHERE} nud permanent dev {INTERFACE}".split()
    subprocess.run(["ip", "-n", space, *change], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "-n", space, "neigh", "del", address, "dev", INTERFACE], check=True)


def half_open(rig: Rig, dice: random.Random, number: int) -> str:
    """One direction of a host is lost, for less than the deadline or for more."""
    name = f"halfopen-{number}"
    job = rig.submit(name)
    rig.trains(job)
    with one_way(rig, dice.choice(nodes_of(rig, job)), to_hub=number % 2 == 0):
        time.sleep(dice.choice((3, rig.deadline_s + 5)))
    rig.joined()
    return finished(rig, name, job)


def host_gone(rig: Rig, dice: random.Random, number: int) -> str:
    """A host loses power and network at once, so that no connection is ended; it comes back after a while."""
    name = f"gone-{number}"
    job = rig.submit(name)
    rig.trains(job)
    node = dice.choice(nodes_of(rig, job))
    rig.lab.cut(node)
    rig.kill(node)
    rig.agents[node].wait()
    time.sleep(dice.choice((1, rig.deadline_s + 5)))
    rig.lab.mend(node)
    rig.join(node)
    rig.joined()
    rig.trains(job, 2)
    return finished(rig, name, job)


def stubborn(rig: Rig, dice: random.Random, number: int) -> str:
    """A rank fails; another one, which is asked to stop and takes its time, is on a host whose box is killed and which is cut off."""
    name = f"stubborn-{number}"
    job = rig.submit(name, "--stubborn", "--ends", "7", grace_s=120)
    rig.until(
        lambda: (
            (found := rig.job(job)) is not None and found.attempts and found.attempts[0].ranks[0].code == 7
        ),
        "rank 0",
    )
    node = rig.node_of(job, 1)
    pid = rig.until(lambda: rig.box_pid(node, job), "the box")
    rig.until(
        lambda: list((rig.place / node / "boxes" / job).glob("runs/*/1/rank1/stop")), "the stop to arrive"
    )
    rig.lab.cut(node)
    rig.kill_pid(pid)
    rig.trains(job, 2)
    rig.lab.mend(node)
    rig.joined()
    return finished(rig, name, job)


def changed_address(rig: Rig, node: str, before: str, after: str) -> None:
    """The host has another address on its network from now on; connections from the old one break without a word."""
    for what in (f"addr del {before}/24", f"addr add {after}/24"):
        subprocess.run(["ip", "-n", rig.lab.space(node), *what.split(), "dev", INTERFACE], check=True)


def host_moves(rig: Rig, dice: random.Random, number: int) -> str:
    """The address of a host of the gang changes while it trains, as by DHCP, and later changes back."""
    name = f"moves-{number}"
    job = rig.submit(name)
    rig.trains(job)
    node = dice.choice(nodes_of(rig, job))
    old = rig.lab.address(node)
    new = f"{old.rpartition('.')[0]}.{100 + rig.lab.names.index(node)}"
    for before, after in ((old, new), (new, old)):
        changed_address(rig, node, before, after)
        rig.until(lambda: has_address(rig, node, after), f"{node} to be known at {after}")  # noqa: B023 - waited for here
    rig.joined()
    return finished(rig, name, job)


def has_address(rig: Rig, node: str, address: str) -> bool:
    found = rig.view().node(node)
    return found is not None and found.address == address and not found.taints


def controller_moves(rig: Rig, dice: random.Random, number: int) -> str:
    """The controller is started again at another address, and so are the agents, with that address to join."""
    name = f"relocated-{number}"
    job = rig.submit(name)
    rig.trains(job)
    old = rig.lab.address("hub")
    rig.kill_controller()
    for node in HOSTS:
        rig.kill_agent(node)
    new = f"{old.rpartition('.')[0]}.{150 + number}"
    changed_address(rig, "hub", rig.join_address.rpartition(":")[0], new)
    time.sleep(dice.choice((0, 3, rig.deadline_s + 5)))
    rig.listens_at, rig.join_address = new, f"{new}:{rig.port}"
    rig.take_over()
    for node in HOSTS:
        rig.join(node)
    rig.joined()
    return finished(rig, name, job)
