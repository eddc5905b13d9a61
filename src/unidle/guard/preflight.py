"""Before a gang starts: which check a node needs, and what follows from its result. Pure.

``fit`` of a result is that of ``unidle check``: True, False, or None where the check could not decide. None is no
fault, so the node is not tainted, and no proof, so it is checked again; a node that was proved before may run on that
proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Tier = Literal["quick", "standard", "burn-in"]
Action = Literal["start", "again", "elsewhere", "taint"]
_RANK: Final[dict[Tier, int]] = {"quick": 0, "standard": 1, "burn-in": 2}
_S: Final = 1_000_000_000
FIT: Final = "fit by an earlier check"
"""The reason where nothing speaks against the node."""


@dataclass(frozen=True, slots=True)
class PreflightRules:
    """How long results count, and how often a check that could not tell is repeated, how far apart."""

    quick_ns: int = 60 * _S
    standard_ns: int = 30 * 86_400 * _S
    again: int = 3
    pause_ns: int = 10 * _S


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """One check of one node; ``because`` is of the first check that failed or could not tell."""

    node: str
    tier: Tier
    fit: bool | None
    at_ns: int
    because: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with one node: ``start`` there; check it ``again`` not before ``not_before_ns`` with ``tier``;
    place the gang ``elsewhere`` without a word against the node; or that and ``taint`` the node."""

    action: Action
    node: str
    because: str
    tier: Tier | None = None
    not_before_ns: int = 0


def tier_needed(
    results: Sequence[PreflightResult], changed_ns: int | None, now_ns: int, rules: PreflightRules = PreflightRules()
) -> Tier | None:  # fmt: skip
    """The check that the node needs now; None where a recent one still counts.

    ``results`` are all that are known of the node, in any order; ``changed_ns`` is when it came, was repaired or
    rebooted last (None: it was never seen to). New and repaired nodes need the standard tier, and so do those whose
    last proof is old; the quick one is due again after ``quick_ns``. A failure makes what was proved before it void.
    """
    since_ns = max([r.at_ns for r in results if r.fit is False], default=-1)
    since_ns = max(since_ns, -1 if changed_ns is None else changed_ns)
    proofs = [r for r in results if r.fit and r.at_ns > since_ns]
    thorough = [
        r for r in proofs if _RANK[r.tier] >= _RANK["standard"] and now_ns - r.at_ns < rules.standard_ns
    ]
    if not thorough:
        return "standard"
    if any(now_ns - r.at_ns < rules.quick_ns for r in proofs):
        return None
    return "quick"


def decide(
    node: str, results: Sequence[PreflightResult], changed_ns: int | None, now_ns: int, rules: PreflightRules = PreflightRules()
) -> Decision:  # fmt: skip
    """What to do with a node that a gang is to start on."""
    tier = tier_needed(results, changed_ns, now_ns, rules)
    if tier is None:
        return Decision("start", node, FIT)
    started_ns = -1 if changed_ns is None else changed_ns
    latest = max((r for r in results if r.at_ns > started_ns), key=lambda r: r.at_ns, default=None)
    if latest is not None and latest.fit is False:
        return Decision("taint", node, f"unfit: {latest.because or 'a check failed'}")
    silent = _silent(results, tier, started_ns)
    if not silent:
        return Decision("again", node, f"needs the {tier} check", tier, now_ns)
    if len(silent) < rules.again:
        says = f"the {tier} check was undecided: {silent[-1].because or 'no reason given'}"
        return Decision("again", node, says, tier, silent[-1].at_ns + rules.pause_ns)
    says = f"{len(silent)} {tier} checks were undecided: {silent[-1].because or 'no reason given'}"
    if tier == "quick":  # the thorough proof still stands
        return Decision("start", node, f"{says}; {FIT}")
    return Decision("elsewhere", node, f"{says}; no earlier check found it fit")


def _silent(results: Iterable[PreflightResult], tier: Tier, since_ns: int) -> list[PreflightResult]:
    """Checks of this tier or a higher one that could not tell, since the last that could; oldest first."""
    of_tier = sorted((r for r in results if r.at_ns > since_ns), key=lambda r: r.at_ns)
    last = max((k for k, r in enumerate(of_tier) if r.fit is not None), default=-1)
    return [r for r in of_tier[last + 1 :] if _RANK[r.tier] >= _RANK[tier]]


def decide_gang(
    nodes: Mapping[str, tuple[Sequence[PreflightResult], int | None]], now_ns: int, rules: PreflightRules = PreflightRules()
) -> tuple[Action, tuple[Decision, ...]]:  # fmt: skip
    """One decision for all nodes of a gang, and those of each: it starts only where every node may be started on."""
    each = tuple(
        decide(node, results, changed_ns, now_ns, rules) for node, (results, changed_ns) in nodes.items()
    )
    for action in ("taint", "elsewhere", "again"):
        if any(one.action == action for one in each):
            return action, each
    return "start", each
