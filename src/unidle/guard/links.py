"""Before a gang starts: whether links between its nodes have to be measured, and what follows from the result. Pure.

A result counts for all gangs whose nodes are among those that were measured. ``fit`` of a result is True, False, or None
where it could not be determined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from unidle.guard.preflight import PreflightRules
from unidle.words import counted

Link = tuple[str, str]
Slow = tuple[str, str, float | None]
_NAMED = 3


@dataclass(frozen=True, slots=True)
class LinksReport:
    """What the leader of a check between nodes found (:mod:`unidle.probe.check.between`).

    ``bad_nodes`` did badly with two good ones; of each of ``bad_links`` both ends do well with others. ``slow``: the
    pairs that did badly, with their rate in Gbit/s, None where they did not reach each other. ``absent`` nodes did not
    reach the leader, which is the first of ``nodes``.
    """

    nodes: tuple[str, ...]
    bad_nodes: tuple[str, ...] = ()
    bad_links: tuple[Link, ...] = ()
    slow: tuple[Slow, ...] = ()
    absent: tuple[str, ...] = ()
    least_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class LinksResult:
    """One check between nodes. ``bad``: those to take out of service."""

    nodes: frozenset[str]
    fit: bool | None
    bad: tuple[str, ...]
    at_ns: int
    because: str = ""


@dataclass(frozen=True, slots=True)
class LinksDecision:
    """``start``: nothing is wrong, or more cannot be known; ``measure`` not before ``not_before_ns``; ``taint`` ``bad`` nodes."""

    action: Literal["start", "measure", "taint"]
    because: str = ""
    fit: bool | None = True
    bad: tuple[str, ...] = ()
    at_ns: int = 0
    not_before_ns: int = 0


def judged(report: LinksReport) -> tuple[bool | None, tuple[str, ...], str]:
    """Whether the links are fit, the nodes to take out of service, and why.

    Of a bad link the end with the most bad links is taken out. With two nodes it stays open which of them is bad.
    """
    leader, count = report.nodes[0], len(report.nodes)
    unreached = [(leader, node) for node in report.absent]
    links = [*report.bad_links, *(unreached if count > 2 else ())]
    bad = (*report.bad_nodes, *_ends(links, report.bad_nodes))
    slow = [*report.slow, *((leader, node, None) for node in report.absent)]
    if bad:
        return False, bad, "; ".join(_of_node(node, slow) for node in bad[:_NAMED])
    if slow:
        words = [f"{a} and {b}: {_rate(rate)}" for a, b, rate in slow[:_NAMED]]
        return None, (), f"which end is bad is not known: {'; '.join(words)}"
    rate = "" if report.least_gbps is None else f", {report.least_gbps:.3g} Gbit/s or more"
    return True, (), f"links between {counted(count, 'node')}{rate}"


def decide_links(
    nodes: Iterable[str], results: Sequence[LinksResult], changed_ns: Mapping[str, int], now_ns: int, rules: PreflightRules
) -> LinksDecision:  # fmt: skip
    """What to do with the links between the nodes of a gang.

    ``results``: all that are known, oldest first. ``changed_ns``: when nodes were repaired; what was measured before
    counts no more. Results are valid for ``rules.quick_ns``.
    """
    wanted = frozenset(nodes)
    since_ns = max((changed_ns.get(node, -1) for node in wanted), default=-1)
    of_gang = [
        r for r in results if wanted <= r.nodes and r.at_ns > since_ns and now_ns - r.at_ns < rules.quick_ns
    ]
    unknown: list[LinksResult] = []
    for result in reversed(of_gang):
        if result.fit is not None:
            break
        unknown.append(result)
    if not of_gang:
        return LinksDecision("measure", not_before_ns=now_ns)
    latest = of_gang[-1]
    if latest.fit is None and len(unknown) < rules.again:
        return LinksDecision("measure", latest.because, None, not_before_ns=latest.at_ns + rules.pause_ns)
    if latest.fit is False and wanted & {*latest.bad}:
        return LinksDecision("taint", latest.because, False, latest.bad, latest.at_ns)
    return LinksDecision("start", latest.because, latest.fit is not None, latest.bad, latest.at_ns)


def _ends(links: Iterable[Link], known: Iterable[str]) -> tuple[str, ...]:
    """Nodes without which no link of these is left: at each step the one with the most; of equal ones the last by name."""
    left = [link for link in links if not {*known} & {*link}]
    found = []
    while left:
        count = Counter(node for link in left for node in link)
        worst = max(count, key=lambda node: (count[node], node))
        found.append(worst)
        left = [link for link in left if worst not in link]
    return tuple(found)


def _of_node(node: str, slow: Iterable[Slow]) -> str:
    rates = [f"{b if a == node else a} {_rate(rate)}" for a, b, rate in slow if node in (a, b)]
    more = f" and {counted(len(rates) - _NAMED, 'more node')}" if len(rates) > _NAMED else ""
    return f"{node}: {', '.join(rates[:_NAMED])}{more}" if rates else node


def _rate(gbps: float | None) -> str:
    return "not reached" if gbps is None else f"{gbps:.3g} Gbit/s"
