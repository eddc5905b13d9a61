"""What a fleet file may say about notices, and what it says when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.files.fleet import fleet_and_notices_from_mapping, load_fleet_and_notices
from unidle.files.fleet_notices import KINDS, WINDOW_NS, CommandChannel, LogFile, NoticeChannel, Webhook

NODES = [{"id": "n", "devices": {"count": 1, "kind": "cpu"}}]


def channels(*parts: dict[str, Any]) -> tuple[NoticeChannel, ...]:
    return fleet_and_notices_from_mapping({"nodes": NODES, "notices": list(parts)}, "fleet")[1]


def test_nobody_is_told_without_a_word() -> None:
    assert channels() == ()


def test_a_webhook_a_log_and_a_command(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "nodes: [{id: n, devices: {kind: cpu}}]\n"
        "notices:\n"
        "  - {webhook: 'https://h.example/x', secret_env: KEY, on: [node, idle], headers: {X-A: b}, window: 1h}\n"
        "  - {log: logs/notices.jsonl}\n"
        "  - {command: [to-chat, --room, '7'], name: chat}\n"
    )
    hook, log, command = load_fleet_and_notices(path)[1]
    assert hook.to == Webhook("https://h.example/x", "KEY", {"X-A": "b"})
    assert (hook.on, hook.window_ns) == (("node", "idle"), 3600 * 10**9)
    assert (log.to, log.on, log.window_ns) == (
        LogFile(str(tmp_path / "logs/notices.jsonl")),
        KINDS,
        WINDOW_NS,
    )
    assert (command.to, command.name) == (CommandChannel(("to-chat", "--room", "7")), "chat")


def test_a_channel_keeps_its_name_and_two_addresses_have_two_names_that_do_not_tell_them() -> None:
    one, two = channels({"webhook": "https://h.example/T0KEN"}, {"webhook": "https://h.example/other"})
    (again,) = channels({"webhook": "https://h.example/T0KEN", "on": ["node"]})
    assert one.name == again.name != two.name
    assert one.name.startswith("webhook:h.example#")
    assert "T0KEN" not in repr((one, two))


def test_the_log_never_holds_the_addresses() -> None:
    fleet, found = fleet_and_notices_from_mapping(
        {"nodes": NODES, "notices": [{"webhook": "https://h.example/T0KEN", "headers": {"X": "H3ADER"}}]},
        "fleet",
    )
    assert found
    body = ev.encode(ev.FleetSeen(fleet))[1]
    assert b"T0KEN" not in body
    assert b"H3ADER" not in body


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({}, "notices[0]: needs one of webhook, log and command; give each an entry of its own"),
        ({"log": "a", "command": ["b"]}, "notices[0]: needs one of webhook, log and command (got 'log, command')"),
        ({"webhook": "ftp://h/T0KEN"}, "notices[0].webhook: must begin with https:// or http:// and name a host; for"),
        ({"webhook": "https:///T0KEN"}, "notices[0].webhook: must begin with https:// or http:// and name a host"),
        ({"webhook": "https://h:port/T0KEN"}, "notices[0].webhook: is not an address"),
        ({"webhook": "https://me:T0KEN@h/"}, "notices[0].webhook: must hold no user and password (use headers)"),
        ({"webhook": "https://h/T0KEN x"}, "notices[0].webhook: must be at most 4096 characters of ASCII without"),
        ({"webhook": "https://h/\nT0KEN"}, "notices[0].webhook: must be at most"),
        ({"webhook": "env:1T0KEN"}, "notices[0].webhook: names no environment variable"),
        ({"webhook": "https://h/", "headers": {"X": "T0KEN\r\nY: 1"}}, "notices[0].headers.X: must be one line of ASCII"),
        ({"webhook": "https://h/", "headers": {"Host": "T0KEN"}}, "notices[0].headers.Host: is set by unidle itself"),
        ({"webhook": "https://h/", "headers": {"webhook-id": "T0KEN"}}, "notices[0].headers.webhook-id: is set by"),
        ({"webhook": "https://h/", "headers": {"a b": "T0KEN"}}, "must be a name of an HTTP header"),
        ({"webhook": "https://h/", "secret_env": "$KEY"}, "must be a name of an environment variable"),
        ({"log": "a", "secret_env": "KEY"}, "notices[0].secret_env: is for a webhook only; remove it"),
        ({"command": ["a"], "headers": {"X": "T0KEN"}}, "notices[0].headers: is for a webhook only; remove it"),
        ({"log": ""}, "notices[0].log: names no file"),
        ({"command": []}, "notices[0].command"),
        ({"command": [" "]}, "notices[0].command: names no program"),
        ({"command": "to-chat --room 7"}, "notices[0].command"),
        ({"log": "a", "on": []}, "notices[0].on"),
        ({"log": "a", "on": ["everything"]}, "must be one of idle, incident, job_failed, maintenance, node, verdict"),
        ({"log": "a", "window": "2d"}, "notices[0].window: must be at most 1 day (got '2d'); for instance 10m"),
        ({"mail": "a"}, "notices[0].mail: unknown field"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_one_clear_error_without_secrets(part: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        channels(part)
    assert problem in caught.value.line()
    assert "T0KEN" not in caught.value.line()


def test_two_entries_of_one_name_are_an_error() -> None:
    with pytest.raises(BadInput, match=r"notices\[1\].log: is there twice"):
        channels({"log": "a"}, {"log": "a"})
    with pytest.raises(BadInput, match=r"notices\[1\].name: is there twice"):
        channels({"log": "a", "name": "x"}, {"log": "b", "name": "x"})
