"""A snapshot of another form must be passed over, so its form and the fold's version change together."""

from __future__ import annotations

import zlib
from dataclasses import fields

from unidle.events.types import Predicted, RankStack, StacksTaken
from unidle.jobs.speeds import Known, SpeedRun
from unidle.ledger.book import Book, SliceRef
from unidle.ledger.profiled_causes import Look
from unidle.ledger.rows import Entry
from unidle.view.checkpoints import BadCheckpoint
from unidle.view.fold import FOLD_VERSION
from unidle.view.host_clocks import AttemptClock, ClockView
from unidle.view.jobs import AttemptView, JobView
from unidle.view.node_health import Care, CareView, CheckView, Cordon, LinksView, Sign, Strike, Window
from unidle.view.ranks import RankView, Watched
from unidle.view.records import (
    FaultView,
    IdleNotice,
    Prediction,
    RankLanding,
    Removal,
    TakenView,
    UseView,
    VerdictView,
    WatchView,
)
from unidle.view.resting import Rest
from unidle.view.snapshot import decode, encode
from unidle.view.state import View
from unidle.view.usage import QueueUse, Usage
from view.telling import Telling

KEPT = (
    View, JobView, AttemptView, RankView, UseView, IdleNotice, VerdictView, BadCheckpoint, StacksTaken, RankStack, Predicted, Prediction, Usage, QueueUse, Known, SpeedRun, Book,
    SliceRef, FaultView, WatchView, Care, CareView, CheckView, Cordon, LinksView, Sign, Strike, Window, Look, Watched, Removal, Rest, TakenView, RankLanding,
    ClockView, AttemptClock,
)  # fmt: skip
FORM = (23, 3864547516)


def form() -> int:
    kept = [
        (kind.__name__, name, str(kind.__annotations__[name]))
        for kind in KEPT
        for name in kind.__annotations__
        if not name.startswith("_")
    ]
    return zlib.crc32(repr([kept, Entry._fields]).encode())


def test_a_change_of_the_view_comes_with_a_new_fold_version():
    assert (FOLD_VERSION, form()) == FORM, "raise FOLD_VERSION in unidle.view.fold and set FORM to this pair"


def test_a_snapshot_keeps_no_index_that_is_made_from_the_rest() -> None:
    told = Telling(2).submit("j").place("j", "n0/0")
    private = [field.name for field in fields(View) if field.name.startswith("_")]
    for name in private:
        getattr(told.view, name[1:], None)  # made when it is asked for
    assert told.view.firm == {"n0": 1}
    kept = decode(encode(told.view))
    assert kept is not None
    assert [name for name in private if getattr(kept, name) is not None] == []
