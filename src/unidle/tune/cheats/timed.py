"""Work that left the timed region of a function: it is between two readings of a clock before the change, and in front of or behind them after it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts
from unidle.tune.cheats import words
from unidle.tune.cheats.caching import CONSTANT_CALLS


def moved_out(before: SourceFacts, after: SourceFacts) -> Iterator[tuple[int, str]]:
    """Lines after the change with calls that are outside of what is timed more often than before, and within less often."""
    old = {_name(one): one for one in _scopes(before)}
    for scope in _scopes(after):
        was = old.get(_name(scope))
        if was is None:
            continue
        within_before, outside_before = _calls(before, was)
        within, outside = _calls(after, scope)
        for name, lines in outside.items():
            if len(lines) > len(outside_before.get(name, ())) and len(within.get(name, ())) < len(
                within_before.get(name, ())
            ):
                yield lines[-1], f"`{name}` is no longer timed"
    synchronized = Counter(_waits(before))
    for name in synchronized - Counter(_waits(after)):
        yield 1, f"`{name}` is gone: what is timed may end after the clock is read"


def _scopes(facts: SourceFacts) -> Iterator[FunctionFacts]:
    yield facts.walk.top
    yield from (one for one in facts.walk.functions if one.node is not None)


def _name(scope: FunctionFacts) -> str:
    return f"{scope.owner.node.name if scope.owner else ''}.{scope.name}"


def _calls(facts: SourceFacts, scope: FunctionFacts) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Calls within and outside of the region between first and last reading, by what is called."""
    readings = [one.lineno for one in scope.calls if words.TIMERS.match(facts.name_of(one.func) or "")]
    within: dict[str, list[int]] = {}
    outside: dict[str, list[int]] = {}
    if len(readings) < 2:
        return within, outside
    for call in scope.calls:
        if (
            words.TIMERS.match(facts.name_of(call.func) or "")
            or facts.plain_name(call.func) in CONSTANT_CALLS
        ):
            continue  # a constant may be made once
        inside = min(readings) <= call.lineno <= max(readings)
        (within if inside else outside).setdefault(ast.unparse(call.func), []).append(call.lineno)
    return within, outside


def _waits(facts: SourceFacts) -> Iterator[str]:
    """Synchronisations in functions that read a clock."""
    for scope in _scopes(facts):
        if any(words.TIMERS.match(facts.name_of(one.func) or "") for one in scope.calls):
            yield from (
                ast.unparse(one.func) for one in scope.calls if facts.plain_name(one.func) == "synchronize"
            )
