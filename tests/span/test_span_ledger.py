"""Every nanosecond of every device of a simulated iteration has one cause of the ledger; and the trace of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as runs

from scope_export import readers
from scope_export.protobuf import ask_perfetto
from span.reading import load_span
from span.settings import settings
from unidle.errors import BadInput
from unidle.ledger.current import check_batches
from unidle.ledger.sources import LiveRows
from unidle.ledger.taxonomy import GROUPS
from unidle.span.cli.trace import write_trace
from unidle.span.model.setting import Setting
from unidle.span.simulate.check import check
from unidle.span.simulate.iteration import simulate
from unidle.span.simulate.ledger import LEAF_OF, causes, columns, spent
from unidle.span.simulate.schedules import SCHEDULES

EXAMPLE = Path(__file__).parents[2] / "examples" / "span" / "three-sites.yaml"


@pytest.mark.parametrize("name", SCHEDULES)
@runs(max_examples=12)
@given(setting=settings())
def test_every_nanosecond_of_every_device_has_one_cause(name: str, setting: Setting) -> None:
    try:
        done = simulate(setting, SCHEDULES[name])
    except BadInput:
        return  # memory is too small for it
    length, stages = done.result.iteration_ns, len(setting.stages)
    until = [0] * (done.run.pipelines * stages)
    for each in spent(done):
        device = each.pipeline * stages + each.stage
        assert until[device] == each.start_ns < each.end_ns
        assert each.leaf in GROUPS["step"]
        until[device] = each.end_ns
    assert until == [length] * len(until)
    total = causes(done)
    assert sum(total.values()) == setting.devices * length
    devices = setting.pipelines * setting.microbatches
    for cause, part in (
        ("forward", "forward_ns"),
        ("backward", "backward_ns"),
        ("weight gradient", "weight_ns"),
    ):
        assert total[cause] == devices * sum(getattr(stage, part) for stage in setting.stages)
    waits = total.get("transfer between sites", 0) * done.run.pipelines // setting.pipelines
    assert waits == int(done.run.exposed_ns.sum())


def test_the_rows_are_modelled_and_the_ledger_finds_nothing_wrong_with_them() -> None:
    done = simulate(load_span(EXAMPLE), SCHEDULES["atlas"])
    source = LiveRows(columns(done))
    assert not check_batches(source.batches(source.extent()))
    (batch,) = source.batches(source.extent())
    assert batch.observers == ("span",) and set(LEAF_OF.values()) <= set(GROUPS["step"])


def test_the_trace_processor_finds_every_operation_and_the_peak_of_memory(tmp_path: Path) -> None:
    done = simulate(load_span(EXAMPLE), SCHEDULES["unidle"])
    stream = io.BytesIO()
    write_trace(stream, [done])
    json.loads(stream.getvalue())
    slices, problems, counters, processes = ask_perfetto(
        readers.perfetto_build(),
        tmp_path,
        stream.getvalue(),
        """select s.ts, s.dur, s.name, t.name as place from slice s join thread_track k on s.track_id = k.id
           join thread t using (utid)""",
        "select name, value from stats where value > 0 and severity in ('error', 'data_loss')",
        "select max(value) as most from counter c join counter_track k on c.track_id = k.id where k.name glob 'memory of *'",
        "select name from process where pid > 0 order by pid",
    )
    assert problems == []
    found = sorted(
        (row["ts"], row["ts"] + row["dur"], row["name"].split(" ")[0].rstrip("0123456789"), row["place"])
        for row in slices
    )
    rows = list(done.rows())
    assert found == sorted((row.start_ns, row.end_ns, row.op, row.device_or_link) for row in rows)
    assert counters == [{"most": check(done.setting, rows).peak_bytes}]
    assert [row["name"] for row in processes][:3] == ["oregon", "wires of oregon", "ohio"]
