"""The same for every schedule, more pipelines, other models and types, opt-in changes, and checkpoints that are damaged."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rank_span import runs, schedules
from rank_span.runs import Nursery
from rank_span.test_rank_span import same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["gpipe", "1f1b", "interleaved", "zb-h1", "varuna", "atlas", "atlas-keep", "unidle"]
)
def test_every_schedule_trains_to_the_bits_of_one_process(
    nursery: Nursery, tmp_path: Path, name: str
) -> None:
    for stages, microbatches, pipelines, cell in ((3, 4, 1, 1), (2, 5, 2, 2)):
        fields = schedules.fields(schedules.scheduled(name, stages, microbatches, pipelines, cell))
        same(nursery, runs.plan(**fields, model__arguments={"dropout": 0.3}), tmp_path / str(stages))


def test_three_pipelines_with_unequal_microbatches_and_an_optimizer_of_ones_own(
    nursery: Nursery, tmp_path: Path
) -> None:
    mine = {"name": f"{runs.TOY}:momentum", "arguments": {"lr": 0.1}}
    given = runs.plan(2, (2, 1, 3), optimizer=mine)
    given["checkpoint"] = {"directory": str(tmp_path / "kept"), "every": 9, "keep": 1}
    nursery.run(given, tmp_path)
    alone = runs.tensors(nursery.single(given, tmp_path))
    assert runs.tensors(runs.newest(tmp_path / "kept")) == alone
    assert any("momentum_buffer" in name for name in alone)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_types_train_to_the_bits_of_one_process_on_the_same_machine(
    nursery: Nursery, tmp_path: Path, dtype: str
) -> None:
    same(nursery, runs.plan(3, (3,), model__dtype=dtype), tmp_path)


def test_weights_used_several_times_in_a_layer_and_a_module_with_a_list_of_layers(
    nursery: Nursery, tmp_path: Path
) -> None:
    same(nursery, runs.plan(2, (3,), model__arguments={"shared": True}), tmp_path / "shared")
    listed = {"model__build": f"{runs.TOY}:listed", "model__cut": [[0, 1], [1, 2], [2, 4]]}
    same(nursery, runs.plan(3, (3,), **listed), tmp_path / "listed")


def test_tied_layers_that_a_cut_would_part_are_refused_with_both_names(
    nursery: Nursery, tmp_path: Path
) -> None:
    given = runs.plan(2, (1,), model__build=f"{runs.TOY}:tied")
    rank = nursery.start(runs.write(given, tmp_path), "--device", "site0/0/0", "--out", str(tmp_path / "out"))
    assert rank.wait() == 2
    assert "2.weight of part 1 is the same parameter as 0.weight of part 0" in rank.said


def test_outer_steps_train_as_one_process_does_and_say_so(nursery: Nursery, tmp_path: Path) -> None:
    outer = {"outer": {"every": 2, "lr": 0.7, "momentum": 0.9}}
    kept = {"directory": str(tmp_path / "kept"), "every": 2, "keep": 9}
    given = runs.plan(2, (2, 3), steps=4, changes_semantics=outer, checkpoint=kept)
    out = same(nursery, given, tmp_path / "whole")
    ready = runs.records(out, "site1/1/1", "ready")[0]
    assert "train alone for 2 steps" in ready["changes_semantics"][0]
    assert [row["step"] for row in runs.records(out, "site1/1/1", "row") if row["op"] == "allreduce"] == [
        2,
        4,
    ]
    whole = runs.tensors(runs.newest(tmp_path / "kept"))
    nursery.run(given | {"resume": 2}, tmp_path / "again")
    assert runs.tensors(runs.newest(tmp_path / "kept")) == whole


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_compressed_activations_cross_sites_in_fewer_bytes_and_losses_stay_close(
    nursery: Nursery, tmp_path: Path, name: str
) -> None:
    given = runs.plan(2, (4,), model__dtype="float32", changes_semantics={"activations": name}, steps=5)
    out = nursery.run(given, tmp_path)
    nursery.single(given, tmp_path)
    near = runs.records(out, "site1/0/1", "step")
    exact = runs.records(tmp_path / "single", "single", "step")
    for a, b in zip(near, exact, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=0.05)
    rows = 4 * 2 * 6
    assert near[0]["wan_bytes"] == rows * (8 * 2 if name == "bfloat16" else 8 + 4)
    assert name in runs.records(out, "site0/0/0", "ready")[0]["changes_semantics"][0]


def test_a_rank_that_is_paced_takes_the_stated_time_at_least(nursery: Nursery, tmp_path: Path) -> None:
    ms = 1_000_000
    pace = {
        "forward_ns": [20 * ms, 10 * ms], "backward_ns": [30 * ms, 30 * ms], "weight_ns": [5 * ms, 5 * ms],
        "recompute_ns": [0, 0],
    }  # fmt: skip
    out = nursery.run(runs.plan(2, (2,), steps=1, pace=pace), tmp_path)
    for stage in (0, 1):
        rows = runs.records(out, f"site{stage}/0/{stage}", "row")
        for op, field in (("F", "forward_ns"), ("B", "backward_ns"), ("W", "weight_ns")):
            lengths = [row["end_ns"] - row["start_ns"] for row in rows if row["op"] == op]
            assert len(lengths) == 2
            assert min(lengths) >= pace[field][stage]
        compute = [row for row in rows if row["op"] in "FBW"]
        assert all(a["end_ns"] <= b["start_ns"] for a, b in pairwise(compute))


def test_a_damaged_checkpoint_is_left_out_and_one_of_another_model_is_refused(
    nursery: Nursery, tmp_path: Path
) -> None:
    kept = {"directory": str(tmp_path / "kept"), "every": 1, "keep": 9}
    nursery.run(runs.plan(2, (2,), checkpoint=kept), tmp_path / "first")
    whole = runs.tensors(tmp_path / "kept/step_0000000003")
    shard = tmp_path / "kept/step_0000000003/shard-00001-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    given = runs.plan(1, (2,), checkpoint=kept)
    out = nursery.run(given, tmp_path / "again")
    assert runs.records(out, "site0/0/0", "ready")[0]["resumed"] == 2
    assert runs.tensors(tmp_path / "kept/step_0000000003") == whole
    for changes, text in (
        ({"model__arguments": {"width": 16}}, "has shape (6, 8) there, (6, 16) here"),
        ({"model__arguments": {"blocks": 9}}, "is of another model: it has no 5."),
        ({"resume": 77}, "no checkpoint in it can be read"),
    ):
        other = runs.write(runs.plan(1, (2,), **{"checkpoint": kept, **changes}), tmp_path / "other")
        rank = nursery.start(other, "--device", "site0/0/0", "--out", str(tmp_path / "other/out"))
        assert rank.wait() == 2
        assert text in rank.said


def test_sites_that_share_no_directory_keep_their_own_layers(nursery: Nursery, tmp_path: Path) -> None:
    kept = {"directory": str(tmp_path / "{site}"), "every": 2, "keep": 9}
    given = runs.plan(2, (2, 1), checkpoint=kept, steps=4)
    nursery.run(given, tmp_path / "first")
    alone = runs.tensors(nursery.single(given, tmp_path / "first"))
    parts = [runs.tensors(runs.newest(tmp_path / f"site{s}")) for s in (0, 1)]
    assert parts[0] | parts[1] == alone
    assert not parts[0].keys() & parts[1].keys()
    out = nursery.run(given | {"resume": 2}, tmp_path / "again")
    assert runs.records(out, "site1/1/1", "ready")[0]["resumed"] == 2
    assert [runs.tensors(runs.newest(tmp_path / f"site{s}")) for s in (0, 1)] == parts
    other = runs.plan(2, (2,), checkpoint=kept, model__cut=[[0, 1], [1, 6]])
    file = runs.write(other, tmp_path / "other")
    with nursery.ranks(file, tmp_path / "other/out") as ranks:
        assert [rank.wait() for rank in ranks.values()] == [2, 2]
        assert "lies on another site" in ranks["site0/0/0"].said


def test_ranks_told_to_stop_leave_cleanly_and_the_run_goes_on(
    nursery: Nursery, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    kept = {"directory": str(tmp_path / "kept"), "every": 1, "keep": 2}
    given = runs.plan(2, (2, 2), checkpoint=kept, steps=100_000, trace=False)
    file, out = runs.write(given, tmp_path), tmp_path / "out"
    with nursery.ranks(file, out) as ranks:
        wait_until(lambda: len(list((tmp_path / "kept").glob("step_*"))) == 2, 60, "checkpoints")
        for rank in ranks.values():
            rank.kill(signal.SIGTERM)
        codes = {rank.wait() for rank in ranks.values()}
        assert codes <= {143, 75}
        assert 143 in codes
        assert not any("Traceback" in rank.said for rank in ranks.values())
    for name in ranks:
        assert runs.records(out, name, "end")[0]["why"] in ("stopped", "peer", "link")
    newest = int(runs.newest(tmp_path / "kept").name[5:])
    out = nursery.run(given | {"steps": newest + 1}, tmp_path / "again")
    assert runs.records(out, "site0/0/0", "ready")[0]["resumed"] == newest


def test_a_stranger_with_another_secret_or_run_is_refused(nursery: Nursery, tmp_path: Path) -> None:
    given = runs.plan(2, (1,))
    one = runs.write(given, tmp_path / "one")
    for changes, secret, text in (
        ({}, "another", "secret"),
        ({"run": "other"}, "of this test", "two runs on one port"),
    ):
        other = runs.write(given | changes, tmp_path / "other")
        first = nursery.start(one, "--device", "site0/0/0", "--out", str(tmp_path / "one"))
        second = nursery.start(
            other, "--device", "site1/0/1", "--out", str(tmp_path / "other"), secret=secret
        )
        try:
            assert second.wait() == 2
            assert text in second.said
        finally:
            first.kill(signal.SIGTERM)
            assert first.wait() == 143


def test_a_rank_that_is_silent_for_seconds_is_waited_for_and_no_bit_changes(
    nursery: Nursery, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    kept = {"directory": str(tmp_path / "kept"), "every": 1000, "keep": 2}
    given = runs.plan(2, (2, 2), checkpoint=kept, steps=60)
    file, out = runs.write(given, tmp_path), tmp_path / "out"
    with nursery.ranks(file, out) as ranks:
        wait_until(lambda: (out / "site0-0-0.jsonl").exists(), 60, "records")
        wait_until(lambda: len(runs.records(out, "site0/0/0", "step")) > 2, 60, "steps")
        ranks["site1/0/1"].kill(signal.SIGSTOP)
        time.sleep(6.5)  # longer than a flow may be silent
        ranks["site1/0/1"].kill(signal.SIGCONT)
        assert {rank.wait() for rank in ranks.values()} == {0}
    assert runs.tensors(runs.newest(tmp_path / "kept")) == runs.tensors(nursery.single(given, tmp_path))


def test_what_a_user_s_code_raises_is_shown_and_the_others_end(nursery: Nursery, tmp_path: Path) -> None:
    file = runs.write(runs.plan(2, (2,), loss=f"{runs.TOY}:broken"), tmp_path)
    with nursery.ranks(file, tmp_path / "out") as ranks:
        assert ranks["site1/0/1"].wait() == 1
        assert "ZeroDivisionError" in ranks["site1/0/1"].said
        assert ranks["site0/0/0"].wait() == 75
    assert runs.records(tmp_path / "out", "site1/0/1", "end")[0]["why"] == "error"
    assert runs.records(tmp_path / "out", "site0/0/0", "end")[0]["why"] == "peer"


def test_an_address_that_is_not_this_hosts_is_refused(nursery: Nursery, tmp_path: Path) -> None:
    given = runs.plan(1, (1,))
    given["devices"][0]["address"][0] = "192.0.2.1"
    rank = nursery.start(runs.write(given, tmp_path), "--device", "site0/0/0", "--out", str(tmp_path / "out"))
    assert rank.wait() == 2
    assert "address of site0/0/0: cannot be listened on" in rank.said
