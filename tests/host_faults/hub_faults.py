"""What is wrong with what is sent to a hub. Each makes one fault next to a gang that trains, and returns how that ended."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from host_faults.frame_proxy import FrameProxy
from host_faults.network_faults import finished, nodes_of
from host_faults.rig import DEADLINE_S, HOSTS, PORT, Rig
from hub.dialer import RawClient
from unidle import wire
from unidle.engine.local.ranks import netns

SILENT = 1000
CHANGED = 30  # frames, after the gang has begun to train
PROXY_PORT = 7412


@contextmanager
def rig_behind_proxy(place: Path, deadline_s: int = DEADLINE_S) -> Iterator[Rig]:
    """Hosts that dial a proxy, which dials the controller."""
    with contextlib.ExitStack() as stack:
        rig = Rig(place, stack, deadline_s)
        rig.serve()
        rig.proxy = stack.enter_context(contextlib.closing(proxy_of(rig)))
        rig.join_address, rig.join_file = rig.proxy.address, rig.proxy.join_file
        for node in HOSTS:
            rig.join(node)
        rig.joined()
        yield rig


def proxy_of(rig: Rig) -> FrameProxy:
    address = rig.lab.address("hub")
    return FrameProxy(
        rig.place / "proxy",
        rig.lab.space("hub"),
        address,
        PROXY_PORT,
        (address, PORT),
        rig.state / "hub" / "join",
        1,
    )


def bad_frames(rig: Rig, dice: random.Random, number: int) -> str:
    """A gang starts and trains while frames of all hosts, in both directions, are repeated, reordered, cut and invented."""
    name = f"frames-{number}"
    rig.proxy.active = True
    job = rig.submit(name)
    rig.trains(job)
    before = rig.proxy.done.total()
    rig.until(lambda: rig.proxy.done.total() >= before + CHANGED, "frames to be changed")
    rig.proxy.active = False
    rig.joined()
    return finished(rig, name, job)


def _hub_of(rig: Rig) -> Any:
    """What a client of tests needs to know of a hub that runs elsewhere."""
    known = json.loads((rig.state / "hub" / "join").read_text())
    return SimpleNamespace(
        addresses=[(rig.lab.address("hub"), PORT)], authority=known["authority"], join=known["token"],
        box_token=lambda _node, _job: "0" * 64,
    )  # fmt: skip


def _dialled(rig: Rig, node: str) -> RawClient:
    return netns.within(rig.lab.space(node), lambda: RawClient(_hub_of(rig), rig.lab.address(node)))


def strangers(rig: Rig, dice: random.Random, number: int) -> str:
    """Wrong tokens, tokens of others, versions that are too old or too new, and bytes that are no frames, for a while."""
    name = f"strangers-{number}"
    job = rig.submit(name)
    rig.trains(job)
    [node, *_] = nodes_of(rig, job)
    box = json.loads((rig.place / node / "boxes" / job / "box.json").read_text())["token"]
    agent = json.loads((rig.place / node / "agent.json").read_text())["token"]
    other = next(one for one in HOSTS if one != node)
    hellos: list[dict[str, Any]] = [
        {"node": node, "job": job},  # no token that is one
        {"node": other, "job": job, "token": box},  # of another node
        {"node": node, "job": "another-job", "token": box},
        {"node": node, "job": job, "token": agent},
        {"kind": "agent", "node": other, "token": agent},
        {"kind": "agent", "node": node, "token": _hub_of(rig).join},  # of a name that has joined
        {"node": node, "job": job, "token": box, "v": wire.VERSION - 2},
        {"node": node, "job": job, "token": box, "v": wire.VERSION + 2},
    ]
    for hello in [*hellos, *dice.sample(hellos, len(hellos))]:
        with _dialled(rig, "n3") as client:
            answer = client.tls().hello(**hello)
            assert answer["f"] == wire.REFUSED, (hello, answer)
    for _ in range(40):
        with _dialled(rig, "n3") as client, contextlib.suppress(OSError, EOFError):
            if dice.random() < 0.7:
                client.tls()
            client.sock.sendall(dice.randbytes(dice.randrange(1, 100_000)))
    return finished(rig, name, job)


def silent_connections(rig: Rig, dice: random.Random, number: int) -> str:
    """1,000 connections say nothing, from all hosts and as fast as they can be made, while a gang starts and a host joins again."""
    name = f"silent-{number}"
    node = dice.choice(HOSTS)
    rig.agents[node].terminate()
    assert rig.agents[node].wait(60) == 0
    with contextlib.ExitStack() as held:
        for count in range(SILENT):
            held.enter_context(_silent(rig, HOSTS[count % len(HOSTS)]))
        rig.join(node)
        job = rig.submit(name)
        rig.joined()
        rig.trains(job)
    return finished(rig, name, job)


def _silent(rig: Rig, node: str) -> socket.socket:
    """A connection on which nothing is sent; it may also still be waiting to be taken."""

    def dial() -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((rig.lab.address("hub"), PORT))
        return sock

    return netns.within(rig.lab.space(node), dial)
