"""Interpreter's time goes with what its line of code mostly does; no time is lost or made by it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from unidle.scope.budget import joined
from unidle.scope.model import Frame, Profile, State
from unidle.scope.rules import Category, StackRule

OPERATOR = StackRule("operators", "compute", "runs operators")
SAVING = StackRule("writing", "checkpoint_io", "writes files")
RESTING = StackRule("sleeps", "idle", "sleeps")
PLAIN = StackRule("python-code", "python", "runs Python code", joins=True)
LINES = 3
PROFILE = Profile(
    "T0", 0, 10,
    frames=tuple(Frame("python", "work", "/home/me/train.py", line) for line in range(LINES)),
    stacks=tuple((line,) for line in range(LINES)),
)  # fmt: skip


def told(*rows: tuple[State, StackRule, int, int]) -> dict[Category, int]:
    sampled: dict[State, Counter[tuple[StackRule, int]]] = {}
    for state, rule, stack, ns in rows:
        sampled.setdefault(state, Counter())[rule, stack] += ns
    ns: Counter[Category] = Counter()
    for rows_of in joined(PROFILE, sampled).values():
        for (rule, _), time in rows_of.items():
            ns[rule.category] += time
    return dict(ns)


def test_python_between_the_operators_of_a_line_is_computing() -> None:
    assert told(("on", OPERATOR, 0, 60), ("on", PLAIN, 0, 40)) == {"compute": 100}


def test_python_of_another_line_stays_python() -> None:
    assert told(("on", OPERATOR, 0, 60), ("on", PLAIN, 1, 40)) == {"compute": 60, "python": 40}


def test_a_line_that_is_mostly_python_stays_python() -> None:
    assert told(("on", OPERATOR, 0, 30), ("on", PLAIN, 0, 40)) == {"compute": 30, "python": 40}


def test_python_around_a_wait_goes_with_the_wait_and_never_with_rest() -> None:
    assert told(("off", SAVING, 0, 60), ("on", PLAIN, 0, 10)) == {"checkpoint_io": 70}
    assert told(("off", RESTING, 0, 60), ("on", PLAIN, 0, 10)) == {"idle": 60, "python": 10}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["on", "off", "runq"]), st.sampled_from([OPERATOR, SAVING, RESTING, PLAIN]),
            st.integers(0, LINES - 1), st.integers(1, 1000),
        )
    )
)  # fmt: skip
def test_the_sum_stays_and_only_python_moves(rows: list[tuple[State, StackRule, int, int]]) -> None:
    before: Counter[Category] = Counter()
    for _, rule, _, ns in rows:
        before[rule.category] += ns
    after = told(*rows)
    assert sum(after.values()) == sum(before.values())
    assert all(after.get(category, 0) >= ns for category, ns in before.items() if category != "python")
    assert after.get("idle", 0) == before["idle"]
