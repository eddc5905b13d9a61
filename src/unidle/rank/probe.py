"""Measures links between nodes: run it as the one rank of each node, under any launcher.

    torchrun --nnodes 4 --nproc-per-node 1 ... -m unidle.rank.probe plan.json --out result.json

The plan is what ``unidle fleet probe plan`` printed. Ranks find each other by MASTER_ADDR and MASTER_PORT. Each
rank reports its node: ``--node``, else the environment's UNIDLE_NODE, else its host name. Rank 0 leads: it
assigns senders and receivers, and writes the counts of the receivers.

TCP with ``--streams`` connections for each flow. That is what gloo and NCCL over sockets can use; a fabric
of its own protocol (InfiniBand verbs, NVLink) has to be declared instead.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import socket
import struct
import sys
import threading
import time
from typing import Any

from unidle.atomic import replaced

BLOCK = 1 << 20
SETTLE = 0.25  # part of a flow that is not counted: connections find their rate
PINGS = 50
WAIT_S = 120.0
SECRET_VARIABLE = "UNIDLE_BETWEEN_SECRET"  # noqa: S105 - the name of a variable
"""What the ranks of a check between nodes have in common, so that rank 0 does not take a stranger for one of them."""
_HEAD = struct.Struct("!cI")  # what it is (d: data, p: ping), and the flow's number


class Failed(Exception):
    """An error, as one line for the user."""


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 1 a rank was lost, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m unidle.rank.probe", description=__doc__, add_help=True)
    parser.add_argument("plan", help="the plan's file")
    parser.add_argument("--out", default="-", help="where rank 0 writes the result; - is standard output")
    parser.add_argument("--node", default=os.environ.get("UNIDLE_NODE") or socket.gethostname())
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each flow")
    parser.add_argument("--streams", type=int, default=4, help="connections for each flow")
    given = parser.parse_args(argv)
    try:
        if not 0.05 <= given.seconds <= 600 or not 1 <= given.streams <= 256:
            raise SystemExit("unidle probe: --seconds must be 0.05 to 600, --streams 1 to 256")
        rank, world = _number("RANK"), _number("WORLD_SIZE")
        leader = (_needed("MASTER_ADDR"), _number("MASTER_PORT"))
        if rank == 0:
            _lead(given, leader, world)
        else:
            _follow(given, leader, rank)
    except (Failed, OSError, ValueError, KeyError) as error:
        print(f"unidle probe: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError | KeyError) else 1
    return 0


def _needed(name: str) -> str:
    if not os.environ.get(name):
        raise ValueError(f"{name} is not set; start it with unidle run, torchrun or another launcher")
    return os.environ[name]


def _number(name: str) -> int:
    return int(_needed(name))


# -- one line of JSON at a time -------------------------------------------------------------------------


class RankLink:
    """A connection that carries JSON lines."""

    def __init__(self, link: socket.socket) -> None:
        link.settimeout(WAIT_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link, self._file = link, link.makefile("r", encoding="utf-8")

    def send(self, what: dict[str, Any]) -> None:
        self.link.sendall(json.dumps(what).encode() + b"\n")

    def receive(self, most_chars: int = -1) -> dict[str, Any]:
        text = self._file.readline(most_chars)
        if not text:
            raise Failed("a rank ended before the end of the measurement")
        found = json.loads(text)
        assert isinstance(found, dict)
        return found


# -- receiving and sending -------------------------------------------------------------------------------


def listener(ports: range | None = None, backlog: int = 1024) -> socket.socket:
    """A server on any free port, or on the first free one of ``ports``. Errors: OSError."""
    for port in ports or (0,):
        try:
            return socket.create_server(("", port), backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(
        f"all ports from {ports.start} to {ports.stop - 1} are in use" if ports else "no port is free"
    )


class Receiver:
    """Counts what arrives, by flow, in the part of the time that counts. ``ports``: on which it may listen."""

    def __init__(self, ports: range | None = None) -> None:
        self._socket = listener(ports)
        self.port = int(self._socket.getsockname()[1])
        self._lock = threading.Lock()
        self._counted: dict[int, list[int]] = {}  # bytes, first and last time in ns
        self._windows: dict[int, int] = {}  # from when on arrivals count
        threading.Thread(target=self._accept, daemon=True).start()

    def counted(self, flow: int) -> float:
        """Bytes a second of one flow."""
        with self._lock:
            size, first, last = self._counted.get(flow, [0, 0, 0])
        return size * 1e9 / (last - first) if last > first else 0.0

    def _accept(self) -> None:
        while True:
            link, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link:
            head = link.recv(_HEAD.size, socket.MSG_WAITALL)
            if len(head) < _HEAD.size:
                return
            what, flow = _HEAD.unpack(head)
            if what == b"p":
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while byte := link.recv(1):
                    link.sendall(byte)
                return
            settle = struct.unpack("!Q", link.recv(8, socket.MSG_WAITALL))[0]
            buffer = bytearray(BLOCK)
            with self._lock:
                begin = self._windows.setdefault(flow, time.monotonic_ns() + settle)
            while size := link.recv_into(buffer):
                now = time.monotonic_ns()
                if now < begin:
                    continue
                with self._lock:
                    found = self._counted.setdefault(flow, [0, begin, now])
                    found[0] += size
                    found[2] = max(found[2], now)


def _ping(address: tuple[str, int], flow: int, wait_s: float = WAIT_S) -> int:
    """Half of the median round trip, in ns."""
    times = []
    with socket.create_connection(address, timeout=wait_s) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(_HEAD.pack(b"p", flow))
        for _ in range(PINGS):
            begin = time.monotonic_ns()
            link.sendall(b"x")
            if not link.recv(1):
                raise ConnectionResetError("the other end closed the connection")
            times.append(time.monotonic_ns() - begin)
    times.sort()
    return times[len(times) // 2] // 2


def _stream(address: tuple[str, int], flow: int, seconds: float) -> None:
    block = memoryview(bytes(BLOCK))
    with socket.create_connection(address, timeout=WAIT_S) as link:
        link.sendall(_HEAD.pack(b"d", flow) + struct.pack("!Q", int(seconds * SETTLE * 1e9)))
        end = time.monotonic() + seconds
        link.settimeout(max(seconds, 1.0))
        try:
            while time.monotonic() < end:
                link.send(block)
        except (TimeoutError, ConnectionError):
            return  # the receiver's count tells


def send(order: dict[str, Any], seconds: float, streams: int) -> dict[str, int]:
    """Carry out one phase's flows; the one-way time of each, by number.

    Where the order has ``wait_s``, a flow whose other end does not answer in that time is left out of the answer;
    without it that is an error.
    """
    if "wait_s" in order and order["ping"]:
        return _those_that_answer(order)
    flows = [(int(f["flow"]), (str(f["host"]), int(f["port"]))) for f in order["send"]]
    ways = {str(flow): _ping(address, flow) for flow, address in flows} if order["ping"] else {}
    if not order["ping"]:
        threads = [
            threading.Thread(target=_stream, args=(address, flow, seconds), daemon=True)
            for flow, address in flows
            for _ in range(streams)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return ways


def _those_that_answer(order: dict[str, Any]) -> dict[str, int]:
    ways = {}
    for flow in order["send"]:
        with contextlib.suppress(OSError):
            ways[str(flow["flow"])] = _ping(
                (str(flow["host"]), int(flow["port"])), int(flow["flow"]), order["wait_s"]
            )
    return ways


# -- the two roles ---------------------------------------------------------------------------------------


def _follow(given: argparse.Namespace, leader: tuple[str, int], rank: int) -> None:
    line = RankLink(connected(leader))
    receiver = Receiver()
    own = line.link.getsockname()[0]
    line.send({"rank": rank, "node": given.node, "host": own, "port": receiver.port})
    while True:
        order = line.receive()
        if order.get("end"):
            if order.get("problem"):
                raise Failed(str(order["problem"]))
            return
        if "count" in order:
            line.send({"rates": {str(flow): receiver.counted(int(flow)) for flow in order["count"]}})
        else:
            line.send({"ways": send(order, given.seconds, given.streams)})


def connected(leader: tuple[str, int], wait_s: float = WAIT_S) -> socket.socket:
    end = time.monotonic() + wait_s
    while True:
        try:
            return socket.create_connection(leader, timeout=5)
        except OSError:
            if time.monotonic() > end:
                raise Failed(f"rank 0 does not answer at {leader[0]}:{leader[1]}") from None
            time.sleep(0.1)


def _lead(given: argparse.Namespace, leader: tuple[str, int], world: int) -> None:
    with open(given.plan, encoding="utf-8") as file:
        plan = json.load(file)
    receiver = Receiver()
    server = socket.create_server(("", leader[1]), backlog=world)
    server.settimeout(WAIT_S)
    me = {"rank": 0, "node": given.node, "host": leader[0], "port": receiver.port}
    lines: dict[str, RankLink] = {}
    seats = {str(given.node): me}
    try:
        while len(seats) < world:
            link, _ = server.accept()
            line = RankLink(link)
            hello = line.receive()
            if hello["node"] in seats:
                raise Failed(f"two ranks have the node name {hello['node']}: start one rank on each node")
            seats[str(hello["node"])], lines[str(hello["node"])] = hello, line
        missing = sorted(set(plan["nodes"]) - set(seats))
        if missing:
            raise Failed(
                f"no rank is on node {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else "")
            )
        result = [_phase(given, phase, seats, lines, receiver) for phase in plan["phases"]]
    except TimeoutError:
        _end(lines, "ranks are missing")
        raise Failed(f"{len(seats)} of {world} ranks connected within {WAIT_S:.0f} s") from None
    except Failed as error:
        _end(lines, str(error))
        raise
    finally:
        server.close()
    _end(lines, None)
    text = json.dumps({"format": "unidle-probe", "version": 1, "phases": result})
    if given.out == "-":
        print(text)
    else:
        with replaced(given.out, 0o666, umask=True) as file:
            file.write(f"{text}\n".encode())


def _end(lines: dict[str, RankLink], problem: str | None) -> None:
    for line in lines.values():
        try:
            line.send({"end": True, "problem": problem})
        except OSError:
            continue


def _phase(
    given: argparse.Namespace, phase: dict[str, Any], seats: dict[str, dict[str, Any]], lines: dict[str, RankLink],
    receiver: Receiver,
) -> dict[str, Any]:  # fmt: skip
    """First the round trips, with nothing else on the wire, then all flows at once."""
    first = phase["first"]
    flows = list(enumerate(phase["flows"], first))
    ways: dict[str, int] = {}
    for ping in (True, False):
        orders: dict[str, list[dict[str, Any]]] = {}
        for number, (source, target, *_) in flows:
            seat = seats[target]
            orders.setdefault(source, []).append({"flow": number, "host": seat["host"], "port": seat["port"]})
        for node, flows_out in orders.items():
            if node in lines:
                lines[node].send({"send": flows_out, "ping": ping})
        if str(given.node) in orders:
            mine = {"send": orders[str(given.node)], "ping": ping}
            ways |= send(mine, given.seconds, given.streams)
        for node in orders:
            if node in lines:
                ways |= lines[node].receive()["ways"]
    rates: dict[str, float] = {}
    for node in {target for _, (_, target, *_) in flows}:
        numbers = [number for number, flow in flows if flow[1] == node]
        if node in lines:
            lines[node].send({"count": numbers})
            rates |= lines[node].receive()["rates"]
        else:
            rates |= {str(number): receiver.counted(number) for number in numbers}
    measured = [[rates[str(number)], ways[str(number)]] for number, _ in flows]
    return {"kind": phase["kind"], "flows": phase["flows"], "measured": measured}


if __name__ == "__main__":
    sys.exit(main())
