"""Before a restart the box of rank 0 reads the newest checkpoint: what is asked of it, what the start waits for, what is reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine_hosts.scripted_hub import ScriptedHub, fleet, gang_of
from unidle import wire
from unidle.engine.hosts.timing import S
from unidle.engine.local.ranks.saved_checkpoints import PATIENCE_NS
from unidle.engine.protocol import CheckpointLook, StartGang
from unidle.hub import frames

BAD = {
    "path": "/data/ckpt/step_9",
    "because": "is truncated",
    "moved_to": "/data/ckpt/.unidle/bad/step_9.1",
    "step": 9,
}


@pytest.fixture
def hub() -> Iterator[ScriptedHub]:
    made = ScriptedHub(fleet())
    yield made
    made.engine.close()


def saving(attempt: int = 2, *, aside: bool = True) -> StartGang:
    command = gang_of(attempt=attempt)
    saves = {"workdir": "/data", "checkpoint_path": "ckpt", "quarantine_bad": aside}
    return replace(command, spec=replace(command.spec, **saves))


def begun(hub: ScriptedHub, command: StartGang, **looked: Any) -> tuple[int, int]:
    """The boxes of a gang, which have answered that they are prepared; that of rank 0 with the state of its look."""
    hub.engine.start(command)
    one, two = (hub.join(node, "job") for node in ("n1", "n2"))
    hub.after(0)
    hub.answer(one, frames.Prepare, port=4000, **looked)
    hub.answer(two, frames.Prepare)
    return one, two


def looked(*bad: dict[str, Any], over: bool, attempt: int = 2) -> dict[str, Any]:
    return {"attempt": attempt, "over": over, "bad": list(bad)}


def test_the_box_of_rank_0_alone_is_asked_and_only_before_a_restart(hub: ScriptedHub) -> None:
    hub.engine.start(saving())
    one, two = (hub.join(node, "job") for node in ("n1", "n2"))
    hub.after(0)
    (prepare,) = hub.sent(one, frames.Prepare)
    assert prepare.saves == frames.SaveWish("/data/ckpt", look=True, aside=True)
    (other,) = hub.sent(two, frames.Prepare)
    assert other.saves is None or not other.saves.look


def test_a_first_attempt_and_a_job_without_checkpoints_have_no_look(hub: ScriptedHub) -> None:
    for command in (saving(attempt=1), gang_of(attempt=2)):
        hub.engine.start(command)
        one = hub.join("n1", "job")
        hub.join("n2", "job")
        hub.after(0)
        assert not any(frame.saves and frame.saves.look for frame in hub.sent(one, frames.Prepare))


def test_the_start_waits_until_the_look_is_over_and_what_was_found_is_reported_once(hub: ScriptedHub) -> None:
    one, _ = begun(hub, saving(), looked=looked(over=False))
    hub.after(90, 1, 2)  # longer than boxes have to be prepared
    assert not hub.sent(one, frames.Start)
    hub.receive(one, frames.Seen(wire.LOOKED, looked(BAD, over=False)))
    hub.receive(one, frames.Seen(wire.LOOKED, looked(BAD, over=True)))
    seen = hub.after(0)
    assert seen == [CheckpointLook("job", 2, BAD["path"], BAD["because"], BAD["moved_to"], 9)]
    assert hub.sent(one, frames.Start)


def test_after_five_minutes_the_gang_starts_without_the_answer(hub: ScriptedHub) -> None:
    one, two = begun(hub, saving(), looked=looked(over=False))
    hub.after(PATIENCE_NS // S - 1, one, two)
    assert not hub.sent(one, frames.Start)
    hub.after(3, one, two)
    assert hub.sent(one, frames.Start)


def test_where_nothing_is_moved_the_start_does_not_wait(hub: ScriptedHub) -> None:
    one, _ = begun(hub, saving(aside=False), looked=looked(over=False))
    hub.after(0)
    assert hub.sent(one, frames.Start)
    hub.receive(one, frames.Seen(wire.LOOKED, looked({**BAD, "moved_to": ""}, over=True)))
    assert hub.after(0) == [CheckpointLook("job", 2, BAD["path"], BAD["because"], "", 9)]


def test_a_box_without_unidle_answers_without_a_look_and_the_gang_starts(hub: ScriptedHub) -> None:
    one, _ = begun(hub, saving())
    hub.after(0)
    assert hub.sent(one, frames.Start)


def test_an_answer_that_was_lost_with_its_connection_comes_with_the_next_one(hub: ScriptedHub) -> None:
    one, _ = begun(hub, saving(), looked=looked(over=False))
    hub.after(0)
    hub.leave(one)
    hub.after(1, 2)
    again = hub.join("n1", "job")
    hub.after(0)
    hub.answer(again, frames.Prepare, port=4000, looked=looked(BAD, over=True))
    assert [one.path for one in hub.after(0) if isinstance(one, CheckpointLook)] == [BAD["path"]]
    assert hub.sent(again, frames.Start)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"attempt": "2"}, {"attempt": 2, "over": 1}, {"attempt": 2, "over": True, "bad": [1]},
        {"attempt": 2, "over": True, "bad": [{"path": "x" * 5000, "because": ""}]}, {"attempt": 7, "over": True},
    ],
)  # fmt: skip
def test_what_is_no_look_changes_nothing(hub: ScriptedHub, body: dict[str, Any]) -> None:
    one, two = begun(hub, saving(), looked=looked(over=False))
    hub.after(0)
    hub.receive(one, frames.Seen(wire.LOOKED, body))
    hub.receive(two, frames.Seen(wire.LOOKED, looked(BAD, over=True)))  # not the box of rank 0
    assert hub.after(0) == []
    assert not hub.sent(one, frames.Start)
