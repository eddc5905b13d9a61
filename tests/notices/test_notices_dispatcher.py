"""From a log to real receivers: at least once, each id once, in order, whatever fails in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from notices.receiver import Receiver, receiver
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.files.fleet import fleet_and_notices_from_mapping
from unidle.files.fleet_notices import NoticeChannel
from unidle.jobs import Reason
from unidle.notices.dedup import BURST
from unidle.notices.dispatcher import NAME, NoticeDispatcher, load
from unidle.notices.sender import senders
from unidle.store.open import open_store
from unidle.store.protocol import Bookmark, Lease, NewEvent
from unidle.store.sql import SqlStore

WHY = Reason("why", "because")
S = 1_000_000_000


def channels_of(*parts: dict[str, Any]) -> tuple[NoticeChannel, ...]:
    nodes = [{"id": "n", "devices": {"count": 1, "kind": "cpu"}}]
    return fleet_and_notices_from_mapping({"nodes": nodes, "notices": list(parts)}, "fleet")[1]


class Log:
    """A store with a dispatcher (none without channels), driven as the loop drives it: log, then tell."""

    health: ClassVar[dict[str, str]] = {}

    def __init__(
        self, store: SqlStore, lease: Lease, *parts: dict[str, Any], environ: dict[str, str] | None = None
    ) -> None:
        self.store, self.lease = store, lease
        found = senders(channels_of(*parts), {} if environ is None else environ)
        self._desk = NoticeDispatcher(store, lease, found, self.health) if parts else None

    @property
    def dispatcher(self) -> NoticeDispatcher:
        assert self._desk is not None
        return self._desk

    def add(self, *events: ev.Event, at_s: float = 0.0, told: bool = True) -> None:
        """``told``: else the controller is killed between the log and the channels."""
        seq, last_ns = self.store.last()
        at_ns = max(last_ns, int(at_s * S), 1)
        for number, event in enumerate(events, seq + 1):
            if self._desk is not None:
                self._desk.saw(event, number, at_ns)
        self.store.append(
            self.lease, (NewEvent(at_ns, "control", seq + 1 + k, *ev.encode(e)) for k, e in enumerate(events))
        )
        if told and self._desk is not None:
            self._desk.turn(seq + len(events), at_ns)


Begin = Callable[..., Log]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Takes the store up anew, as a controller after one that was killed."""
    stores: list[SqlStore] = []

    def start(*parts: dict[str, Any], environ: dict[str, str] | None = None) -> Log:
        if stores:
            stores[-1].close()
        stores.append(open_store(str(tmp_path / "s.db"), create=True))
        return Log(stores[-1], stores[-1].acquire("test"), *parts, environ=environ)

    yield start
    stores[-1].close()


@contextmanager
def hook(**more: Any) -> Iterator[tuple[Receiver, dict[str, Any]]]:
    with receiver() as there:
        yield there, {"webhook": there.url, **more}


def failed(k: int) -> ev.Event:
    return ev.JobEnded(f"j{k}", "failed", WHY)


def test_what_happens_is_told_to_those_who_want_to_know(begin: Begin, tmp_path: Path) -> None:
    with hook(on=["node"]) as (nodes, one), hook() as (everything, other):
        log = begin(one, other)
        log.add(ev.HealthSet("n1", "fault", WHY), failed(1))
        everything.until(lambda: len(everything.taken) == 2)
        nodes.until(lambda: len(nodes.taken) == 1)
        log.dispatcher.close(0)
        assert [one["kind"] for one in nodes.taken] == ["node"]
        assert load(log.store)[0].channels[channels_of(one)[0].name].record.sent == 1


def test_a_new_desk_begins_with_what_happens_next(begin: Begin) -> None:
    with hook() as (there, part):
        log = begin()
        log.add(failed(1))
        log = begin(part)
        log.add(failed(2))
        there.until(lambda: len(there.taken) == 1)
        log.dispatcher.close(0)
        assert [one["job"] for one in there.taken] == ["j2"]


def test_a_new_desk_knows_who_is_sick_already(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    with hook() as (there, part):
        begin().add(ev.HealthSet("n1", "fault", WHY))
        monkeypatch.setattr(Log, "health", {"n1": "fault"})
        log = begin(part)
        log.add(ev.HealthSet("n1", "fault", WHY), ev.HealthSet("n1", "healthy", WHY))
        there.until(lambda: len(there.taken) == 1)
        log.dispatcher.close(0)
        assert there.taken[0]["text"] == "n1 is healthy (was fault): because"


def test_what_was_logged_and_not_told_is_told_by_the_next_controller(begin: Begin) -> None:
    with hook() as (there, part):
        begin(part).add(failed(1), told=False)
        log = begin(part)
        there.until(lambda: len(there.taken) == 1)
        log.dispatcher.close(0)
        begin(part).dispatcher.close(0)
        assert [one["job"] for one in there.taken] == ["j1"]


def test_what_happened_under_a_controller_that_tells_nobody_is_told_by_the_next_that_does(
    begin: Begin,
) -> None:
    with hook() as (there, part):
        begin(part).dispatcher.close(0)
        begin().add(failed(1))
        log = begin(part)
        there.until(lambda: len(there.taken) == 1)
        log.dispatcher.close(0)


def test_what_was_delivered_and_not_kept_is_delivered_again_with_the_same_id(begin: Begin) -> None:
    waiting_is_kept = threading.Event()
    with receiver(lambda _: (200 if waiting_is_kept.wait(60) else 500, {})) as there:
        part = {"webhook": there.url}
        log = begin(part)
        log.add(failed(1))
        waiting_is_kept.set()
        there.until(lambda: len(there.taken) == 1)
        log.dispatcher.abandon()  # killed before the delivery was kept
        log = begin(part)
        there.until(lambda: len(there.taken) == 2)
        log.dispatcher.close(0)
        assert len(there.distinct()) == 1
        assert there.all[0].body == there.all[1].body


def test_a_webhook_that_is_down_loses_nothing_and_blocks_nobody(begin: Begin) -> None:
    with receiver() as gone:
        port = gone.port
    with hook(on=["job_failed"]) as (well, other):
        log = begin({"webhook": f"http://127.0.0.1:{port}/hook"}, other)
        begun_s = time.monotonic()
        for k in range(10):
            log.add(ev.HealthSet(f"n{k}", "fault", WHY), failed(k))
        assert time.monotonic() - begun_s < 60
        well.until(lambda: len(well.taken) == 10)
        log.dispatcher.close(0)  # a failing channel is not waited for
        assert time.monotonic() - begun_s < 60
        assert load(log.store)[0].channels.keys() == {
            c.name for c in channels_of({"webhook": f"http://127.0.0.1:{port}/hook"}, other)
        }
    with receiver(port=port) as back:
        log = begin({"webhook": f"http://127.0.0.1:{port}/hook"})
        back.until(lambda: len(back.taken) == 20)
        log.dispatcher.close(0)
        assert len(back.distinct()) == 20


def test_no_more_than_four_are_under_way_and_of_a_subject_one(begin: Begin) -> None:
    with receiver(lambda _: (time.sleep(0.02), (200, {}))[1]) as there:
        log = begin({"webhook": there.url})
        log.add(*(ev.HealthSet(f"n{k % 6}", ("fault", "repair", "healthy")[k // 6], WHY) for k in range(18)))
        there.until(lambda: len(there.taken) == 18)
        log.dispatcher.close(0)
        assert 1 < there.in_flight_most <= 4
        for k in range(6):
            assert [one["state"] for one in there.taken if one["node"] == f"n{k}"] == [
                "fault",
                "repair",
                "healthy",
            ]


def test_a_storm_is_summed_up_also_when_the_controller_is_killed_in_it(begin: Begin) -> None:
    with hook() as (there, part):
        log = begin(part)
        log.add(*(ev.HealthSet(f"n{k}", "fault", WHY) for k in range(500)), at_s=1)
        log.dispatcher.abandon()
        log = begin(part)
        log.add(*(ev.HealthSet(f"n{k}", "fault", WHY) for k in range(500, 1000)), at_s=2)
        due_ns = log.dispatcher.next_ns
        assert due_ns is not None
        assert due_ns <= 61 * S
        log.dispatcher.turn(1000, 61 * S)
        there.until(lambda: len(there.distinct()) == BURST + 1)
        log.dispatcher.close(0)
        assert sum(one["count"] for one in there.distinct().values()) == 1000
        assert list(there.distinct().values())[-1]["kind"] == "summary"


def test_what_one_receiver_refuses_does_not_stop_the_next_notice(begin: Begin) -> None:
    with receiver(lambda one: (404 if one.notice["job"] == "j1" else 200, {})) as there:
        log = begin({"webhook": there.url})
        log.add(failed(1), failed(2))
        there.until(lambda: len(there.all) == 2 and not there.in_flight)
        log.dispatcher.close(0)
        assert len(there.all) == 2
        (kept,) = load(log.store)[0].channels.values()
        assert (kept.record.sent, kept.record.refused, kept.record.error, kept.pending) == (
            1,
            1,
            "answered 404",
            [],
        )


def test_a_server_that_asks_for_time_gets_it(begin: Begin) -> None:
    answers = iter([(429, {"Retry-After": "2"})])
    with receiver(lambda _: next(answers, (200, {}))) as there:
        log = begin({"webhook": there.url})
        log.add(failed(1))
        there.until(lambda: len(there.all) == 1)
        first_s = time.monotonic()
        there.until(lambda: len(there.taken) == 1)
        assert time.monotonic() - first_s > 1.5
        log.dispatcher.close(0)


def test_a_damaged_bookmark_is_passed_over(begin: Begin) -> None:
    with hook() as (there, part):
        log = begin(part)
        log.store.save_bookmark(log.lease, Bookmark(NAME, 0, b"{"))
        log = begin(part)
        log.add(failed(1))
        there.until(lambda: len(there.taken) == 1)
        log.dispatcher.close(0)


def test_channels_that_are_not_configured_now_keep_what_they_have_not_got(begin: Begin) -> None:
    with hook() as (there, part), receiver() as gone:
        port = gone.port
        gone.reply = lambda _: (503, {})
        other = {"webhook": f"http://127.0.0.1:{port}/"}
        log = begin(other)
        log.add(failed(1))
        gone.until(lambda: len(gone.all) == 1 and not gone.in_flight)
        log.dispatcher.close(0)
        log = begin(part)
        log.add(failed(2))
        there.until(lambda: len(there.taken) == 1)
        log.dispatcher.close(0)
        gone.reply = lambda _: (200, {})
        log = begin(other)
        gone.until(lambda: len(gone.taken) == 1)
        log.dispatcher.close(0)
        assert gone.taken[0]["job"] == "j1"


def test_secrets_come_from_the_environment_leave_it_and_are_shown_nowhere(
    begin: Begin, tmp_path: Path
) -> None:
    with receiver() as there:
        environ = {"KEY": "S3CRET", "TOKEN": "T0KEN", "URL": there.url + "&P4TH", "HOME": "/"}
        part = {"webhook": "env:URL", "secret_env": "KEY", "headers": {"Authorization": "env:TOKEN"}}
        log = begin(part, environ=environ)
        log.add(failed(1))
        there.until(lambda: len(there.taken) == 1)
        log.dispatcher.close(0)
        assert environ == {"HOME": "/"}
        assert there.all[0].headers["authorization"] == "T0KEN"
        assert there.all[0].path.endswith("&P4TH")
        assert "webhook-signature" in there.all[0].headers
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(word in written for word in (b"S3CRET", b"T0KEN", b"P4TH"))
    assert b"env:URL" in written  # the channel's name


@pytest.mark.parametrize(
    ("part", "environ", "problem"),
    [
        ({"webhook": "env:NO"}, {}, r"notices\[0\].webhook: the environment variable is not set, or empty \(got 'NO'\)"),
        ({"webhook": "env:URL"}, {"URL": "S3CRET"}, r"notices\[0\].webhook: what the variable holds must begin with"),
        ({"webhook": "http://h/", "secret_env": "KEY"}, {"KEY": ""}, r"notices\[0\].secret_env: the environment variable"),
        ({"webhook": "http://h/", "secret_env": "KEY"}, {"KEY": "whsec_S3CRET!"}, r"notices\[0\].secret_env: what the var"),
        ({"webhook": "http://h/", "headers": {"X": "env:T"}}, {"T": "S3CRET\nY: 1"}, r"notices\[0\].headers.X: must be one"),
    ],
)  # fmt: skip
def test_a_variable_of_no_use_is_one_clear_error_without_what_it_holds(
    part: dict[str, Any], environ: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadInput, match=problem) as caught:
        senders(channels_of(part), environ)
    assert "S3CRET" not in str(caught.value)
