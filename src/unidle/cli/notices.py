"""``unidle guard notices``: who receives what happens, and what became of it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import (
    FleetOption,
    JsonOption,
    StoreOption,
    age,
    print_json,
    read_store,
    say,
    show_table,
    table,
)
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.notices.dispatcher import NoticeBookmark


def notices(
    store: StoreOption = None,
    fleet: FleetOption = None,
    test: Annotated[
        bool, typer.Option("--test", help="Send a test notice to every channel of the fleet file.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show which notices were sent, and which wait. `--test --fleet FILE` sends a test notice."""
    if test:
        if fleet is None:
            raise BadInput(
                "is needed with --test",
                field="--fleet",
                remedy="use `unidle guard notices --test --fleet fleet.yaml`",
            )
        _test(fleet, as_json)
        return
    if fleet is not None:
        raise BadInput("goes with --test", field="--fleet", value=fleet, remedy="leave it out, or add --test")
    from unidle.notices.dispatcher import load

    opened = read_store(store)
    book, _ = load(opened)
    found = as_objects(book)
    if as_json:
        print_json(found)
        return
    for line in _lines(found):
        say(line)


def as_objects(book: NoticeBookmark) -> list[dict[str, Any]]:
    """The channels as ``--json`` prints them."""
    return [
        {
            "channel": name, "pending": len(kept.pending), "held": sum(n.count for n in kept.temper.storm.values()),
            "sent": kept.record.sent, "refused": kept.record.refused, "tries": kept.record.tries,
            "sent_ns": kept.record.sent_ns, "error": kept.record.error or None, "error_ns": kept.record.error_ns,
            "oldest_pending_ns": kept.pending[0].time_ns if kept.pending else None,
            "recent": [
                {"id": p.id, "kind": p.kind, "state": p.state, "subject": p.subject, "at_ns": p.at_ns, "outcome": p.outcome}
                for p in kept.record.recent
            ],
        }
        for name, kept in book.channels.items()
    ]  # fmt: skip


def _lines(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return ["no notices are configured for this store; add `notices` to the fleet file"]
    now_ns = time.time_ns()
    rows = [
        [one["channel"], str(one["sent"]), str(one["pending"] + one["held"]), str(one["refused"]),
         "" if one["sent_ns"] is None else f"{age(now_ns - one['sent_ns'])} ago",
         "" if one["error_ns"] is None else f"{one['error']} ({age(now_ns - one['error_ns'])} ago)"]
        for one in found
    ]  # fmt: skip
    return table(["channel", "sent", "pending", "refused", "last sent", "last error"], rows)


def _test(fleet: str, as_json: bool) -> None:
    from unidle.files.fleet import load_fleet_and_notices
    from unidle.notices.model import Notice, iso, notice_id
    from unidle.notices.sender import senders

    channels = load_fleet_and_notices(fleet)[1]
    if not channels:
        raise BadInput(
            "the fleet file has no channel for notices",
            field="notices",
            value=fleet,
            remedy="add a channel, for instance notices: [{log: notices.jsonl}]",
        )
    now_ns = time.time_ns()
    notice = Notice(
        id=notice_id("test", now_ns), seq=0, time_ns=now_ns, time=iso(now_ns), kind="test", state="test",
        severity="info", subject="fleet", text="a test of unidle's notices",
    )  # fmt: skip
    answers = [(channel.name, send(notice)) for channel, send in senders(channels)]
    failed = sum(answer.outcome != "done" for _, answer in answers)
    if as_json:
        print_json(
            [{"channel": name, "ok": a.outcome == "done", "because": a.text or None} for name, a in answers]
        )
    else:
        rows = [
            [name, "delivered" if a.outcome == "done" else f"not delivered: {a.text}"] for name, a in answers
        ]
        show_table(["channel", "test notice"], rows)
        if failed:
            say(f"{counted(failed, 'channel')} of {len(answers)} did not accept it")
    sys.exit(1 if failed else 0)
