"""Pipelines that are not alike in one iteration: rows, pictures, traces and the ledger of all of them."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from e2e.commands import unidle
from span.settings import settings
from unidle.errors import BadInput
from unidle.ledger.current import check_batches
from unidle.ledger.sources import LiveRows
from unidle.span.cli.output import picture_of, strip, write_rows, write_svg
from unidle.span.cli.trace import write_trace
from unidle.span.model.setting import Setting
from unidle.span.simulate.iteration import simulate
from unidle.span.simulate.ledger import causes, columns, spent
from unidle.span.simulate.schedules import SCHEDULES
from unidle.span.simulate.timeline import OpRow
from unidle.span.simulate.uneven import (
    PipelineShares,
    Together,
    meeting_ns,
    microbatches_of,
    shares_by_cell,
    simulated,
)

SITES = [{"name": "a", "stages": 1}, {"name": "b", "stages": 2}]
FILE: dict[str, Any] = {
    "stages": 3, "pipelines": 4, "cell": 2, "microbatches": [6, 6, 2, 2], "pipeline_speeds": [1, 1, 0.5, 0.5],
    "model": {"layers": 3, "hidden": 512, "sequence": 256}, "device_tflops": 1, "local_gbps": 10, "sites": SITES,
    "links": [{"from": "a", "to": "b", "latency_ms": 1, "capacity_gbps": 1}],
}  # fmt: skip


@st.composite
def uneven(draw: st.DrawFn) -> tuple[Setting, PipelineShares]:
    """A setting, and what each pipeline does: alike in each cell."""
    setting = draw(settings())
    cells = setting.pipelines // setting.cell
    counts = draw(st.lists(st.integers(1, 5), min_size=cells, max_size=cells))
    speeds = draw(st.lists(st.sampled_from([0.3, 1.0, 2.0]), min_size=cells, max_size=cells))
    shares = PipelineShares(
        *(tuple(each for each in given for _ in range(setting.cell)) for given in (counts, speeds))
    )
    return setting, shares


def done_of(setting: Setting, name: str, shares: PipelineShares) -> Together | None:
    """None where memory is too small."""
    try:
        done = simulated(setting, SCHEDULES[name], shares)
    except BadInput:
        return None
    assert isinstance(done, Together)
    return done


@pytest.mark.parametrize("name", SCHEDULES)
@runs(max_examples=12)
@given(case=uneven())
def test_every_pipeline_does_its_own_microbatches_and_no_device_or_wire_is_used_twice_at_once(
    name: str, case: tuple[Setting, PipelineShares]
) -> None:
    setting, shares = case
    done = done_of(setting, name, shares)
    if done is None:
        return
    assert microbatches_of(done) == shares.microbatches
    places, count = defaultdict[str, list[OpRow]](list), Counter[tuple[int, int, str]]()
    for row in done.rows():
        places[row.device_or_link].append(row)
        if row.op in "FBW":
            assert row.device_or_link == setting.device(row.pipeline, row.stage)
            count[row.pipeline, row.stage, row.op] += 1
    for there in places.values():
        until = 0
        for row in sorted(there, key=lambda row: (row.start_ns, row.end_ns)):
            assert until <= row.start_ns <= row.end_ns <= done.result.iteration_ns
            until = row.end_ns
    chunks = {done.groups[k].pipelines: part.program.chunks for k, part in enumerate(done.parts)}
    for pipelines, each in chunks.items():
        for pipeline in pipelines:
            for stage in range(len(setting.stages)):
                assert [count[pipeline, stage, op] for op in "FBW"] == [
                    shares.microbatches[pipeline] * each
                ] * 3


@pytest.mark.parametrize("name", SCHEDULES)
@runs(max_examples=12)
@given(case=uneven())
def test_every_nanosecond_of_every_device_has_one_cause(
    name: str, case: tuple[Setting, PipelineShares]
) -> None:
    setting, shares = case
    done = done_of(setting, name, shares)
    if done is None:
        return
    until: dict[tuple[int, int], int] = defaultdict(int)
    for each in spent(done):
        assert until[each.pipeline, each.stage] == each.start_ns < each.end_ns
        until[each.pipeline, each.stage] = each.end_ns
    assert set(until.values()) == {done.result.iteration_ns}
    assert sum(causes(done).values()) == setting.devices * done.result.iteration_ns
    source = LiveRows(columns(done))
    assert not check_batches(source.batches(source.extent()))


@runs(max_examples=12)
@given(setting=settings())
def test_pipelines_that_are_alike_have_the_rows_that_they_have_without_a_list(setting: Setting) -> None:
    count = setting.pipelines
    done = done_of(setting, "atlas", PipelineShares((setting.microbatches,) * count, (1.0,) * count))
    if done is not None:
        assert sorted(done.rows()) == sorted(simulate(setting, SCHEDULES["atlas"]).rows())


def test_all_meet_at_the_all_reduce_which_begins_with_the_slowest() -> None:
    from span.reading import pipelines_from_mapping

    whole, groups = pipelines_from_mapping(FILE)
    done = simulated(whole, SCHEDULES["zb-h1"], PipelineShares((6, 6, 2, 2), (1, 1, 0.25, 0.25)))
    starts = {(row.stage, row.start_ns) for row in done.rows() if row.op == "allreduce"}
    assert starts == {(s, meeting_ns(done, s)) for s in range(3)}
    assert [group.pipelines for group in groups] == [(0, 1), (2, 3)]


@given(
    st.lists(st.sampled_from([0.3, 1.0, 2.0, 7.0]), min_size=1, max_size=4), st.integers(1, 3), st.integers(0, 9)
)  # fmt: skip
def test_pipelines_of_a_cell_get_as_many_and_none_is_lost(speeds: list[float], cell: int, more: int) -> None:
    batch = (len(speeds) + more) * cell
    found = shares_by_cell([speed for speed in speeds for _ in range(cell)], batch, cell)
    assert sum(found) == batch
    assert all(len(set(found[k : k + cell])) == 1 for k in range(0, len(found), cell))


def test_a_number_that_cells_cannot_halve_is_shared_out_cell_by_cell() -> None:
    from span.reading import pipelines_from_mapping

    _, groups = pipelines_from_mapping(FILE | {"microbatches": 3, "pipeline_speeds": [1, 1, 0.7, 0.7]})
    assert [(group.pipelines, group.setting.microbatches) for group in groups] == [((0, 1), 4), ((2, 3), 2)]


def test_the_picture_has_a_cell_of_each_kind_and_the_trace_what_each_of_them_holds() -> None:
    from span.reading import pipelines_from_mapping

    whole, _ = pipelines_from_mapping(FILE)
    done = simulated(
        replace(whole, wide=False), SCHEDULES["atlas"], PipelineShares((6, 6, 2, 2), (1, 1, 0.5, 0.5))
    )
    names = {whole.device(p, s) for p in range(4) for s in range(3)}
    assert set(picture_of(done).devices) == names
    stream = io.BytesIO()
    write_svg(stream, [picture_of(done)])
    assert all(name in stream.getvalue().decode() for name in names)
    assert [line.split()[0] for line in strip(done)[1:]] == [
        "a/0/0",
        "b/0/1",
        "b/0/2",
        "a/2/0",
        "b/2/1",
        "b/2/2",
    ]
    stream = io.BytesIO()
    write_trace(stream, [done])
    told = json.loads(stream.getvalue())["traceEvents"]
    assert {event["name"] for event in told if event["ph"] == "C"} == {f"memory of {name}" for name in names}
    slices = sum(event["ph"] == "X" for event in told)
    assert slices == len(list(done.rows()))  # a cell of each kind is all of them here
    stream = io.BytesIO()
    write_rows(stream, [done], lines=False)
    rows = list(csv.DictReader(io.StringIO(stream.getvalue().decode())))
    assert len(rows) == slices and rows[0]["start_ns"] == "0"


def test_the_command_writes_and_draws_pipelines_that_are_not_alike(tmp_path: Path) -> None:
    file = tmp_path / "span.json"
    file.write_text(json.dumps(FILE))
    files = [tmp_path / name for name in ("t.csv", "g.svg", "p.json", "l.csv")]
    words = zip(("--timeline", "--gantt", "--perfetto", "--ledger-rows"), map(str, files), strict=True)
    done = unidle(
        "span", "simulate", file, "--schedule", "atlas,unidle", "--ledger", "--json", *(word for pair in words for word in pair)
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for told in json.loads(done.stdout).values():
        spent = sum(ns for leaf in told["ledger"]["ns"].values() for ns in leaf.values())
        assert spent == 12 * told["iteration_ns"]
        assert [group["pipelines"] for group in told["groups"]] == [[0, 1], [2, 3]]
    assert all(path.stat().st_size for path in files)
