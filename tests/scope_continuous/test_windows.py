"""Windows of profiles: made small, put together, and back from the store unchanged."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_continuous.profiles import S, profile, times
from unidle.errors import BadInput
from unidle.scope.continuous import windows
from unidle.scope.model import Profile


def test_a_profile_comes_back_as_it_was_kept():
    one = profile(("main;load", 500), ("main;step", 900), spans=3)
    assert windows.unpacked(windows.packed(one)) == one


@pytest.mark.parametrize(
    "body", [b"", b"x", zlib.compress(b"[]"), zlib.compress(b"{}"), windows.packed(profile())[:-3]]
)
def test_what_is_no_profile_is_refused(body):
    with pytest.raises(BadInput):
        windows.unpacked(body)


def test_a_part_has_the_rows_of_its_processes_and_no_stack_more():
    both = windows.together([[profile(("a;b", 100)), profile(("a;c", 200), pid=20)]])
    part = windows.part_of(both, {20}, rank=3, job="j", root=20)
    assert times(part) == {"a;c": 200} and [f.function for f in part.frames] == ["a", "c"]
    assert [(p.pid, p.rank, p.job) for p in part.processes] == [(20, 3, "j")]


def test_small_keeps_all_time_and_the_stacks_that_took_most():
    one = profile(*((f"main;f{k}", 10 * (k + 1)) for k in range(20)))
    made = windows.small(one, stacks_most=5)
    assert len(made.stacks) == 5 and sum(times(made).values()) == sum(times(one).values())
    assert {name for name in times(made) if name != windows.REST.function} == {
        f"main;f{k}" for k in range(16, 20)
    }
    assert windows.unpacked(windows.packed(made)) == made


def test_windows_put_together_have_no_time_between_them():
    made = windows.together(
        [[profile(("a", 500), spans=2)], [profile(("a", 700), ("b", 100), start_s=60, spans=2)]]
    )
    assert made.seconds == 4 and times(made) == {"a": 1200, "b": 100}
    (thread,) = made.threads
    assert (thread.last_ns - thread.first_ns, thread.on_ns + thread.off_ns) == (4 * S, 4 * S)
    assert all(made.start_ns <= s.start_ns <= s.end_ns <= made.end_ns for s in made.spans)


def test_process_numbers_of_two_attempts_stay_apart():
    apart = windows.apart({1: [profile(("a", 100))], 2: [profile(("a", 200))]})
    assert len({p.processes[0].pid for p in apart}) == 2
    assert {s.pid for s in apart[1].samples} == {apart[1].processes[0].pid}


stacks = st.lists(st.tuples(st.sampled_from(["a", "a;b", "a;b;c", "d"]), st.integers(1, 999)), max_size=6)


@given(st.lists(stacks, min_size=1, max_size=5), st.integers(1, 6))
def test_putting_together_in_any_grouping_keeps_every_stacks_time(found, most):
    parts = [profile(*one, start_s=10 * k) for k, one in enumerate(found)]
    made = windows.together([[part] for part in parts])
    want: dict[str, int] = {}
    for part in parts:
        for name, ms in times(part).items():
            want[name] = want.get(name, 0) + ms
    assert times(made) == want
    whole: Profile = windows.small(made, stacks_most=most)
    assert sum(times(whole).values()) == sum(want.values()) and len(whole.stacks) <= max(most, 1)
