"""Programs that are walked side by side, and those that are given up: as if each had gone alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from span.settings import settings
from unidle.span.model.setting import Setting
from unidle.span.simulate.engine import run, run_many
from unidle.span.simulate.iteration import iteration_ns
from unidle.span.simulate.program import Filler, LinkShare, Program, Stuck, depth_order


def filled(setting: Setting, share: LinkShare, depth: int, put_off: int, slack_ns: int) -> Program:
    stages, count = len(setting.stages), setting.microbatches
    order = depth_order(np.full(stages, depth, dtype=np.int64), count)
    again = np.arange(count)[None, :].repeat(stages, 0) % (depth + 1) == 0
    filler = Filler(np.full(stages, put_off, dtype=np.int64), np.full(stages, slack_ns, dtype=np.int64))
    none = np.zeros((0, 0), dtype=np.int64)
    return Program("", order, again, none, early=True, filler=filler, max_flows=True, share=share)


@runs(max_examples=60)
@given(
    settings(capped=False),
    st.sampled_from([LinkShare(), LinkShare("turns"), LinkShare("turns", wide=True, pieces=3)]),
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4), st.sampled_from([0, 70])), min_size=1, max_size=6),
    st.sampled_from(["rounds", "steps"]),
    st.integers(0, 5),
)  # fmt: skip
def test_side_by_side_is_as_alone_and_only_what_is_too_long_is_given_up(
    setting: Setting, share: LinkShare, wishes: list[tuple[int, int, int]], by: str, which: int
) -> None:
    programs = [filled(setting, share, *wish) for wish in wishes]
    alone = list[int | None]()
    for program in programs:
        try:
            alone.append(iteration_ns(setting, run(setting, program, by="steps")))
        except Stuck:
            alone.append(None)
    beside = run_many(setting, programs, by="rounds" if by == "rounds" else "steps")
    assert [None if each is None else iteration_ns(setting, each) for each in beside] == alone
    limit = alone[which % len(alone)]
    if limit is None:
        return
    for made, length in zip(
        run_many(setting, programs, by="rounds" if by == "rounds" else "steps", limit_ns=limit), alone, strict=True
    ):  # fmt: skip
        if length is not None and length < limit:
            assert made is not None and iteration_ns(setting, made) == length
