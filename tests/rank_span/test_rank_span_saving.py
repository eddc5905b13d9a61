"""Checkpoints beside the training: full disks, kills in the middle, sites that share no storage. Real ranks, real disks."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from places import open_directory
from rank_span import runs
from rank_span.runs import Nursery, Rank
from rank_span.test_rank_span import same
from rank_span.test_rank_span_net import ended
from unidle.drill.lab import Lab


@contextlib.contextmanager
def _disk(place: Path, size: str) -> Iterator[None]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _large(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """A run whose state is about 3 MB of float64."""
    kept = {"directory": str(tmp_path / "kept"), "every": 1, "keep": 3}
    return runs.plan(2, (2,), checkpoint=kept, model__arguments={"width": 64, "blocks": 4}, **changes)


def test_what_a_step_changes_after_a_save_has_begun_is_not_in_it(nursery: Nursery, tmp_path: Path) -> None:
    given = _large(tmp_path, steps=3, trace=False)
    out = nursery.run(given, tmp_path)
    records = runs.records(out, "site0/0/0", "checkpoint")
    assert [each["step"] for each in records] == [1, 2, 3]
    assert all(0 < each["stall_ns"] <= each["end_ns"] - each["begin_ns"] for each in records)
    for step in (1, 3):
        alone = nursery.single(given | {"steps": step, "resume": 0}, tmp_path / f"alone{step}")
        assert runs.tensors(tmp_path / f"kept/step_000000000{step}") == runs.tensors(alone)


@needs.root
def test_a_full_disk_is_one_sentence_and_training_goes_on_but_not_over_the_end(
    nursery: Nursery, tmp_path: Path
) -> None:
    with _disk(tmp_path / "kept", "8m"):
        given = _large(tmp_path, steps=5)
        file, out = runs.write(given, tmp_path), tmp_path / "out"
        with nursery.ranks(file, out) as ranks:
            assert {rank.wait() for rank in ranks.values()} == {3}
            said = [line for rank in ranks.values() for line in rank.said.splitlines()]
        assert sum("training continues" in line for line in said) == len(
            [record for name in ranks for record in runs.records(out, name, "unsaved")]
        )
        assert any("was not saved" in line and "No space left on device" in line for line in said)
        assert all(
            "step 5 was not saved" in rank.said and "it was the last" in rank.said for rank in ranks.values()
        )
        assert not any("Traceback" in line for line in said)
        assert len(runs.records(out, "site1/0/1", "step")) == 5
        left = sorted(path.name for path in (tmp_path / "kept").iterdir())
        assert left == ["step_0000000001", "step_0000000002"]
        assert all(runs.tensors(tmp_path / "kept" / name) for name in left)


@pytest.mark.slow
def test_ranks_killed_while_they_save_lose_nothing_of_the_checkpoint_before(
    nursery: Nursery, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    kept = tmp_path / "kept"
    for attempt in range(3):
        given = _large(tmp_path, steps=100_000, trace=False)
        given["checkpoint"]["keep"] = 1
        file = runs.write(given, tmp_path / str(attempt))
        with nursery.ranks(file, tmp_path / str(attempt) / "out") as ranks:
            wait_until(lambda: list(kept.glob("step_*")), 60, "a checkpoint")
            before = int(runs.newest(kept).name[5:])
            wait_until(lambda b=before: int(runs.newest(kept).name[5:]) > b, 60, "a later one")
            wait_until(lambda: list(kept.glob(".step_*")), 60, "one on its way")
            for rank in ranks.values():
                rank.kill()
        whole = [path for path in kept.glob("step_*") if (path / "manifest.json").exists()]
        assert whole
        assert all(len(runs.tensors(path)) > 100 for path in whole)
    newest = int(runs.newest(kept).name[5:])
    given["checkpoint"]["keep"] = 9
    out = same(nursery, given | {"steps": newest + 1, "resume": newest}, tmp_path / "again")
    assert runs.records(out, "site0/0/0", "ready")[0]["resumed"] == newest
    assert not list(kept.glob(".step_*"))


def _on_disks(
    nursery: Nursery, given: dict[str, Any], tmp_path: Path, out: Path, code: int = 0
) -> list[Rank]:
    """Each site with a disk of its own; all end with a code."""
    ranks = []
    for device in given["devices"]:
        kept = {"directory": str(tmp_path / f"disk-of-{device['site']}"), "every": 1, "keep": 2}
        file = runs.write(given | {"checkpoint": kept}, tmp_path / f"plan-of-{device['site']}")
        ranks.append(nursery.start(file, "--device", device["device"], "--out", str(out)))
    try:
        assert [rank.wait() for rank in ranks] == [code] * len(ranks), [rank.said for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return ranks


def test_sites_with_disks_of_their_own_each_keep_all_and_one_that_lost_its_own_goes_on_with_another_cut(
    nursery: Nursery, tmp_path: Path
) -> None:
    given = runs.plan(2, (2,), steps=2)
    ranks = _on_disks(nursery, given, tmp_path, tmp_path / "out")
    assert not any(rank.said for rank in ranks)
    alone = runs.tensors(nursery.single(given, tmp_path / "alone"))
    for site in ("site0", "site1"):
        assert runs.tensors(runs.newest(tmp_path / f"disk-of-{site}")) == alone
    shutil.rmtree(tmp_path / "disk-of-site0")
    again = runs.plan(3, (2,), steps=3, resume=2, model__cut=[[0, 1], [1, 3], [3, 6]])
    _on_disks(nursery, again, tmp_path, tmp_path / "again")
    assert runs.records(tmp_path / "again", "site2/0/2", "ready")[0]["resumed"] == 2
    whole = runs.tensors(nursery.single(given | {"steps": 3}, tmp_path / "whole"))
    for site in ("site0", "site1", "site2"):
        assert runs.tensors(runs.newest(tmp_path / f"disk-of-{site}")) == whole


@needs.root
def test_a_site_whose_disk_is_full_is_named_and_the_sites_do_not_stay_apart(
    nursery: Nursery, tmp_path: Path
) -> None:
    with _disk(tmp_path / "disk-of-site1", "2m"):  # room for its own part, and not for the other
        given = _large(tmp_path, steps=2)
        ranks = _on_disks(nursery, given, tmp_path, tmp_path / "out", 3)
        said = ranks[1].said
        assert f"step 1 was not saved: {tmp_path}/disk-of-site1" in said
        assert said.count("No space left on device; training continues") == 1
        assert "training continues" not in ranks[0].said
        assert all("it was the last" in rank.said for rank in ranks)
        assert not runs.records(tmp_path / "out", "site0/0/0", "apart")
        assert not list((tmp_path / "disk-of-site1").iterdir())


@pytest.mark.slow
@needs.shaping
def test_sites_that_cannot_connect_to_each_other_keep_their_own_layers_and_are_told_what_to_do(
    nursery: Nursery, tmp_path: Path
) -> None:
    given, lab = runs.plan(3, (2,), steps=3), Lab(["site0", "site1", "site2"])
    with open_directory("d") as disks, contextlib.ExitStack() as stack:  # a short path: long values are cut
        stack.callback(lab.close)
        lab.cut("site0", "site2")
        ranks = []
        for device in given["devices"]:
            device["address"] = [lab.address(device["site"]), 29400]
        for device in given["devices"]:
            kept = {"directory": str(disks / f"of-{device['site']}"), "every": 1, "keep": 3}
            file = runs.write(given | {"checkpoint": kept}, tmp_path / f"plan-of-{device['site']}")
            words = ("--device", device["device"], "--out", str(tmp_path / "out"))
            ranks.append(nursery.start(file, *words, space=lab.space(device["site"])))
            stack.callback(ended, ranks[-1])
        assert [rank.wait() for rank in ranks] == [0, 0, 0], [rank.said for rank in ranks]
        (told,) = runs.records(tmp_path / "out", "site0/0/0", "apart")
        assert told["because"].startswith("checkpoint.directory: is not the same storage at all sites")
        assert "site0; site1; site2" in told["because"]
        assert "name storage that all sites share" in told["because"]
        for step in (1, 2, 3):
            parts = [runs.tensors(disks / f"of-site{k}/step_000000000{step}") for k in range(3)]
            assert not parts[0].keys() & parts[1].keys()
        assert [len(runs.records(tmp_path / "out", f"site{k}/0/{k}", "checkpoint")) for k in range(3)] == [
            3,
            3,
            3,
        ]
