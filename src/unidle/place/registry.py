"""Placement policies by name: the one list that `unidle replay` and others choose from."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final

from unidle.errors import BadInput
from unidle.place.node_order import best_fit, first_fit, spread
from unidle.place.plan import Policy
from unidle.place.policy import Unidle

DEFAULT: Final = "unidle"

_MAKERS: dict[str, Callable[[], Policy]] = {
    DEFAULT: Unidle,
    "firstfit": first_fit,
    "bestfit": best_fit,
    "spread": spread,
}


def register(name: str, make: Callable[[], Policy]) -> None:
    """Add a policy; ``make`` gives one without memory of another run. A name is given once."""
    if name in _MAKERS:
        raise ValueError(f"there is already a placement policy of this name: {name}")
    _MAKERS[name] = make


def policy_names() -> tuple[str, ...]:
    """All names, in the order of registration."""
    return tuple(_MAKERS)


def policy_named(name: str, field: str = "--policy") -> Policy:
    """A new policy of that name, or :class:`BadInput` about ``field``."""
    if name not in _MAKERS:
        known = policy_names()
        close = difflib.get_close_matches(name, known, 1)
        remedy = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        raise BadInput("there is no such placement policy", field=field, value=name, remedy=remedy)
    return _MAKERS[name]()
