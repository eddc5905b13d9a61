"""Who failed first, with what, and which retries can help: told as marks of ranks with the end of their output."""

from __future__ import annotations

from typing import Any

import pytest

from guard.stories import S, Story, kinds
from unidle.events import types as ev
from unidle.events.guard import VerdictReached
from unidle.events.marks import LastOutput
from unidle.guard.failure import failure_of, failure_of_job
from unidle.guard.failure_words import others_in_words
from unidle.guard.lifecycle import CAUSE_NS, next_deadline_ns
from unidle.jobs import Failure, Limits, Reason, Restart, RestartPolicy, Share

SHAPES = LastOutput(
    "ValueError: shapes (3,4) and (5,) not aligned", "crash.py:5", "code", "error", lines=("a", "b")
)
PEER = LastOutput(
    "RuntimeError: Connection closed by peer [127.0.0.1]:1", "crash.py:9", "network", "error", True
)
NO_MODULE = LastOutput("ModuleNotFoundError: No module named 'x'", "t.py:1", "code", "import")
TEXT = "rank 1: ValueError: shapes (3,4) and (5,) not aligned (crash.py:5)"
OOM: dict[str, Any] = {
    "oom": True,
    "oom_limit_bytes": 64_000_000,
    "oom_limit_of": "rank",
    "oom_process": "python",
    "oom_used_bytes": 61_300_000,
}


def failed(story: Story) -> Failure:
    found = failure_of_job(story.job)
    assert found is not None
    return found


def ends(story: Story, at_s: float, rank: int, last: LastOutput | None, code: int = 1) -> Story:
    return story.mark(at_s, rank, "exit", code=code, last=last)


def retried(
    story: Story,
    last: LastOutput | None,
    at_s: float = 0,
    *,
    code: int = 1,
    step: int | None = None,
    **more: Any,
) -> bool:
    """One more attempt of one rank that ends in this way; whether another one follows."""
    story.start(at_s)
    if step is not None:
        story.mark(at_s + 1, 0, "step", n=step)
    story.mark(at_s + 5, 0, "exit", code=code, last=last, **more)
    return kinds(story.decide(at_s + 6))[-1] == "RetryPlanned"


# -- who failed first ---------------------------------------------------------------------------------


def test_the_error_of_the_first_rank_is_the_reason_and_the_others_fell_because_of_it():
    story = ends(Story().start(), 5, 1, SHAPES)
    (stop,) = story.decide(5)
    assert isinstance(stop, ev.StopAsked) and stop.culprit == 1 and stop.because.text == TEXT
    ends(story, 5.01, 0, PEER).mark(5.5, 2, "exit", code=-15)
    story.decide(6)
    found = failed(story)
    assert (found.rank, found.kind, found.what, found.where) == (1, "code", SHAPES.what, "crash.py:5")
    assert (found.text, found.code, found.signal, found.lines) == (TEXT, 1, None, ("a", "b"))
    assert (found.because_of, found.same) == ((0, 2), ())
    assert found.command() == "unidle logs j --rank 1"
    assert found.command("my s.db") == "unidle logs j --rank 1 --store 'my s.db'"
    assert others_in_words(found.because_of) == "ranks 0 and 2 failed because of it"


def test_of_the_others_the_view_keeps_no_lines():
    story = Story().start()
    for rank in (1, 0, 2):
        ends(story, 5 + rank / 100, rank, SHAPES)
    story.decide(6)
    kept = [rank.last.lines for rank in story.job.attempts[0].ranks if rank.last is not None]
    assert kept == [("a", "b"), (), ()]


def test_a_symptom_that_is_seen_first_waits_for_its_cause():
    story = ends(Story().start(), 5, 0, PEER)
    assert story.decide(5) == []
    assert next_deadline_ns(story.job) == 1 + 5 * S + CAUSE_NS
    ends(story, 5.3, 1, SHAPES)
    (stop,) = story.decide(5.3)
    assert isinstance(stop, ev.StopAsked) and stop.culprit == 1


def test_a_symptom_alone_is_the_reason_after_a_while():
    story = ends(Story().start(), 5, 0, PEER)
    (stop,) = story.decide(5 + CAUSE_NS / S)
    assert isinstance(stop, ev.StopAsked) and stop.culprit == 0
    assert "Connection closed by peer" in stop.because.text and stop.because.figures["kind"] == "network"


def test_symptoms_of_all_ranks_are_not_waited_for():
    story = Story().start()
    for rank in range(3):
        ends(story, 5 + rank / 100, rank, PEER)
    story.decide(5.1)
    assert failed(story).rank == 0


def test_a_symptom_that_aborts_does_not_hide_an_exception():
    story = ends(Story().start(), 5, 0, PEER, code=-6)
    ends(story, 5.5, 1, SHAPES).mark(5.6, 2, "exit", code=-15)
    story.decide(6)
    assert failed(story).text == TEXT and failed(story).because_of == (0, 2)


def test_a_traceback_that_comes_after_the_order_to_stop_still_names_the_culprit():
    story = ends(Story().start(), 5, 0, PEER)
    story.decide(9)
    ends(story, 9.5, 1, SHAPES, code=-9).mark(9.6, 2, "exit", code=-15)
    ended = story.decide(10)[0]
    assert isinstance(ended, ev.AttemptEnded) and ended.because.figures["rank"] == 1
    assert failed(story).rank == 1 and failed(story).text == TEXT


def test_a_rank_that_is_stopped_at_once_is_not_taken_for_the_cause():
    story = Story().start().mark(5, 1, "exit", code=17)
    story.decide(5)
    story.mark(5, 0, "exit", code=-15).mark(5, 2, "exit", code=-15)
    story.decide(5)
    assert failed(story).text == "rank 1 exited 17" and failed(story).because_of == (0, 2)


def test_ranks_with_the_same_error_did_not_fall_because_of_each_other():
    story = Story().start()
    for rank in range(3):
        ends(story, 5 + rank / 100, rank, NO_MODULE)
    story.decide(6)
    found = failed(story)
    assert (found.rank, found.same, found.because_of) == (0, (1, 2), ())
    assert others_in_words(found.because_of, found.same) == "ranks 1 and 2 failed with the same error"


def test_a_killed_rank_precedes_exceptions_that_it_caused():
    story = Story().start().mark(5, 2, "exit", code=-9)
    ends(story, 5.1, 0, LastOutput("MyError: where is rank 2?", "t.py:3", "code", "error")).mark(
        5.2, 1, "exit", code=1
    )
    story.decide(6)
    found = failed(story)
    assert (found.rank, found.kind, found.signal, found.what) == (
        2,
        "unknown",
        "SIGKILL",
        "was killed by SIGKILL",
    )
    assert "from outside of unidle" in found.meaning and found.because_of == (1,)


@pytest.mark.parametrize(
    ("code", "kind", "meaning"),
    [
        (-11, "code", "memory that is not its own"),
        (-7, "memory", "/dev/shm"),
        (-4, "machine", "built for another"),
        (137, "unknown", "128 + 9: a process of it was killed by SIGKILL"),
        (139, "code", "SIGSEGV"),
        (127, "unknown", "was not found"),
        (3, "unknown", ""),
        (-64, "unknown", ""),
    ],
)
def test_codes_and_signals_have_their_meaning(code, kind, meaning):
    story = Story(ranks=1).start().mark(5, 0, "exit", code=code)
    story.decide(6)
    assert failed(story).kind == kind and meaning in failed(story).meaning
    assert bool(meaning) == bool(failed(story).meaning)


def test_a_line_that_is_no_known_error_stands_after_the_code():
    line = LastOutput("giving up: no shard left", sort="line")
    story = Story(ranks=1).start().mark(5, 0, "exit", code=3, last=line)
    story.decide(6)
    assert failed(story).text == "rank 0 exited 3: giving up: no shard left"


def test_a_fault_of_the_node_before_it_is_the_machine():
    story = Story(ranks=1).start()
    story.tell(4, VerdictReached("j", 1, "gpu", 4 * S, 4 * S, False, Reason("xid", "Xid 79"), 0, "n"))
    ends(story, 5, 0, LastOutput("RuntimeError: CUDA error: unspecified", "t.py:3", "code", "error"))
    story.decide(6)
    assert failed(story).kind == "machine"


def test_a_hang_and_a_cut_have_their_kinds_in_the_log():
    for kind, expected in (("hang", "unknown"), ("cut", "network")):
        story = Story(restart=Restart(1)).start()
        story.tell(4, VerdictReached("j", 1, kind, 4 * S, 4 * S, True, Reason(kind, "no step"), 1, "n"))  # type: ignore[arg-type]
        story.decide(5)
        story.mark(5, 0, "exit", code=-9).mark(5, 1, "exit", code=-9).mark(5, 2, "exit", code=-9)
        ended = story.decide(6)[0]
        assert isinstance(ended, ev.AttemptEnded) and ended.because.figures["kind"] == expected
        found = failure_of(story.job, story.job.attempts[0])
        assert found is not None and (found.rank, found.kind) == (1, expected)


def test_what_is_no_failure_has_none():
    done = Story().start().end(5, 0, 0, 0)
    done.decide(6)
    assert failure_of_job(done.job) is None
    stopped = Story().start()
    stopped.tell(1, ev.CancelAsked("j", "me"))
    stopped.decide(2)
    stopped.end(3, -15, -15, -15)
    stopped.decide(4)
    assert failure_of_job(stopped.job) is None and failure_of(stopped.job, stopped.job.attempts[0]) is None
    assert failure_of_job(Story().job) is None


def test_a_log_without_outputs_is_read_as_before():
    story = Story(ranks=1).start().end(5, 3)
    story.decide(6)
    assert (failed(story).text, failed(story).kind) == ("rank 0 exited 3", "unknown")


# -- out of memory ------------------------------------------------------------------------------------


def test_out_of_memory_names_its_limit_what_was_used_and_the_field():
    story = (
        Story(ranks=1, limits=Limits(memory_bytes=64_000_000)).start().mark(5, 0, "exit", code=-9, info=OOM)
    )
    story.decide(6)
    found = failed(story)
    assert found.text == "rank 0: out of memory: limits.memory is 64MB; python used 61.3MB and needed more"
    assert (found.kind, found.help) == ("memory", "raise limits.memory of the job")
    assert found.meaning == "the kernel killed a process of it to free memory"


@pytest.mark.parametrize(
    ("more", "words", "help_"),
    [
        (
            {"oom_limit_of": "machine", "oom_limit_bytes": 2**34},
            "the machine has 16GiB; python used 58.5MiB and",
            "fewer ranks on one node",
        ),
        (
            {"oom_limit_of": "above", "oom_limit_bytes": 10**9},
            "a control group above the job's has 1GB",
            "less memory",
        ),
    ],
)
def test_out_of_memory_of_the_machine_is_not_the_jobs_limit(more, words, help_):
    story = (
        Story(ranks=1, limits=Limits(memory_bytes=64_000_000))
        .start()
        .mark(5, 0, "exit", code=-9, info=OOM | more)
    )
    story.decide(6)
    assert words in failed(story).text and help_ in failed(story).help


def test_out_of_memory_of_a_share_is_not_limits_memory():
    story = Story(ranks=1, share=Share(memory_bytes=64_000_000), device="cpu").start()
    story.mark(5, 0, "exit", code=-9, info=OOM)
    story.decide(6)
    assert "its part of the device has 64MB" in failed(story).text and "share" in failed(story).help


def test_a_child_that_the_kernel_killed_is_out_of_memory_and_another_error_is_not():
    worker = LastOutput(
        "subprocess.CalledProcessError: Command died with <Signals.SIGKILL: 9>.", "t.py:3", "code", "error"
    )
    for last, kind in ((worker, "memory"), (SHAPES, "code")):
        story = Story(ranks=1).start().mark(5, 0, "exit", code=1, info=OOM, last=last)
        story.decide(6)
        assert failed(story).kind == kind


@pytest.mark.parametrize(
    ("what", "help_"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "smaller batch"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", "--shm-size"),
        ("MemoryError", "less memory"),
    ],
)  # fmt: skip
def test_each_kind_of_memory_has_its_remedy(what, help_):
    story = ends(Story(ranks=1).start(), 5, 0, LastOutput(what, "t.py:3", "memory", "error"))
    story.decide(6)
    assert help_ in failed(story).help


# -- retries that can help ----------------------------------------------------------------------------


def test_the_same_error_twice_at_no_step_ends_the_job():
    story = Story(ranks=1, restart=Restart(5, 0.0))
    assert retried(story, SHAPES)
    assert not retried(story, SHAPES, 10)
    assert story.job.because is not None
    assert story.job.because.text.endswith("(crash.py:5); same error twice, at no step: not retried")
    assert story.job.state == "failed" and len(story.job.attempts) == 2


def test_an_error_with_other_numbers_is_the_same_error():
    story = Story(ranks=1, restart=Restart(5, 0.0))
    one = LastOutput("RuntimeError: worker (pid 71) at 0x7f31 failed", "t.py:3", "code", "error")
    other = LastOutput("RuntimeError: worker (pid 802) at 0x55aa failed", "t.py:3", "code", "error")
    assert retried(story, one) and not retried(story, other, 10)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/tmp/tmpwf07tptk/model.bin", "/tmp/tmpx_qkzrab/model.bin"),
        ("/tmp/tmp.Zk3Yq0PdLa/a.npy", "/tmp/tmp.qqqRTGnmab/a.npy"),
        ("/tmp/pymp-ab3_xyzw/listener-1", "/tmp/pymp-qwertyui/listener-1"),
        ("runs/6f9619ff-8b86-d011-b42d-00cf4fc964ff/a", "runs/0a1b2c3d-ffff-4abc-8def-aabbccddeeff/a"),
        ("cache/9f86d081884c7d65/a", "cache/4e07408562bedb8b/a"),
    ],
)
def test_an_error_with_another_random_name_is_the_same_error(one, other):
    story = Story(ranks=1, restart=Restart(5, 0.0))
    errors = [
        LastOutput(f"FileNotFoundError: [Errno 2] No such file: '{path}'", "t.py:3", "data", "error")
        for path in (one, other)
    ]
    assert retried(story, errors[0]) and not retried(story, errors[1], 10)


def test_an_error_with_another_file_is_another_error():
    story = Story(ranks=1, restart=Restart(5, 0.0))
    errors = [
        LastOutput(f"FileNotFoundError: [Errno 2] No such file: 'data/{name}'", "t.py:3", "data", "error")
        for name in ("tmp/train.bin", "tmp/valid.bin")
    ]
    assert retried(story, errors[0]) and retried(story, errors[1], 10)


def test_an_error_elsewhere_or_another_one_is_retried():
    story = Story(ranks=1, restart=Restart(5, 0.0))
    assert retried(story, SHAPES)
    assert retried(story, LastOutput(SHAPES.what, "crash.py:6", "code", "error"), 10)
    assert retried(story, LastOutput("KeyError: 'x'", "crash.py:6", "code", "error"), 20)


def test_new_steps_are_worth_a_retry_and_the_same_ones_are_not():
    story = Story(ranks=1, restart=Restart(9, 0.0))
    assert retried(story, SHAPES, step=3)
    assert retried(story, SHAPES, 10, step=5)
    assert not retried(story, SHAPES, 20, step=5)
    assert story.job.because is not None
    assert "same error twice, at no step: not retried" in story.job.because.text


def test_a_first_attempt_that_made_steps_is_retried_even_where_the_error_is_of_an_import():
    assert retried(Story(ranks=1, restart=Restart(5, 0.0)), NO_MODULE, step=3)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (NO_MODULE, "a failed import does not fix itself: not retried"),
        (
            LastOutput("SyntaxError: invalid syntax", "t.py:3", "code", "syntax"),
            "a syntax error does not fix itself: not retried",
        ),
        (
            LastOutput("python: can't open file 'x.py'", "", "code", "command"),
            "a missing program or file does not fix itself: not retried",
        ),
    ],
)
def test_what_no_restart_mends_ends_the_job_at_once(last, words):
    story = Story(ranks=1, restart=Restart(5, 0.0))
    assert not retried(story, last)
    assert story.job.because is not None and words in story.job.because.text


def test_out_of_memory_at_the_jobs_limit_ends_the_job_and_of_the_machine_does_not():
    story = Story(ranks=1, restart=Restart(5, 0.0), limits=Limits(memory_bytes=64_000_000))
    assert not retried(story, None, code=-9, info=OOM)
    assert (
        story.job.because is not None
        and "out of memory at the same limit: not retried" in story.job.because.text
    )
    other = Story(ranks=1, restart=Restart(5, 0.0))
    machine = OOM | {"oom_limit_of": "machine"}
    assert retried(other, None, code=-9, info=machine) and retried(other, None, 10, code=-9, info=machine)
    growing = Story(ranks=1, restart=Restart(5, 0.0), limits=Limits(memory_bytes=64_000_000))
    assert retried(growing, None, code=-9, info=OOM, step=3), "a leak: it may get further each time"


@pytest.mark.parametrize(
    "last",
    [
        LastOutput("OSError: [Errno 28] No space left on device", "t.py:3", "machine", "error"),
        LastOutput(
            "RuntimeError: CUDA error: uncorrectable ECC error encountered", "t.py:3", "machine", "error"
        ),
        PEER,
        LastOutput("no shard left", "", "unknown", "line"),
        None,
    ],
)
def test_faults_of_machines_networks_and_the_unknown_are_retried_as_often_as_the_job_wants(last):
    story = Story(ranks=1, restart=Restart(3, 0.0))
    assert [retried(story, last, 10 * k, code=75) for k in range(4)] == [True, True, True, False]


def test_the_same_last_word_twice_is_not_retried_where_the_code_is_that_of_any_error():
    last = LastOutput("vocab size 50257 is not divisible by 8", "", "unknown", "line")
    story = Story(ranks=1, restart=Restart(3, 0.0))
    assert [retried(story, last, 10 * k) for k in range(2)] == [True, False]
    assert "same error twice, at no step: not retried" in str(story.job.because)
    other = LastOutput("no shard left", "", "unknown", "line")
    story = Story(ranks=1, restart=Restart(3, 0.0))
    assert retried(story, last) and retried(story, other, 10), "another word"
    story = Story(ranks=1, restart=Restart(3, 0.0))
    assert retried(story, None) and retried(story, None, 10), "no word"


def test_nobody_fell_because_of_a_rank_that_only_lost_a_peer_and_the_others_are_to_be_seen():
    story = Story().start()
    for rank in range(3):
        ends(
            story,
            5 + rank / 100,
            rank,
            PEER
            if rank
            else LastOutput("OSError: Timed out waiting 2000ms", "t.py:4", "network", "error", True),
        )
    story.decide(9)
    found = failed(story)
    assert (found.rank, found.because_of) == (0, ())
    assert "see what the others printed last" in found.help
    assert found.next == ("unidle", "logs", "j")


@pytest.mark.parametrize(("env", "helps"), [({}, True), ({"PYTHONFAULTHANDLER": "1"}, False)])
def test_a_crash_of_python_without_a_line_names_the_way_to_one(env, helps):
    story = Story(ranks=1, command=("python", "t.py"), env=env).start()
    story.mark(5, 0, "exit", code=-11).decide(6)
    assert ("PYTHONFAULTHANDLER=1" in failed(story).help) == helps


def test_too_many_open_files_names_the_limit():
    story = ends(
        Story(ranks=1).start(),
        5,
        0,
        LastOutput("OSError: [Errno 24] Too many open files: 'x'", "t.py:4", "machine", "error"),
    )
    story.decide(6)
    assert "ulimit -n" in failed(story).help


def test_a_fault_of_the_device_is_retried_although_the_error_is_the_same():
    story = Story(ranks=1, restart=Restart(3, 0.0))
    for k in range(3):
        story.start(10 * k)
        verdict = VerdictReached(
            "j", k + 1, "gpu", 10 * k * S, 10 * k * S, False, Reason("xid", "Xid 79"), 0, "n"
        )
        story.tell(10 * k + 1, verdict)
        ends(story, 10 * k + 5, 0, SHAPES)
        assert kinds(story.decide(10 * k + 6))[-1] == "RetryPlanned"


def test_restart_on_and_policies_can_insist():
    for restart in (
        Restart(3, 0.0, ("exit",), insists=True),
        Restart(3, 0.0, policies=(RestartPolicy("fail", "restart"),)),
    ):
        story = Story(ranks=1, restart=restart)
        assert [retried(story, NO_MODULE, 10 * k) for k in range(4)] == [True, True, True, False]
        assert story.job.because is not None and "does not fix" not in story.job.because.text


def test_a_preempted_attempt_in_between_does_not_hide_the_same_error():
    story = Story(ranks=1, restart=Restart(5, 0.0))
    assert retried(story, SHAPES)
    story.start(10)
    story.tell(11, ev.StopAsked("j", 2, "preempted", S, Reason("preempted", "for another")))
    story.mark(12, 0, "exit", code=-15)
    story.decide(13)
    assert not retried(story, SHAPES, 20)


def test_steps_that_others_took_before_they_were_stopped_are_no_reason_for_a_retry():
    """The rank that fails gets as far as before; its peers are stopped a little later each time."""
    story = Story(ranks=2, restart=Restart(9, 0.0))
    for attempt, others in enumerate((25, 26)):
        at_s = 20 * attempt
        story.start(at_s)
        story.mark(at_s + 1, 1, "step", n=4).mark(at_s + 2, 0, "step", n=others)
        story.mark(at_s + 3, 1, "exit", code=1, last=SHAPES)
        story.decide(at_s + 3)
        story.mark(at_s + 4, 0, "exit", code=-15)
        last = kinds(story.decide(at_s + 5))[-1]
        assert last == ("RetryPlanned" if attempt == 0 else "JobEnded")


def test_an_error_that_a_rank_printed_before_the_gang_hung_is_named():
    story = Story(ranks=2).start()
    hung = Reason("hang", "no rank computes, reads or writes for 120.0 s")
    story.tell(9, ev.StopAsked("j", 1, "hung", 0, hung, None))
    ends(story, 9.5, 1, LastOutput("OSError: no shard", "t.py:4", "code", "error", lines=("x",)), code=-9)
    ends(story, 9.5, 0, None, code=-9).decide(10)
    found = failure_of(story.job, story.job.attempts[0])
    assert found is not None and found.text == hung.text
    assert found.help == "an error before that: rank 1: OSError: no shard (t.py:4)" and found.lines == ("x",)


def test_the_lines_at_which_the_ranks_of_a_hung_gang_were_are_in_its_failure():
    story = Story(ranks=2).start()
    stacks = (
        ev.RankStack((0,), "collective", "barrier at t.py:6"),
        ev.RankStack((1,), "collective", "all_reduce at t.py:6"),
    )
    where = "rank 0 in barrier at t.py:6; rank 1 in all_reduce at t.py:6"
    story.tell(8, ev.StacksTaken("j", 1, Reason("stacks", where), stacks))
    story.tell(9, ev.StopAsked("j", 1, "hung", 0, Reason("hang", "no rank computes"), None))
    ends(story, 9.5, 1, None, code=-9)
    ends(story, 9.5, 0, None, code=-9).decide(10)
    found = failure_of(story.job, story.job.attempts[0])
    assert found is not None
    assert found.help == where


def test_stacks_that_could_not_be_taken_are_not_in_the_failure():
    story = Story(ranks=1).start()
    story.tell(8, ev.StacksTaken("j", 1, Reason("stacks", "could not be taken: no rights")))
    story.tell(9, ev.StopAsked("j", 1, "hung", 0, Reason("hang", "no rank computes"), None))
    ends(story, 9.5, 0, None, code=-9).decide(10)
    found = failure_of(story.job, story.job.attempts[0])
    assert found is not None
    assert found.help == ""


def test_an_interrupt_may_have_been_raised_by_the_program():
    from unidle.guard.exit_codes import meaning_of

    for code in (-2, 130):
        assert "raised by the program" in meaning_of(code)
