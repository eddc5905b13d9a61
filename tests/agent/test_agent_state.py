"""The state directory: of one user and one agent, and whole after a kill."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import needs
from unidle.agent.state import AgentState, Membership
from unidle.errors import BadInput, CannotRun

MEMBER = Membership("n1", "a-token", "hub:7000", "PEM")


def test_a_membership_is_kept_for_the_next_agent_and_for_no_other_user(tmp_path: Path) -> None:
    state = AgentState(tmp_path / "a" / "agent")
    assert state.membership() is None
    state.keep(MEMBER)
    state.close()
    again = AgentState(tmp_path / "a" / "agent")
    assert again.membership() == MEMBER
    again.close()
    assert stat.S_IMODE((tmp_path / "a" / "agent").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "agent" / "agent.json").stat().st_mode) == 0o600


def test_a_damaged_membership_is_none(tmp_path: Path) -> None:
    state = AgentState(tmp_path / "agent")
    for content in ("", "{", "[]", '{"node": 1}'):
        (tmp_path / "agent" / "agent.json").write_text(content)
        assert state.membership() is None
    state.keep(MEMBER)
    assert state.membership() == MEMBER
    state.close()


def test_one_agent_at_a_time_uses_it(tmp_path: Path) -> None:
    state = AgentState(tmp_path / "agent")
    with pytest.raises(CannotRun, match="another agent"):
        AgentState(tmp_path / "agent")
    state.close()
    AgentState(tmp_path / "agent").close()


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir(mode=0o755)
    with pytest.raises(BadInput, match="mode 0755"):
        AgentState(tmp_path / "agent")


@needs.root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir(mode=0o700)
    os.chown(tmp_path / "agent", 1, 1)
    with pytest.raises(BadInput, match=r"belongs to user .*--state"):
        AgentState(tmp_path / "agent")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "agent").symlink_to(tmp_path / "real")
    with pytest.raises(BadInput, match="link"):
        AgentState(tmp_path / "agent")
