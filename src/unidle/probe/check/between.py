"""Measures between nodes and names the bad ones: run it as the one rank of each node, under any launcher.

    srun --ntasks-per-node 1 python -m unidle.probe.check.between --node $(hostname -s)

Ranks find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun. Rank 0 leads, and prints the
result in the form of ``unidle check --json``. Pairs are measured both ways at once, by TCP, or with ``--collective``
by an all-reduce of PyTorch between the two. Exit codes: 0 all are well, 1 something is bad, 2 bad input, 3 could not tell.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from unidle.probe.check.bad_pairs import (
    BadPairs,
    Pair,
    Wave,
    all_pairs,
    first_round,
    judged,
    second_round,
    verdict,
)
from unidle.probe.check.model import Check, NodeReport
from unidle.rank.probe import SECRET_VARIABLE, Failed, RankLink, Receiver, connected, listener, send

_HELLO_S: Final = 5.0
_HELLO_BYTES: Final = 4096
_MOST_SLOW: Final = 256  # pairs in a brief answer


def main(argv: Sequence[str] | None = None) -> int:
    """One rank; see the module."""
    given = _parser().parse_args(argv)
    try:
        _checked(given)
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        leader = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    except (KeyError, ValueError) as error:
        says = f"{error} is not set; start it with a launcher" if isinstance(error, KeyError) else str(error)
        print(f"unidle check: {says}", file=sys.stderr)
        return 2
    try:
        if rank:
            _follow(given, leader, rank)
            return 0
        report, found, brief = _lead(given, leader, world)
    except (Failed, OSError) as error:
        print(f"unidle check: {error}", file=sys.stderr)
        return 3
    if given.brief:
        print(json.dumps(brief))
        return report.exit_code
    told = {"node": None, "ok": report.ok, "checks": [check._asdict() for check in report.checks]}
    print(
        json.dumps(
            {**told, "bad_nodes": found.bad_nodes, "bad_links": found.bad_links, "unsure": found.unsure}
        )
    )
    return report.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unidle.probe.check.between", description=__doc__)
    parser.add_argument("--node", default=os.environ.get("UNIDLE_NODE") or socket.gethostname())
    parser.add_argument(
        "--gbps", type=float, help="what each pair must reach; default: nearly what the better half does"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement")
    parser.add_argument("--streams", type=int, default=4, help="TCP connections for each")
    parser.add_argument(
        "--wait", type=float, default=10.0, help="seconds after which a silent node counts as such"
    )
    parser.add_argument(
        "--collective", choices=("gloo", "nccl"), help="an all-reduce of PyTorch instead of TCP"
    )
    parser.add_argument("--bytes", type=int, default=64 << 20, help="size of the all-reduce")
    parser.add_argument(
        "--join", type=float, default=60.0, help="seconds that rank 0 waits for the others, and they for it"
    )
    parser.add_argument(
        "--complete", type=int, default=2, help="with at most so many nodes each pair is measured"
    )
    parser.add_argument(
        "--ports", type=_ports, help="FIRST-LAST: TCP ports that this node may listen on; default: any"
    )
    parser.add_argument(
        "--brief", action="store_true", help="print what is bad only, and the numbers of absent ranks"
    )
    return parser


def _ports(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise argparse.ArgumentTypeError("must be two ports, as 7500-7509")
    return range(int(first), int(last) + 1)


def _checked(given: argparse.Namespace) -> None:
    for name, low, high in (
        ("seconds", 0.05, 600),
        ("streams", 1, 256),
        ("wait", 0.1, 3600),
        ("join", 0.1, 3600),
        ("bytes", 4096, 1 << 34),
    ):
        if not low <= getattr(given, name) <= high:
            raise ValueError(f"--{name}: must be from {low:g} to {high:g} (got {getattr(given, name)})")
    if given.gbps is not None and not 0 < given.gbps < 1e6:
        raise ValueError(f"--gbps: must be more than 0 and at most 1e6 (got {given.gbps})")


# -- one node ----------------------------------------------------------------------------------------


def _follow(given: argparse.Namespace, leader: tuple[str, int], rank: int) -> None:
    line = RankLink(connected(leader, given.join))
    receiver = Receiver(given.ports)
    hello = {"rank": rank, "node": given.node, "host": line.link.getsockname()[0], "port": receiver.port}
    line.send({**hello, "secret": os.environ.get(SECRET_VARIABLE, "")})
    line.link.settimeout(None)  # waves of others may take long; a leader that dies closes the connection
    while not (order := line.receive()).get("end"):
        line.send(_obey(order, receiver, given))


def _obey(order: dict[str, Any], receiver: Receiver, given: argparse.Namespace) -> dict[str, Any]:
    if "count" in order:
        return {"rates": {str(flow): receiver.counted(int(flow)) for flow in order["count"]}}
    if "free_port" in order:
        with listener(given.ports) as free:
            return {"port": free.getsockname()[1]}
    if "collective" in order:
        return _collective(order["collective"])
    return {"ways": send(order, given.seconds, given.streams)}


def _collective(order: dict[str, Any]) -> dict[str, Any]:
    """One side of an all-reduce, in a process of its own: a broken one cannot be taken back inside this one."""
    command = [sys.executable, "-P", "-m", "unidle.probe.check.allreduce", "--backend", order["backend"], "--bytes", str(order["bytes"])]  # fmt: skip
    env = {**os.environ, "RANK": str(order["rank"]), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": order["host"], "MASTER_PORT": str(order["port"])}
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=order["limit_s"], check=False
        )
    except subprocess.TimeoutExpired:
        return {"rate": None}
    return {"rate": float(done.stdout) * 1e9 if done.returncode == 0 and done.stdout.strip() else None}


# -- the leader --------------------------------------------------------------------------------------


class _Own:
    """The leader's own node, asked in the same way as the others."""

    def __init__(self, given: argparse.Namespace, receiver: Receiver) -> None:
        self._given, self._receiver = given, receiver
        self._order: dict[str, Any] = {}

    def send(self, order: dict[str, Any]) -> None:
        self._order = order

    def receive(self) -> dict[str, Any]:
        return _obey(self._order, self._receiver, self._given)


class _Nodes:
    """All nodes that came; one whose connection breaks is lost and not asked again."""

    def __init__(self, given: argparse.Namespace, leader: tuple[str, int], world: int) -> None:
        server = socket.create_server(("", leader[1]), backlog=world)  # before the receiver takes its port
        receiver = Receiver(given.ports)
        own = str(given.node)
        self.lines: dict[str, RankLink | _Own] = {}
        self.seats = {own: {"rank": 0, "node": own, "host": leader[0], "port": receiver.port}}
        self.lost: dict[str, None] = {}
        self._given, self._flow, self.join_s = given, 0, given.join
        self.bar_gbps: float | None = given.gbps
        until = time.monotonic() + given.join
        with server:
            while len(self.seats) < world and time.monotonic() < until:
                server.settimeout(max(until - time.monotonic(), 0.1))
                with contextlib.suppress(TimeoutError):
                    self._take(server.accept()[0])
        here = {seat["rank"] for seat in self.seats.values()}
        self.absent = tuple(rank for rank in range(world) if rank not in here)
        self.lines[own] = _Own(given, receiver)  # last: it does its part only when it is its turn to answer

    def _take(self, link: socket.socket) -> None:
        """A rank that connected; anything else is not answered."""
        line = RankLink(link)
        link.settimeout(min(self._given.join, _HELLO_S))
        try:
            hello = line.receive(_HELLO_BYTES)
            node, rank = str(hello["node"]), int(hello["rank"])
            known = hmac.compare_digest(
                str(hello.get("secret", "")).encode(), os.environ.get(SECRET_VARIABLE, "").encode()
            )
            host, port = str(hello["host"]), int(hello["port"])
        except (OSError, Failed, ValueError, KeyError, TypeError, AssertionError):
            known = False
        if not known:
            link.close()
            return
        if node in self.seats:
            raise Failed(f"two ranks have the node name {node}: start one rank on each node")
        link.settimeout(2 * self._given.wait + self._given.seconds + (60 if self._given.collective else 0))
        self.seats[node] = {"rank": rank, "node": node, "host": host, "port": port}
        self.lines[node] = line

    def ask(self, orders: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Orders to nodes at the same time; the answers of those that gave one."""
        for node, order in orders.items():
            self._trying(node, order)
        answers = {}
        for node in sorted(orders, key=lambda node: not isinstance(self.lines.get(node), _Own)):
            if node in self.lines:
                with self._losing(node):
                    answers[node] = self.lines[node].receive()
        return answers

    def end(self) -> None:
        for line in self.lines.values():
            with contextlib.suppress(OSError):
                line.send({"end": True})

    def measure(self, wave: Wave) -> dict[Pair, float | None]:
        """Bytes a second of each pair, of the slower way; None where the two did not reach each other."""
        return self._reduced(wave) if self._given.collective else self._streamed(wave)

    def _streamed(self, wave: Wave) -> dict[Pair, float | None]:
        flows: dict[int, Pair] = {}
        for a, b in wave:
            for way in ((a, b), (b, a)):
                self._flow += 1
                flows[self._flow] = way
        ways: dict[str, int] = {}
        orders = self._orders(flows, {"ping": True, "wait_s": self._given.wait})
        for answer in self.ask(orders).values():
            ways |= answer["ways"]
        reached = {number: way for number, way in flows.items() if str(number) in ways}
        self.ask(self._orders(reached, {"ping": False}))
        counts: dict[str, dict[str, Any]] = {}
        for number, (_, target) in reached.items():
            counts.setdefault(target, {"count": []})["count"].append(number)
        rates: dict[str, float] = {}
        for answer in self.ask(counts).values():
            rates |= answer["rates"]
        by_way = {way: rates[str(number)] for number, way in reached.items() if rates.get(str(number))}
        return {
            (a, b): min(by_way[a, b], by_way[b, a]) if {(a, b), (b, a)} <= by_way.keys() else None
            for a, b in wave
        }

    def _orders(self, flows: dict[int, Pair], more: dict[str, Any]) -> dict[str, dict[str, Any]]:
        orders: dict[str, dict[str, Any]] = {}
        for number, (source, target) in flows.items():
            seat = self.seats[target]
            to = {"flow": number, "host": seat["host"], "port": seat["port"]}
            orders.setdefault(source, {**more, "send": []})["send"].append(to)
        return orders

    def _reduced(self, wave: Wave) -> dict[Pair, float | None]:
        ports = self.ask({a: {"free_port": True} for a, _ in wave})
        base = {
            "backend": self._given.collective,
            "bytes": self._given.bytes,
            "limit_s": self._given.wait + 60,
        }
        orders: dict[str, dict[str, Any]] = {}
        for a, b in wave:
            if a in ports:
                where = {"host": self.seats[a]["host"], "port": ports[a]["port"]}
                orders |= {
                    node: {"collective": {**base, **where, "rank": k}} for k, node in enumerate((a, b))
                }
        answers = self.ask(orders)
        return {(a, b): answers.get(a, {}).get("rate") for a, b in wave}

    def _trying(self, node: str, order: dict[str, Any]) -> None:
        if node in self.lines:
            with self._losing(node):
                self.lines[node].send(order)

    @contextlib.contextmanager
    def _losing(self, node: str) -> Iterator[None]:
        try:
            yield
        except (OSError, Failed, ValueError):
            self.lost[node] = None
            del self.lines[node]


def _lead(
    given: argparse.Namespace, leader: tuple[str, int], world: int
) -> tuple[NodeReport, BadPairs, dict[str, Any]]:
    """The report, what is bad, and that in brief (:class:`unidle.guard.links.LinksReport`)."""
    nodes = _Nodes(given, leader, world)
    names = sorted(nodes.seats)
    rates: dict[Pair, float | None] = {}
    least = given.gbps * 1e9 / 8 if given.gbps else None
    try:
        first = all_pairs(names) if len(names) <= given.complete else first_round(names)
        rates = _measured(nodes, first, rates, least)
        rates = _measured(nodes, second_round(names, judged(rates, least)), rates, least)
    finally:
        nodes.end()
    results = judged(rates, least)
    found = verdict(names, results)
    return (
        NodeReport("", tuple(_checks(nodes, rates, results, found)), ()),
        found,
        _brief(nodes, rates, results, found),
    )


def _brief(
    nodes: _Nodes, rates: dict[Pair, float | None], results: dict[Pair, bool | None], found: BadPairs
) -> dict[str, Any]:
    """Without what is well: the answer of a check of thousands of nodes is short."""
    slow = [[a, b, _gbps(rates[a, b])] for (a, b), well in results.items() if well is False]
    told = [rate for rate in rates.values() if rate is not None]
    return {
        "bad_nodes": found.bad_nodes,
        "bad_links": found.bad_links,
        "slow": slow[:_MOST_SLOW],
        "absent": nodes.absent,
        "least_gbps": _gbps(min(told, default=None)),
    }


def _measured(
    nodes: _Nodes, waves: Sequence[Wave], before: Mapping[Pair, float | None], least: float | None
) -> dict[Pair, float | None]:
    """All rates known after a round. A pair that did badly is measured once more: a busy moment is no fault."""
    rates = dict(before)
    for wave in waves:
        rates |= nodes.measure(wave)
    now = judged(rates, least)
    for wave in waves:
        if again := tuple(pair for pair in wave if now[pair] is False):
            for pair, rate in nodes.measure(again).items():
                rates[pair] = max(rate or 0.0, rates[pair] or 0.0) or None
    return rates


def _checks(
    nodes: _Nodes, rates: dict[Pair, float | None], results: dict[Pair, bool | None], found: BadPairs
) -> Iterator[Check]:
    if nodes.absent:
        missing = len(nodes.absent)
        yield Check("nodes", False, len(nodes.seats), "nodes", len(nodes.seats) + missing, f"{missing} did not connect within {nodes.join_s:.0f} s")  # fmt: skip
    for node in sorted(nodes.seats):
        own = {pair: rate for pair, rate in rates.items() if node in pair}
        best = max((rate for rate in own.values() if rate is not None), default=None)
        with_whom = ", ".join(f"{b if a == node else a}: {_shown(rate)}" for (a, b), rate in own.items())
        compared = any(results[pair] is not None for pair in own)
        ok = False if node in found.bad_nodes else True if node in found.good else None
        says = (
            with_whom
            if compared
            else f"{with_whom}; nothing to compare it with (set the required rate with --gbps)"
        )
        says += "; its connection broke" if node in nodes.lost else ""
        yield Check(f"node {node}", ok, _gbps(best), "Gbit/s", nodes.bar_gbps, says or "not measured")
    for a, b in found.bad_links:
        yield Check(f"link {a} {b}", False, _gbps(rates[a, b]), "Gbit/s", nodes.bar_gbps, "both nodes do well with others")  # fmt: skip
    named = set(found.bad_nodes)
    for pair, well in results.items():
        if well is False and named.isdisjoint(pair) and pair not in found.bad_links:
            says = f"one of them or the link between them is bad: {_shown(rates[pair])}"
            yield Check(f"pair {' '.join(pair)}", False, _gbps(rates[pair]), "Gbit/s", nodes.bar_gbps, says)


def _gbps(rate: float | None) -> float | None:
    return round(rate * 8 / 1e9, 6) if rate is not None else None


def _shown(rate: float | None) -> str:
    return f"{rate * 8 / 1e9:.3g} Gbit/s" if rate is not None else "not reached"


if __name__ == "__main__":
    sys.exit(main())
