"""Sick nodes and devices according to the log: evidence, remedies, cordons, maintenance, checks.

:class:`Care` does not depend on the fleet, so that a small model of it can be explored (``tests/guard``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from unidle.events.guard import (
    CareState,
    CordonSet,
    FaultSeen,
    LinksChecked,
    MaintenanceSet,
    NodeChecked,
    RemedySet,
)
from unidle.fleet.policies import STEP_OF
from unidle.jobs import Reason

_HOUR_NS: Final = 3_600_000_000_000
_KEPT: Final = 64
_CHECKS_KEPT: Final = 16
_LINKS_KEPT: Final = 255
TAKES_OUT: Final = frozenset(STEP_OF)
"""Actions of a fault after which a node, or a device of it, has no work for a while."""


class Sign(msgspec.Struct, array_like=True, frozen=True):
    """Evidence against a target: a fault that requires ``action``, detected at ``at_ns``."""

    at_ns: int
    kind: str
    action: str
    because: Reason


class CareView(msgspec.Struct, array_like=True):
    """The state of a target now (see ``unidle.events.guard.RemedySet``).

    ``since_ns``: since when in this state; ``at_ns``, ``seq``: of the last event; ``opened_ns``: since when it
    is not healthy. ``cause`` is why that began; ``rung`` the last remedy that was tried; ``repaired_ns``: when
    a person returned it last, 0 if none did. What the kernel logged before then is repaired.
    """

    target: str
    node: str
    state: CareState
    because: Reason
    step: str
    try_: int
    deadline_ns: int
    by: str
    since_ns: int
    at_ns: int
    seq: int
    opened_ns: int
    cause: Reason
    rung: str = ""
    repaired_ns: int = 0

    @property
    def busy(self) -> str:
        """What runs for it now: a rung of the ladder, the tier of a check, or nothing."""
        return self.step if self.state in ("remedy", "proving", "probation") else ""


class Cordon(msgspec.Struct, array_like=True, frozen=True):
    by: str
    at_ns: int
    because: Reason


class Window(msgspec.Struct, array_like=True, frozen=True):
    """Planned maintenance of a node."""

    from_ns: int
    until_ns: int
    drain_by_ns: int
    by: str


class CheckView(msgspec.Struct, array_like=True, frozen=True):
    at_ns: int
    tier: str
    fit: bool | None
    because: str


class LinksView(msgspec.Struct, array_like=True, frozen=True):
    """A check between nodes, see :class:`unidle.events.guard.LinksChecked`."""

    at_ns: int
    nodes: tuple[str, ...]
    fit: bool | None
    bad: tuple[str, ...]
    because: str


class Strike(msgspec.Struct, array_like=True, frozen=True):
    """A gang hung or was disconnected because of the node."""

    at_ns: int
    job: str
    attempt: int
    because: Reason


@dataclass(slots=True)
class Care:
    """``pending``: evidence that nothing was decided on yet, by target; ``offences``: when what bears this identity
    was taken out for a fault; ``falls``: when which node had a fault, for the breaker; ``returned``: when a node came
    back, or was reported again; ``links``: the last checks between nodes."""

    targets: dict[str, CareView] = field(default_factory=dict)
    pending: dict[str, list[Sign]] = field(default_factory=dict)
    strikes: dict[str, list[Strike]] = field(default_factory=dict)
    falls: list[tuple[int, str]] = field(default_factory=list)
    offences: dict[str, list[int]] = field(default_factory=dict)
    begun: list[int] = field(default_factory=list)
    cordons: dict[str, Cordon] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    checks: dict[str, list[CheckView]] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)
    links: list[LinksView] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Whether there is no evidence that requires an action."""
        return not (self.targets or self.pending or self.strikes or self.windows)


_OVER: Final = ("out", "maintenance", "remedy")  # what is seen of it there says nothing new


def fault_seen(care: Care, event: FaultSeen, device: str, now_ns: int) -> None:
    """``device``: the fleet's device that the fault is of, where it is of one."""
    if event.action not in TAKES_OUT:
        return
    care.falls = [f for f in care.falls if now_ns - f[0] < _HOUR_NS][-4096:]
    care.falls.append((now_ns, event.node))
    target = device if device and event.action in ("reset_gpu", "drain") else event.node
    at_node = care.targets.get(event.node)
    if at_node is not None and at_node.state != "suspect":
        target = event.node
    here = care.targets.get(target)
    if here is not None and here.state in _OVER:
        return
    sign = Sign(now_ns, event.kind, event.action, event.because)
    care.pending[target] = [*care.pending.get(target, ())[-_KEPT:], sign]


def struck(care: Care, node: str, strike: Strike) -> None:
    """A verdict on a gang names a node; once for each attempt."""
    known = care.strikes.get(node, [])
    if not any((s.job, s.attempt) == (strike.job, strike.attempt) for s in known):
        care.strikes[node] = [*known[-_KEPT:], strike]


def remedy_set(care: Care, event: RemedySet, node: str, identity: str, seq: int, now_ns: int) -> None:
    """``identity``: by which the target is known wherever it is (a device's uuid), else its name."""
    care.pending.pop(event.target, None)
    before = care.targets.get(event.target)
    if event.step != "strike":
        care.strikes.pop(event.target, None)
    if event.state == "healthy":
        care.targets.pop(event.target, None)
        if before is not None and before.state != "suspect":
            care.returned[node] = now_ns
        window = care.windows.get(event.target)
        if window is not None and window.until_ns <= now_ns:
            del care.windows[event.target]
        return
    new = before is None or before.state == "suspect"
    rung = "" if before is None or new else before.rung
    if event.state == "remedy":
        rung = event.step
        care.begun = [at for at in care.begun if now_ns - at < _HOUR_NS] + [now_ns]
    if not event.by and event.because.code in ("fault", "fell"):
        care.offences[identity] = [*care.offences.get(identity, ())[-_KEPT:], now_ns]
    stays = before is not None and before.state == event.state
    returned = bool(event.by) and event.state == "quarantine"
    repaired_ns = now_ns if returned else before.repaired_ns if before is not None else 0
    care.targets[event.target] = CareView(
        event.target, node, event.state, event.because, event.step, event.try_, event.deadline_ns, event.by,
        before.since_ns if before is not None and stays else now_ns, now_ns, seq,
        now_ns if before is None or new else before.opened_ns,
        event.because if before is None or new or event.because.code == "fault" else before.cause, rung,
        repaired_ns,
    )  # fmt: skip


def cordon_set(care: Care, event: CordonSet, now_ns: int) -> None:
    if event.on:
        care.cordons[event.node] = Cordon(event.by, now_ns, event.because)
    else:
        care.cordons.pop(event.node, None)


def maintenance_set(care: Care, event: MaintenanceSet) -> None:
    if event.until_ns:
        care.windows[event.node] = Window(event.from_ns, event.until_ns, event.drain_by_ns, event.by)
    else:
        care.windows.pop(event.node, None)


def node_checked(care: Care, event: NodeChecked, now_ns: int) -> None:
    said = CheckView(now_ns, event.tier, event.fit, event.because)
    care.checks[event.node] = [*care.checks.get(event.node, ())[-_CHECKS_KEPT:], said]


def links_checked(care: Care, event: LinksChecked, now_ns: int) -> None:
    said = LinksView(now_ns, event.nodes, event.fit, event.bad, event.because)
    care.links = [*care.links[-_LINKS_KEPT:], said]
