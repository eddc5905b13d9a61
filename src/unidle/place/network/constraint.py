"""What a gang requires of the network: which groups stay together, in which kind of tier, over which fabric."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from unidle.fleet import LinkClass
from unidle.jobs import Fabric, JobSpec, Layout, Reason, Topology
from unidle.place.network.tree import NODE, Ints, Tree
from unidle.words import are, counted

Group = Literal["gang", "tp", "dp", "pp"]
GROUPS: Final[tuple[Group, ...]] = ("tp", "dp", "pp")
_WHOLE: Final = {
    "gang": "the gang",
    "tp": "each tensor group",
    "dp": "each data group",
    "pp": "each pipeline",
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """One wish: ``group`` within one tier of the kind ``within`` (``node`` too), or over ``fabric``.

    A soft one (not ``hard``) is kept where that is possible; earlier ones precede later ones. A node
    that has no tier of the kind above it counts as one by itself.
    """

    group: Group = "gang"
    within: str = ""
    fabric: Fabric | None = None
    hard: bool = True

    def text(self) -> str:
        wish = f"over {self.fabric}" if self.fabric else f"within one {self.within}"
        return f"{_WHOLE[self.group]} {wish}"


@dataclass(frozen=True, slots=True)
class Gang:
    """``ranks`` equal ranks that start together. ``tp * dp * pp == ranks`` where a layout is given."""

    ranks: int
    layout: Layout | None = None
    constraints: tuple[Constraint, ...] = ()

    def size(self, group: Group) -> int:
        """Ranks in one group of this kind; without a layout groups are of one rank."""
        if group == "gang":
            return self.ranks
        return int(getattr(self.layout, group)) if self.layout else 1


@dataclass(frozen=True, slots=True, eq=False)
class GangPlan:
    """Where a gang goes: ``counts[i]`` ranks on the node at position ``nodes[i]``, positions ascending.

    ``vertex`` is the lowest tier that holds it, -1 where that is one node. ``fabric`` carries all its
    traffic between nodes, None where no single one does or there is none. ``kept`` are the constraints that
    hold, ``relaxed`` the soft ones that could not be kept.
    """

    nodes: Ints
    counts: Ints
    vertex: int
    left_over: int
    fabric: LinkClass | None
    relaxed: tuple[Constraint, ...]
    because: Reason
    kept: tuple[Constraint, ...] = ()

    def names(self, tree: Tree) -> tuple[str, ...]:
        return tuple(tree.nodes[k] for k in self.nodes.tolist())


@dataclass(frozen=True, slots=True)
class Barrier:
    """One reason why a gang does not fit. ``fitting`` of ``domains`` could hold a part; ``largest`` ranks fit in one.

    ``unblock`` is what would help; ``change`` is the part of it other than to free devices. ``constraint`` is
    None if the fleet has too little room, whatever the constraints.
    """

    constraint: Constraint | None
    domains: int
    fitting: int
    largest: int
    needs: int
    unblock: str
    change: str = ""

    def of_empty_fleet(self) -> Barrier:
        """The same barrier on an empty fleet, where it does not help to free devices."""
        return replace(self, unblock=self.change or "add nodes there")

    def text(self) -> str:
        if self.constraint is None:
            return f"needs room for {counted(self.needs, 'rank')}, and the fleet has room for {self.largest}"
        if self.constraint.fabric is not None:
            where = f"{self.fitting} of {counted(self.domains, 'node')} {are(self.fitting)} on it with room"
        elif self.constraint.group == "gang":
            where = f"{self.fitting} of {self.domains} {'has' if self.fitting == 1 else 'have'} room"
        else:
            where = f"{self.fitting} of {self.domains} could hold one"
        return (
            f"{self.constraint.text()}: {where}, at most {self.largest} of {counted(self.needs, 'rank')} fit"
        )


@dataclass(frozen=True, slots=True)
class Blocked:
    """The gang cannot start now.

    ``barriers`` are the reasons; if some of them block the gang on their own, only those. ``what`` describes
    them; ``because`` also has what would help.
    """

    because: Reason
    barriers: tuple[Barrier, ...]
    what: str


def gang_of(spec: JobSpec) -> Gang:
    """The gang that a job requests.

    Soft wishes come in this order: the fabric, the tier of the whole gang, groups (tp, dp, pp). If the job
    sets no constraint for its tensor groups, the last wish is to keep each of them within a node.
    """
    topology = spec.topology or Topology()
    found = _wishes(topology.require, topology.groups, topology.fabric, hard=True)
    found += _wishes(topology.prefer, topology.prefer_groups, topology.prefer_fabric, hard=False)
    asked = {*topology.groups, *topology.prefer_groups}
    if spec.layout is not None and spec.layout.tp > 1 and "tp" not in asked:
        found.append(Constraint("tp", NODE, hard=False))
    return Gang(spec.ranks, spec.layout, tuple(found))


def _wishes(
    gang: str | None, groups: dict[str, str], fabric: Fabric | None, *, hard: bool
) -> list[Constraint]:
    found = [Constraint("gang", fabric=fabric, hard=hard)] if fabric else []
    if gang:
        found.append(Constraint("gang", gang, hard=hard))
    found += [Constraint(group, groups[group], hard=hard) for group in GROUPS if group in groups]
    return found
