"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from unidle.atomic import draft, replaced


@pytest.fixture(autouse=True)
def narrow_umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("mode", "umask", "found"), [(0o600, False, 0o600), (0o664, False, 0o664), (0o666, True, 0o640)]
)
def test_the_mode_is_exact_or_less_what_the_umask_takes(
    tmp_path: Path, mode: int, umask: bool, found: int
) -> None:
    path = tmp_path / "file"
    with replaced(path, mode, umask=umask) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new" and mode_of(path) == found
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_nothing_appears_before_the_end_and_nothing_stays_of_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def half_written() -> None:
        with replaced(path, durable=True) as file:
            file.write(b"new")
            file.flush()
            assert path.read_text() == "old" and Path(file.name).read_text() == "new"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half_written()
    assert [one.name for one in tmp_path.iterdir()] == ["file"] and path.read_text() == "old"
    with pytest.raises(OSError, match="No such file"), replaced(tmp_path / "no" / "file"):
        pass


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with replaced(link) as file:
        file.write(b"new")
    assert target.read_text() == "old" and not link.is_symlink() and link.read_text() == "new"


def test_a_name_in_an_open_directory(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    try:
        with replaced("file", at=at, durable=True) as file:
            file.write(b"new")
        name = draft("file", b"draft", at)
        os.rename(name, "other", src_dir_fd=at, dst_dir_fd=at)
    finally:
        os.close(at)
    assert {one.name: (one.read_bytes(), mode_of(one)) for one in tmp_path.iterdir()} == {
        "file": (b"new", 0o600),
        "other": (b"draft", 0o600),
    }


def test_a_name_of_the_greatest_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    with replaced(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
