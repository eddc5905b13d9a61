"""Gangs that tell their saves together: closed forms against counting, exact sums, copies in peers' memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.test_sim_engine import run, seconds, spec
from sim.worlds import S, fleet_of
from unidle.engine.sim.peer_copies import PeerCopies
from unidle.engine.sim.steady import SteadyRhythm, SteadyState
from unidle.engine.sim.workload import SimJob
from unidle.view.incidents import incidents


def counted(rhythm: SteadyRhythm, elapsed_ns: int) -> tuple[SteadyState, list[int]]:
    """What ``SteadyRhythm.at`` says, step by step; and when each step was complete."""
    now = steps = saved = copied = saved_stall = copied_stall = 0
    done: list[int] = []
    while True:
        if now + rhythm.step_ns > elapsed_ns:
            return SteadyState(steps, saved, copied, saved_stall, copied_stall, 0), done
        now, steps = now + rhythm.step_ns, steps + 1
        done.append(now)
        copies = bool(rhythm.copy_every) and steps % rhythm.copy_every == 0
        if copies:
            if now + rhythm.copy_ns > elapsed_ns:
                return SteadyState(steps, saved, copied, saved_stall, copied_stall, elapsed_ns - now), done
            now, copied, copied_stall = now + rhythm.copy_ns, steps, copied_stall + rhythm.copy_ns
        if rhythm.save_every and steps % rhythm.save_every == 0:
            if now + rhythm.save_ns > elapsed_ns:
                return SteadyState(steps, saved, copied, saved_stall, copied_stall, elapsed_ns - now), done
            now, saved = now + rhythm.save_ns, steps
            saved_stall, copied_stall = saved_stall + copied_stall + rhythm.save_ns, 0


@given(
    st.integers(1, 5), st.integers(0, 4), st.integers(0, 6), st.integers(0, 4), st.integers(0, 3), st.integers(0, 300)
)  # fmt: skip
def test_closed_forms_say_what_counting_step_by_step_says(
    step_ns: int, groups: int, save_ns: int, copy_every: int, copy_ns: int, elapsed_ns: int
) -> None:
    rhythm = SteadyRhythm(step_ns, groups * (copy_every or 1), save_ns, copy_every, copy_ns)
    stand, done = counted(rhythm, elapsed_ns)
    assert rhythm.at(elapsed_ns) == stand
    assert [rhythm.since(n) for n in range(1, len(done) + 1)] == done


STEADY = {"step_ns": S, "steady": True, "checkpoint_every": 10, "checkpoint_ns": 2 * S, "startup_ns": 5 * S}


def test_the_sums_of_a_steady_gang_are_those_of_one_that_tells_each_save() -> None:
    def leaves(steady: bool) -> dict[str, float]:
        sim = SimJob(65 * S, **{**STEADY, "steady": steady, "fails": {1: (0, 50 * S, -9)}})
        store, view = run(fleet_of(2), {"j": (0, spec(ranks=2, checkpoint_path="."), sim)})
        assert view.jobs["j"].state == "succeeded"
        return seconds(store, view, "j")

    told, each = leaves(True), leaves(False)
    assert told["useful"] == each["useful"] == 2 * 65
    # a save that falls on the last durable step counts as lost in the one that tells each
    assert told["checkpoint"] + told["replayed"] == each["checkpoint"] + each["replayed"]


def test_a_gang_goes_on_from_the_memory_of_peers_where_a_node_breaks() -> None:
    sim = SimJob(100 * S, **STEADY, copy_every=2, restore_ns=9 * S, copy_restore_ns=S)
    jobs = {"j": (0, spec(ranks=3, checkpoint_path="."), sim)}
    _, view = run(fleet_of(1, 1, 1, 1), jobs, faults=[(1 + 25 * S, "n1", 1 + 500 * S)])
    # 5 s to start; 10 steps, a save of 2 s, 8 steps at 25 s
    assert view.jobs["j"].attempts[1].first_step() == 19
    (one,) = incidents(view)
    assert one.lost_steps == 0


def test_a_gang_whose_neighbours_break_together_goes_back_to_storage() -> None:
    sim = SimJob(100 * S, **STEADY, copy_every=2)
    jobs = {"j": (0, spec(ranks=3, checkpoint_path="."), sim)}
    both = [(1 + 25 * S, "n1", 1 + 500 * S), (1 + 25 * S, "n2", 1 + 500 * S)]
    _, view = run(fleet_of(1, 1, 1, 1, 1), jobs, faults=both)
    assert view.jobs["j"].attempts[1].first_step() == 11


@given(st.integers(1, 6), st.sets(st.integers(0, 5)), st.integers(1, 9))
def test_copies_are_there_as_long_as_no_neighbours_are_both_gone(
    size: int, broken: set[int], step: int
) -> None:
    copies = PeerCopies()
    copies.keep(("j", 1), step, [f"n{k}" for k in range(size)])
    for k in broken:
        copies.broke(f"n{k}")
    lost = any(k in broken and (k + 1) % size in broken for k in range(size))
    assert copies.step("j") == (0 if lost else step)


def test_a_fault_is_seen_after_its_detection_and_dated_when_it_was() -> None:
    sim = SimJob(100 * S, **STEADY)
    jobs = {"j": (0, spec(ranks=2, checkpoint_path="."), sim)}
    _, view = run(fleet_of(1, 1, 1), jobs, faults=[(1 + 25 * S, "n0", 1 + 26 * S)], detect_ns=10 * S)
    (one,) = incidents(view)
    assert (one.onset_ns, one.verdict_ns) == (1 + 25 * S, 1 + 35 * S)
    assert view.jobs["j"].attempts[1].first_step() == 11
    assert not view.health


def test_a_gang_that_starts_on_a_node_whose_fault_nobody_saw_yet_does_no_work_there() -> None:
    sim = SimJob(20 * S, **STEADY)
    jobs = {"j": (3, spec(ranks=2, checkpoint_path="."), sim)}
    _, view = run(fleet_of(1, 1), jobs, faults=[(1 + S, "n0", 1 + 60 * S)], detect_ns=10 * S)
    first, second = view.jobs["j"].attempts
    assert first.last_step() is None and first.outcome == "failed"
    assert second.placed_ns >= 1 + 60 * S and view.jobs["j"].state == "succeeded"
