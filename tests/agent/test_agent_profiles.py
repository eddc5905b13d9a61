"""Profiles of ranks that an agent makes: real processes, bounded, and gone when they were sent."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from unidle.agent import profiles
from unidle.agent.profiles import ProfileOrder, Profiles
from unidle.engine.local.ranks import process_tree, rundir
from unidle.scope.model import Profile
from waiting import wait_until

WORKS = "def train_it():\n    while True: sum(range(1000))\ntrain_it()"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """A run root with one rank that works."""
    with Popen([sys.executable, "-c", WORKS]) as rank:
        directory = Path(rundir.rank_dir(tmp_path, "job-1", 1, 0))
        directory.mkdir(parents=True)
        mark = {"k": "spawn", "t": 1, "pid": rank.pid, "ticks": process_tree.ticks_of(rank.pid)}
        (directory / rundir.JOURNAL).write_text(json.dumps(mark) + "\n")
        yield tmp_path
        rank.kill()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Profiles]:
    with closing(Profiles(tmp_path / "profiles")) as found:
        yield found


def order(name: str = "abc", seconds: float = 0.5, **more: Any) -> ProfileOrder:
    how = {"hz": 99, "tier": "T2"}
    return ProfileOrder(
        name, **{"job": "job-1", "attempt": 1, "ranks": (0,), "seconds": seconds, "how": how} | more
    )


def answer(made: Profiles) -> tuple[int, str, dict[str, Any]]:
    [found] = wait_until(lambda: list(made.ended()), 90)
    return found


def test_a_profile_of_a_rank_is_made_and_read_in_parts(made: Profiles, runs: Path) -> None:
    made.begin(7, order(), runs)
    assert made.is_busy
    command, why, data = answer(made)
    assert (command, why) == (7, "")
    assert not made.is_busy
    content = b""
    while len(content) < data["size"]:
        part = made.part("abc", len(content))
        assert part["size"] == data["size"]
        content += base64.b64decode(part["text"])
    profile = Profile.from_json(json.loads(gzip.decompress(content)))
    assert any(frame.function == "train_it" for frame in profile.frames)
    assert [process.rank for process in profile.processes] == [0]


def test_a_look_that_is_ended_early_keeps_what_was_seen(made: Profiles, runs: Path) -> None:
    made.begin(7, order(seconds=3000), runs)
    made.end("other")
    assert made.is_busy
    made.end("abc")
    _, why, data = answer(made)
    assert why == ""
    assert data["size"] > 0


def test_what_cannot_be_profiled_has_a_reason(made: Profiles, runs: Path) -> None:
    made.begin(7, order(ranks=(5,)), runs)
    _, why, data = answer(made)
    assert "no rank of it runs on this machine" in why
    assert data["remedy"]
    made.begin(8, order(how={"no": "such"}), runs)
    assert "ended with code" in answer(made)[1]
    for name in ("../x", "", "a" * 65, "a/b"):
        with pytest.raises(ValueError, match="letters and digits"):
            made.begin(9, order(name), runs)
    with pytest.raises(ValueError, match="at most 3600 s"):
        made.begin(9, order(seconds=1e9), runs)
    with pytest.raises(ValueError, match="no such profile"):
        made.part("abc", 0)


def test_only_few_are_made_at_once_and_all_end_with_the_connection(made: Profiles, runs: Path) -> None:
    for command in range(profiles.AT_ONCE):
        made.begin(command, order(f"n{command}", 300), runs)
    with pytest.raises(ValueError, match="try again later"):
        made.begin(9, order("n9"), runs)
    pids = [one.process.pid for one in made._running.values()]
    made.lost()
    assert not made.is_busy
    assert not any(map(process_tree.is_live, pids))
    assert list(made.ended()) == []


def test_files_go_after_a_while_and_with_the_agent(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "profiles"
    place.mkdir(0o700)
    (place / "old.json.gz").touch()
    with closing(Profiles(place)) as made:
        assert not list(place.iterdir())
        made.begin(7, order(), runs)
        answer(made)
        made.tidy()
        assert [file.name for file in place.iterdir()] == ["abc.json.gz"]
        monkeypatch.setitem(made._kept, "abc", 0.0)
        made.tidy()
        assert not list(place.iterdir())
    assert not place.exists()
