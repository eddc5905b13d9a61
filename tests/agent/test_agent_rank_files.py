"""Files of ranks whose box has ended: parts of those that are a rank's, and of no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.agent.rank_files import MOST_BYTES, read_part
from unidle.engine.local.ranks import rundir


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = Path(rundir.rank_dir(tmp_path, "job-1", 2, 0))
    directory.mkdir(parents=True)
    (directory / "log").write_bytes(b"0123456789")
    (directory / "secret").write_bytes(b"x")
    (directory / "log.1").symlink_to(directory / "secret")
    return tmp_path


def part(root: Path, offset: int, count: int) -> tuple[bytes, int]:
    found = read_part(root, ("job-1", 2, 0), "log", offset, count)
    return found.data, found.size_bytes


def test_a_part_is_read_from_the_start_or_from_the_end(root: Path) -> None:
    assert part(root, 0, 4) == (b"0123", 10)
    assert part(root, 8, 4) == (b"89", 10)
    assert part(root, -3, 100) == (b"789", 10)
    assert part(root, -300, 2) == (b"01", 10)
    assert part(root, 99, 4) == (b"", 10)
    assert part(root, 0, -1) == (b"", 10)


def test_an_answer_fits_into_a_frame(root: Path) -> None:
    Path(rundir.rank_dir(root, "job-1", 2, 0), "log").write_bytes(bytes(2 * MOST_BYTES))
    assert len(part(root, 0, 1 << 50)[0]) == MOST_BYTES


@pytest.mark.parametrize("file", ["secret", "../rank0/log", "log/..", "", "orders.json", "log\n"])
def test_another_file_is_refused(root: Path, file: str) -> None:
    with pytest.raises(ValueError, match="not a file of a rank"):
        read_part(root, ("job-1", 2, 0), file, 0, 10)


def test_links_and_other_places_are_refused(root: Path) -> None:
    with pytest.raises(PermissionError, match="link"):
        read_part(root, ("job-1", 2, 0), "log.1", 0, 10)
    with pytest.raises(ValueError, match="directory"):
        read_part(root, ("../job-1", 2, 0), "log", 0, 10)
    with pytest.raises(FileNotFoundError):
        read_part(root, ("job-9", 2, 0), "log", 0, 10)
