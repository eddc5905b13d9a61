"""The hub moves: a box reads its settings again once its connection is gone, and checks them as at its start."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from box.small_hub import TRAINS, SmallHub, hub_and_box
from unidle.box import settings
from waiting import wait_until

NEW = [["127.0.0.2", 7002]]


def told(**changed: Any) -> dict[str, Any]:
    first = {"hub": [["127.0.0.1", 7001]], "authority": "PEM", "token": "t", "node": "n1", "job": "job-1"}
    return {**first, **changed}


def write(path: Path, content: object) -> None:
    """As an agent does it: whole or not at all."""
    draft = path.with_name("draft")
    draft.touch(mode=0o600)
    draft.write_text(content if isinstance(content, str) else json.dumps(content))
    draft.replace(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / settings.FILE, told())
    return tmp_path / settings.FILE


@pytest.mark.parametrize(
    "changed", [{"hub": NEW}, {"authority": "other"}, {"token": "u"}, {"name": "hub.site"}]
)
def test_settings_that_changed_are_read_again(file: Path, changed: dict[str, Any]) -> None:
    before = settings.read(str(file.parent))
    assert before.renewed() is None
    write(file, told(**changed))
    found = before.renewed()
    assert found is not None
    assert found.renewed() is None
    assert (found.hubs == before.hubs, found.authority, found.token(), found.name) == (
        "hub" not in changed, changed.get("authority", "PEM"), changed.get("token", "t"), changed.get("name", "")
    )  # fmt: skip


def linked(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("content", "spoil"),
    [
        ("", None),
        (json.dumps(told(hub=NEW))[:-9], None),
        ([], None),
        (told(hub=[["127.0.0.2", 0]]), None),
        (told(hub=NEW, token=""), None),
        (told(hub=NEW, job="job-2"), None),
        (told(hub=NEW, node="n2"), None),
        (told(hub=NEW, runs="/elsewhere"), None),
        (told(hub=NEW), linked),
        (told(hub=NEW), lambda file: file.chmod(0o640)),
        (told(hub=NEW), lambda file: file.write_bytes(b"\xff" + file.read_bytes())),
        (told(hub=NEW), os.unlink),
    ],
)
def test_what_is_torn_of_another_box_or_open_to_others_changes_nothing(
    file: Path, content: object, spoil: Callable[[Path], object] | None
) -> None:
    before = settings.read(str(file.parent))
    write(file, content)
    if spoil is not None:
        spoil(file)
    assert before.renewed() is None


def test_settings_of_the_environment_stay_though_a_file_is_there(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.VARIABLE, json.dumps(told()))
    before = settings.read(str(file.parent))
    write(file, told(hub=NEW))
    assert before.renewed() is None


def test_a_box_follows_a_hub_that_moves_with_its_rank_and_refuses_another_authority(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        file = box.directory / settings.FILE
        first = json.loads(file.read_text())
        peer = hub.peer().welcome(deadline_s=600)
        assert peer.start(1, TRAINS)["ok"]
        hub.mark("step")
        (tmp_path / "other").mkdir()
        other = SmallHub(tmp_path / "other")
        try:
            write(file, {**first, "hub": [["127.0.0.1", other.port]]})  # with the authority of the first one
            hub.vanish()
            wait_until(lambda: f"it dials 127.0.0.1 port {other.port}" in box.errors.read_text())
            wait_until(lambda: "the hub's certificate" in box.errors.read_text())
            assert not other.peers
            write(
                file,
                {**first, "hub": [["127.0.0.1", other.port]], "authority": other.authority, "token": "u"},
            )
            hello = other.peer().hello
            assert (hello["token"], hello["job"]) == ("u", "job-1")
            [attempt] = hello["box"]["attempts"]
            assert attempt["attempt"] == 1
            for number, spoilt in enumerate(("{", {**first, "authority": "no PEM"}), 2):
                write(file, spoilt)
                other.vanish()
                other.listen()  # where it was
                assert other.peer(number).hello["token"] == "u"
        finally:
            other.vanish()
