"""Random sound histories have no violation, and each one that is damaged in one place has one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from histories.check import check
from histories.made import Made, relogged
from histories.record import History
from unidle.events import types as ev


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Jobs one after the other, of some attempts each; some are cancelled after their last one failed."""
    made = Made()
    for number in range(draw(st.integers(1, 4))):
        name = f"job{number}"
        made.submit(name, draw(st.integers(-2, 2)))
        attempts, cancelled = draw(st.integers(1, 3)), draw(st.booleans())
        for attempt in range(1, attempts + 1):
            good = attempt == attempts and not cancelled
            steps, device = draw(st.integers(1, 4)), f"n0/{draw(st.integers(0, 1))}"
            made.attempt(name, attempt, steps=steps, device=device, outcome="succeeded" if good else "failed")
        if cancelled:
            made.cancel(name, "cancelled")
        made.end(name, "cancelled" if cancelled else "succeeded")
    return made.history()


@given(histories())
def test_a_history_without_a_fault_has_no_violation(history: History) -> None:
    assert check(history) == []


def _matters(event: ev.Event) -> bool:
    return not isinstance(event, ev.ControllerStarted | ev.CancelAsked)


@given(histories(), st.data())
def test_any_event_that_is_lost_is_found(history: History, data: st.DataObject) -> None:
    """Whether it leaves a hole, or was never written."""
    at = data.draw(st.sampled_from([k for k, e in enumerate(history.log) if _matters(e.event)]))
    rest = history.log[:at] + history.log[at + 1 :]
    last = at == len(history.log) - 1  # no later event shows a hole, but a job has no end
    found = {violation.kind for violation in check(replace(history, log=rest))}
    assert found & ({"not_drained"} if last else {"sequence"})
    event = history.log[at].event
    never = {violation.kind for violation in check(relogged(history, [(e.time_ns, e.event) for e in rest]))}
    if isinstance(event, ev.RankSaw) and event.marks[0].k != "spawn":
        assert never & {"lost_mark", "mark_order"}
    elif isinstance(event, ev.JobSubmitted):
        assert "lost_submit" in never
    elif isinstance(event, ev.JobEnded):
        assert "not_drained" in never


@given(histories(), st.data())
def test_any_event_that_is_written_twice_is_found(history: History, data: st.DataObject) -> None:
    kinds = ev.JobSubmitted | ev.AttemptPlaced | ev.RankSaw
    at = data.draw(st.sampled_from([k for k, e in enumerate(history.log) if isinstance(e.event, kinds)]))
    twice = [(e.time_ns, e.event) for e in (*history.log[: at + 1], *history.log[at:])]
    assert check(relogged(history, twice))


@given(histories(), st.data())
def test_the_order_of_clients_records_does_not_matter(history: History, data: st.DataObject) -> None:
    ops = data.draw(st.permutations(history.ops))
    assert check(replace(history, ops=tuple(ops))) == []
