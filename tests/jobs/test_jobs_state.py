"""The life of a job: every pair of states is tried against the table."""

from __future__ import annotations

from itertools import product

import pytest

from unidle.errors import IllegalTransition
from unidle.jobs import TERMINAL, TRANSITIONS, transition


@pytest.mark.parametrize(("before", "after"), list(product(TRANSITIONS, TRANSITIONS)))
def test_every_pair_of_states_is_allowed_or_refused(before, after):
    if after in TRANSITIONS[before]:
        assert transition(before, after) == after
    else:
        with pytest.raises(IllegalTransition, match=f"from {before} to {after}"):
            transition(before, after)


def test_final_states_are_final_and_every_other_state_leads_to_them():
    assert {"succeeded", "failed", "cancelled"} == TERMINAL
    for start in TRANSITIONS:
        reached, todo = {start}, [start]
        while todo:
            for after in TRANSITIONS[todo.pop()] - reached:
                reached.add(after)
                todo.append(after)
        assert reached & TERMINAL
