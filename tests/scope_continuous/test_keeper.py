"""The bound on what is kept holds, and the oldest windows give way first."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from scope_continuous.profiles import S, profile, times
from unidle.errors import LeaseLost
from unidle.fleet.policies import ProfilePolicy
from unidle.scope.continuous import windows
from unidle.scope.continuous.keeper import Keeper
from unidle.store.open import open_store
from unidle.store.profiles import ProfileRow, ProfileShelf

POLICY = ProfilePolicy(on=True, most_bytes=40_000)


@pytest.fixture
def shelf(tmp_path):
    with closing(open_store(str(tmp_path / "s.db"), create=True)) as store:
        yield ProfileShelf(store, store.acquire("test").token)


def row(at_s: int, rank: int = 0, *, job: str = "j", attempt: int = 1, ms: int = 100) -> ProfileRow:
    body = windows.packed(profile((f"main;f{at_s % 7}", ms), ("main;step", ms), pid=10 + rank, start_s=at_s))
    return ProfileRow(job, at_s * S, attempt, rank, (at_s + 2) * S, 1, body)


def on_disk(shelf: ProfileShelf) -> int:
    return sum(held.n_bytes for held in shelf.held().values())


def test_old_windows_are_put_together_before_any_is_dropped(shelf):
    policy = replace(POLICY, most_bytes=20_000)
    keeper = Keeper(shelf, policy)
    for k in range(60):
        keeper.keep([row(60 * k, rank) for rank in range(2)], 60 * k * S)
        assert on_disk(shelf) == keeper.n_bytes <= policy.job_most_bytes
    infos = shelf.infos_between("j", 0, 10**18)
    assert infos[0].looks > 1 and infos[-1].looks == 1
    assert infos[0].looks >= infos[len(infos) // 2].looks
    kept = sum(info.looks for info in infos)
    total = sum(sum(times(windows.unpacked(r.body)).values()) for r in shelf.rows("j", 0, 10**18))
    assert total == kept * 200 and kept == 120  # nothing was lost


def test_the_bound_holds_when_windows_can_be_put_together_no_more(shelf):
    keeper = Keeper(shelf, POLICY)
    body = windows.packed(profile(*((f"main;g{k}", k + 1) for k in range(60))))
    for k in range(0, 3000, 50):
        rows = [
            ProfileRow(f"job{k + n}", (k + n) * 60 * S, 1, 0, (k + n) * 60 * S + S, 1, body)
            for n in range(50)
        ]
        keeper.keep(rows, k * 60 * S)
        assert on_disk(shelf) == keeper.n_bytes <= POLICY.most_bytes
    left = sorted(shelf.held())
    assert "job2999" in left and "job0" not in left


def test_one_job_takes_at_most_its_part(shelf):
    keeper = Keeper(shelf, POLICY)
    keeper.keep([row(0, job="other")], 0)
    for k in range(1, 400):
        keeper.keep([row(60 * k, attempt=k)], 60 * k * S)
    held = shelf.held()
    assert held["j"].n_bytes <= POLICY.job_most_bytes and "other" in held


def test_what_is_older_than_it_is_to_be_kept_goes(shelf):
    keeper = Keeper(shelf, replace(POLICY, keep_ns=3600 * S))
    keeper.keep([row(0), row(10)], 20 * S)
    keeper.keep([row(5000)], 5002 * S)
    assert [info.start_ns for info in shelf.infos_between("j", 0, 10**18)] == [5000 * S]


def test_a_clock_that_was_set_back_stops_nothing(shelf):
    keeper = Keeper(shelf, replace(POLICY, keep_ns=3600 * S))
    keeper.keep([row(100_000)], 100_002 * S)
    keeper.keep([row(50)], 52 * S)
    assert len(shelf.infos_between("j", 0, 10**18)) == 2


def test_a_window_that_cannot_be_read_is_dropped_when_its_neighbours_are_put_together(shelf):
    keeper = Keeper(shelf, replace(POLICY, most_bytes=16_000))
    keeper.keep([row(0), replace_body(row(60))], 0)
    for k in range(2, 40):
        keeper.keep([row(60 * k)], 60 * k * S)
    rows = list(shelf.rows("j", 0, 10**18))
    assert all(windows.unpacked(one.body) for one in rows)


def replace_body(row: ProfileRow) -> ProfileRow:
    return row._replace(body=b"nonsense" * 20)


def test_counts_are_taken_anew_after_an_error(shelf, tmp_path):
    keeper = Keeper(shelf, POLICY)
    keeper.keep([row(0)], 0)
    other = open_store(str(tmp_path / "s.db"), create=False)
    shelf._store.release(shelf._store._lease)
    theirs = ProfileShelf(other, other.acquire("next").token)
    with pytest.raises(LeaseLost):
        keeper.keep([row(60)], 60 * S)
    Keeper(theirs, POLICY).keep([row(120)], 120 * S)
    assert keeper.n_bytes == on_disk(theirs)
    other.close()
