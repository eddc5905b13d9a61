"""Ranks in network namespaces, whose link is cut for seconds and for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import needs
from rank_span import runs
from rank_span.runs import Nursery, Rank
from unidle.drill.lab import Lab

pytestmark = [pytest.mark.slow, needs.shaping]


@pytest.mark.parametrize("mended", [True, False])
def test_a_link_that_is_cut_for_five_seconds_changes_no_bit_and_one_cut_for_ever_ends_both(
    nursery: Nursery, tmp_path: Path, wait_until: Callable[..., Any], mended: bool
) -> None:
    kept = {"directory": str(tmp_path / "kept"), "every": 2, "keep": 2}
    ms = 1_000_000
    pace = {"forward_ns": [10 * ms] * 2, "backward_ns": [10 * ms] * 2, "weight_ns": [5 * ms] * 2}
    lab = Lab(["site0", "site1"])
    with ExitStack() as stack:
        stack.callback(lab.close)
        given = runs.plan(2, (2,), checkpoint=kept, steps=150, pace=pace)
        for device in given["devices"]:
            device["address"] = [lab.address(device["site"]), 29400]
        file, out = runs.write(given, tmp_path), tmp_path / "out"
        ranks = []
        for d in given["devices"]:
            space, words = lab.space(d["site"]), ("--device", d["device"], "--out", str(out))
            ranks.append(nursery.start(file, *words, give_up_s=30 if mended else 3, space=space))
            stack.callback(ended, ranks[-1])
        wait_until(lambda: list((tmp_path / "kept").glob("step_*")), 120, "a checkpoint")
        lab.cut("site1")
        if mended:
            time.sleep(5)
            lab.mend("site1")
        codes = [rank.wait() for rank in ranks]
        said = [rank.said for rank in ranks]
        assert codes == ([0, 0] if mended else [75, 75]), said
    newest = runs.newest(tmp_path / "kept")
    if mended:
        assert runs.tensors(newest) == runs.tensors(nursery.single(given, tmp_path))
    else:
        assert "site1/0/1" in said[0]
        assert "site0/0/0" in said[1]
        assert [runs.records(out, d["device"], "end")[0]["why"] for d in given["devices"]] == ["link", "link"]
        assert len(runs.tensors(newest)) > 100  # the last checkpoint is whole


def ended(rank: Rank) -> None:
    rank.kill()
    rank.wait()
