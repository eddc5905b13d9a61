"""The placement policies by name: the one that unidle uses, and those that it is compared with."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from unidle.errors import BadInput
from unidle.place.policy import DEFAULT, Unidle
from unidle.place.protocol import Policy


def _baseline(name: str) -> Policy:
    from unidle.control.replay import baselines  # needs NumPy

    makers = {"firstfit": baselines.first_fit, "bestfit": baselines.best_fit, "spread": baselines.spread}
    return makers[name]()


_MAKERS: dict[str, Callable[[], Policy]] = {DEFAULT: Unidle}
_MAKERS |= {name: partial(_baseline, name) for name in ("firstfit", "bestfit", "spread")}


def _queue_peer(name: str) -> Policy:
    from unidle.control.replay.queue_peers import PEERS  # needs NumPy

    return PEERS[name]()


_MAKERS |= {
    name: partial(_queue_peer, name) for name in ("fifo", "easy", "conservative", "las", "qssf", "sjf-true")
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
