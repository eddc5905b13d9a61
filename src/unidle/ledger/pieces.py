"""An interval of one rank's time with its cause, before it is posted."""

from __future__ import annotations

from typing import NamedTuple

from unidle.ledger.taxonomy import How


class Piece(NamedTuple):
    """See ``unidle.ledger.attempt``, which makes them."""

    start_ns: int
    end_ns: int
    leaf: str
    step: int
    how: How
    observer: str
    was: str | None = None  # the leaf that stood before it was corrected
