"""``unidle fleet --idle``: who holds devices and does nothing."""

from __future__ import annotations

from typing import Any

from unidle.cli.common import (
    age,
    clock_time,
    now_of,
    print_json,
    read_store,
    read_view,
    say,
    show_table,
)
from unidle.cli.tables import without_empty
from unidle.words import US_PER_HOUR, device_time


def show_idle(store: str | None, as_json: bool) -> None:
    """Print the idle holders of a store."""
    from unidle.control.idle_holders import idle_holders

    opened = read_store(store)
    view = read_view(opened)
    now = now_of(view)
    lines = idle_holders(view, now)
    if as_json:
        print_json(lines)
        return
    if not lines:
        say("no job holds idle devices")
        return
    header = [
        "job",
        "queue",
        "user",
        "devices",
        "quiet since",
        "device time",
        "cost",
        "evidence",
        "what follows",
    ]
    rows = [
        [line["job"], line["queue"], line["user"] or "-", f"{line['devices']:g}", clock_time(line["since_ns"]),
         device_time(line['device_hours'] * US_PER_HOUR), _cost(line), line["evidence"], _what_follows(line, now)]
        for line in lines
    ]  # fmt: skip
    show_table(*without_empty(header, rows, "cost"))
    hours = sum(line["device_hours"] for line in lines)
    say(f"{device_time(hours * US_PER_HOUR)} held without work" + _total_cost(lines))


def _cost(line: dict[str, Any]) -> str:
    return "-" if line["cost"] is None else f"{line['cost']:.2f} {line['currency']}"


def _total_cost(lines: list[dict[str, Any]]) -> str:
    priced = [line["cost"] for line in lines if line["cost"] is not None]
    return f", {sum(priced):.2f} {lines[0]['currency']}" if priced else ""


def _what_follows(line: dict[str, Any], now_ns: int) -> str:
    if line["policy"] == "left alone":
        return "excluded by the policy"
    if line["release_ns"] is not None:
        return f"released at {clock_time(line['release_ns'])}"
    if line["notice_ns"] is None:
        return "no notice sent yet"
    return f"notice sent {age(max(now_ns - line['notice_ns'], 0))} ago; not released"
