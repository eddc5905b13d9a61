"""Interpreter's time that goes with what its line of code is for.

Between two operators of ``y = torch.tanh(x)`` the interpreter looks up names, binds arguments and frees results. For
a reader who timed that line, this is the line's work. So time of rules that say ``joins`` becomes what the same line of the
thread's own code mostly does, if that is at least as much.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from unidle.scope.model import Profile, State
from unidle.scope.places import Place, place_of
from unidle.scope.rules import Category, Rule

_NEVER: Final = frozenset({"python", "idle", "other", "cpu_contention"})

Sampled = Mapping[State, Counter[tuple[Rule, int]]]


def joined(profile: Profile, sampled: Sampled) -> dict[State, Counter[tuple[Rule, int]]]:
    """A thread's time by state, rule and stack, with what joins in its new category. Sums stay as they are."""

    @cache
    def place(stack: int) -> Place | None:
        return place_of(profile.stack(stack))

    work: dict[Place | None, Counter[Category]] = defaultdict(Counter)
    joining: Counter[Place | None] = Counter()
    for rows in sampled.values():
        for (rule, stack), ns in rows.items():
            if rule.joins:
                joining[place(stack)] += ns
            elif rule.category not in _NEVER:
                work[place(stack)][rule.category] += ns
    becomes: dict[Place | None, Category] = {
        at: main for at, ns in joining.items() if at and (main := _main(work[at], ns))
    }
    told: dict[State, Counter[tuple[Rule, int]]] = defaultdict(Counter)
    for state, rows in sampled.items():
        for (rule, stack), ns in rows.items():
            main = becomes.get(place(stack)) if rule.joins else None
            told[state][_as(rule, main) if main else rule, stack] += ns
    return told


def _main(work: Counter[Category], least_ns: int) -> Category | None:
    category, ns = max(work.items(), key=lambda item: (item[1], item[0]), default=(None, 0))
    return category if ns >= least_ns else None


@cache
def _as(rule: Rule, category: Category) -> Rule:
    return replace(rule, category=category)
