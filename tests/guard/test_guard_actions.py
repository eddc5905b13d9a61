"""The tables of actions and remedies agree: a word that is in one is in the others."""

from __future__ import annotations

from typing import get_args

from unidle.files.fleet_guard import RemedyPart
from unidle.fleet.policies import HARD, RUNGS, STEP_OF
from unidle.guard.log.model import IN_WORDS, Action
from unidle.guard.remedy_model import CHECK


def test_every_action_has_words() -> None:
    assert set(IN_WORDS) == set(get_args(Action))


def test_an_action_that_takes_a_node_out_of_service_has_a_step_to_begin_with() -> None:
    assert set(STEP_OF) <= set(get_args(Action))
    assert set(STEP_OF.values()) == {CHECK, *RUNGS}


def test_every_rung_has_a_command_in_the_fleet_file_in_the_same_order() -> None:
    assert RemedyPart.__struct_fields__ == RUNGS
    assert set(HARD) <= set(RUNGS)
