"""A snapshot of another form must be passed over, so its form and the fold's version change together."""

from __future__ import annotations

import dataclasses
import zlib

from unidle.ledger.book import Book, SliceRef
from unidle.ledger.rows import Entry
from unidle.view.fold import FOLD_VERSION
from unidle.view.state import AttemptView, JobView, RankView, View

KEPT = (View, JobView, AttemptView, RankView, Book, SliceRef)
FORM = (1, 769760857)


def form() -> int:
    fields = [(kind.__name__, f.name, str(f.type)) for kind in KEPT for f in dataclasses.fields(kind)]
    kept = [f for f in fields if not f[1].startswith("_")]
    return zlib.crc32(repr([kept, Entry._fields]).encode())


def test_a_change_of_the_view_comes_with_a_new_fold_version():
    assert (FOLD_VERSION, form()) == FORM, "raise FOLD_VERSION in unidle.view.fold and set FORM to this pair"
