"""What ranks print is kept within bounds, whatever it is, and can be read while it comes."""

from __future__ import annotations

from pathlib import Path

import needs
from engine_local.local_gangs import Machine, python, sh
from places import fill
from unidle.engine.local import logs
from unidle.engine.local.event_marks import EventMarks
from unidle.engine.local.ranks import rundir
from unidle.engine.local.ranks.journal_tail import JournalTail
from unidle.engine.local.ranks.supervisor.journal import PENDING_LIMIT_BYTES, RankJournal
from unidle.engine.local.ranks.supervisor.rotated_log import RotatedLog

MIB = 1 << 20


def test_a_hundred_megabytes_of_output_keep_the_newest_files(machine: Machine) -> None:
    code = "import os\nfor k in range(1600): os.write(1, b'%08d' % k + b'x' * 65528)\nos.write(1, b'last')"
    gang = machine.start(python(code))
    assert gang.codes(60) == [0]
    info = gang.last("exit").info
    kept = b"".join(logs.read(machine.run_root, "job", 1, 0))
    assert info is not None and info["log_bytes"] == 1600 * 65536 + 4
    assert len(kept) + int(info["log_dropped_bytes"] or 0) == info["log_bytes"]
    assert kept.endswith(b"x" * 100 + b"last") and 48 * MIB <= len(kept) <= 64 * MIB
    assert "bytes of the log were dropped" in gang.notes()
    assert gang.kinds().count("note") < 10


def test_binary_output_is_kept_as_it_is(machine: Machine) -> None:
    code = "import os; os.write(1, bytes(range(256)) * 64); os.write(2, b'\\xff\\n\\r\\0' * 1000)"
    gang = machine.start(python(code))
    assert gang.codes() == [0]
    assert b"".join(logs.read(machine.run_root, "job", 1, 0)) == bytes(range(256)) * 64 + b"\xff\n\r\0" * 1000


def test_output_is_followed_until_the_rank_ends(machine: Machine) -> None:
    gang = machine.start(sh("for k in 1 2 3; do echo line $k; sleep 0.1; done"), 2)
    followed = b"".join(logs.follow(machine.run_root, "job", 1, 1))
    assert followed == b"line 1\nline 2\nline 3\n"
    gang.ends()


def test_steps_that_a_rank_prints_become_marks(machine: Machine) -> None:
    gang = machine.start(sh('for k in 1 2 3; do echo "iter $k: loss 2.1, time 50.1ms"; sleep 0.15; done'))
    gang.ends()
    steps = [mark.n for mark in gang.marks[0] if mark.k == "step"]
    assert steps[-1] == 3 and gang.last("step").o == "nanogpt"
    assert gang.kinds()[0] == "spawn" and gang.kinds()[-1] == "exit"


def test_checkpoints_are_watched_for_the_gang_by_rank_0(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    script = "[ $RANK = 0 ] && { sleep 0.2; echo x > ckpt/step_7.bin; sleep 1.5; }; sleep 0.5"
    gang = machine.start(sh(script), 2, workdir=str(tmp_path), checkpoint_path="ckpt")
    gang.ends()
    assert (gang.kinds(0).count("saved"), gang.kinds(1).count("saved")) == (1, 0)


def test_a_reader_meets_every_byte_over_rotations(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), 100, 4)
    reader = logs.LogReader(str(tmp_path))
    read = b""
    for k in range(300):
        log.write(b"%04d " % k)
        if k % 17 == 0:
            while chunk := reader.read():
                read += chunk
    while chunk := reader.read():
        read += chunk
    reader.close()
    log.close()
    assert read == b"".join(b"%04d " % k for k in range(300))
    assert log.dropped_bytes > 0


def test_a_reader_that_fell_behind_goes_on_with_the_oldest_file(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), 100, 2)
    reader = logs.LogReader(str(tmp_path))
    log.write(b"first ")
    assert reader.read() == b"first "
    for k in range(100):
        log.write(b"%04d " % k)
    rest = b"".join(iter(reader.read, b""))
    reader.close()
    log.close()
    assert rest.endswith(b"0099 ") and len(rest) >= 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.times"]


def test_a_single_log_file_is_bounded_too(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), 100, 1)
    for _ in range(50):
        log.write(b"0123456789")
    log.close()
    assert (tmp_path / "log").stat().st_size <= 100
    assert log.dropped_bytes == 500 - (tmp_path / "log").stat().st_size


@needs.root
def test_a_rank_that_fills_its_disk_lives_and_its_end_is_known(small_disk: Path) -> None:
    machine = Machine(small_disk / "runs", grouped=True)
    code = """
import os, time
def fill():
    with open(os.environ["DISK"] + "/data", "ab", 0) as file:
        try:
            while True: file.write(b"x" * 4096)
        except OSError as error:
            return error
for k in range(40):
    fill()
    os.write(1, b"iter %d: loss 1.0, time 5.00ms\\n" % k * 100)
    time.sleep(0.02)
os._exit(5)
"""
    gang = machine.start(python(code), env={"DISK": str(small_disk)})
    assert gang.codes() == [5]
    info = gang.last("exit").info
    assert info is not None and int(info["log_dropped_bytes"] or 0) > 0
    assert "No space left on device" in gang.notes()
    assert gang.last("step").n == 39
    machine.close()


@needs.root
def test_an_attempt_on_a_full_disk_is_lost_with_the_reason(small_disk: Path) -> None:
    machine = Machine(small_disk / "runs", grouped=True)
    fill(small_disk / "data")
    gang = machine.start(sh("exit 0"), 2)
    assert [mark.k for mark in gang.ends()] == ["lost", "lost"]
    assert "No space left on device" in (gang.last("lost").text or "")
    machine.close()


@needs.root
def test_the_exit_record_outlives_a_full_disk_by_its_reserve(small_disk: Path) -> None:
    journal = RankJournal(str(small_disk / "journal"), str(small_disk / "reserve"))
    fill(small_disk / "data")
    for k in range(2 * PENDING_LIMIT_BYTES // 30):
        journal.add({"k": "step", "t": k, "n": k})
    journal.add({"k": "exit", "t": 0, "code": 0})
    assert journal.waits and not journal.flush()
    (small_disk / "data").unlink()
    assert journal.flush()
    journal.close()
    tail = JournalTail(str(small_disk / "journal"), EventMarks())
    kinds = []
    while new := tail.read()[1]:
        kinds += [mark.k for mark in new]
    tail.close()
    assert kinds[-2:] == ["note", "exit"] and kinds[0] == "step" and tail.ended
    assert not (small_disk / "reserve").exists()


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / rundir.JOURNAL
    tail = JournalTail(str(path), EventMarks())
    assert tail.read() == (0, ())
    with path.open("ab", 0) as file:
        file.write(b'{"k":"step","t":1,"n":1}\n{"k":"st')
        assert [mark.n for mark in tail.read()[1]] == [1]
        assert tail.read() == (1, ())
        file.write(b'ep","t":2,"n":2}\n')
        first, marks = tail.read()
    tail.close()
    assert (first, [mark.n for mark in marks]) == (1, [2])


def test_a_line_that_cannot_be_read_keeps_its_ordinal(tmp_path: Path) -> None:
    path = tmp_path / rundir.JOURNAL
    path.write_bytes(
        b'{"k":"step","t":1,"n":1}\n\xff\xff\n{"k":"step","t":"no"}\n{"k":"exit","t":3,"code":0}\n'
    )
    tail = JournalTail(str(path), EventMarks(), known=1)
    first, marks = tail.read()
    tail.close()
    assert first == 1 and [mark.k for mark in marks] == ["note", "note", "exit"] and tail.ended


def test_a_mark_in_a_dead_supervisors_place_replaces_its_torn_line(tmp_path: Path) -> None:
    from unidle.events.marks import Mark

    path = tmp_path / rundir.JOURNAL
    path.write_bytes(b'{"k":"spawn","t":1,"pid":1,"ticks":1}\n{"k":"step"')
    tail = JournalTail(str(path), EventMarks())
    tail.read()
    tail.append(Mark(k="lost", t=2))
    tail.close()
    again = JournalTail(str(path), EventMarks())
    assert [mark.k for mark in again.read()[1]] == ["spawn", "lost"]
    again.close()
    assert path.stat().st_size == path.read_bytes().rfind(b"\n") + 1
