"""What follows from how ranks end: small stories, each told as marks of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from guard.stories import S, Story, kinds
from unidle.events import types as ev
from unidle.events.marks import LastOutput
from unidle.guard.lifecycle import next_deadline_ns
from unidle.guard.restarts import acts_on_hang, backoff_s
from unidle.jobs import JobSpec, Reason, Restart, RestartPolicy, Role
from unidle.place.policy import FirstFit


def test_a_gang_whose_ranks_all_exit_0_has_succeeded():
    story = Story().start().end(5, 0, 0, 0)
    assert kinds(story.decide(6)) == ["AttemptEnded", "JobEnded"]
    assert story.job.state == "succeeded"


def test_nothing_follows_while_all_is_well():
    assert Story().start().decide(5) == []
    assert Story().start().mark(4, 0, "exit", code=0).decide(5) == []


def test_the_first_failure_stops_the_gang_and_names_its_culprit():
    story = Story().start().mark(4, 2, "step", n=7).mark(5, 2, "exit", code=3)
    (stop,) = story.decide(5)
    assert isinstance(stop, ev.StopAsked)
    assert (stop.why, stop.culprit) == ("rank_failed", 2)
    assert "rank 2 exited 3 after step 7" in stop.because.text
    assert story.decide(6) == []


def test_a_killed_rank_is_blamed_before_peers_that_exited_because_of_it():
    story = Story().start().end(5, 1, 1, -9)
    story.decide(6)
    assert story.job.because is not None
    assert "rank 2 was killed by SIGKILL" in story.job.because.text


def test_a_rank_that_left_early_is_named_with_the_failure_that_follows():
    story = Story().start().mark(2, 1, "exit", code=0).mark(5, 0, "exit", code=1)
    (stop,) = story.decide(5)
    assert isinstance(stop, ev.StopAsked)
    assert "rank 1 had exited 0" in stop.because.text


def test_a_rank_with_an_error_of_its_own_is_not_explained_by_one_that_left_early():
    last = LastOutput("ValueError: lr", "train.py:3", "code", "error")
    story = Story().start().mark(2, 1, "exit", code=0).mark(5, 0, "exit", code=1, last=last)
    (stop,) = story.decide(5)
    assert isinstance(stop, ev.StopAsked)
    assert "ValueError: lr" in stop.because.text and "had exited 0" not in stop.because.text


@pytest.mark.parametrize(
    ("on", "code", "retried"),
    [
        (("any",), 1, True),
        (("any",), -9, True),
        (("any",), None, True),
        (("signal",), -9, True),
        (("signal",), 1, False),
        (("signal",), None, False),
        (("exit",), 3, True),
        (("exit",), -15, False),
        (("lost",), None, True),
        (("lost",), 1, False),
        (("SIGKILL",), -9, True),
        (("SIGKILL",), -15, False),
        ((17,), 17, True),
        ((17,), 18, False),
        ((17, "signal"), -9, True),
        ((), 1, False),
    ],
)
def test_which_ends_are_retried(on, code, retried):
    story = Story(ranks=1, restart=Restart(3, 1.0, on)).start().end(5, code)
    assert kinds(story.decide(6)) == ["AttemptEnded", "RetryPlanned" if retried else "JobEnded"]
    assert story.job.state == ("restarting" if retried else "failed")


def test_restarts_are_counted_and_then_the_job_has_failed():
    story = Story(ranks=1, restart=Restart(2, 1.0))
    for attempt in range(3):
        story.start(100 * attempt).end(100 * attempt + 5, 1)
        story.decide(100 * attempt + 6)
    assert story.job.state == "failed" and len(story.job.attempts) == 3
    assert story.job.because is not None and "2 of 2 restarts used" in story.job.because.text


def test_the_wait_before_a_restart_doubles_up_to_its_bound():
    assert [backoff_s(Restart(9, 2.0), n) for n in (1, 2, 3, 8, 9, 500)] == [2, 4, 8, 256, 300, 300]
    assert backoff_s(Restart(9, 1000.0), 4) == 1000
    story = Story(ranks=1, restart=Restart(3, 2.0)).start().end(5, 1)
    retry = story.decide(6)[-1]
    assert isinstance(retry, ev.RetryPlanned)
    assert retry.not_before_ns == 1 + 8 * S


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_cannot_be_started_is_not_retried(code):
    story = Story(ranks=1, restart=Restart(3)).place()
    story.mark(1, 0, "note", text="No such file or directory: 'x'").mark(1, 0, "exit", code=code)
    story.decide(2)
    assert story.job.state == "failed" and story.job.because is not None
    assert "cannot start" in story.job.because.text and "No such file" in story.job.because.text


def test_a_script_that_exits_127_by_itself_is_retried():
    story = Story(ranks=1, restart=Restart(3)).start().end(5, 127)
    story.decide(6)
    assert story.job.state == "restarting"


def test_a_job_is_cancelled_in_each_state():
    waiting = Story()
    waiting.tell(1, ev.CancelAsked("j", "me"))
    assert kinds(waiting.decide(2)) == ["JobEnded"] and waiting.job.state == "cancelled"

    running = Story().start()
    running.tell(1, ev.CancelAsked("j", "me"))
    assert kinds(running.decide(2)) == ["StopAsked"]
    running.end(3, -15, -15, 0)
    running.decide(4)
    assert running.job.state == "cancelled" and running.job.attempts[0].outcome == "cancelled"

    again = Story(ranks=1, restart=Restart(3)).start().end(5, 1)
    again.decide(6)
    again.tell(6, ev.CancelAsked("j", "me"))
    again.decide(6)
    assert again.job.state == "cancelled"


def test_a_job_that_ended_before_the_order_to_stop_has_succeeded():
    story = Story().start().end(5, 0, 0, 0)
    story.tell(6, ev.StopAsked("j", 1, "cancelled", S, Reason("cancelled", "too late")))
    story.decide(6)
    assert story.job.state == "succeeded"


def test_time_under_attempts_is_bounded_over_restarts():
    story = Story(ranks=1, timeout_s=10, restart=Restart(3, 1.0)).start().end(4, 1)
    story.decide(5)
    story.start(20)
    assert next_deadline_ns(story.job) == 1 + 25 * S
    assert story.decide(24.9) == []
    (stop,) = story.decide(25)
    assert isinstance(stop, ev.StopAsked) and stop.why == "timeout"
    story.end(26, -15)
    story.decide(27)
    assert story.job.state == "failed"


def test_time_in_the_queue_is_bounded():
    story = Story(ranks=99, queue_timeout_s=10)
    assert story.decide(9) == []
    assert kinds(story.decide(10)) == ["JobEnded"]
    assert story.job.because is not None and story.job.because.code == "queue_timeout"


def test_a_service_that_stops_puts_its_jobs_back_into_the_queue():
    story = Story(restart=Restart(0)).start()
    story.tell(5, ev.StopAsked("j", 1, "service_stopped", S, Reason("service_stopped", "stopped")))
    story.end(6, -15, -15, 0)
    assert kinds(story.decide(7)) == ["AttemptEnded", "Requeued"]
    assert story.job.state == "queued" and story.job.attempts[0].outcome == "preempted"
    story.start(8).end(9, 0, 0, 0)
    story.decide(10)
    assert story.job.state == "succeeded"


@pytest.mark.parametrize(
    ("requeue", "state", "outcome"), [(False, "cancelled", "cancelled"), (True, "queued", "preempted")]
)
def test_an_idle_holder_that_was_released_ends_or_waits_again(requeue: bool, state: str, outcome: str):
    story = Story(restart=Restart(3)).start()
    because = Reason("idle_released", "released by policy")
    story.tell(5, ev.StopAsked("j", 1, "idle", 10 * S, because, requeue=requeue))
    story.end(6, -15, -15, -15).decide(7)
    assert (story.job.state, story.job.attempts[0].outcome) == (state, outcome)
    assert story.job.attempts[0].why == because


# ---- policies by event and role


def policies(*said: dict[str, object], most: int = 0) -> Restart:
    return Restart(most, 1.0, policies=tuple(RestartPolicy(**one) for one in said))  # type: ignore[arg-type]


LOGGER = (Role("trainer", ((0, 1),)), Role("logger", ((2, 2),)))


def test_a_rank_whose_failure_is_ignored_does_not_stop_the_gang():
    restart = policies({"event": "fail", "action": "ignore", "role": "logger"})
    story = Story(roles=LOGGER, restart=restart).start().mark(3, 2, "exit", code=3)
    assert story.decide(3) == []
    story.mark(8, 0, "exit", code=0).mark(8, 1, "exit", code=0)
    assert kinds(story.decide(9)) == ["AttemptEnded", "JobEnded"]
    assert story.job.state == "succeeded"
    assert (
        story.job.because is not None
        and "rank 2 exited 3, which the job's policy ignores" in story.job.because.text
    )


def test_the_failure_of_another_role_stops_it_still():
    restart = policies({"event": "fail", "action": "ignore", "role": "logger"}, most=1)
    story = Story(roles=LOGGER, restart=restart).start().mark(3, 2, "exit", code=3).mark(4, 1, "exit", code=1)
    (stop,) = story.decide(4)
    assert isinstance(stop, ev.StopAsked) and stop.culprit == 1
    story.mark(5, 0, "exit", code=-15)
    assert kinds(story.decide(6)) == ["AttemptEnded", "RetryPlanned"]


@pytest.mark.parametrize(
    ("action", "follows", "state"),
    [("restart", "RetryPlanned", "restarting"), ("requeue", "Requeued", "queued"), ("abort", "JobEnded", "failed")],
)  # fmt: skip
def test_what_a_policy_makes_of_a_failure(action, follows, state):
    story = (
        Story(ranks=1, restart=policies({"event": "fail", "action": action, "max": 2}, most=9))
        .start()
        .end(5, 1)
    )
    assert kinds(story.decide(6)) == ["AttemptEnded", follows]
    assert story.job.state == state and story.job.retries == 0


def test_each_policy_has_a_count_of_its_own():
    restart = policies(
        {"event": "fail", "action": "restart", "max": 1, "role": "logger"},
        {"event": "fail", "action": "restart", "max": 2, "role": "trainer", "backoff_s": 7.0},
    )
    story = Story(roles=LOGGER, restart=restart)
    for at, codes in ((0, (-15, -15, 1)), (100, (1, -15, -15)), (200, (1, -15, -15))):
        story.start(at)
        culprit = codes.index(1)
        story.mark(at + 5, culprit, "exit", code=1).decide(at + 5)
        for rank, code in enumerate(codes):
            if rank != culprit:
                story.mark(at + 6, rank, "exit", code=code)
        story.decide(at + 7)
        assert story.job.state == "restarting"
    assert story.job.policy_uses == {0: 1, 1: 2} and story.job.retries == 0
    assert story.job.not_before_ns == 1 + (207 + 14) * S  # the second of its own, so twice 7 s
    story.start(300).mark(305, 2, "exit", code=1).decide(305)
    story.mark(306, 0, "exit", code=-15).mark(306, 1, "exit", code=-15).decide(307)
    assert story.job.state == "failed"
    assert story.job.because is not None and "of role logger was used 1 time" in story.job.because.text


def test_an_eviction_uses_up_no_restart_unless_a_policy_counts_it():
    def evict(story: Story, at: int) -> list[ev.Event]:
        story.start(at)
        because = Reason("preempted", "makes room")
        story.tell(at + 1, ev.StopAsked("j", len(story.job.attempts), "preempted", 0, because))
        return story.end(at + 2, -15).decide(at + 3)

    story = Story(ranks=1, restart=Restart(1))
    assert [kinds(evict(story, at)) for at in (0, 10, 20)] == [["AttemptEnded", "Requeued"]] * 3
    assert story.job.retries == 0
    story = Story(ranks=1, restart=policies({"event": "evict", "action": "requeue", "max": 2}))
    assert [kinds(evict(story, at))[1] for at in (0, 10, 20)] == ["Requeued", "Requeued", "JobEnded"]
    story = Story(ranks=1, restart=policies({"event": "evict", "action": "abort"}))
    assert kinds(evict(story, 0))[1] == "JobEnded" and story.job.state == "failed"


def test_a_job_may_wait_again_when_it_has_waited_too_long():
    restart = policies({"event": "pending", "action": "requeue", "max": 1})
    story = Story(ranks=1, queue_timeout_s=10, restart=restart)
    assert story.decide(9) == []
    assert kinds(story.decide(10.5)) == ["Requeued"] and story.job.state == "queued"
    assert next_deadline_ns(story.job) == 1 + int(20.5 * S)
    assert FirstFit().decide(story.view, 1 + 11 * S).places
    assert kinds(story.decide(21)) == ["JobEnded"] and story.job.state == "failed"


def test_a_job_that_ran_too_long_may_start_again():
    restart = policies({"event": "timeout", "action": "restart", "max": 1, "backoff_s": 0})
    story = Story(ranks=1, timeout_s=10, restart=restart).start()
    assert kinds(story.decide(10.5)) == ["StopAsked"]
    assert kinds(story.end(11, -15).decide(12)) == ["AttemptEnded", "RetryPlanned"]
    story.start(20)
    assert next_deadline_ns(story.job) == 1 + 30 * S
    assert kinds(story.decide(31)) == ["StopAsked"]
    assert kinds(story.end(32, -15).decide(33)) == ["AttemptEnded", "JobEnded"]


def test_ignored_deadlines_never_come():
    restart = policies({"event": "pending", "action": "ignore"}, {"event": "timeout", "action": "ignore"})
    story = Story(ranks=1, timeout_s=10, queue_timeout_s=10, restart=restart)
    assert story.decide(1000) == []
    assert story.start(1000).decide(9000) == []


def test_a_hang_is_acted_upon_as_its_policy_says():
    assert acts_on_hang(JobSpec(("x",), restart=policies({"event": "hang", "action": "abort"})), 0)
    assert not acts_on_hang(
        JobSpec(("x",), restart=policies({"event": "hang", "action": "ignore"}, most=3)), None
    )
    mixed = policies({"event": "hang", "action": "ignore", "role": "logger"}, most=3)
    spec = JobSpec(("x",), ranks=3, roles=LOGGER, restart=mixed)
    assert (acts_on_hang(spec, 0), acts_on_hang(spec, 2)) == (True, False)


def evicted(story: Story, at_s: float) -> None:
    story.tell(at_s, ev.AttemptDisrupted("j", len(story.job.attempts), Reason("evicted", "evicted")))


def test_a_gang_that_others_end_is_stopped_and_waits_again_without_a_restart() -> None:
    story = Story(restart=Restart(0)).start()
    evicted(story, 5)
    [stop] = story.decide(5)
    assert isinstance(stop, ev.StopAsked) and stop.why == "disrupted"
    assert story.decide(6) == [], "silent or not, the last rank is waited for"
    ended, then = story.end(7, -15, -15, None).decide(8)
    assert isinstance(ended, ev.AttemptEnded) and ended.outcome == "preempted"
    assert isinstance(then, ev.Requeued) and then.because.text == "evicted"
    assert story.job.retries == 0


def test_that_others_ended_a_gang_explains_the_failure_that_was_seen_first() -> None:
    story = Story(restart=Restart(0)).start().mark(5, 1, "exit", code=-9)
    assert kinds(story.decide(5)) == ["StopAsked"]
    evicted(story, 6)
    story.mark(7, 0, "exit", code=-15).mark(7, 2, "exit", code=-15)
    assert kinds(story.decide(8)) == ["AttemptEnded", "Requeued"]


def test_a_gang_that_finished_or_was_cancelled_stays_so_whoever_ended_it() -> None:
    done = Story().start()
    evicted(done, 5)
    assert kinds(done.end(5, 0, 0, 0).decide(5)) == ["AttemptEnded", "JobEnded"]
    assert done.job.state == "succeeded"
    over = Story().start()
    over.tell(4, ev.CancelAsked("j", "ann"))
    over.decide(4)
    evicted(over, 5)
    over.end(6, -15, -15, -15).decide(7)
    assert over.job.state == "cancelled"


def test_a_gang_that_hangs_is_stopped_if_it_may_restart_only_once() -> None:
    spec = Story(ranks=1, restart=Restart(1, 1.0, ("any",))).job.spec
    assert acts_on_hang(spec, None)
    assert not acts_on_hang(replace(spec, restart=Restart(0, 1.0, ("any",))), None)


def refused_at(story: Story, at_s: float) -> list[ev.Event]:
    """An attempt for which no rank is started: its host refuses it."""
    story.place(at_s)
    for rank in range(story.job.spec.ranks):
        story.mark(at_s, rank, "lost", text="no room", info={"refused": True})
    return story.decide(at_s)


def test_a_gang_that_its_host_refuses_waits_again_at_once_and_uses_no_restart():
    story = Story()
    assert kinds(refused_at(story, 1)) == ["AttemptEnded", "Requeued"]
    assert (story.job.state, story.job.retries) == ("queued", 0)


def test_a_gang_that_is_refused_again_on_the_same_devices_waits_longer_each_time_until_its_restarts_are_used():
    story = Story(restart=Restart(max=3, backoff_s=2))
    refused_at(story, 1)
    waits = []
    for at_s in (10, 100, 200):
        _, planned = refused_at(story, at_s)
        assert isinstance(planned, ev.RetryPlanned) and "no room" in planned.because.text
        waits.append((planned.not_before_ns - 1) / S - at_s)
    assert waits == [2, 4, 8]
    assert kinds(refused_at(story, 300)) == ["AttemptEnded", "JobEnded"]
    assert story.job.because is not None and story.job.state == "failed"
    assert story.job.because.text == "no room; 3 of 3 restarts used" and len(story.job.attempts) == 5


def test_a_gang_that_is_refused_on_other_devices_each_time_is_placed_again_at_once():
    story = Story(ranks=1)
    refused_at(story, 1)
    story.tell(2, ev.HealthSet("n/0", "quarantine", Reason("x", "sick")))
    assert kinds(refused_at(story, 3)) == ["AttemptEnded", "Requeued"]
