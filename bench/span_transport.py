"""How much of a long, limited link the WAN transport uses, compared with gloo's send/recv and one plain TCP socket.

Two network namespaces on one switch: a rate limit in the kernel (htb), a delay by a relay of frames in user space (this
machine's kernel may have no netem), and the TCP buffers of a usual Linux (net.ipv4.tcp_wmem up to 4 MiB, tcp_rmem up to 6
MiB, set inside both namespaces) under Reno, which every kernel has. What one flow loses, it loses to those bounds. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from _table import Row, main
from unidle.drill.lab import INTERFACE, Lab

PORT = 29400
HERE = Path(__file__).resolve()
SYSCTLS = ("net.ipv4.tcp_wmem=4096 16384 4194304", "net.ipv4.tcp_rmem=4096 131072 6291456")
# Ethernet, IPv4 and TCP with timestamps: what of 1514 bytes on the wire is payload.
PAYLOAD_OF_WIRE = 1448 / 1514


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no namespace is left behind
    lab = Lab(["west", "east"])
    try:
        for name in ("west", "east"):
            own = [f"net.ipv4.tcp_congestion_control={arguments.congestion}"] if arguments.congestion else []
            for setting in (*SYSCTLS, *own):
                _in(lab, name, "sysctl", "-qw", setting)
            _in(lab, name, "ip", "link", "set", INTERFACE, "mtu", "1500")
        lab.limit("west", "east", int(arguments.gbps * 1e9))
        if arguments.delay_ms:
            lab.delay("west", "east", arguments.delay_ms)
        yield from _measured(lab, arguments)
        lab.mend("west", "east")  # the relay that delays would be in the way
        for gbps in arguments.fast:
            lab.limit("west", "east", int(gbps * 1e9))
            yield _fast(lab, arguments, gbps)
    finally:
        lab.close()


def _measured(lab: Lab, arguments: argparse.Namespace) -> Iterator[Row]:
    link = arguments.gbps * 1e9 / 8 * PAYLOAD_OF_WIRE / 1e6
    setting = f"{arguments.gbps:g} Gbit/s, {arguments.delay_ms:g} ms each way{f', {arguments.congestion}' if arguments.congestion else ''}"
    how = f"measured here, median of {arguments.runs} x {arguments.mb} MB"
    peers = {
        "one TCP socket": _rate(lab, arguments, "socket", 1),
        "gloo send/recv": _rate(lab, arguments, "gloo", 1),
    }
    for flows in (1, arguments.flows):
        ours, spread = _rate(lab, arguments, "ours", flows)
        for peer, (theirs, _) in peers.items():
            yield Row(
                what=f"{setting}: {flows} flow{'s' if flows > 1 else ''}, compared with {peer}",
                unit="MB/s",
                ours=ours,
                peer=theirs,
                peer_name=peer,
                ratio=ours / theirs,
                how=f"{how}, {spread}",
            )
        many = flows > 1
        yield Row(
            what=f"{setting}: {flows} flow{'s' if many else ''}, of the payload that the link can carry",
            unit="%",
            ours=100 * ours / link,
            goal="at least 90" if many else None,
            holds=ours >= 0.9 * link if many else None,
            how=how,
        )
    for peer, (theirs, spread) in peers.items():
        yield Row(
            what=f"{setting}: {peer}, of the same", unit="%", ours=100 * theirs / link, how=f"{how}, {spread}"
        )


def _fast(lab: Lab, arguments: argparse.Namespace, gbps: float) -> Row:
    """Without latency it is the processor that decides: ours and gloo in turns, and the ratios of the pairs."""
    pairs = [
        (_rate(lab, arguments, "ours", arguments.flows)[0], _rate(lab, arguments, "gloo", 1)[0])
        for _ in range(arguments.pairs)
    ]
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    return Row(
        what=f"{gbps:g} Gbit/s, no added latency: {arguments.flows} flows, compared with gloo send/recv (no checksums)", unit="MB/s",
        ours=statistics.median(ours for ours, _ in pairs), peer=statistics.median(theirs for _, theirs in pairs),
        peer_name="gloo send/recv", ratio=statistics.median(ratios),
        how=f"measured here, median of {len(pairs)} pairs in turns, each of {arguments.runs} x {arguments.mb} MB;"
        f" ratios {ratios[0]:.3g} to {ratios[-1]:.3g}",
    )  # fmt: skip


def _in(lab: Lab, name: str, *words: str) -> None:
    subprocess.run(["ip", "netns", "exec", lab.space(name), *words], check=True, capture_output=True)


def _rate(lab: Lab, arguments: argparse.Namespace, kind: str, flows: int) -> tuple[float, str]:
    """MB/s of one message at a time, the median after one that warms up, and its least and most."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE}
    common = [sys.executable, str(HERE), "--side"]
    plan = json.dumps(
        {
            "kind": kind,
            "flows": flows,
            "bytes": arguments.mb * 10**6,
            "runs": arguments.runs + 1,
            "address": lab.address("east"),
        }
    )
    sides = [
        subprocess.Popen(
            ["ip", "netns", "exec", lab.space(name), *common, name, plan],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in ("east", "west")
    ]
    try:
        outputs = [side.communicate(timeout=240)[0] for side in sides]
    finally:
        for side in sides:
            side.kill()
    if any(side.returncode for side in sides):
        raise SystemExit(f"bench/span_transport.py: {kind} failed")
    rates = json.loads(outputs[0])[1:]
    return statistics.median(rates), f"{min(rates):.4g} to {max(rates):.4g}"


# -- one side, in its namespace --------------------------------------------------------------------------


def side(name: str, plan: dict[str, object]) -> None:
    receives = name == "east"
    address, size, runs = str(plan["address"]), int(str(plan["bytes"])), int(str(plan["runs"]))
    run = {"ours": _ours, "gloo": _gloo, "socket": _socket}[str(plan["kind"])]
    rates = run(receives, address, size, runs, int(str(plan["flows"])))
    if receives:
        print(json.dumps(rates))


def _ours(receives: bool, address: str, size: int, runs: int, flows: int) -> list[float]:
    import time

    from unidle.span.wan import Endpoint, Settings

    settings = Settings(flows=flows)
    rates = []
    with Endpoint(
        "east" if receives else "west",
        run="bench",
        secret=b"bench",
        listen=(address, PORT) if receives else None,
        settings=settings,
    ) as endpoint:
        channel = endpoint.accept("west") if receives else endpoint.connect("east", (address, PORT))
        channel.wait_open(30)
        buffer = bytearray(size)
        done = channel.recv("done")  # now: what is asked for once the peer has closed is lost
        for _ in range(runs):
            if receives:
                got = channel.recv("data", buffer)
                begun = time.perf_counter()
                channel.send("go", b"").result(60)
                got.result(200)
                rates.append(size / (time.perf_counter() - begun) / 1e6)
            else:
                channel.recv("go").result(60)
                channel.send("data", buffer).result(200)
        channel.send("done", b"") if receives else done.result(60)
    return rates


def _socket(receives: bool, address: str, size: int, runs: int, _: int) -> list[float]:
    import socket
    import time

    buffer, rates = bytearray(size), []
    if receives:
        with socket.create_server((address, PORT)) as server:
            link = server.accept()[0]
            view = memoryview(buffer)
            with link:
                for _ in range(runs):
                    begun = time.perf_counter()
                    link.sendall(b"g")
                    got = 0
                    while got < size:
                        got += link.recv_into(view[got:])
                    rates.append(size / (time.perf_counter() - begun) / 1e6)
        return rates
    with _patient(address) as link:
        for _ in range(runs):
            link.recv(1)
            link.sendall(buffer)
        link.recv(1)
    return rates


def _patient(address: str):  # type: ignore[no-untyped-def]
    import socket
    import time

    while True:
        try:
            return socket.create_connection((address, PORT), timeout=60)
        except ConnectionRefusedError:
            time.sleep(0.05)


def _gloo(receives: bool, address: str, size: int, runs: int, _: int) -> list[float]:
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}:{PORT}", rank=0 if receives else 1, world_size=2
    )
    buffer, go, rates = torch.zeros(size, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8), []
    for _ in range(runs):
        if receives:
            begun = time.perf_counter()
            dist.send(go, 1)
            dist.recv(buffer, 1)
            rates.append(size / (time.perf_counter() - begun) / 1e6)
        else:
            dist.recv(go, 0)
            dist.send(buffer, 0)
    dist.barrier()
    dist.destroy_process_group()
    return rates


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gbps", type=float, default=1.0, help="limit of the link, 10^9 bit/s")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="added latency of each direction")
    parser.add_argument("--flows", type=int, default=8, help="flows of the many")
    parser.add_argument("--mb", type=int, default=250, help="megabytes of a message")
    parser.add_argument(
        "--congestion",
        default="reno",
        help="TCP congestion control of both namespaces, for all; empty for the kernel's own",
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--fast", type=float, nargs="*", default=[5.0, 40.0], help="limits to try without latency, 10^9 bit/s"
    )
    parser.add_argument("--pairs", type=int, default=3, help="runs of ours and of gloo in turns at those")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main("span_transport", rows, options)
