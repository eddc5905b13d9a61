"""Checkpoints are seen once they are durable, and never when they are torn."""

from __future__ import annotations

import io
import json
import os
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from unidle.checkpoint.formats import in_flux, never_a_checkpoint, step_in
from unidle.engine.local.ranks.supervisor.progress import CheckpointWatch

HALF = 500_000_000
OFFSET = 5_000_000_000_000


class Watch:
    """A watch whose scans are half a second apart: files are aged instead of waited for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.watch = CheckpointWatch(str(path))
        self.scan()

    def scan(self, final: bool = False) -> list[Any]:
        """The steps that this scan tells, None for those without."""
        self.marks = self.watch.scan(time.time_ns() + OFFSET, final)
        assert all(mark["k"] == "saved" for mark in self.marks)
        return [mark.get("n") for mark in self.marks]


def age(path: Path, seconds: float = 1.0) -> None:
    """Make a file or a tree older."""
    for each in [path, *(path.rglob("*") if path.is_dir() else [])]:
        stamp = each.stat().st_mtime_ns - int(seconds * 1e9)
        os.utime(each, ns=(stamp, stamp))


def zip_bytes(size: int = 1000) -> bytes:
    """A file as torch.save writes it: a zip without compression or comment."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", os.urandom(size))
    return buffer.getvalue()


def safetensors_bytes(size: int = 64) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def put(path: Path, data: bytes = b"state", old: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if old:
        age(path)
    return path


def test_file_counts_once_it_was_the_same_in_two_scans(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / "step_100.pt", zip_bytes())
    assert watch.scan() == []
    assert watch.scan() == [100]
    assert watch.scan() == []


def test_young_file_waits_though_it_did_not_change(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / "step_100.bin", old=False)
    assert watch.scan() == []
    assert watch.scan() == []
    age(tmp_path / "step_100.bin")
    assert (watch.scan(), watch.scan()) == ([], [100])


def test_file_that_grows_waits(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    for size in range(1, 5):
        put(tmp_path / "step_7.bin", b"x" * size)
        assert watch.scan() == []
    assert watch.scan() == [7]


def test_what_was_there_before_does_not_count_until_it_is_written_again(tmp_path: Path) -> None:
    put(tmp_path / "step_5.bin")
    put(tmp_path / "last.ckpt", zip_bytes())
    watch = Watch(tmp_path)
    assert (watch.scan(), watch.scan(final=True)) == ([], [])
    put(tmp_path / "last.ckpt", zip_bytes(2000))
    assert (watch.scan(), watch.scan()) == ([], [None])


def test_overwritten_in_place_counts_each_time(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "ckpt.pt")
    for size in (10, 20, 30):
        put(tmp_path / "ckpt.pt", zip_bytes(size))
        assert (watch.scan(), watch.scan(), watch.scan()) == ([], [None], [])


def test_directory_may_come_late_and_go_and_come_back(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    watch = Watch(place)
    put(place / "step_1.bin")
    assert (watch.scan(), watch.scan()) == ([], [1])
    place.rename(tmp_path / "gone")
    assert watch.scan() == []
    put(place / "step_2.bin")
    assert (watch.scan(), watch.scan()) == ([], [2])


def test_directory_as_checkpoint_counts_when_its_whole_tree_is_still(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    folder = tmp_path / "checkpoint-500"
    put(folder / "model.safetensors", safetensors_bytes())
    age(folder)
    assert watch.scan() == []
    put(folder / "deep" / "optimizer.pt", zip_bytes())
    age(folder)
    assert watch.scan() == []
    assert watch.scan() == [500]


def test_tree_that_is_written_again_counts_again(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    for size in (10, 20):
        for name in ("a.pt", "b.pt"):
            put(tmp_path / "state" / name, zip_bytes(size))
        age(tmp_path / "state")
        told = [watch.scan() for _ in range(12)]
        assert [n for scan in told for n in scan] == [None]


@pytest.mark.parametrize(
    "name",
    ["step_9.pt.tmp", ".step_9.pt", "_tmp_step_9", "tmp-checkpoint-9", "step_9.part", "step_9.pt.incomplete",
     "step_9.tmp.1234", "step_9.pt~", "global_step9.lock"],
)  # fmt: skip
def test_name_in_flux_never_counts(tmp_path: Path, name: str) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / name, zip_bytes())
    assert in_flux(name)
    assert (watch.scan(), watch.scan(), watch.scan(final=True)) == ([], [], [])


@pytest.mark.parametrize(
    "name",
    ["train.log", "metrics.json", "config.json", "events.out.tfevents.17.host.1.0", "README.md", "runs",
     "tokenizer.json", "special_tokens.csv", "hparams.yaml", "wandb", "trace.html"],
)  # fmt: skip
def test_logs_and_configurations_are_no_checkpoints(tmp_path: Path, name: str) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / name)
    assert never_a_checkpoint(name)
    assert (watch.scan(), watch.scan(), watch.scan(final=True)) == ([], [], [])


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_100", 100),
        ("step-100.pt", 100),
        ("step_000040.pt", 40),
        ("checkpoint-500", 500),
        ("iter_0000100", 100),
        ("global_step100", 100),
        ("epoch=3-step=400.ckpt", 400),
        ("model_iteration_12.bin", 12),
        ("ckpt_step7", 7),
        ("step_3_of_9", 3),
        ("last.ckpt", None),
        ("epoch_3.pt", None),
        ("ckpt_3.pt", None),
        ("model-2024-05-01.pt", None),
        ("footstep7", None),
        ("step_" + "9" * 40, None),
    ],
)
def test_step_is_read_from_names_that_say_it_clearly(name: str, step: int | None) -> None:
    assert step_in(name) == step


def test_time_is_that_of_the_last_write_on_the_controllers_clock(tmp_path: Path) -> None:
    watch = CheckpointWatch(str(tmp_path))
    written_ns = put(tmp_path / "other.pt", zip_bytes(), old=False).stat().st_mtime_ns + OFFSET
    watch.scan(written_ns - 10**9)  # the clock's offset is what a scan finds it to be
    put(tmp_path / "step_1.pt", zip_bytes(), old=False)
    [mark] = watch.scan(time.time_ns() + OFFSET, final=True)
    assert mark["n"] == 1
    assert written_ns <= mark["t"] <= time.time_ns() + OFFSET


def test_file_with_an_old_time_counts_from_when_it_appeared(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    started_ns = time.time_ns() + OFFSET
    age(put(tmp_path / "step_1.bin"), 3600)
    watch.scan()
    assert watch.scan() == [1]
    assert abs(watch.marks[0]["t"] - started_ns) < 60e9


def test_file_from_the_future_counts_after_two_seconds(tmp_path: Path) -> None:
    watch = CheckpointWatch(str(tmp_path))
    t_ns = time.time_ns()
    watch.scan(t_ns)
    age(put(tmp_path / "step_1.bin"), -3600)
    told = [[m.get("n") for m in watch.scan(t_ns + k * HALF)] for k in range(1, 8)]
    assert told == [[], [], [], [], [1], [], []]
    assert watch.scan(t_ns + 9 * HALF) == []


# ---- torn files


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("made", [zip_bytes, safetensors_bytes])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.99])
def test_torn_file_never_counts(tmp_path: Path, made: Any, kept: float, final: bool) -> None:
    whole = made(4000)
    watch = Watch(tmp_path)
    name = "step_3.safetensors" if made is safetensors_bytes else "step_3.pt"
    put(tmp_path / name, whole[: int(len(whole) * kept)])
    assert watch.scan() == []
    assert watch.scan(final) == []
    assert watch.scan(final) == []


@pytest.mark.parametrize("made", [zip_bytes, safetensors_bytes])
def test_whole_file_counts_at_the_end_though_just_written(tmp_path: Path, made: Any) -> None:
    watch = Watch(tmp_path)
    name = "step_3.safetensors" if made is safetensors_bytes else "step_3.pt"
    put(tmp_path / name, made(), old=False)
    assert watch.scan(final=True) == [3]


def test_zip_with_a_comment_is_whole(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    path = put(tmp_path / "step_3.npz", zip_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"made by hand"
    assert watch.scan(final=True) == [3]


def test_file_of_unknown_format_written_just_before_the_end_does_not_count(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / "step_3.bin", old=False)
    assert watch.scan() == []
    assert watch.scan(final=True) == []


def test_directory_with_one_torn_file_does_not_count(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / "step_3" / "model.pt", zip_bytes())
    put(tmp_path / "step_3" / "optimizer.pt", zip_bytes()[:-30])
    age(tmp_path / "step_3")
    assert [watch.scan(), watch.scan(), watch.scan(final=True)] == [[], [], []]


def test_distributed_checkpoint_counts_with_its_metadata_only(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / "step-8" / "__0_0.distcp", zip_bytes())
    age(tmp_path / "step-8")
    assert [watch.scan(), watch.scan(), watch.scan()] == [[], [], []]
    put(tmp_path / "step-8" / ".metadata", b"\x80\x04")
    age(tmp_path / "step-8")
    assert [watch.scan(), watch.scan()] == [[], [8]]


def test_empty_files_and_directories_are_none(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / "step_3.pt", b"")
    (tmp_path / "step_4").mkdir()
    assert [watch.scan(), watch.scan(), watch.scan(final=True)] == [[], [], []]


# ---- trackers and links


@pytest.mark.parametrize(
    ("tracker", "content", "folder"),
    [
        ("latest_checkpointed_iteration.txt", "100", "iter_0000100"),
        ("latest", "global_step100\n", "global_step100"),
    ],
)
def test_tracker_tells_at_once_that_a_checkpoint_is_complete(
    tmp_path: Path, tracker: str, content: str, folder: str
) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / folder / "model.bin", old=False)
    assert watch.scan() == []
    put(tmp_path / tracker, content.encode(), old=False)
    assert watch.scan() == [100]
    assert [watch.scan(), watch.scan(final=True)] == [[], []]


def test_tracker_without_its_checkpoint_tells_nothing(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / "latest", b"global_step100")
    assert [watch.scan(), watch.scan(), watch.scan(final=True)] == [[], [], []]


def test_link_to_the_newest_checkpoint_is_not_a_second_one(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    put(tmp_path / "step_9.pt", zip_bytes())
    (tmp_path / "newest.pt").symlink_to("step_9.pt")
    (tmp_path / "broken.pt").symlink_to(tmp_path / "elsewhere" / "nothing.pt")
    assert [watch.scan(), watch.scan(), watch.scan()] == [[], [9], []]


def test_pipes_sockets_and_loops_are_left_alone(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    os.mkfifo(tmp_path / "step_1.pt")
    (tmp_path / "step_2").mkdir()
    (tmp_path / "step_2" / "self").symlink_to(tmp_path / "step_2")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [watch.scan(), watch.scan(), watch.scan(final=True)] == [[], [], []]
