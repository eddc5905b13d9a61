"""Fault traces: faults come out of starts and ends; each bad row is one error that says where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unidle.errors import BadInput
from unidle.files.fault_trace import FaultTrace, as_servers, load_fault_trace

DAY_NS = 86_400_000_000_000


def row(
    node: str, at: Any, event: str = "fault_start", desc: str = "GPU Lost", **more: Any
) -> dict[str, Any]:
    kind = {"Level": "Hardware Failure", "Class": "GPU", "Desc": desc}
    return {"node_id": node, "event_time": at, "event_type": event, "fault_type": kind, **more}


def read(tmp_path: Path, value: Any) -> FaultTrace:
    path = tmp_path / "trace.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return load_fault_trace(path)


def test_starts_and_ends_become_faults(tmp_path: Path) -> None:
    trace = read(tmp_path, [row("b", 1), row("a", 0.5), row("a", 2, "fault_end"), row("b", 3.0, "fault_end")])
    assert [(f.node, f.start_ns, f.end_ns) for f in trace.faults] == [
        ("a", DAY_NS // 2, 2 * DAY_NS), ("b", DAY_NS, 3 * DAY_NS),
    ]  # fmt: skip
    assert (trace.end_ns, trace.nodes, trace.faults[0].component) == (3 * DAY_NS, ("a", "b"), "GPU")


def test_an_end_belongs_to_the_oldest_fault_of_its_type_and_an_open_one_lasts_to_the_end(
    tmp_path: Path,
) -> None:
    rows = [row("a", 1, desc="x"), row("a", 2, desc="y"), row("a", 3, "fault_end", desc="y"), row("b", 4)]
    found = {(f.node, f.text): f.end_ns // DAY_NS for f in read(tmp_path, rows).faults}
    assert found == {("a", "y"): 3, ("a", "x"): 4, ("b", "GPU Lost"): 4}


def test_servers_without_a_fault_are_there_too(tmp_path: Path) -> None:
    trace = read(tmp_path, [row("a", 1), row("b", 2)])
    assert len(set(as_servers(trace, 5))) == 5
    with pytest.raises(BadInput, match="--servers") as caught:
        as_servers(trace, 1)
    assert "2 servers" in caught.value.line()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("[", ":1"),
        ("[" * 100_000, "JSON"),
        ("{}", "list"),
        ("[]", "empty"),
        ([3], "row 1"),
        ([row("a", 1), {"node_id": "a"}], "row 2: event_time: is missing"),
        ([row("a", 1, more=2)], "more"),
        ([row("", 1)], "node_id"),
        ([row("a\n", 1)], "node_id"),
        ([row(None, 1)], "node_id"),  # type: ignore[arg-type]
        ([row("a", -1)], "event_time"),
        ([row("a", "1")], "event_time"),
        ([row("a", True)], "event_time"),
        ("[" + json.dumps(row("a", 1)).replace(": 1,", ": NaN,") + "]", "event_time"),
        ([row("a", 1, "fault_stop")], "fault_start or fault_end"),
        ([{**row("a", 1), "fault_type": {"Level": "x"}}], "Class"),
        ([row("a", 1, "fault_end")], "row 1: node_id: ends a fault that has not begun"),
    ],
)
def test_each_bad_row_is_one_error_that_says_where(tmp_path: Path, value: Any, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, value)
    line = caught.value.line()
    assert says in line and "trace.json" in line and "\n" not in line and len(line) < 600
