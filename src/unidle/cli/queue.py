"""``unidle queue``: what each queue may use, uses, borrows and lends, and who waits; and what it used by month."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import (
    JsonOption,
    StoreOption,
    need_fleet,
    now_of,
    print_json,
    read_store,
    read_view,
    say,
    show_table,
)
from unidle.cli.tables import without_empty
from unidle.words import counted, does

if TYPE_CHECKING:
    from unidle.place.queue.fair_share import QueueAccount
    from unidle.report.queue_usage import QueueUsage
    from unidle.store.protocol import Store
    from unidle.view.state import View

_MILLI = 1000


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("queue")(queue)


def queue(
    store: StoreOption = None,
    usage: Annotated[
        bool, typer.Option("--usage", help="Show device-hours and cost by queue and month instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what each queue of a store deserves, uses and lends."""
    opened = read_store(store)
    view = read_view(opened)
    if usage:
        _usage(opened, view, as_json)
    else:
        _shares(need_fleet(view, store), as_json)


def _shares(view: View, as_json: bool) -> None:
    from unidle.place.snapshot import snapshot_of

    books = snapshot_of(view, now_of(view))
    capacity = books.shares.quota.capacity
    lines = [_line(share, books.tree.resources, capacity) for share in books.shares.report()]
    if as_json:
        print_json(lines)
        return
    columns = ("deserved", "guarantee", "used", "borrowed", "lent", "waiting")
    resources = [
        r for r in books.tree.resources if any(line["bound"][r] or line["used"][r] for line in lines)
    ]
    rows = [
        [line["queue"], resource, *(_amount(line[c][resource]) for c in columns), str(line["waiting_jobs"]),
         f"{100 * line['share']:.1f}", f"{100 * line['history']:.1f}"]
        for line in lines
        for resource in resources
        if any(line[c][resource] for c in columns)
    ]  # fmt: skip
    if not rows:
        say("no queue uses or waits for anything")
    show_table(["queue", "of", *columns, "jobs waiting", "share %", "past %"], rows)
    if view.fillers:
        say(_of_fillers(view))
    if pods := sum(len(taken.pods) for taken in view.taken.values()):
        devices = sum(len(taken.devices) for taken in view.taken.values())
        has = f"{counted(pods, 'pod')} of others"
        say(f"{has} {'has' if pods == 1 else 'have'} {counted(devices, 'device')}: unidle list --others")


def _of_fillers(view: View) -> str:
    """What filler jobs use now."""
    on, waiting = view.fillers.on, len(view.fillers.waiting)
    runs = len(set(on.values()))
    parts = []
    if runs:
        parts.append(
            f"{counted(runs, 'filler')} {does(runs, 'run')} on {counted(len(on), 'device')} that no other job uses"
        )
    if waiting:
        parts.append(f"{counted(waiting, 'filler')} {does(waiting, 'wait')}")
    return f"{' and '.join(parts) or 'fillers leave their devices'}; fillers count in no queue"


def _line(share: QueueAccount, resources: tuple[str, ...], capacity: tuple[int, ...]) -> dict[str, Any]:
    def amounts(values: tuple[int, ...]) -> dict[str, float]:
        return {r: value / _MILLI for r, value in zip(resources, values, strict=True)}

    return {
        "queue": share.queue, "deserved": amounts(share.deserved), "guarantee": amounts(share.guarantee),
        "bound": amounts(tuple(map(min, share.bound, capacity))), "entitled": amounts(share.entitled), "used": amounts(share.used),
        "borrowed": amounts(share.borrowed), "lent": amounts(share.lent), "waiting": amounts(share.waiting),
        "waiting_jobs": share.waiting_jobs, "share": share.share_ppb / 1e9, "history": share.history_ppb / 1e9,
    }  # fmt: skip


def _amount(value: float) -> str:
    return f"{value:g}"


def _usage(opened: Store, view: View, as_json: bool) -> None:
    from unidle.report.queue_usage import usage
    from unidle.view.source import ledger_source, prices

    parents = {spec.name: spec.parent for spec in view.fleet.queues}
    rows = usage(ledger_source(opened, view), parents, zone=view.fleet.zone, prices=prices(view))
    if as_json:
        print_json([row.as_json() for row in rows])
        return
    lines = [
        [row.month, row.queue, f"{row.device_hours:.3f}",
         f"{row.cost_micro / 1e6:.2f} {row.currency}" if row.cost_micro is not None else "-",
         *(_percent(row, group) for group in ("step", "held", "lost")), _percent(row, "fill") if row.groups_ns.get("fill") else "-"]
        for row in rows
    ]  # fmt: skip
    if not lines:
        say("no job has held a device yet")
    header = ["month", "queue", "device-hours", "cost", "step %", "held %", "lost %", "fill %"]
    show_table(*without_empty(*without_empty(header, lines, "cost"), "fill %"))


def _percent(row: QueueUsage, group: str) -> str:
    return f"{100 * row.groups_ns.get(group, 0) / row.ns:.1f}" if row.ns else "-"
