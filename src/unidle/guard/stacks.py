"""Who is not where the others wait, from where the ranks of a gang stand. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from unidle.events.guard import RankStack
from unidle.words import counted

WAITS_FOR_OTHERS: Final = "collective"
_AWAY: Final = ("stopped", "ended")
_PLACES_NAMED: Final = 6


def odd_ranks(stacks: Sequence[RankStack]) -> tuple[int, ...]:
    """The ranks that the others wait for, as far as that can be seen; none where no rank stands out.

    Where some ranks wait in a collective, it is those that do not, or, where all do, those in another one than most.
    Else it is those that do something else than more than half of the ranks. A rank whose stack could not be read is
    never named.
    """
    seen = [stack for stack in stacks if stack.state != "unknown"]
    every = {rank for stack in seen for rank in stack.ranks}
    waiting = [stack for stack in seen if stack.state == WAITS_FOR_OTHERS]
    odd = {rank for stack in seen if stack.state in _AWAY for rank in stack.ranks}
    if waiting:
        odd |= every - {rank for stack in waiting for rank in stack.ranks}
        odd = odd or _outside_of_most(waiting)
    else:
        odd = odd or _outside_of_most(seen)
    return tuple(sorted(odd)) if odd != every else ()


def _outside_of_most(stacks: Sequence[RankStack]) -> set[int]:
    """Ranks that are not at the one place where more than half of the ranks are."""
    by_place: dict[tuple[str, str], set[int]] = {}
    for stack in stacks:
        by_place.setdefault((stack.state, stack.at), set()).update(stack.ranks)
    most = max(by_place.values(), key=len, default=set())
    every = set().union(*by_place.values())
    return every - most if 2 * len(most) > len(every) else set()


def in_words(stacks: Sequence[RankStack], odd: Sequence[int]) -> str:
    """Where the ranks are, in one line: where most wait first, then the odd ones."""
    apart = set(odd)
    parts = [
        (stack, [r for r in stack.ranks if (r in apart) == late])
        for late in (False, True)
        for stack in stacks
    ]
    order = sorted(
        (part for part in parts if part[1]), key=lambda part: (part[1][0] in apart, -len(part[1]), part[1])
    )
    texts = [f"{_who(ranks)} {_where(stack)}" for stack, ranks in order[:_PLACES_NAMED]]
    if more := order[_PLACES_NAMED:]:
        texts.append(f"{counted(sum(len(ranks) for _, ranks in more), 'rank')} elsewhere")
    return "; ".join(texts)


def odd_in_words(stacks: Sequence[RankStack], odd: Sequence[int]) -> str:
    """The part of :func:`in_words` about the odd ranks."""
    apart = set(odd)
    mine = [(stack, sorted(apart.intersection(stack.ranks))) for stack in stacks]
    texts = [f"{_who(ranks)} {_where(stack)}" for stack, ranks in mine if ranks]
    return "; ".join(texts[:_PLACES_NAMED])


def numbers(ranks: Iterable[int]) -> str:
    """``0-2, 5 and 7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts: list[str] = []
    for run in runs:
        texts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    if len(texts) > 12:
        texts = [*texts[:11], "others"]
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def _who(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers(ranks)}"


def _where(stack: RankStack) -> str:
    if stack.state == "unknown":
        return f"without a stack ({stack.why_not})"
    if stack.state == "stopped":
        return f"stopped by a signal or debugger{f' ({stack.at})' if stack.at else ''}"
    if stack.state == "ended":
        return "ended"
    words = stack.at or stack.state
    return words if words.startswith(("in ", "at ")) else f"in {words}"
