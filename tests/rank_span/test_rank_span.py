"""Ranks on loopback addresses train to the same bits as one process; what is wrong is told in one sentence."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rank_span import runs, schedules
from rank_span.runs import Nursery
from unidle.errors import BadInput
from unidle.span.rank.read_plan import plan_from, read_plan


def _kept(directory: Path, every: int = 100) -> dict[str, Any]:
    return {"directory": str(directory), "every": every, "keep": 4}


def same(nursery: Nursery, given: dict[str, Any], directory: Path) -> Path:
    """Ranks and the single process end with the same parameters and optimizer; the ranks' records."""
    given["checkpoint"] = given["checkpoint"] or _kept(directory / "kept")
    out = nursery.run(given, directory)
    alone = runs.tensors(nursery.single(given, directory))
    among = runs.tensors(runs.newest(Path(given["checkpoint"]["directory"])))
    assert len(alone) > 100
    assert among == alone
    return out


def test_what_happens_inside_a_rank_is_exact(nursery: Nursery, tmp_path: Path) -> None:
    nursery.script("inside.py", tmp_path)


def test_two_pipelines_with_unequal_microbatches_train_to_the_bits_of_one_process(
    nursery: Nursery, tmp_path: Path
) -> None:
    given = runs.plan(2, (2, 3), clip_norm=0.5)
    out = same(nursery, given, tmp_path)
    steps = runs.records(out, "site1/0/1", "step")
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(0 <= step["exposed_wan_ns"] <= step["wait_ns"] for step in steps)
    assert all(step["wan_bytes"] == 2 * 2 * 6 * 8 * 8 for step in steps)
    alone = runs.records(tmp_path / "single", "single", "step")
    assert [step["loss"] for step in steps] == [step["losses"][0] for step in alone]
    rows = runs.records(out, "site0/1/0", "row")
    compute = [[row["op"], row["microbatch"], row["chunk"]] for row in rows if row["op"] in "FRBW"]
    assert compute == given["devices"][2]["order"] * 3
    assert {row["op"] for row in rows} == {"F", "B", "W", "send", "allreduce"}
    ready, *_, end = runs.records(out, "site0/1/0")
    assert (ready["kind"], ready["changes_semantics"], end["why"]) == ("ready", [], "done")


def test_one_process_says_how_far_its_parameters_are_from_those_of_a_run(
    nursery: Nursery, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    given = runs.plan(1, (1,), checkpoint=_kept(kept))
    nursery.run(given, tmp_path)
    nursery.single(given, tmp_path / "same", "--against", str(kept))
    nursery.single(given | {"seed": 8}, tmp_path / "other", "--against", str(kept))
    (same_end,) = runs.records(tmp_path / "same/single", "single", "compared")
    (other_end,) = runs.records(tmp_path / "other/single", "single", "compared")
    assert same_end["parameter_difference"] == 0 < other_end["parameter_difference"]
    assert same_end["parameters"] == other_end["parameters"] > 100
    for changes, text in (
        ({"steps": 4}, f"no checkpoint of step 4 is in {kept}"),
        ({"model": given["model"] | {"arguments": {"blocks": 5}}}, "they hold different names: model.5."),
    ):
        file = runs.write(given | changes, tmp_path / "wrong")
        words = ("--single", "--out", str(tmp_path / "wrong/out"), "--against", str(kept))
        rank = nursery.start(file, *words)
        assert rank.wait() == 3
        assert f"the final states cannot be compared: {text}" in rank.said


def test_a_cell_that_takes_turns_trains_to_the_bits_of_one_process_and_another_cut_goes_on(
    nursery: Nursery, tmp_path: Path
) -> None:
    fields = schedules.fields(schedules.scheduled("unidle", 2, 3, 2, 2))
    assert fields["links"][0]["share"] == "turns"
    for link in fields["links"]:
        link["rate_bytes_per_s"] = 2_000_000
    kept = _kept(tmp_path / "kept", 2)
    same(nursery, runs.plan(**fields, checkpoint=kept), tmp_path / "first")
    assert sorted(path.name[-1] for path in (tmp_path / "kept").iterdir()) == ["2", "3"]
    cut = [[0, 1], [1, 2], [2, 6]]
    given = runs.plan(3, (3,), model__cut=cut, checkpoint=kept, steps=5, resume=3)
    out = same(nursery, given, tmp_path / "then")
    assert runs.records(out, "site2/0/2", "ready")[0]["resumed"] == 3
    assert [record["step"] for record in runs.records(out, "site0/0/0", "checkpoint")] == [4, 5]


def test_a_plan_for_another_model_is_refused_with_digests_and_shapes(
    nursery: Nursery, tmp_path: Path
) -> None:
    plain = runs.write(runs.plan(1, (1,)), tmp_path)
    rank = nursery.start(plain, "--describe")
    assert rank.wait() == 0, rank.said
    told = json.loads((tmp_path / "described").read_text())
    assert told["layers"] == 6
    given = runs.plan(1, (1,), model__digest=told["digest"], model__arguments={"width": 16})
    rank = nursery.start(runs.write(given, tmp_path), "--device", "site0/0/0", "--out", str(tmp_path / "out"))
    assert rank.wait() == 2
    assert told["digest"][:16] in rank.said
    assert "0.places (6, 16) float64" in rank.said
    assert rank.said.count("\n") == 1
    assert runs.records(tmp_path / "out", "site0/0/0", "end")[0]["why"] == "wrong"


def test_of_two_runs_on_one_port_the_second_ends_with_a_clear_error(
    nursery: Nursery, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    given = runs.plan(2, (1,))
    file, out = runs.write(given, tmp_path), tmp_path / "out"
    first = nursery.start(file, "--device", "site0/0/0", "--out", str(out))
    try:
        wait_until(lambda: _listens(given["devices"][0]["address"]), 60, "the first to listen")
        second = nursery.start(file, "--device", "site0/0/0", "--out", str(tmp_path / "other"))
        assert second.wait() == 2
        assert str(given["devices"][0]["address"][1]) in second.said
    finally:
        first.kill(signal.SIGTERM)
        assert first.wait() == 143
    assert runs.records(out, "site0/0/0", "end")[0]["why"] == "stopped"


def _listens(address: list[Any]) -> bool:
    port = f":{address[1]:04X} "
    return any(port in line and " 0A " in line for line in Path("/proc/net/tcp").read_text().splitlines())


@pytest.mark.slow
def test_a_peer_killed_in_the_middle_ends_the_others_and_the_run_goes_on_from_the_last_checkpoint(
    nursery: Nursery, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    kept = _kept(tmp_path / "kept", 2)
    given = runs.plan(2, (2,), checkpoint=kept, steps=100_000, trace=False)
    file, out = runs.write(given, tmp_path), tmp_path / "out"
    with nursery.ranks(file, out, give_up_s=5) as ranks:
        wait_until(lambda: list((tmp_path / "kept").glob("step_*4/manifest.json")), 60, "checkpoints")
        ranks["site1/0/1"].kill()
        assert ranks["site0/0/0"].wait() == 75
        assert "site1/0/1" in ranks["site0/0/0"].said
    end = runs.records(out, "site0/0/0", "end")[0]
    assert (end["why"], end["peer"]) == ("link", "site1/0/1")
    newest = int(runs.newest(tmp_path / "kept").name[5:])
    again = runs.plan(2, (2,), checkpoint=kept, steps=newest + 1, resume=newest)
    out = same(nursery, again, tmp_path / "again")
    assert [step["step"] for step in runs.records(out, "site1/0/1", "step")] == [newest + 1]


def test_a_plan_with_a_mistake_names_field_value_and_remedy(tmp_path: Path) -> None:
    for changes, text in (
        ({"microbatch": 0}, "plan.microbatch: must be 1 or more (got 0)"),
        ({"steps": -1}, "plan.steps: must be 1 or more"),
        ({"version": 2}, "plan.version: is of another version (got 2)"),
        ({"microbatches": [2, 0]}, "plan.microbatches: must be whole numbers of 1 or more"),
        ({"microbatches": [4, 4]}, "devices: must be one for each stage of each pipeline"),
        ({"cell": 3}, "cell: must divide the 1 pipelines (got 3)"),
        ({"model__cut": [[0, 3], [4, 6]]}, "model.cut: part 1 must be [3, a later layer]"),
        ({"model__cut": [[0, 6]]}, "model.cut: must have 2 parts"),
        ({"model__dtype": "float16"}, "model.dtype: must be one of float64"),
        ({"changes_semantics": {"activations": "int4"}}, "changes_semantics.activations: must be one of None, bfloat16"),
        ({"checkpoint": {"directory": "/x", "every": 0}}, "checkpoint.every: must be 1 or more"),
        ({"pace": {"forward_ns": [1]}}, "pace.forward_ns: must have 2 numbers"),
        ({"clip_norm": -1.0}, "clip_norm: must be above 0"),
        ({"links": [{"from": 0, "to": 5}]}, "links.0: must join two stages"),
        ({"links": [{"from": 0, "to": 1, "pipelines": [1]}]}, "links.0.pipelines: must be below 1"),
        ({"pace": {"forward_ns": [1, 1], "speeds": [1, 2]}}, "pace.speeds: must have 1 numbers above 0"),
        ({"pace": {"forward_ns": [1, 1], "speeds": [0]}}, "pace.speeds: must have 1 numbers above 0"),
        ({"pace": {"forward_ns": [1, 1], "speeds": ["1"]}}, "pace.speeds: must have 1 numbers above 0"),
        ({"earlier": [{"until": 3, "microbatches": [3]}]}, "earlier.0.microbatches: must be as many pipelines"),
        ({"earlier": [{"until": -1, "microbatches": [4]}]}, "earlier.0.until: must be 0 or more"),
    ):  # fmt: skip
        with pytest.raises(BadInput) as caught:
            plan_from(
                runs.plan(2, (4,)) | changes
                if "__" not in next(iter(changes))
                else runs.plan(2, (4,), **changes)
            )
        assert str(caught.value).startswith(text)
    order = runs.one_f_one_b(2, 0, 4)
    for wrong, text in (
        (order[:-1], "microbatch 3 of chunk 0 has no W"),
        ([*order, ["F", 0, 0]], "an operation is there twice"),
        ([*order, ["F", 9, 0]], "is no microbatch"),
        ([order[2], *order[:2], *order[3:]], "not in the order F, R, B, W"),
        ([["X", 0, 0]], "an operation must be"),
    ):
        given = runs.plan(2, (4,))
        given["devices"][0]["order"] = wrong
        with pytest.raises(BadInput, match=text):
            plan_from(given)
    with pytest.raises(BadInput, match="cannot be read"):
        read_plan(str(tmp_path / "none.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(BadInput, match="is no JSON"):
        read_plan(str(tmp_path / "broken.json"))
    plan = plan_from(runs.plan(2, (4,)))
    assert plan.cuts(5) == ((0, 3), (3, 5))
    with pytest.raises(BadInput, match="model: has fewer layers"):
        plan.cuts(1)
    with pytest.raises(BadInput, match="--device: is not in the plan"):
        plan.named("mars/0/0")
