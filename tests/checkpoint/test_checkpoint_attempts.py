"""Of two attempts of one job only the newer one finishes checkpoints, wherever the older one was stopped and wakes up."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint.test_checkpoint_holder import Rank
from checkpoint.test_checkpoint_holder import ranks as ranks
from unidle.checkpoint.holder import attempts, storage, wire
from unidle.checkpoint.holder.attempts import SavingAttempt, Superseded, attempt_of
from unidle.checkpoint.layout import INNER, Shard, partial_name, read_manifest, step_name
from waiting import wait_until

OLD, NEW = SavingAttempt("job", 1), SavingAttempt("job", 2)


def test_an_older_attempt_neither_begins_nor_finishes(tmp_path: Path) -> None:
    assert attempts.refusal(str(tmp_path), OLD) == ""
    assert attempts.begin(str(tmp_path), OLD) == ""
    assert attempts.begin(str(tmp_path), OLD) == "", "its ranks come again"
    assert attempts.begin(str(tmp_path), NEW) == ""
    assert "attempt 2 of this job has begun" in attempts.refusal(str(tmp_path), OLD)
    assert "attempt 2 of this job has begun" in attempts.begin(str(tmp_path), OLD)
    assert attempts.refusal(str(tmp_path), NEW) == ""
    assert [path.name for path in (tmp_path / INNER / attempts.FOLDER).iterdir()] == ["job.2"]


def test_the_next_job_in_a_directory_begins_with_its_first_attempt(tmp_path: Path) -> None:
    attempts.begin(str(tmp_path), NEW)
    assert attempts.begin(str(tmp_path), SavingAttempt("next", 1)) == ""
    assert "another job" in attempts.refusal(str(tmp_path), NEW)


def test_a_directory_that_was_made_again_refuses_nobody(tmp_path: Path) -> None:
    attempts.begin(str(tmp_path / "c"), NEW)
    (tmp_path / "c").rename(tmp_path / "gone")
    (tmp_path / "c").mkdir()
    assert attempts.refusal(str(tmp_path / "c"), NEW) == ""


def test_an_attempt_is_known_by_the_job_of_its_engine() -> None:
    def of(run: str, number: str) -> SavingAttempt:
        return attempt_of({"UNIDLE_RUN_ID": run, "UNIDLE_ATTEMPT": number}, "aa")

    assert of("u1-job-1", "1").is_before(of("u1-job-2", "2"))
    assert not of("u1-job-1", "1").is_before(of("u2-job-2", "2")), "a job of another store"
    assert of("u1-job-1", "2") == attempt_of({}, "aa") == SavingAttempt("aa", 0)


@pytest.mark.parametrize(
    "told", [1, {}, {"run": "../x", "number": 1}, {"run": "x", "number": -1}, {"run": "x", "number": "y"}]
)
def test_what_is_no_attempt_is_refused(told: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        attempts.attempt_in({"session": "aa", "attempt": told})


# ---- every order of what two attempts do


class Turns:
    """Lets two threads run by turns: each waits before what the other can see, until it is its turn."""

    def __init__(self, order: str, patch: pytest.MonkeyPatch) -> None:
        self.order, self.ended = list(order), set[str]()
        self.turn = threading.Condition()
        for module, name in ((os, "rename"), (attempts, "_remove"), (os, "listdir")):
            patch.setattr(module, name, self._waiting(getattr(module, name)))
        patch.setattr(os, "fsync", lambda _: None)  # what is on the disk is of no account here

    def _waiting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*arguments: Any, **named: Any) -> Any:
            self.wait()
            return call(*arguments, **named)

        return waits

    def wait(self) -> None:
        me = threading.current_thread().name
        if me not in ("o", "n"):
            return
        with self.turn:
            assert self.turn.wait_for(lambda: self._is_mine(me), 30)
            if self.order:
                self.order.pop(0)
            self.turn.notify_all()

    def _is_mine(self, me: str) -> bool:
        while self.order and self.order[0] in self.ended:
            self.order.pop(0)
        return not self.order or self.order[0] == me

    def run(self, **threads: Callable[[], None]) -> None:
        failed: list[BaseException] = []

        def whole(name: str, do: Callable[[], None]) -> None:
            try:
                do()
            except BaseException as error:
                failed.append(error)
            with self.turn:
                self.ended.add(name)
                self.turn.notify_all()

        started = [threading.Thread(target=whole, args=(n, do), name=n) for n, do in threads.items()]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(60)
        assert not failed, failed


def write(place: Path, session: str) -> None:
    """A shard of step 5."""
    folder = place / partial_name(5, session)
    folder.mkdir(exist_ok=True)
    (folder / "shard").write_text(session)


def finish(place: Path, session: str, attempt: SavingAttempt) -> str:
    """Why the save of step 5 was not finished."""
    try:
        storage.finish(
            str(place),
            session,
            5,
            [Shard("shard", 0, 1, (0,))],
            lambda: attempts.refusal(str(place), attempt),
        )
    except (Superseded, OSError) as error:
        return str(error)
    return ""


def sessions(place: Path) -> dict[str, str]:
    return {path.name: read_manifest(str(path)).session for path in place.glob("step_*")}


ORDERS = ["".join("n" if k in at else "o" for k in range(10)) for at in itertools.combinations(range(10), 5)]


@pytest.mark.parametrize("has_one", [False, True], ids=["first", "again"])
def test_in_every_order_a_save_is_seen_by_the_next_attempt_or_refused(
    tmp_path: Path, has_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a checkpoint of the newer attempt is never replaced. ``again``: there is a step 5 of before."""
    outcomes = set()
    for number, order in enumerate(ORDERS):
        place = tmp_path / str(number)
        place.mkdir()
        attempts.begin(str(place), OLD)
        if has_one:
            write(place, "00")
            assert finish(place, "00", OLD) == ""
        found: dict[str, Any] = {}

        def old(place: Path = place, found: dict[str, Any] = found) -> None:
            write(place, "aa")
            found["old"] = finish(place, "aa", OLD)

        def new(place: Path = place, found: dict[str, Any] = found) -> None:
            assert attempts.begin(str(place), NEW) == ""
            storage.sweep(str(place), set())
            found["seen"] = sessions(place)
            write(place, "bb")
            found["new"] = finish(place, "bb", NEW)

        with monkeypatch.context() as patch:
            Turns(order, patch).run(o=old, n=new)
        assert found["new"] == "", (order, found)
        assert sessions(place) == {step_name(5): "bb"}, (order, found)
        if not found["old"]:
            assert found["seen"] == {step_name(5): "aa"}, (order, found)
        outcomes.add(bool(found["old"]))
    assert outcomes == {True, False}


# ---- real holders


def pid_of(rank: Rank) -> int:
    return int(json.loads((rank.hold / wire.ADDRESS).read_text())["pid"])


def test_a_holder_that_was_stopped_with_its_host_finishes_nothing_once_the_next_attempt_has_begun(
    ranks: Callable[..., Rank], tmp_path: Path
) -> None:
    old = ranks(0, node="n0", world=1, attempt=1)
    assert old.hello() == ""
    old.copy(4, store=True)
    assert old.hears("stored")["step"] == 4
    os.kill(pid_of(old), signal.SIGSTOP)
    try:
        old.copy(5, store=True)  # it has this to do when it wakes up
        new = ranks(0, node="n1", world=1, session="bb", attempt=2)
        assert new.hello() == "", "it does not wait for the lock of one that is stopped"
        new.copy(5, store=True)
        assert new.hears("stored")["step"] == 5
        (tmp_path / "ckpt" / partial_name(6, "bb")).mkdir()
        os.kill(pid_of(old), signal.SIGCONT)
        assert "attempt 2 of this job has begun" in old.hears("failed")["why"]
        old.copy(6, store=True)
        assert "attempt 2 of this job has begun" in old.hears("failed")["why"]
    finally:
        os.kill(pid_of(old), signal.SIGCONT)
    assert (tmp_path / "ckpt" / partial_name(6, "bb")).is_dir(), (
        "what the newer attempt writes is not swept away"
    )
    assert sessions(tmp_path / "ckpt") == {step_name(4): "aa", step_name(5): "bb"}
    assert old.link is not None
    old.link.close()
    again = ranks(0, node="n0", session="cc", world=1, attempt=1)
    assert "attempt 2 of this job has begun" in again.hello()


def test_a_stopped_rank_of_an_earlier_attempt_gives_way_on_the_same_node(ranks: Callable[..., Rank]) -> None:
    old = ranks(0, world=1, attempt=1)
    assert old.hello() == ""
    new = ranks(0, world=1, session="bb", attempt=2)
    assert new.hello() == ""
    assert old.link is not None
    assert old.link.recv(1) == b""
    old.link.close()
    new.copy(5, store=True)
    assert new.hears("stored")["step"] == 5
    assert "attempt 2 of this job has begun" in old.hello()


def test_what_the_last_attempt_had_on_its_way_is_finished_by_the_same_holder(
    ranks: Callable[..., Rank],
) -> None:
    old = ranks(0, world=1, attempt=1)
    assert old.hello() == ""
    old.copy(5, store=True)
    assert old.link is not None
    old.link.close()
    new = ranks(0, world=1, session="bb", attempt=2)
    assert new.hello() == ""
    wait_until(lambda: sessions(new.storage) == {step_name(5): "aa"}, 60, "the save of the first attempt")
