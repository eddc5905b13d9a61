"""One message over the links of a whole cell, scattered and gathered, compared with the same message over one link alone.

Two nodes at each of two sites, a network namespace for each: a rate limit in the kernel (htb) on each pair's link, a delay by
a relay of frames in user space, no limit within a site. Many small messages too, where what a piece costs counts. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from _table import Row, main
from unidle.drill.lab import Lab
from unidle.span.wan import CellChannel, Channel, Endpoint, Settings, WanError

PORT = 29400
HERE = Path(__file__).resolve()
NODES = ("west0", "west1", "east0", "east1")
PAYLOAD_OF_WIRE = 1448 / 1514  # of an Ethernet frame of 1514 bytes with IPv4, TCP and timestamps


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no namespace is left behind
    lab = Lab(NODES)
    try:
        for name in NODES:
            _in(lab, name, "ip", "link", "set", "eth0", "mtu", "1500")
        for k in range(2):
            lab.limit(f"west{k}", f"east{k}", int(arguments.mbps * 1e6))
            lab.delay(f"west{k}", f"east{k}", arguments.delay_ms)
        yield from _measured(lab, arguments)
    finally:
        lab.close()


def _measured(lab: Lab, arguments: argparse.Namespace) -> Iterator[Row]:
    both = 2 * arguments.mbps / 8 * PAYLOAD_OF_WIRE
    setting = f"two links of {arguments.mbps:g} Mbit/s, {arguments.delay_ms:g} ms each way"
    for count, size in ((1, arguments.mb * 10**6), (64, arguments.mb * 10**6 // 64)):
        what = f"{count} x {size / 1e6:.3g} MB"
        alone, alone_spread = _rate(lab, arguments, "link", count, size)
        cell, spread = _rate(lab, arguments, "cell", count, size)
        how = f"measured here, median of {arguments.runs}, {spread}; alone {alone_spread}"
        yield Row(
            what=f"{setting}: {what} scattered over both and gathered, compared with one link alone", unit="MB/s",
            ours=cell, peer=alone, peer_name="one link", ratio=cell / alone, goal="at least 1.6 x one link",
            holds=cell >= 1.6 * alone, how=how,
        )  # fmt: skip
        yield Row(
            what=f"{setting}: {what}, of the payload that both can carry", unit="%", ours=100 * cell / both, how=how,
        )  # fmt: skip


def _in(lab: Lab, name: str, *words: str) -> None:
    subprocess.run(["ip", "netns", "exec", lab.space(name), *words], check=True, capture_output=True)


def _rate(lab: Lab, arguments: argparse.Namespace, kind: str, count: int, size: int) -> tuple[float, str]:
    """MB/s from ``west0`` to ``east0``: the median after one run that warms up, its least and most."""
    addresses = {name: lab.address(name) for name in NODES}
    plan = {"kind": kind, "count": count, "bytes": size, "runs": arguments.runs + 1, "addresses": addresses}
    sides = {
        name: subprocess.Popen(
            ["ip", "netns", "exec", lab.space(name), sys.executable, str(HERE), "--side", name, json.dumps(plan)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for name in (NODES if kind == "cell" else ("west0", "east0"))
    }  # fmt: skip
    try:
        outputs = {name: side.communicate(timeout=120)[0] for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.kill()
    if any(side.returncode for side in sides.values()):
        raise SystemExit(f"bench/span_cell.py: {kind} failed")
    rates = json.loads(outputs["east0"])[1:]
    return statistics.median(rates), f"{min(rates):.4g} to {max(rates):.4g}"


# -- one node, in its namespace --------------------------------------------------------------------------


def side(name: str, plan: dict[str, object]) -> None:
    site, place = name[:-1], int(name[-1])
    addresses = plan["addresses"]
    assert isinstance(addresses, dict)
    with Endpoint(
        name, run="bench", secret=b"bench", listen=(addresses[name], PORT), settings=Settings(flows=4)
    ) as end:

        def joined(other: str) -> Channel:
            """West connects, and within a site the first one."""
            first = name < other if site == other[:-1] else site == "west"
            return end.connect(other, (addresses[other], PORT)) if first else end.accept(other)

        link: Channel | CellChannel = joined(f"{'east' if site == 'west' else 'west'}{place}")
        if plan["kind"] == "cell":
            assert isinstance(link, Channel)
            link = CellChannel(place, link, {1 - place: joined(f"{site}{1 - place}")}, piece_bytes=256 << 10)
        if place:
            assert isinstance(link, CellChannel)
            with contextlib.suppress(WanError):  # who is done takes the cell along
                link.recv("never", bytearray(1)).result(110)
            return
        with contextlib.suppress(WanError):
            _run(
                link, site == "east", int(str(plan["count"])), int(str(plan["bytes"])), int(str(plan["runs"]))
            )
        if isinstance(link, CellChannel):
            link.close()


def _run(link: Channel | CellChannel, receives: bool, count: int, size: int, runs: int) -> None:
    buffers, rates = [bytearray(size) for _ in range(count)], []
    done = link.recv("done", bytearray(1))  # now: what is asked for once the peer has closed is lost
    for _ in range(runs):
        if receives:
            got = [link.recv(f"data.{k}", buffer) for k, buffer in enumerate(buffers)]
            begun = time.perf_counter()
            link.send("go", b"g")
            for future in got:
                future.result(100)
            rates.append(count * size / (time.perf_counter() - begun) / 1e6)
        else:
            link.recv("go", bytearray(1)).result(100)
            for k, buffer in enumerate(buffers):
                link.send(f"data.{k}", buffer)
    if receives:
        print(json.dumps(rates), flush=True)
        link.send("done", b"d").result(100)
    else:
        done.result(100)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mbps", type=float, default=250.0, help="limit of each link, 10^6 bit/s")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="added latency of each direction")
    parser.add_argument("--mb", type=int, default=32, help="megabytes of all messages of a run")
    parser.add_argument("--runs", type=int, default=7)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main("span_cell", rows, options)
