"""A small fleet on this machine: a network namespace per node, on one switch, with links that can be spoilt.

Needs root and iproute2. What a lab made is gone after :meth:`Lab.close`, also when its maker was killed in
between: a lab of the same tag is swept first.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from unidle.drill.link_delay import Wire
from unidle.errors import CannotRun

INTERFACE: Final = "eth0"
_NOWHERE: Final = "02:00:00:00:00:01"  # nobody has this address, so frames to it are lost
_TAG_CHARS: Final = 9
_AMONG: Final = 4000  # number of the class that a group of nodes shares; those of single nodes are below


class Lab:
    """Nodes ``names`` at ``10.N.0.1``, ``10.N.0.2``, ...; namespaces are called ``TAG-NAME``.

    Errors: :class:`CannotRun` where namespaces cannot be made here.
    """

    def __init__(self, names: Sequence[str], tag: str = "") -> None:
        self.tag = (tag or f"ud{os.getpid()}")[:_TAG_CHARS]
        self.names = tuple(names)
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._rates: set[tuple[str, str]] = set()
        self._wires: dict[str, Wire] = {}
        self.sweep()
        try:
            self._build()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            why = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise CannotRun(
                f"nodes with a network of their own cannot be made here: {why}",
                remedy="run as root, with iproute2 installed; or use faults that need no network",
            ) from error

    def space(self, node: str) -> str:
        """The network namespace of a node."""
        return f"{self.tag}-{node}"

    def address(self, node: str) -> str:
        return f"{self._net}.{self.names.index(node) + 1}"

    def cut(self, node: str, other: str = "") -> None:
        """Nothing passes between two nodes any more, or between one and all others."""
        if not other:
            _ip("-n", self._switch, "link", "set", self._port(node), "down")
            return
        for a, b in ((node, other), (other, node)):
            _ip(
                "-n",
                self.space(a),
                *f"neigh replace {self.address(b)} lladdr {_NOWHERE} nud permanent dev {INTERFACE}".split(),
            )

    def mend(self, node: str, other: str = "") -> None:
        """Undo :meth:`cut`, limits and :meth:`delay`; without ``other``, of all links of the node."""
        if not other:
            _ip("-n", self._switch, "link", "set", self._port(node), "up")
        for peer in [other] if other else [name for name in self.names if name != node]:
            self._stop_wire(node, peer)
            for a, b in ((node, peer), (peer, node)):
                _run(
                    "ip", "-n", self.space(a), "neigh", "del", self.address(b), "dev", INTERFACE, check=False
                )
                if (a, b) in self._rates:
                    self._unlimit(a, b)

    def _unlimit(self, node: str, other: str) -> None:
        """No bound any more on what goes from a node to another."""
        self._rates.discard((node, other))
        space, (prio, minor) = self.space(node), self._numbers(other)
        if not any(made == node for made, _ in self._rates):
            _tc(space, *f"qdisc del dev {INTERFACE} root".split(), check=False)
            return
        _tc(space, *f"filter del dev {INTERFACE} parent 1: prio {prio}".split(), check=False)
        _tc(space, *f"class del dev {INTERFACE} classid 1:{minor}".split(), check=False)

    def limit(self, node: str, other: str, bits_per_s: int) -> None:
        """At most so many bits a second pass between two nodes, in each direction."""
        for a, b in ((node, other), (other, node)):
            self._limit(a, [b], self._numbers(b)[1], bits_per_s)

    def limit_among(self, nodes: Sequence[str], bits_per_s: int) -> None:
        """Each of these nodes sends at most so many bits a second to all others of them together."""
        for node in nodes:
            if others := [name for name in nodes if name != node]:
                self._limit(node, others, _AMONG, bits_per_s)

    def _limit(self, node: str, others: Sequence[str], minor: int, bits_per_s: int) -> None:
        space = self.space(node)
        if not any(made == node for made, _ in self._rates):
            _tc(space, *f"qdisc replace dev {INTERFACE} root handle 1: htb default 1".split())
            _tc(
                space,
                *f"class replace dev {INTERFACE} parent 1: classid 1:1 htb rate 100gbit quantum 60000".split(),
            )
        rate = f"rate {max(bits_per_s, 8)}bit burst 32k quantum 3000"
        _tc(space, *f"class replace dev {INTERFACE} parent 1: classid 1:{minor} htb {rate}".split())
        for other in others:
            match = f"u32 match ip dst {self.address(other)}/32 flowid 1:{minor}"
            prio = self._numbers(other)[0]
            _tc(space, *f"filter replace dev {INTERFACE} parent 1: prio {prio} protocol ip {match}".split())
            self._rates.add((node, other))

    def delay(self, node: str, other: str, delay_ms: float) -> None:
        """What passes between two nodes arrives so many milliseconds later, in each direction."""
        wire = self._wires.get(node)
        if wire is None:
            wire = self._wires[node] = Wire(self._switch, self._port(node))
        wire.set(self.address(other), delay_ms)

    def _stop_wire(self, node: str, other: str) -> None:
        for a, b in ((node, other), (other, node)):
            if (wire := self._wires.get(a)) is not None and not wire.set(self.address(b), 0):
                wire.close()
                del self._wires[a]

    def _numbers(self, peer: str) -> tuple[int, int]:
        """Of the filter and of the class of what goes to a peer."""
        index = self.names.index(peer)
        return index + 1, index + 16

    def close(self) -> None:
        """Remove all of it; processes in it keep what they have until they end."""
        for wire in self._wires.values():
            wire.close()
        self._wires = {}
        for name in (*map(self.space, self.names), self._switch):
            _run("ip", "netns", "del", name, check=False)

    def sweep(self) -> None:
        """Remove what an earlier lab of this tag left."""
        listed = _run("ip", "netns", "list", check=False).stdout.decode().split("\n")
        for line in listed:
            if line.startswith(f"{self.tag}-"):
                _run("ip", "netns", "del", line.split()[0], check=False)

    @property
    def _switch(self) -> str:
        return f"{self.tag}-switch"

    def _port(self, node: str) -> str:
        return f"port{self.names.index(node)}"

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        for name in self.names:
            space, port = self.space(name), self._port(name)
            _ip("netns", "add", space)
            _ip(
                *f"link add {INTERFACE} netns {space} type veth peer name {port} netns {self._switch}".split()
            )
            _ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", INTERFACE)
            for interface in (INTERFACE, "lo"):
                _ip("-n", space, "link", "set", interface, "up")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _tc(space: str, *words: str, check: bool = True) -> None:
    _run("ip", "netns", "exec", space, "tc", *words, check=check)


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, check=check, capture_output=True, stdin=subprocess.DEVNULL)
