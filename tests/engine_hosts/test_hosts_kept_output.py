"""Output that is kept next to the store: each line once and in order, or counted, whatever restarts and whatever rotates."""

from __future__ import annotations

import random
from concurrent.futures import Future
from pathlib import Path

import pytest

from unidle.box.output_feed import OutputFeed
from unidle.engine.hosts import printed_files
from unidle.engine.hosts.gang_state import GangState, RankState
from unidle.engine.hosts.kept_output import KeptOutput
from unidle.engine.local.logs import LogReader
from unidle.engine.local.ranks import rundir
from unidle.engine.local.ranks.supervisor.rotated_log import RotatedLog
from unidle.errors import CannotRun
from unidle.hub.file_parts import RankFilePart

S = 1_000_000_000
PLACE = ("job", 1, 0)
GANGS = {("job", 1): GangState("job", 1, [RankState(0, "n1")])}


class Printing:
    """A rank that prints numbered lines, in files of ``file_bytes`` of which three are kept, and the feed of its box."""

    def __init__(self, place: Path, file_bytes: int) -> None:
        self.directory = place / "rank0"
        self.directory.mkdir(parents=True)
        self.log = RotatedLog(str(self.directory / rundir.LOG), file_bytes, 3, S)
        self.lines = 0

    def prints(self, count: int) -> None:
        for _ in range(count):
            self.lines += 1
            self.log.write(b"line %06d\n" % self.lines, self.lines * S)

    def sends(self, feed: OutputFeed, kept: KeptOutput, *, ended: bool = False) -> None:
        feed.look(self.lines * S, 0, ended=ended)
        while feed.is_due(self.lines * S, ended=True):
            _, body = feed.take()
            kept.take(GANGS, "n1", "job", {**body, "attempt": 1, "rank": 0})
            feed.look(self.lines * S, 0, ended=ended)


def read(root: Path) -> tuple[list[int], int]:
    reader = LogReader(rundir.rank_dir(root, *PLACE))
    data = b""
    while chunk := reader.read():
        data += chunk
    return [int(line.split()[1]) for line in data.splitlines()], reader.lost_lines


def part(kept: KeptOutput, file: str, offset: int = 0, count: int = 65536) -> RankFilePart:
    found: Future[RankFilePart] = Future()
    kept.read(PLACE, file, offset, count, found)
    return found.result(60)


@pytest.mark.parametrize("seed", range(12))
def test_each_line_is_kept_once_or_counted_as_left_out(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(printed_files, "FILE_BYTES", 1500)
    monkeypatch.setattr("unidle.box.output_feed.KEEP_BYTES", 1000)
    monkeypatch.setattr("unidle.box.output_feed.PART_BYTES", 120)
    rank, root = Printing(tmp_path, 1200), tmp_path / "runs"
    kept = KeptOutput(root)
    feed = OutputFeed(str(rank.directory), kept.end(PLACE))
    for _ in range(30):
        rank.prints(chance.choice((0, 1, 3, 30, 300)))
        what = chance.random()
        if what < 0.2:  # the connection, and what was read for it
            feed.look(rank.lines * S, 0, ended=False)
            feed.close()
            feed = OutputFeed(str(rank.directory), kept.end(PLACE))
        elif what < 0.4:  # the controller
            kept.close()
            kept = KeptOutput(root)
            feed.close()
            feed = OutputFeed(str(rank.directory), kept.end(PLACE))
        else:
            rank.sends(feed, kept)
    rank.sends(feed, kept, ended=True)
    assert feed.done
    kept.close()
    numbers, lost = read(root)
    assert numbers[-1] == rank.lines
    assert len(numbers) + lost == rank.lines
    assert numbers == sorted(set(numbers))
    assert len(numbers) * 12 > 500
    feed.close()


def test_lines_stay_whole_where_bytes_are_left_out_and_where_files_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printed_files, "FILE_BYTES", 100)
    directory, newest = Path(rundir.rank_dir(tmp_path, *PLACE)), printed_files.PrintedFile()
    text = b"".join(b"line %06d\n" % n for n in range(1, 101))
    for at, data, lines in (
        (0, text[:67], None),
        (67, text[67:125], None),
        (600, text[600:607], 50),
        (607, text[607:], None),
    ):
        printed_files.append(directory, newest, at, [(S, data)], lines)
        assert printed_files.opened(directory).end == printed_files.end_of(directory) == at + len(data)
    numbers, lost = read(tmp_path)
    assert numbers[-1] == 100
    assert len(numbers) + lost == 100


def test_a_rank_without_output_is_done_at_its_end(tmp_path: Path) -> None:
    feed = OutputFeed(str(tmp_path), 0)
    feed.look(0, 0, ended=False)
    assert not feed.done
    feed.look(0, 0, ended=True)
    assert feed.done


def test_what_is_read_has_all_that_was_taken_before(tmp_path: Path) -> None:
    rank, kept = Printing(tmp_path, 10_000), KeptOutput(tmp_path / "runs")
    assert not kept.has(PLACE)
    rank.prints(100)
    rank.sends(OutputFeed(str(rank.directory), 0), kept, ended=True)
    assert part(kept, "log", -12).data == b"line 000100\n"
    assert part(kept, "log.times").data.startswith(rundir.COPY)
    assert (tmp_path / "runs" / "job" / rundir.COPIED).exists()
    with pytest.raises(CannotRun):
        part(kept, "orders.json")
    with pytest.raises(CannotRun):
        part(kept, "log.1")
    kept.close()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"attempt": 1, "rank": 0, "at": 0, "parts": [[0, "%%"]]},
        {"attempt": 1, "rank": 0, "at": -1, "parts": []},
        {"attempt": 1, "rank": 1, "at": 0, "parts": [[0, "YQ=="]]},
        {"attempt": 2, "rank": 0, "at": 0, "parts": [[0, "YQ=="]]},
    ],
)
def test_what_is_no_output_of_a_rank_is_passed_over(tmp_path: Path, body: dict[str, object]) -> None:
    kept = KeptOutput(tmp_path)
    kept.take(GANGS, "n1", "job", body)
    kept.take(GANGS, "n2", "job", {"attempt": 1, "rank": 0, "at": 0, "parts": [[0, "YQ=="]]})
    kept.close()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_nothing_is_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "runs").write_bytes(b"")  # no directory can be made below it
    kept = KeptOutput(tmp_path / "runs", said.append)
    for at in range(3):
        kept.take(GANGS, "n1", "job", {"attempt": 1, "rank": 0, "at": at, "parts": [[0, "YQ=="]]})
    kept.close()
    assert len(said) == 1
    assert "output of ranks cannot be kept" in said[0]
