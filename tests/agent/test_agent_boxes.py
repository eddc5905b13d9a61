"""Boxes: started once, found again by a later agent, ended when that is asked for."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unidle.agent.boxes import KEPT_S, LOCK, Boxes, BoxOrder
from unidle.engine.local.ranks.rundir import is_held

STUB = (sys.executable, str(Path(__file__).with_name("stub_box.py")))


def order(job: str = "job-1") -> BoxOrder:
    return BoxOrder("[::1]:7000", "PEM", "n1", job, "a-token")


def seen(root: Path, job: str = "job-1") -> dict[str, Any]:
    found = json.loads((root / job / "seen.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "boxes"
    yield root
    boxes = Boxes(root, STUB)
    while not boxes.end():
        pass


def begun(boxes: Boxes, job: str, wait_until, **env: str) -> str:
    boxes.begin(order(job), env)
    answers: list[str] = []

    def answered() -> bool:
        answer = boxes.answer(job)
        answers.extend(() if answer is None else (answer,))
        return bool(answers)

    wait_until(answered, 60)
    return answers[0]


def test_a_box_is_started_once_with_its_order_and_environment(root: Path, wait_until) -> None:
    boxes = Boxes(root, STUB)
    assert begun(boxes, "job-1", wait_until, MINE="x") == ""
    wait_until(lambda: (root / "job-1" / "seen.json").exists(), 60)
    first = seen(root)
    assert first["order"] == {
        "hub": "[::1]:7000", "authority": "PEM", "node": "n1", "job": "job-1", "token": "a-token"
    }  # fmt: skip
    assert first["env"]["MINE"] == "x"
    assert "a-token" not in str(first["env"])
    assert b"a-token" not in Path(f"/proc/{first['pid']}/cmdline").read_bytes()
    assert begun(boxes, "job-1", wait_until) == ""
    assert seen(root)["pid"] == first["pid"]
    assert boxes.running() == ["job-1"]


def test_files_of_a_box_are_its_users_alone(root: Path, wait_until) -> None:
    begun(Boxes(root, STUB), "job-1", wait_until)
    for path in (root, root / "job-1", *(root / "job-1").glob("box.*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_box_that_ends_as_it_starts_is_an_answer_with_its_last_words(root: Path, wait_until) -> None:
    answer = begun(Boxes(root, STUB), "job-1", wait_until, UNIDLE_TEST_BOX="fails")
    assert answer == "the box ended as it started: this box cannot run"


def test_a_later_agent_finds_a_box_and_hears_of_its_end(root: Path, wait_until) -> None:
    starter = (
        "import sys; from pathlib import Path; from unidle.agent.boxes import *\n"
        f"boxes = Boxes(Path({str(root)!r}), {STUB!r})\n"
        "boxes.begin(BoxOrder('h:1', '', 'n1', 'job-1', 't'), {})\n"
        "while boxes.answer('job-1') is None: pass\n"
        "sys.stdin.read()\n"
    )
    first = subprocess.Popen([sys.executable, "-c", starter], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: is_held(root / "job-1" / LOCK), 60)
        first.kill()
    finally:
        first.communicate()
    boxes = Boxes(root, STUB)
    assert boxes.running() == ["job-1"]
    assert boxes.ended() == []
    wait_until(lambda: (root / "job-1" / "seen.json").exists(), 60)
    os.kill(seen(root)["pid"], signal.SIGKILL)
    wait_until(lambda: boxes.ended() == ["job-1"], 60)
    assert boxes.ended() == []
    assert boxes.running() == []


def test_boxes_that_run_are_pointed_at_a_hub_of_their_authority_with_their_own_token(
    root: Path, wait_until
) -> None:
    begun(Boxes(root, STUB), "job-1", wait_until)
    boxes, file = Boxes(root, STUB), root / "job-1" / "box.json"
    before = json.loads(file.read_text())
    assert boxes.point("[::1]:8000", "of another fleet") == []
    assert json.loads(file.read_text()) == before
    assert boxes.point("[::1]:8000", "PEM") == []
    assert json.loads(file.read_text()) == {**before, "hub": "[::1]:8000"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    number = file.stat().st_ino
    assert boxes.point("[::1]:8000", "PEM") == []
    assert file.stat().st_ino == number  # not written again
    for torn in ('{"hub": "[::', "[]"):
        file.write_text(torn)
        [why] = boxes.point("[::1]:9000", "PEM")
        assert why.startswith("the box of job-1 was not given the address of the controller: ")
        assert file.read_text() == torn


def test_a_box_that_was_only_just_begun_is_ended_too(root: Path, wait_until) -> None:
    boxes = Boxes(root, STUB)
    boxes.begin(order(), {})
    wait_until(boxes.end, 60)
    assert not is_held(root / "job-1" / LOCK)
    assert not boxes._children


@pytest.mark.parametrize("job", ["", "..", ".x", "a/b", "a\0b"])
def test_a_job_that_leads_to_another_directory_is_refused(root: Path, job: str) -> None:
    with pytest.raises(ValueError, match="directory"):
        Boxes(root, STUB).begin(order(job), {})


def test_directories_of_boxes_that_ended_long_ago_go_and_others_stay(root: Path, wait_until) -> None:
    boxes = Boxes(root, STUB)
    for job in ("job-1", "job-2", "job-3"):
        begun(boxes, job, wait_until)
    for job in ("job-1", "job-2"):
        wait_until(lambda job=job: (root / job / "seen.json").exists(), 60)
        os.kill(seen(root, job)["pid"], signal.SIGTERM)
    wait_until(lambda: boxes.running() == ["job-3"], 60)
    now_s = (root / "job-1" / LOCK).stat().st_mtime
    for job in ("job-1", "job-3"):
        os.utime(root / job / LOCK, (now_s - KEPT_S, now_s - KEPT_S))
    boxes.prune(now_s + 1)
    assert sorted(path.name for path in root.iterdir()) == ["job-2", "job-3"]
