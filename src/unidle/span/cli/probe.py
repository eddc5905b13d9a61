"""``unidle span probe``: what a link between two sites can do, fitted, and stored in the fleet file."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, print_json, say, say_whole, show_table, warn
from unidle.cli.times import duration_option
from unidle.errors import BadInput, CannotRun

if TYPE_CHECKING:
    from unidle.span.model.fit import Interval, LinkModel
    from unidle.span.wan.probe import PathSample

_SECRET_VARIABLE = "UNIDLE_SPAN_SECRET"  # noqa: S105


def probe(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="serve|HOST:PORT",
            show_default=False,
            help="`serve` to answer measurements, or the address of a host that runs `serve`.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="With serve: port to listen on; 0: any.")
    ] = 29480,
    bind: Annotated[
        str, typer.Option(metavar="ADDRESS", help="With serve: address to listen on.")
    ] = "0.0.0.0",  # noqa: S104
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar=_SECRET_VARIABLE,
            show_default=False,
            help="Shared secret of both sides; serve generates one.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from-netns",
            "--from",
            metavar="NETNS",
            show_default=False,
            help="Measure from this network namespace.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to-netns",
            "--to",
            metavar="NETNS",
            show_default=False,
            help="Measure to this network namespace.",
        ),
    ] = None,
    seconds: Annotated[
        float,
        duration_option("--seconds", text="Duration for each number of flows.", least=0.2, most=600),
    ] = 2.0,
    pings: Annotated[int, typer.Option(metavar="N", min=5, max=100_000, help="Number of round trips.")] = 100,
    flows: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Largest number of flows.")] = 64,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the intervals.")] = 0,
    write: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Store the link in this fleet file; needs --pair."
        ),
    ] = None,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            show_default=False,
            help="Two sites, tiers or nodes of the fleet file that the link joins.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure latency, capacity and loss of a link. Capacity is measured with 1, 2, 4 flows and so on."""
    if (write is None) != (pair is None):
        raise BadInput(
            "belong together", field="--write, --pair", remedy="give both, for instance --pair site-a site-b"
        )
    if write is not None and pair is not None:
        from unidle.files.fleet_measured import check_pair

        check_pair(write, pair)  # before minutes are spent
    if source is not None or to is not None:
        measured = _between_spaces(source, to, target, seconds, pings, flows, quiet=as_json)
    elif target == "serve":
        _serve(bind, port, secret)
        return
    else:
        measured = _measure(_address(target), _known(secret), seconds, pings, flows, quiet=as_json)
    _report(measured, seed, write, pair, as_json=as_json)


def _serve(bind: str, port: int, secret: str | None) -> None:
    from unidle.span.wan.api import PortTaken
    from unidle.span.wan.probe import Served

    known = secret or secrets.token_hex(16)
    try:
        served = Served((bind, port), known.encode())
    except PortTaken as error:
        raise BadInput(str(error), field="--port", value=port, remedy="name another with --port") from None
    say(f"serving on {served.address[0]}:{served.address[1]}; on the other host:")
    say_whole(f"  {_SECRET_VARIABLE}={known} unidle span probe {os.uname().nodename}:{served.address[1]}")
    try:
        served.wait()
    finally:
        served.close()


def _known(secret: str | None) -> bytes:
    if not secret:
        raise BadInput(
            "is needed",
            field="--secret",
            remedy=f"set {_SECRET_VARIABLE} as `unidle span probe serve` on the other host prints it",
        )
    return secret.encode()


def _address(target: str | None) -> tuple[str, int]:
    host, _, port = (target or "").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(
            "must be `serve`, or HOST:PORT of a host that serves", field="TARGET", value=target,
            remedy="or give two namespaces with --from-netns and --to-netns",
        )  # fmt: skip
    return host.strip("[]"), int(port)


def _measure(
    address: tuple[str, int], secret: bytes, seconds: float, pings: int, flows: int, *, quiet: bool
) -> PathSample:
    from unidle.span.model.fit import grows
    from unidle.span.rank.environment import congestion_of_run
    from unidle.span.wan.api import WanError
    from unidle.span.wan.probe import measure

    try:
        return measure(
            address, secret, seconds=seconds, pings=pings, most_flows=flows, grows=grows, congestion=congestion_of_run(),
            told=(lambda _: None) if quiet else warn,
        )  # fmt: skip
    except WanError as error:
        raise CannotRun(f"the probe of {address[0]}:{address[1]} failed: {error}") from None


def _between_spaces(
    source: str | None,
    to: str | None,
    target: str | None,
    seconds: float,
    pings: int,
    flows: int,
    *,
    quiet: bool,
) -> PathSample:
    from unidle.engine.local.ranks import netns
    from unidle.span.wan.probe import Served

    if source is None or to is None or target is not None:
        raise BadInput(
            "two namespaces are measured together",
            field="--from-netns, --to-netns",
            remedy="give both, and no HOST:PORT",
        )
    secret = secrets.token_bytes(16)
    try:
        host = _only_address(to)
        served = netns.within(to, lambda: Served((host, 0), secret))
    except OSError as error:
        raise CannotRun(
            f"namespace {error.filename or to}: {error.strerror or error}",
            remedy="`ip netns` lists them; run as root",
        ) from None
    try:
        return netns.within(
            source, lambda: _measure(served.address, secret, seconds, pings, flows, quiet=quiet)
        )
    except OSError as error:
        raise CannotRun(
            f"namespace {error.filename or source}: {error.strerror or error}",
            remedy="`ip netns` lists them; run as root",
        ) from None
    finally:
        served.close()


def _only_address(space: str) -> str:
    """The first IPv4 address of a namespace that is not the loopback's."""
    import fcntl
    import socket
    import struct

    from unidle.engine.local.ranks import netns

    def find() -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            for _, interface in socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(
                        asked.fileno(), netns.SIOCGIFADDR, struct.pack("256s", interface.encode()[:15])
                    )
                except OSError:
                    continue  # it has no address
                if interface != "lo":
                    return socket.inet_ntoa(answer[20:24])
        return ""

    found = netns.within(space, find)
    if not found:
        raise CannotRun(
            f"namespace {space} has no IPv4 address", remedy="give it one: ip -n NAMESPACE addr add ..."
        )
    return found


def _report(
    measured: PathSample, seed: int, write: str | None, pair: tuple[str, str] | None, *, as_json: bool
) -> None:
    from unidle.span.model.fit import FlowRates, fit, link_of

    rates = [FlowRates(flows, tries) for flows, tries in measured.rates.items()]
    model = fit(measured.round_trips_ns, rates, seed)
    loss = measured.retransmitted / max(measured.segments, 1)
    if write is not None and pair is not None:
        from unidle.files.fleet_measured import store_link

        store_link(write, link_of(*pair, model, loss))
    if as_json:
        print_json(_as_data(measured, model, loss))
        return
    say(
        f"round trip  {_ms(model.latency_ns)}; p99 {model.p99_ns / 1e6:.3f} ms, jitter {model.jitter_ns / 1e6:.3f} ms"
    )
    say(f"capacity    {_mbps(model.capacity_bps)}")
    say(f"one flow    {_mbps(model.flow_bps)}, a window of {model.window_bits.value / 1e6:.2f} Mbit")
    say(f"loss        {loss:.4%} of {measured.segments:,} segments were sent again")
    lines = [
        [
            str(each.flows),
            f"{sum(each.bits_per_s) / len(each.bits_per_s) / 1e6:.1f}",
            f"{model.rate_bps(each.flows) / 1e6:.1f}",
        ]
        for each in rates
    ]
    show_table(["flows", "Mbit/s", "model"], lines)
    if write is not None and pair is not None:
        say(f"{write}: the link {pair[0]} to {pair[1]} is stored")


def _as_data(measured: PathSample, model: LinkModel, loss: float) -> dict[str, Any]:
    def told(interval: Interval) -> dict[str, float]:
        return {"value": interval.value, "low": interval.low, "high": interval.high}

    return {
        "latency_ns": told(model.latency_ns),
        "p99_ns": model.p99_ns,
        "jitter_ns": model.jitter_ns,
        "capacity_bps": told(model.capacity_bps),
        "flow_bps": told(model.flow_bps),
        "window_bits": told(model.window_bits),
        "loss": loss,
        "segments": measured.segments,
        "retransmitted": measured.retransmitted,
        "rates_bps": {str(flows): list(tries) for flows, tries in measured.rates.items()},
    }


def _ms(interval: Interval) -> str:
    return f"{interval.value / 1e6:.3f} ms ({interval.low / 1e6:.3f} to {interval.high / 1e6:.3f})"


def _mbps(interval: Interval) -> str:
    return f"{interval.value / 1e6:.1f} Mbit/s ({interval.low / 1e6:.1f} to {interval.high / 1e6:.1f})"
