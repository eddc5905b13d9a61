"""How much work that shares a GPU slows down: a model of demands, corrected by what was seen of pairs.

The model, for a load among others (all parts of one GPU):

- time slices: kernels run one after another, so time is stretched by the sum of the times that all keep the
  GPU busy, where that exceeds 1;
- MPS: kernels run together, each load within its bound on threads; time is stretched by the largest of the
  sums of SM demands and of bandwidth demands, and by its own demand over its own bound;
- MIG: nothing but its own demand over its own instance counts;
- a quota of a CPU device: nothing but its own demand over its own bound counts;
- whole: nothing.

Where a pair was seen, the model's answer is corrected by the quotient of seen and modelled, averaged over the
others; observations weigh against the model by their number. Slow-downs are in parts per million: 1,000,000 is
as fast as alone on the whole GPU.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from unidle.errors import BadInput
from unidle.fleet import WHOLE_PPM
from unidle.ledger.taxonomy import How
from unidle.share.mig_models import GIB
from unidle.share.modes import Mode

UNKNOWN: Final = "unknown"
PRIOR_WEIGHT: Final = 2  # the model counts as much as this many observations


@dataclass(frozen=True, slots=True)
class Load:
    """What one kind of work needs of a whole GPU; parts of it in ppm, ``memory_bytes`` 0 is not known."""

    name: str
    sm_ppm: int
    bandwidth_ppm: int
    busy_ppm: int
    memory_bytes: int = 0
    how: str = "modelled"


class Tenant(NamedTuple):
    """A load in its part of a GPU: bounds as in :class:`unidle.share.modes.GpuPart`."""

    load: Load
    compute_ppm: int = WHOLE_PPM
    memory_ppm: int = WHOLE_PPM  # of bandwidth too, where MIG gives it


class Slowdown(NamedTuple):
    """How many times as long work takes, in ppm, and how that is known."""

    ppm: int
    how: How


class PairSlowdown(NamedTuple):
    """The mean slow-down of one load next to another, and how many observations it is of."""

    mean_ppm: int
    times: int


Pair = tuple[Mode, str, str]


@dataclass(frozen=True, slots=True)
class Interference:
    """Known loads and the slow-downs of pairs that were seen. Immutable."""

    loads: Mapping[str, Load]
    seen: Mapping[Pair, PairSlowdown]
    names: frozenset[str] = field(init=False, compare=False, repr=False)  # of which either says anything

    def __post_init__(self) -> None:
        seen = (name for _, *pair in self.seen for name in pair)
        object.__setattr__(self, "names", frozenset(self.loads).union(seen))

    def load(self, name: str) -> Load:
        """The load of that name, else one that fills what it is given."""
        return self.loads.get(name) or replace(self.loads[UNKNOWN], name=name or UNKNOWN)

    def tells(self, name: str) -> bool:
        """Whether work of this name is set apart from what is not known: by its load, or by what was seen of it."""
        return name in self.names

    def load_of_part(self, name: str, asked_ppm: int) -> Load:
        """Work of this name in a part of ``asked_ppm``: it can need no more than it has.

        Of a name that is not known, that it needs what was asked for. Bandwidth comes in eighths where compute
        comes in sevenths: an instance has what its compute needs.
        """
        known = self.loads.get(name)
        if known is None:
            return Load(name or UNKNOWN, asked_ppm, asked_ppm * 7 // 8, asked_ppm)
        return replace(known, sm_ppm=min(known.sm_ppm, asked_ppm))

    def slowdown(self, mode: Mode, own: Tenant, others: Sequence[Tenant]) -> Slowdown:
        """How much slower ``own`` runs in its part while ``others`` run in theirs."""
        modelled = modelled_ppm(mode, own, others)
        if mode in ("whole", "mig") or not others:
            return Slowdown(modelled, "modelled")
        correction, was_seen = 0, False
        for other in others:
            seen = self.seen.get((mode, own.load.name, other.load.name))
            alone = modelled_ppm(mode, own, (other,))
            if seen is None:
                correction += WHOLE_PPM
                continue
            was_seen = True
            blended = (alone * PRIOR_WEIGHT + seen.mean_ppm * seen.times) // (PRIOR_WEIGHT + seen.times)
            correction += blended * WHOLE_PPM // alone
        ppm = modelled * (correction // len(others)) // WHOLE_PPM
        return Slowdown(max(WHOLE_PPM, ppm), "inferred" if was_seen else "modelled")


def modelled_ppm(mode: Mode, own: Tenant, others: Sequence[Tenant]) -> int:
    """The model alone (see the module)."""
    load = own.load
    if mode == "whole":
        return WHOLE_PPM
    if mode == "time":
        return max(WHOLE_PPM, load.busy_ppm + sum(o.load.busy_ppm for o in others))
    by_bound = load.sm_ppm * WHOLE_PPM // max(1, own.compute_ppm)
    if mode == "mig":
        return max(WHOLE_PPM, by_bound, load.bandwidth_ppm * WHOLE_PPM // max(1, own.memory_ppm))
    if mode == "quota":
        return max(WHOLE_PPM, by_bound)
    threads = sum(min(t.load.sm_ppm, t.compute_ppm) for t in (own, *others))
    bandwidth = load.bandwidth_ppm + sum(o.load.bandwidth_ppm for o in others)
    return max(WHOLE_PPM, by_bound, threads, bandwidth)


@cache
def known_loads() -> Interference:
    """The table that unidle ships (``loads.toml``)."""
    return parse_loads(files(__package__).joinpath("loads.toml").read_text("utf-8"))


def parse_loads(text: str) -> Interference:
    """Loads and pairs from the text of a table."""
    table = tomllib.loads(text)
    loads = {
        entry["name"]: Load(
            entry["name"],
            round(entry["sm"] * WHOLE_PPM),
            round(entry["bandwidth"] * WHOLE_PPM),
            round(entry["busy"] * WHOLE_PPM),
            round(entry["memory_gib"] * GIB),
            entry["how"],
        )
        for entry in table["load"]
    }
    seen: dict[Pair, PairSlowdown] = {}
    for pair in table.get("pair", ()):
        for end in ("load", "other"):
            if pair[end] not in loads:
                raise BadInput(
                    "a pair of a load that is not in the table",
                    field=end,
                    value=pair[end],
                    remedy="add the load",
                )
        seen[pair["mode"], pair["load"], pair["other"]] = PairSlowdown(pair["slowdown_ppm"], 1)
    return Interference(loads, seen)
