"""``unidle guard watch``: which nodes are watched, by what, and what was last found wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unidle.cli.common import (
    JsonOption,
    StoreOption,
    age,
    print_json,
    read_store,
    read_view,
    say_unwatched,
    show_table,
)

if TYPE_CHECKING:
    from unidle.view.records import FaultView
    from unidle.view.state import View


def watch(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show which nodes are monitored for faults. Each has its health, its detectors and the last detected
    fault.
    """
    opened = read_store(store)
    view = read_view(opened)
    found = [as_object(view, node.id) for node in view.fleet.nodes]
    if as_json:
        print_json(found)
        return
    rows = [
        [
            one["node"], "not known" if one["health"] == "healthy" and not one["watched"] else one["health"],
            "yes" if one["watched"] else "not watched", str(one["faults"]),
            "" if one["last_fault"] is None else f"{_ago(view, one)}: {one['last_fault']['because']}",
        ]
        for one in found
    ]  # fmt: skip
    show_table(["node", "health", "watched", "faults", "last fault"], rows)
    say_unwatched({one["node"]: one["not_watched"] for one in found})


def as_object(view: View, node: str) -> dict[str, Any]:
    """One node as ``--json`` prints it."""
    from unidle.view.watching import not_watched

    faults = [fault for fault in view.faults if fault.node == node]
    detectors = [
        {"detector": name, "watched": not told.why_not, "why_not": told.why_not or None, "lost": told.lost, "since_ns": told.at_ns}
        for name, told in sorted(view.watching.get(node, {}).items())
    ]  # fmt: skip
    why = not_watched(view, node)
    return {
        "node": node, "health": view.health.get(node, "healthy"), "watched": not why, "not_watched": why or None,
        "detectors": detectors, "faults": len(faults), "last_fault": _fault(faults[-1]) if faults else None,
    }  # fmt: skip


def _fault(fault: FaultView) -> dict[str, Any]:
    return {
        "device": fault.device or None, "kind": fault.kind, "code": fault.code, "action": fault.action,
        "onset_ns": fault.onset_ns, "signal_ns": fault.signal_ns, "jobs": fault.jobs, "because": fault.because.text,
        "figures": fault.because.figures,
    }  # fmt: skip


def _ago(view: View, one: dict[str, Any]) -> str:
    return f"{age(view.time_ns - one['last_fault']['signal_ns'])} before"
