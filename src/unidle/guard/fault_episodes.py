"""From faults that were seen, and spells without service, to failures: one for each fault, however its remedies escalate. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from unidle.fleet.policies import STEP_OF
from unidle.guard.failure_statistics import NEAR_NS, Outage
from unidle.guard.fault_kinds import SeenFault, class_of, class_of_health, component_of
from unidle.jobs import Reason

_PLANNED: Final = ("maintenance", "boot")
_BY_HAND: Final = ("drained", "node_deleted")  # somebody asked for it
_LEAD_NS: Final = 3600 * 1_000_000_000
"""A fault so long before its node is out of service may be why: it was drained, or waited for others to be repaired."""
_QUIET: Final = ("watch", "ignore")


@dataclass(frozen=True, slots=True)
class FaultSign:
    """A fault of ``node``, or of ``device`` of it, or of a part of it that is no device of the fleet (``hardware``)."""

    at_ns: int
    node: str
    device: str
    hardware: str
    fault: SeenFault

    @property
    def part(self) -> str:
        return self.device or self.hardware


@dataclass(frozen=True, slots=True)
class OutSpell:
    """``node``, or ``device`` of it, was not healthy from ``start_ns`` to ``end_ns``, first for ``because``."""

    node: str
    device: str
    start_ns: int
    end_ns: int
    health: str
    because: Reason


def failures(
    signs: Iterable[FaultSign], spells: Iterable[OutSpell], models: Mapping[str, str]
) -> list[Outage]:
    """The failures of all nodes, in order of their begin. ``models``: what devices each node has."""
    by_node: dict[str, tuple[list[FaultSign], list[OutSpell]]] = defaultdict(lambda: ([], []))
    for sign in signs:
        by_node[sign.node][0].append(sign)
    for spell in spells:
        by_node[spell.node][1].append(spell)
    found = [one for own, out in by_node.values() for one in _of_node(own, out)]
    named = (replace(one, model=models.get(one.node, "no model")) for one in found)
    return sorted(named, key=lambda one: (one.start_ns, one.node, one.device))


def _of_node(signs: list[FaultSign], spells: list[OutSpell]) -> Iterator[Outage]:
    left = sorted((s for s in signs if s.fault.action not in _QUIET), key=lambda s: s.at_ns)
    for episode in _episodes(spells):
        if episode[0].health in _PLANNED or episode[0].because.code in _BY_HAND:
            yield from (_plain(one) for one in episode)
            continue
        end_ns = max(one.end_ns for one in episode)
        own = [s for s in left if s.at_ns <= end_ns and _explains(s, episode)]
        left = [s for s in left if s not in own]
        yield from _causes(own, episode, end_ns)
    for group in _repeated(left):  # nothing was taken out for these
        yield _seen(group[0], group[0].at_ns, group[0].at_ns, out=False)


def _episodes(spells: list[OutSpell]) -> list[list[OutSpell]]:
    """Spells of one node that overlap or nearly do: a device whose remedy is handed over to its node continues there."""
    found: list[list[OutSpell]] = []
    for one in sorted(spells, key=lambda s: (s.start_ns, s.device)):
        last = found[-1] if found else None
        planned = last is not None and (one.health in _PLANNED) != (last[0].health in _PLANNED)
        if last is not None and not planned and one.start_ns <= max(s.end_ns for s in last) + NEAR_NS:
            last.append(one)
        else:
            found.append([one])
    return found


def _explains(sign: FaultSign, episode: list[OutSpell]) -> bool:
    """Whether a fault can be why its node, or a device of it, is out: it takes it out, and came at most so long before."""
    if sign.at_ns >= episode[0].start_ns:
        return True
    if sign.at_ns < episode[0].start_ns - _LEAD_NS or sign.fault.action not in STEP_OF:
        return False
    return any(spell.device in ("", sign.device) for spell in episode) or not sign.device


def _causes(signs: list[FaultSign], episode: list[OutSpell], end_ns: int) -> Iterator[Outage]:
    """One failure for each part that failed. What was seen of the node itself follows from a device of it that failed."""
    if any(spell.because.figures.get("component") for spell in episode):
        yield from (_plain(one) for one in episode)  # each names its own
        return
    if not any(sign.fault.action in STEP_OF for sign in signs):
        yield from (_plain(one) for one in _first_of_each(episode))
        return
    parts: dict[str, FaultSign] = {}
    for sign in signs:
        if sign.fault.action in STEP_OF:
            parts.setdefault(sign.device, sign)
    if len(parts) > 1:
        parts.pop("", None)
    for sign in parts.values():
        yield _seen(sign, episode[0].start_ns, end_ns, out=True)


def _first_of_each(episode: list[OutSpell]) -> list[OutSpell]:
    """The first spell of each device; where the node is out as well, and no sooner than a device, it is the device's."""
    first: dict[str, OutSpell] = {}
    for one in episode:
        first.setdefault(one.device, one)
    if len(first) > 1:
        first.pop("", None)
    end_ns = max(one.end_ns for one in episode)
    return [replace(one, end_ns=max(one.end_ns, end_ns if len(first) == 1 else 0)) for one in first.values()]


def _plain(one: OutSpell) -> Outage:
    planned = one.health in _PLANNED or one.because.code in _BY_HAND
    named = one.because.figures.get("component")
    kind = "" if named or planned else class_of_health(one.because)
    component = str(named) if named else component_of(kind) if kind else one.because.code
    return Outage(one.node, "", component, one.start_ns, one.end_ns, planned, kind, one.device)


def _seen(sign: FaultSign, start_ns: int, end_ns: int, *, out: bool) -> Outage:
    kind = class_of(sign.fault)
    return Outage(
        sign.node, "", component_of(kind), start_ns, end_ns, False, kind, sign.device, out
    )  # fmt: skip


def _repeated(signs: list[FaultSign]) -> list[list[FaultSign]]:
    """Faults of the same part of the node that came again shortly after are one."""
    groups: dict[tuple[str, str], list[FaultSign]] = {}
    found: list[list[FaultSign]] = []
    for sign in signs:
        key = sign.part, class_of(sign.fault)
        last = groups.get(key)
        if last is not None and sign.at_ns - last[-1].at_ns <= NEAR_NS:
            last.append(sign)
        else:
            groups[key] = [sign]
            found.append(groups[key])
    return found
