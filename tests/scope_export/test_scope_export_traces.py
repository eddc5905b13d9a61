"""Perfetto's and Chrome's traces, opened by Perfetto's own trace processor (its WebAssembly build)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_export import profiles, readers
from scope_export.protobuf import ask_perfetto
from unidle.scope.export import FORMATS, chrome, perfetto, timeline
from unidle.scope.model import Profile, Span

SLICES = """
  select s.ts, s.dur, s.name, s.category, s.depth, t.tid, p.pid from slice s
  join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid) order by s.ts, s.depth
"""
PROBLEMS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
STEPS = [
    Span(100, 100, f"step {k}", "step", profiles.START + k * 10**9, profiles.START + (k + 1) * 10**9)
    for k in range(10)
]


def ask(tmp_path: Path, trace: bytes, *queries: str) -> list[list[dict[str, Any]]]:
    return ask_perfetto(readers.perfetto_build(), tmp_path, trace, *queries)


@pytest.mark.parametrize(
    ("write", "from_ns"), [(perfetto.write, 0), (chrome.write, profiles.START)], ids=["native", "chrome"]
)
def test_the_trace_processor_finds_every_span_where_it_was(
    write: Callable[..., bytes], from_ns: int, tmp_path: Path
) -> None:
    profile = profiles.small()
    slices, problems, processes, everything = ask(
        tmp_path,
        write(profile, steps=STEPS),
        SLICES,
        PROBLEMS,
        "select name from process where pid > 0 order by pid",
        "select name, dur from slice where name glob 'step *'",
    )
    assert problems == []
    assert [row["name"] for row in processes] == ["rank 0 (pid 100)", "rank 1 (pid 200)"]
    found = {(row["ts"] + from_ns, row["dur"], row["name"], row["category"], row["pid"]) for row in slices}
    spans = [span for span in profile.spans if span.name != "crossing"]
    assert {(s.start_ns, s.end_ns - s.start_ns, s.name, s.kind, s.pid) for s in spans} <= found
    assert {row["depth"] for row in slices if row["name"] == "inner"} == {1}
    assert [row["dur"] for row in everything] == [10**9] * 10


@pytest.mark.parametrize("form", ["perfetto", "chrome"])
def test_crossing_spans_get_a_track_of_their_own(form: str, tmp_path: Path) -> None:
    rows, problems = ask(
        tmp_path,
        FORMATS[form].write(profiles.small()),
        "select s.dur, s.depth from slice s where s.name = 'crossing'",
        PROBLEMS,
    )
    assert rows == [{"dur": 100 * profiles.MS, "depth": 0}]
    assert problems == []


@pytest.mark.parametrize("form", ["perfetto", "chrome"])
@pytest.mark.parametrize(
    "make", [profiles.hostile, profiles.empty, profiles.single, profiles.deep], ids=lambda make: make.__name__
)
def test_the_trace_processor_reads_the_edges(form: str, make: Callable[[], Profile], tmp_path: Path) -> None:
    problems, slices = ask(
        tmp_path,
        FORMATS[form].write(make()),
        PROBLEMS,
        "select count(*) as n from slice where category <> 'scope'",
    )
    assert problems == []
    assert slices == [{"n": len(make().spans)}]


def test_memory_is_a_heap_profile_with_its_stacks(tmp_path: Path) -> None:
    live, stacks = ask(
        tmp_path,
        perfetto.write(profiles.small()),
        "select heap_name, sum(size) as live, sum(count) as n from heap_profile_allocation group by heap_name order by 1",
        "select f.name, c.depth from stack_profile_callsite c join stack_profile_frame f on c.frame_id = f.id"
        " order by c.depth limit 2",
    )
    assert live == [
        {"heap_name": "memory of cuda:0", "live": 2_000_000, "n": 2},
        {"heap_name": "memory of host", "live": 4_000_000, "n": 40},
    ]
    assert [row["name"] for row in stacks] == ["<module>", "train_step"]


def test_thread_totals_and_quality_are_arguments_of_events(tmp_path: Path) -> None:
    told, quality = ask(
        tmp_path,
        perfetto.write(profiles.small()),
        "select a.key, coalesce(a.display_value, a.string_value) as v from slice s join args a using (arg_set_id)"
        " where s.name = 'thread totals'",
        "select a.key, a.string_value as v from slice s join args a using (arg_set_id) where s.name glob 'quality*'",
    )
    assert ("debug.calls of at::_ops::addmm::call", "6400") in {(row["key"], row["v"]) for row in told}
    assert {"key": "debug.rooted", "v": "99.90 %"} in quality


def test_chromes_file_is_json_with_the_quality_beside_the_events() -> None:
    told = json.loads(chrome.write(profiles.small()))
    assert told["otherData"]["symbolised"] == "98.50 %"
    assert {event["ph"] for event in told["traceEvents"]} == {"M", "X", "i"}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-2, 50)), max_size=40))
def test_in_a_lane_any_two_spans_are_apart_or_nested(given_spans: list[tuple[int, int]]) -> None:
    spans = [Span(1, 1, str(k), "x", start, start + length) for k, (start, length) in enumerate(given_spans)]
    lanes = timeline.lanes(spans)
    assert sorted(s.name for lane in lanes for s in lane) == sorted(s.name for s in spans)
    for lane in lanes:
        for k, outer in enumerate(lane):
            for inner in lane[k + 1 :]:
                end = max(outer.start_ns, outer.end_ns)
                assert inner.start_ns >= end or inner.end_ns <= end
