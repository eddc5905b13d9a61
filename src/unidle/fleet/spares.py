"""Which nodes are kept as hot spares: for gangs that lost something to a fault, and for what may be stopped at once."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from unidle.fleet.model import Fleet, Node


class Spares:
    """The spares of one fleet.

    Where the fleet file names nodes, those. Else of each kind and model the last nodes in the order of the fleet
    that are whole, usable and without other work: so they change as little as can be, and nodes before them
    stay together for large gangs.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._count = fleet.guard.spares
        self._nodes = {node.id for node in fleet.nodes}
        self._named = frozenset(self._nodes.intersection(fleet.guard.spare_nodes))
        alike = alike_nodes(fleet.nodes).values() if self._count else ()
        self._groups = [nodes[::-1] for nodes in alike]

    def __bool__(self) -> bool:
        """Whether the fleet keeps any."""
        return bool(self._named or self._count)

    def of(self, firm: Container[str] = (), barred: Collection[str] = ()) -> frozenset[str]:
        """The spares where ``firm`` nodes have work that may not be stopped at once, and ``barred`` ones are not in use."""
        return self.choose(firm, self.unfit(barred))

    def unfit(self, barred: Collection[str]) -> set[str]:
        """Nodes that are not usable whole, where these nodes and devices are not."""
        return {target if target in self._nodes else target.rpartition("/")[0] for target in barred}

    def choose(self, *others: Container[str]) -> frozenset[str]:
        """The spares where nodes in any of ``others`` are none. O(nodes), mostly as many steps as there are spares."""
        if self._named:
            return self._named
        found: set[str] = set()
        for names in self._groups:
            left = self._count
            for name in names:
                if not any(name in other for other in others):
                    found.add(name)
                    left -= 1
                    if not left:
                        break
        return frozenset(found)


def alike_nodes(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Names of nodes that have devices of the same kinds, vendors and models, in order; the key describes them,
    in words.
    """
    found: dict[str, list[str]] = {}
    for node in nodes:
        kinds = {(device.kind, device.vendor, device.model) for device in node.devices}
        if kinds:
            found.setdefault(" and ".join(_word(*kind) for kind in sorted(kinds)), []).append(node.id)
    return found


def _word(kind: str, vendor: str, model: str) -> str:
    if kind == "cpu":
        return "CPU devices"
    return f"{model} GPUs" if model else f"{vendor} GPUs"
