"""Entries that are posted, and rows that are read.

An :class:`Entry` is a double-entry posting: a correction never edits one, it posts the reversal
(``sign`` -1) and the new cause (``sign`` +1), both one revision higher. A :class:`LedgerRow` is what
stands after all postings: one interval of one slice with one leaf.
"""

from __future__ import annotations

from typing import NamedTuple

from unidle.ledger.taxonomy import How


class Entry(NamedTuple):
    """One posting for a set of slices over ``[start_ns, end_ns)``."""

    slices: tuple[int, ...]  # indexes into the book's table of slices
    start_ns: int
    end_ns: int
    leaf: str
    job: str = ""
    attempt: int = 0  # 1 is the first; 0 without a job
    step: int = -1  # -1 where no step is known
    how: How = "measured"
    observer: str = "control"
    revision: int = 0
    sign: int = 1


class LedgerRow(NamedTuple):
    """One interval of one slice: the fields of the export, in this order."""

    device: str
    slice: str
    start_ns: int
    end_ns: int
    leaf: str
    job: str | None
    attempt: int | None
    step: int | None
    share_ppm: int
    how: How
    observer: str
    revision: int
