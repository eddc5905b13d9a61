"""What is done for checkpoints of any script: checksums when they are durable, bad ones told and moved aside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from unidle.checkpoint.attend import bad_ones, judge, remember


def saved(folder: Path, *steps: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"step_{step}.bin" for step in steps]
    for step, path in zip(steps, paths, strict=True):
        path.write_bytes(bytes([step]) * 10_000)
    remember([str(path) for path in paths])
    return paths


def flip(path: Path) -> None:
    state = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_all_bad_ones_before_one_that_is_not_are_moved_aside(tmp_path: Path) -> None:
    paths = saved(tmp_path / "c", 1, 2, 3, 4)
    flip(paths[3])
    flip(paths[2])
    flip(paths[0])  # older than a good one: nobody goes on from it
    told = list(judge(str(tmp_path / "c"), aside=True))
    assert [(one["path"], one["step"]) for one in told] == [(str(paths[3]), 4), (str(paths[2]), 3)]
    assert [path.exists() for path in paths] == [True, True, False, False]
    for one in told:
        assert Path(str(one["moved_to"])).read_bytes()[-1:] == b"x"
    assert bad_ones(str(tmp_path / "c")) == ([], True)


def test_where_none_is_good_none_is_moved(tmp_path: Path) -> None:
    paths = saved(tmp_path / "c", 1, 2)
    for path in paths:
        flip(path)
    told = list(judge(str(tmp_path / "c"), aside=True))
    assert [one["moved_to"] for one in told] == ["", ""]
    assert all(path.exists() for path in paths)
    assert "no older one is good" in str(told[0]["because"])


def test_a_second_bad_one_of_the_same_name_does_not_replace_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    saved(folder, 1)
    for _ in range(2):
        [path] = saved(folder, 2)
        flip(path)
        assert len(list(judge(str(folder), aside=True))) == 1
    assert sorted(p.name for p in (folder / ".unidle" / "bad").iterdir()) == ["step_2.bin.1", "step_2.bin.2"]


def test_a_directory_that_is_not_there_yet_has_no_bad_ones(tmp_path: Path) -> None:
    assert bad_ones(str(tmp_path / "none")) == ([], False)
    (tmp_path / "empty").mkdir()
    assert bad_ones(str(tmp_path / "empty")) == ([], False)


def test_the_process_says_one_object_a_line(tmp_path: Path) -> None:
    path = saved(tmp_path / "c", 1, 2)[1]
    flip(path)
    command = [sys.executable, "-m", "unidle.checkpoint.attend", "judge", str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [said] = map(json.loads, done.stdout.splitlines())
    assert (said["path"], said["moved_to"]) == (str(path), "") and path.exists()
