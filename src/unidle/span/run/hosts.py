"""Where the devices of a run are: loopback, network namespaces with limited links, or the hosts of a fleet."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path as FilePath
from typing import Final

from unidle.drill.lab import INTERFACE, Lab
from unidle.errors import BadInput, CannotRun
from unidle.span.model.link import Path, shortest
from unidle.span.model.setting import Setting
from unidle.span.plan.run_plan import Address
from unidle.span.rank.member import dashed
from unidle.words import counted

PORT: Final = 29400
_AT: Final = "@"  # between a site and its host: no name of a site holds it
_SPACES: Final = FilePath("/run/netns")
PORT_MOST: Final = 60_000
# Ethernet, IPv4 and TCP with timestamps: a link's capacity is what it carries of payload, as `unidle span probe` measures it.
WIRE_OF_PAYLOAD: Final = 1514 / 1448
LOCAL_MOST_GBPS: Final = 20.0  # namespaces of one machine carry little more, and a limit costs some of it
LAB_MOST: Final = 200  # devices, each with a namespace and an address of one /24


@dataclass(frozen=True, slots=True)
class RunHosts:
    """``addresses`` of all devices; ``nodes``: those that this machine starts, as of a fleet file; ``how`` in words."""

    addresses: Mapping[str, Address]
    nodes: tuple[dict[str, object], ...]
    how: str
    lab: Lab | None = None
    missing: tuple[str, ...] = field(default_factory=tuple)


def devices_of(setting: Setting) -> list[str]:
    """All devices, pipeline by pipeline."""
    return [setting.device(p, s) for p in range(setting.pipelines) for s in range(len(setting.stages))]


def why_no_namespaces() -> str | None:
    """Why links cannot be given limits on this machine."""
    if os.geteuid() != 0:
        return "it needs root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"it needs iproute2 ({' and '.join(missing)})" if missing else None


@contextmanager
def hosts_of_machine(setting: Setting, device: str, namespaces: bool | None) -> Iterator[RunHosts]:
    """This machine as all sites. ``namespaces``: None for where there are links and they can be made.

    Errors: :class:`unidle.errors.CannotRun`.
    """
    why = why_no_namespaces()
    if namespaces and why is not None:
        raise CannotRun(
            f"namespaces are not possible here: {why}", field="--namespaces",
            remedy="run as root with iproute2 installed, or leave the option out: loopback has no limits",
        )  # fmt: skip
    wanted = bool(setting.links) if namespaces is None else namespaces
    names = devices_of(setting)
    if not wanted or why is not None:
        missing = (f"the links have no latency and no limits: {why}",) if wanted and why else ()
        yield RunHosts(_loopback(names), _nodes(names, device), "loopback, without limits", None, missing)
        return
    if len(names) > LAB_MOST:
        raise CannotRun(
            f"{counted(len(names), 'device')} are more than the {LAB_MOST} namespaces of one machine",
            field="pipelines", remedy="use fewer, or --no-namespaces",
        )  # fmt: skip
    _sweep()
    with ExitStack() as stack:
        lab = Lab([dashed(name) for name in names])
        stack.callback(lab.close)
        _shape(lab, setting)
        nodes = tuple(
            {**node, "address": lab.address(str(node["id"])), "netns": lab.space(str(node["id"]))}
            for node in _nodes(names, device)
        )
        addresses = {name: (lab.address(dashed(name)), PORT) for name in names}
        how = f"{counted(len(names), 'network namespace')}, links limited by htb, latency by a relay in user space"
        yield RunHosts(addresses, nodes, how, lab)


def _sweep() -> None:
    """Namespaces of runs that were killed: they are called by the process that made them."""
    for entry in list(_SPACES.iterdir()) if _SPACES.is_dir() else ():
        found = re.fullmatch(r"ud(\d+)-.+", entry.name)
        if found is not None and not FilePath(f"/proc/{found[1]}").exists():
            subprocess.run(["ip", "netns", "del", entry.name], check=False, capture_output=True)


def path_between(setting: Setting, a: str, b: str) -> Path | None:
    """The direct link of two sites, else the way of least latency."""
    direct = [link for link in setting.links if {link.a, link.b} == {a, b}]
    return Path((direct[0],)) if direct else shortest(setting.links, a, b)


def _shape(lab: Lab, setting: Setting) -> None:
    """Latency and capacity of the file: between nodes of one pipeline, each pair; within a site, of each node to all others."""
    for name in lab.names:  # frames of a usual size, so that a limit is a stream and not a few large lumps
        command = ["ip", "-n", lab.space(name), "link", "set", INTERFACE, "mtu", "1500"]
        subprocess.run(command, check=True, capture_output=True)
    for pipeline in range(setting.pipelines):
        for s, t in combinations(range(len(setting.stages)), 2):
            a, b = (setting.sites[setting.site_of[k]].name for k in (s, t))
            path = path_between(setting, a, b) if a != b else None
            if path is None:
                continue
            one, other = (dashed(setting.device(pipeline, k)) for k in (s, t))
            lab.limit(one, other, round(path.rate_gbps(None) * 1e9 * WIRE_OF_PAYLOAD))
            if path.latency_ns:
                lab.delay(one, other, path.latency_ns / 1e6)
    if setting.local is None or setting.local > LOCAL_MOST_GBPS:
        return
    for k in range(len(setting.sites)):
        stages = [s for s, site in enumerate(setting.site_of) if site == k]
        nodes = [dashed(setting.device(p, s)) for p in range(setting.pipelines) for s in stages]
        lab.limit_among(nodes, round(setting.local * 1e9 * WIRE_OF_PAYLOAD))


def _nodes(names: list[str], device: str, first: int = 0) -> tuple[dict[str, object], ...]:
    kind: dict[str, object] = {"count": 1, "kind": "gpu" if device == "cuda" else "cpu"}
    return tuple(
        {"id": dashed(name), "devices": kind | ({"number": first + k} if device == "cuda" else {})}
        for k, name in enumerate(names)
    )


def _loopback(names: list[str]) -> dict[str, Address]:
    """Ports that were free a moment ago, so that several runs find their own."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return {name: ("127.0.0.1", port) for name, port in zip(names, ports, strict=True)}


def launchers(setting: Setting, hosts: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Who starts which devices: a launcher for each host of each site, that of the first host of the first site first.

    It is called as the site, or ``SITE@HOST`` where the site has several. Errors: :class:`unidle.errors.BadInput`.
    """
    if missing := [site.name for site in setting.sites if site.name not in hosts]:
        raise BadInput(
            f"site {missing[0]} has none", field="sites.hosts",
            remedy=f"add its address: {{name: {missing[0]}, hosts: [ADDRESS]}}",
        )  # fmt: skip
    found: dict[str, list[str]] = {}
    for name, host in _hosts_of(setting, hosts):
        site = name.split("/")[0]
        several = len(set(hosts[site])) > 1
        found.setdefault(f"{site}{_AT}{host}" if several else site, []).append(name)
    return found


def site_of(launcher: str) -> str:
    """The site that it starts devices of."""
    return launcher.partition(_AT)[0]


def _hosts_of(setting: Setting, hosts: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Each device and where it is, site by site."""
    for site in setting.sites:
        own = [d for d in devices_of(setting) if d.split("/")[0] == site.name]
        given = hosts[site.name] * (len(own) if len(hosts[site.name]) == 1 else 1)
        yield from zip(own, given, strict=True)


def launcher_of(
    setting: Setting, hosts: Mapping[str, tuple[str, ...]], site: str, host: str | None
) -> tuple[str, list[str]]:
    """The launcher that is to be on this machine, and all launchers. Errors: :class:`unidle.errors.BadInput`."""
    names = [one.name for one in setting.sites]
    if site not in names:
        raise BadInput(
            "there is no such site", field="--site", value=site, remedy=f"one of {', '.join(names)}"
        )
    every = list(launchers(setting, hosts))
    here = [each for each in every if site_of(each) == site]
    if host is None and len(here) > 1:
        raise BadInput(
            f"{site} has {counted(len(here), 'host')}", field="--host", remedy=f"set --host to one of {', '.join(dict.fromkeys(hosts[site]))}"
        )  # fmt: skip
    if host is not None and host not in hosts[site]:
        raise BadInput(
            f"is no host of {site}", field="--host", value=host, remedy=f"one of {', '.join(dict.fromkeys(hosts[site]))}"
        )  # fmt: skip
    return here[0] if len(here) == 1 else f"{site}{_AT}{host}", every


def hosts_of_site(
    setting: Setting, hosts: Mapping[str, tuple[str, ...]], launcher: str, device: str
) -> RunHosts:
    """A real fleet: addresses of the file, and the devices of one launcher, which this machine starts.

    Errors: :class:`unidle.errors.BadInput`.
    """
    mine = launchers(setting, hosts)[launcher]
    places = {site.name: k for k, site in enumerate(setting.sites)}
    addresses: dict[str, Address] = {}
    count: dict[str, int] = {}
    for name, host in _hosts_of(setting, hosts):
        site = name.split("/")[0]
        count[site] = count.get(site, 0) + 1
        addresses[name] = _address(host, count[site], places[site])
    return RunHosts(addresses, _nodes(mine, device), f"{counted(len(mine), 'device')} of {launcher}")


def launcher_address(setting: Setting, hosts: Mapping[str, tuple[str, ...]]) -> Address:
    """Where the launcher of the first site listens."""
    return _address(hosts[setting.sites[0].name][0], 0, 0)


def _address(host: str, offset: int, site: int) -> Address:
    """``ADDRESS[:PORT]``: the launcher is at the port, devices follow."""
    name, _, given = host.rpartition(":")
    port = PORT
    if name and given.isdigit() and (":" not in name or name.startswith("[")):
        if not 0 < int(given) < PORT_MOST:
            raise BadInput(
                "is no port",
                field=f"sites[{site}].hosts",
                value=host,
                remedy=f"ADDRESS:PORT, up to {PORT_MOST}",
            )
        host, port = name, int(given)
    return host.strip("[]"), port + offset
