"""What a fleet file may say about idle holders, and what it says when it is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.files.values import duration_ns, duration_text
from unidle.fleet.policies import MINUTE_NS, IdlePolicy, IdleTerms

NODES = [{"id": "n", "devices": {"count": 1, "kind": "cpu"}}]
M = MINUTE_NS


def policy(idle: dict[str, Any], **more: Any) -> IdlePolicy:
    return fleet_from_mapping({"nodes": NODES, "idle": idle, **more}, "fleet").idle


def test_without_a_word_a_fleet_tells_and_releases_nobody() -> None:
    fleet = fleet_from_mapping({"nodes": NODES}, "fleet")
    assert fleet.idle == policy({}) == IdlePolicy(IdleTerms(30 * M, 60 * M, 15 * M, False, "end"))


def test_what_is_not_given_follows_from_what_is() -> None:
    found = policy(
        {
            "after": "10m",
            "release": True,
            "queues": {"a": {"notice": "1m"}, "b": {"after": "1h", "then": "requeue"}},
        }
    )
    assert found.terms == IdleTerms(10 * M, 20 * M, 15 * M, True, "end")
    assert found.queues["a"] == IdleTerms(10 * M, 20 * M, M, True, "end")
    assert found.queues["b"] == IdleTerms(60 * M, 120 * M, 15 * M, True, "requeue")


@pytest.mark.parametrize(
    ("idle", "problem"),
    [
        ({"after": 30}, "idle.after: must be a time with its unit, such as 90s, 30m, 1.5h, 1h30m or 2d (got 30)"),
        ({"after": "30 minutes"}, "idle.after"),
        ({"notice": "0s"}, "idle.notice: must be from 1 s to 365 days (got '0s'); for instance 30m"),
        ({"start": "400d"}, "idle.start: must be from 1 s to 365 days"),
        ({"then": "kill"}, "idle.then: must be one of end, requeue"),
        ({"busy_percent": 0}, "idle.busy_percent: must be a number from 0.1 to 100"),
        ({"exempt": ["ghost"]}, "idle.exempt[0]: there is no such queue (got 'ghost'); for instance lab"),
        ({"idle_ok": ["ghost"]}, "idle.idle_ok[0]: there is no such queue"),
        ({"queues": {"ghost": {}}}, "idle.queues.ghost: there is no such queue"),
        ({"exempt": ["lab"], "queues": {"lab": {}}}, "idle.queues.lab: is exempt, so that its terms would never count"),
        ({"queues": {"lab": {"after": "0.5s"}}}, "idle.queues.lab.after: must be from 1 s to 365 days"),
        ({"grace": "1m"}, "idle.grace: unknown field"),
    ],
)  # fmt: skip
def test_a_wrong_policy_is_one_clear_error(idle: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        policy(idle, queues=[{"name": "lab"}])
    assert problem in caught.value.line()
    assert caught.value.exit_code == 2


def test_queues_need_not_be_declared_where_none_is() -> None:
    assert policy({"exempt": ["default"]}).exempt == ("default",)


def test_a_job_says_that_it_may_be_idle() -> None:
    assert job_from_mapping({"command": ["x"], "idle_ok": True}, "job", ".").idle_ok
    with pytest.raises(BadInput, match="idle_ok: must be true or false"):
        job_from_mapping({"command": ["x"], "idle_ok": "yes"}, "job", ".")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("90s", 90 * 10**9),
        ("30m", 30 * M),
        ("1.5h", 90 * M),
        ("2d", 2880 * M),
        ("0.1s", 10**8),
        ("1h30m", 90 * M),
        ("10m30s", 630 * 10**9),
        ("1d 2h", 26 * 60 * M),
    ],
)
def test_times_are_read_exactly_and_written_back(text: str, ns: int) -> None:
    assert duration_ns(text) == ns
    assert duration_ns(duration_text(ns)) == ns
