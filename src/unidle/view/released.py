"""Slices that an attempt leaves: at its end, or before that where it is a filler that makes room. Part of the fold."""

from __future__ import annotations

from unidle.view import fold_fleet as of_fleet
from unidle.view.jobs import AttemptView
from unidle.view.state import View
from unidle.view.stranded import strand


def given_back(view: View, attempt: AttemptView, now: int, *, asks: bool) -> None:
    """The slices of an attempt are its own no more. ``asks``: it requested cores or memory."""
    ids = [s for place in attempt.places for s in place.slices]
    book = view.book
    numbers = book.indexes(ids)
    book.give_back(numbers, now)
    strand(view, (place.node for place in attempt.places), now, asks=asks)
    occupancy = view.occupancy
    quiet = not (book.down or view.closed or view.spares or view.taken)
    if quiet and occupancy.knows_all(ids):  # nearly always
        occupancy.give_back(ids)
        return
    of_fleet.left(view, ids, now)
    for slice_id, k in zip(ids, numbers, strict=True):
        if not occupancy.knows(slice_id):
            book.remove(k, now)
        elif k not in book.down:
            occupancy.give_back([slice_id])
