"""What stages take, from rows that ranks wrote."""

from __future__ import annotations

from typing import Any

from unidle.span.model.layers import stage_times


def plan(stages: int = 2, pipelines: int = 2, chunks: int = 1, *, joined: bool = False) -> dict[str, Any]:
    devices = [
        {"device": f"s{s}/{p}/{s}", "site": f"s{s}", "pipeline": p, "stage": s, "joined": joined}
        for p in range(pipelines)
        for s in range(stages)
    ]
    return {"devices": devices, "model": {"cut": [[3 * k, 3 * k + 3] for k in range(stages * chunks)]}}


def row(op: str, step: int, took: int, microbatch: int = 0, chunk: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "kind": "row", "op": op, "step": step, "microbatch": microbatch, "chunk": chunk, "start_ns": 1_000,
        "end_ns": 1_000 + took, **more,
    }  # fmt: skip


def test_times_are_of_all_pipelines_and_of_no_first_step() -> None:
    records = [
        (f"s0/{p}/0", row("F", step, took))
        for step, p, took in [(5, 0, 900), (6, 0, 10), (6, 1, 30), (7, 0, 20)]
    ]
    records += [("s1/0/1", row("F", 6, 7)), ("s1/0/1", row("W", 6, 3)), ("s0/0/0", row("W", 6, 4))]
    records += [
        ("s0/0/0", row("send", 6, 50, bytes=640, of="F")),
        ("s1/0/1", row("send", 6, 50, bytes=630, of="B")),
    ]
    first, second = stage_times(plan(), records)
    assert (first.stage, first.site, first.layers, first.sends_bytes) == (0, "s0", ((0, 3),), 640)
    assert first.forward == (20, 10, 30)
    assert first.microbatches == 3
    assert (first.backward, first.recompute, first.joined) == (None, None, False)
    assert second.forward is not None and second.forward.value == 7
    assert second.sends_bytes is None


def test_a_single_step_is_better_than_none() -> None:
    (first, _) = stage_times(plan(), [("s0/0/0", row("F", 1, 10)), ("s0/0/0", row("B", 1, 40))])
    assert first.forward == (10, 10, 10)
    assert first.joined  # no gradient of the weights was seen apart


def test_chunks_of_a_stage_are_added_up() -> None:
    records = [("s0/0/0", row("F", 2, took, 4, chunk)) for chunk, took in enumerate((10, 15))]
    first, second = stage_times(plan(chunks=2), records)
    assert first.forward == (25, 25, 25)
    assert first.layers == ((0, 3), (6, 9))
    assert second.forward is None


def test_what_is_no_row_or_of_a_device_that_stands_by_is_passed_over() -> None:
    records = [
        ("s9/0/0", row("F", 1, 10)),
        ("s0/0/0", {"kind": "step", "step": 1}),
        ("s0/0/0", row("allreduce", 1, 9)),
    ]
    assert all(each.forward is None and each.microbatches == 0 for each in stage_times(plan(), records))
