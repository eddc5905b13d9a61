"""Copies of logs that are on other hosts: as if they were read there, whenever they are rotated."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from unidle.agent.rank_files import read_part
from unidle.api.host_logs import RankLogCopy
from unidle.engine.hosts.printed_files import PrintedFile, append
from unidle.engine.local.logs import LogReader
from unidle.engine.local.ranks import rundir
from unidle.engine.local.ranks.supervisor.rotated_log import RotatedLog
from unidle.hub.file_parts import NotThere, RankFilePart

PLACE = ("job", 1, 0)
S = 1_000_000_000


class OneHost:
    """What an agent reads of its files, without the connection to it. ``before``: called before each part is read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before = lambda: None

    def part(
        self, _node: str, place: tuple[str, int, int], file: str, offset: int, most_bytes: int = 256
    ) -> RankFilePart:
        self.before()
        try:
            return read_part(self.root, place, file, offset, most_bytes)
        except (OSError, ValueError) as error:
            raise NotThere(str(error)) from None

    def whole(self, node: str, place: tuple[str, int, int], file: str) -> bytes:
        data = b""
        while (part := self.part(node, place, file, len(data))).data:
            data += part.data
        return data


class Rank:
    """A rank that prints numbered lines; files of 1000 bytes, of which three are kept."""

    def __init__(self, root: Path) -> None:
        self.directory = Path(rundir.rank_dir(root, *PLACE))
        self.directory.mkdir(parents=True)
        (root / "job").chmod(0o700)
        self.log = RotatedLog(str(self.directory / rundir.LOG), 1000, 3, S)
        self.lines = 0

    def prints(self, count: int) -> None:
        for _ in range(count):
            self.lines += 1
            self.log.write(b"line %06d\n" % self.lines, self.lines * S)


def read(reader: LogReader) -> tuple[bytes, list[int | None]]:
    data, times = b"", []
    while chunk := reader.read():
        data += chunk
        times.append(reader.time_ns)
    return data, times


def numbers_in(data: bytes) -> list[int]:
    return [int(line.split()[1]) for line in data.splitlines()]


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_that_is_renewed_now_and_then_has_each_line_once_or_counts_it_as_dropped(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    rank = Rank(tmp_path / "there")
    copy = RankLogCopy(OneHost(tmp_path / "there"), "n1", PLACE, tmp_path / "here")
    reader, shown = LogReader(str(tmp_path / "here")), list[int]()
    for _ in range(30):
        rank.prints(chance.choice([0, 1, 5, 40, 150, 400]))
        copy.renew()
        data, times = read(reader)
        shown += numbers_in(data)
        assert shown == sorted(set(shown))
        assert shown[-1:] == [rank.lines][: len(shown)]
        assert len(shown) + reader.lost_lines == rank.lines
        assert all(time_ns <= rank.lines * S for time_ns in times if time_ns is not None)
    assert reader.lost_lines > 0
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert names == ["log", "log.1", "log.2", "log.times"]
    reader.close()
    rank.log.close()


def test_a_copy_has_the_times_of_its_lines(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "there")
    rank.prints(400)
    copy = RankLogCopy(OneHost(tmp_path / "there"), "n1", PLACE, tmp_path / "here")
    copy.renew()
    theirs, ours = LogReader(str(rank.directory)), LogReader(str(tmp_path / "here"))
    assert read(ours) == read(theirs)
    assert ours.lost_lines == theirs.lost_lines > 0
    ours.close()
    theirs.close()
    rank.log.close()


def test_a_log_that_is_rotated_while_it_is_copied_is_copied_again(tmp_path: Path) -> None:
    rank, host = Rank(tmp_path / "there"), OneHost(tmp_path / "there")
    rank.prints(150)
    copy = RankLogCopy(host, "n1", PLACE, tmp_path / "here")
    left = [3]

    def rotate() -> None:
        if left[0]:
            left[0] -= 1
            rank.prints(100)

    host.before = rotate
    copy.renew()
    copy.renew()
    reader = LogReader(str(tmp_path / "here"))
    theirs = LogReader(str(rank.directory))
    assert read(reader) == read(theirs)
    assert reader.lost_lines == theirs.lost_lines > 0
    theirs.close()
    reader.close()
    rank.log.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_copy_goes_on_with_what_was_kept_once_the_host_has_nothing_any_more(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    rank = Rank(tmp_path / "there")
    host = OneHost(tmp_path / "there")
    copy, reader = RankLogCopy(host, "n1", PLACE, tmp_path / "here"), LogReader(str(tmp_path / "here"))
    kept = PrintedFile()
    shown = list[int]()
    for _ in range(chance.choice([1, 4])):
        rank.prints(chance.choice([1, 5, 60, 200]))
        copy.renew()
        shown += numbers_in(read(reader)[0])
    rank.prints(chance.choice([0, 3, 40, 700]))
    begin = chance.choice([0, 12 * (rank.lines // 2)])
    lines = [(n * S, b"line %06d\n" % n) for n in range(1, rank.lines + 1)]
    append(Path(rundir.rank_dir(tmp_path / "kept", *PLACE)), kept, begin, lines[begin // 12 :], begin // 12)
    (tmp_path / "kept" / "job").chmod(0o700)
    host.root = tmp_path / "kept"
    for _ in range(2):
        copy.renew()
        shown += numbers_in(read(reader)[0])
    assert shown == sorted(set(shown))
    assert shown[-1:] == [rank.lines][: len(shown)]
    assert len(shown) + reader.lost_lines == rank.lines
    reader.close()
    rank.log.close()


def test_a_rank_that_left_nothing_is_not_there(tmp_path: Path) -> None:
    copy = RankLogCopy(OneHost(tmp_path), "n1", PLACE, tmp_path / "here")
    with pytest.raises(NotThere):
        copy.renew()
