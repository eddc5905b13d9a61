"""Postings of jobs that do other work than training: fillers and services. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from unidle.ledger.rows import Entry
from unidle.ledger.taxonomy import GROUPS

_FILLED: Final = {
    **dict.fromkeys(GROUPS["step"], "filled"), **dict.fromkeys(GROUPS["lost"], "discarded"),
    "unmeasured": "unmeasured",
}  # fmt: skip
_AT_WORK: Final = frozenset({"start", *GROUPS["step"]})


def as_filler(entries: Iterable[Entry]) -> list[Entry]:
    """The postings of a filler job: its steps are useful filler work, and what was lost of them is discarded."""
    return [entry._replace(leaf=_FILLED.get(entry.leaf, entry.leaf)) for entry in entries]


def as_service(entries: Iterable[Entry], ready_ns: int | None) -> list[Entry]:
    """The postings of a replica of a service, which answered from ``ready_ns`` on (None: it did not yet)."""
    return [piece for entry in entries for piece in _served(entry, ready_ns)]


def _served(entry: Entry, ready_ns: int | None) -> Iterator[Entry]:
    if entry.leaf not in _AT_WORK:
        yield entry
        return
    cut = entry.end_ns if ready_ns is None else min(max(ready_ns, entry.start_ns), entry.end_ns)
    if entry.start_ns < cut:
        yield entry._replace(end_ns=cut, leaf="model_load", step=-1)
    if cut < entry.end_ns:
        yield entry._replace(start_ns=cut, leaf="ready", step=-1)
