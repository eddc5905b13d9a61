"""Checkpoints that somebody wrote to harm the reader: each is one clear verdict, soon, with little memory."""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unidle.checkpoint import metadata_pickle, sums
from unidle.checkpoint.layout import Damaged, decode_header, manifest_from
from unidle.checkpoint.safe_open import open_inside
from unidle.checkpoint.verify import verify

_SECONDS = 60
_MEMORY_BYTES = 1 << 30


class Metadata:
    """Stands for PyTorch's class of the same form."""

    def __init__(self, *files: tuple[str, int, int]) -> None:
        self.storage_data = {str(k): Stored(*file) for k, file in enumerate(files)}


class Stored:
    def __init__(self, relative_path: object, offset: object, length: object) -> None:
        self.relative_path, self.offset, self.length = relative_path, offset, length


def dcp(place: Path, metadata: bytes) -> Path:
    place.mkdir()
    (place / ".metadata").write_bytes(metadata)
    return place


def verdict_of(path: Path) -> dict[str, str]:
    """The verdict of a process that may use 1 GiB of memory and a minute."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))

    code = (
        "import json,sys; from unidle.checkpoint.verify import verify; v=verify(sys.argv[1]);"
        "print(json.dumps({'state': v.state, 'why': v.why}))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(path)],
        preexec_fn=limit, capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04Nr\xff\xff\xff\x3f.",  # a position in the memo
        b"\x80\x04Nr\xff\xff\xff\xff.",
        b"\x80\x04\x96" + (1 << 32).to_bytes(8, "little") + b".",  # a length of bytes
        b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x80\x04X\xff\xff\xff\xff.",
        b"\x80\x04\x95" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",  # a number of 2 GB
        b"(" * 200_000 + b".",
    ],
)
def test_a_few_bytes_of_metadata_take_no_memory(tmp_path: Path, data: bytes) -> None:
    found = verdict_of(dcp(tmp_path / "ckpt", data))
    assert found["state"] == "bad"
    assert found["why"].startswith(".metadata cannot be read")
    assert "MemoryError" not in found["why"]


def test_metadata_that_doubles_at_each_level_is_neither_hashed_nor_printed(tmp_path: Path) -> None:
    tower = b"\x80\x04)\x94" + b"".join(
        b"h" + bytes([k]) + b"h" + bytes([k]) + b"\x86\x94" for k in range(60)
    )
    key = dcp(tmp_path / "key", tower + b"}h\x3cNs.")
    name = dcp(
        tmp_path / "name",
        tower + b"cunidle\nM\n)\x81}X\x0c\0\0\0storage_data}K\x01cunidle\nS\n)\x81}(X\x0d\0\0\0relative_pathh\x3c"
        b"X\x06\0\0\0offsetK\0X\x06\0\0\0lengthK\1ubssb.",
    )  # fmt: skip
    assert verdict_of(key)["state"] == "bad"
    assert verdict_of(name) == {
        "state": "bad",
        "why": ".metadata cannot be read: it has an item without a file, an offset or a length (file tuple)",
    }


def test_metadata_runs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "made"

    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(target),)

    assert verify(str(dcp(tmp_path / "ckpt", pickle.dumps(Harm())))).state == "bad"
    assert not target.exists()


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret", "..", ""])
def test_a_file_outside_of_the_checkpoint_is_not_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 100)
    found = verify(str(dcp(tmp_path / "ckpt", pickle.dumps(Metadata((name, 0, 10))))))
    assert found.state == "bad"
    assert "outside of the checkpoint" in found.why


@pytest.mark.parametrize("name", ["item.distcp", "folder/item.distcp"])
def test_a_link_out_of_the_checkpoint_is_not_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    with zipfile.ZipFile(tmp_path / "elsewhere" / "item.distcp", "w") as archive:
        archive.writestr("a/data/0", b"secret")
    size = (tmp_path / "elsewhere" / "item.distcp").stat().st_size
    path = dcp(tmp_path / "ckpt", pickle.dumps(Metadata((name, 0, size))))
    if "/" in name:
        (path / "folder").symlink_to(tmp_path / "elsewhere")
    else:
        (path / name).symlink_to(tmp_path / "elsewhere" / "item.distcp")
    found = verify(str(path))
    assert (found.state, found.why) == (
        "unverified",
        f"{name} is a link that leads out of the checkpoint; it is not followed",
    )


def test_a_link_inside_of_the_checkpoint_is_followed(tmp_path: Path) -> None:
    path = dcp(tmp_path / "ckpt", b"")
    with zipfile.ZipFile(path / "real.distcp", "w") as archive:
        archive.writestr("a/data/0", b"weights")
    (path / "link.distcp").symlink_to("real.distcp")
    size = (path / "real.distcp").stat().st_size
    (path / ".metadata").write_bytes(pickle.dumps(Metadata(("link.distcp", 0, size))))
    assert verify(str(path)).state == "good"


def fifo_item(path: Path) -> None:
    (path / ".metadata").write_bytes(pickle.dumps(Metadata(("item", 0, 1))))
    os.mkfifo(path / "item")


def fifo_metadata(path: Path) -> None:
    os.mkfifo(path / ".metadata")


def fifo_among_files(path: Path) -> None:
    (path / "a.bin").write_bytes(b"x")
    os.mkfifo(path / "model.pt")


def fifo_manifest(path: Path) -> None:
    os.mkfifo(path / "manifest.json")
    (path / "shard-00000-of-00001.safetensors").write_bytes(b"x")


def fifo_index(path: Path) -> None:
    (path / "a.bin").write_bytes(b"x")
    os.mkfifo(path / "model.index.json")


@pytest.mark.parametrize("harm", [fifo_item, fifo_metadata, fifo_among_files, fifo_manifest, fifo_index])
def test_a_fifo_holds_nothing_up(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    (tmp_path / "ckpt").mkdir()
    harm(tmp_path / "ckpt")
    found = verdict_of(tmp_path / "ckpt")
    assert found["state"] == "bad"
    assert "is not a regular file" in found["why"]


def test_checksums_are_not_taken_of_a_fifo_or_of_files_elsewhere(tmp_path: Path) -> None:
    code = "import sys; from unidle.checkpoint import sums; print(sums.remember(sys.argv[1]))"
    (tmp_path / "secret").write_bytes(b"x")
    for kind in ("fifo", "link"):
        path = tmp_path / kind
        path.mkdir()
        if kind == "fifo":
            os.mkfifo(path / "model.pt")
        else:
            (path / "model.pt").symlink_to(tmp_path / "secret")
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, str(path)],
            capture_output=True, text=True, timeout=_SECONDS, check=True,
        )  # fmt: skip
        assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "files", [{"../secret": [1, 0, 0]}, {"a": "x"}, {"a": [1e999, 0, 0]}, [], {"a": [{}, 0, 0]}]
)
def test_a_planted_list_of_checksums_reads_nothing_elsewhere(tmp_path: Path, files: object) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    path = tmp_path / "ckpt"
    path.mkdir()
    (path / "a").write_bytes(b"abc")
    side = Path(sums.side_file(str(path)))
    side.parent.mkdir(parents=True)
    side.write_text(json.dumps({"format": "unidle-sums", "files": files}))
    found = verify(str(path))
    assert found.state == ("bad" if isinstance(files, dict) and "../secret" in files else "unverified")


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"w":{"dtype":"F32","shape":[' + b"9," * 200_000 + b'9],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"\x1b[2J","shape":[1],"data_offsets":[0,4]}}',
        b'{"w":[]}',
        b"[]",
    ],
)
def test_a_hostile_header_is_one_clear_verdict(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    found = verdict_of(path)
    assert found["state"] == "bad"
    assert "has a header that cannot be read" in found["why"]
    assert found["why"].isprintable()


def refusal(read: Callable[[], object]) -> str | None:
    """Why the data is damaged; None if it was read. Any other exception fails the test."""
    try:
        read()
    except Damaged as error:
        return str(error)
    return None


@given(data=st.binary(max_size=200))
@example(b"\x80\x04N\x85.")
def test_no_bytes_of_metadata_raise_anything_else(data: bytes) -> None:
    said = refusal(lambda: metadata_pickle.read(data))
    assert said is None or said.isprintable()


@given(
    text=st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["w", "dtype", "shape", "data_offsets", "__metadata__", "unidle"]), inner
            )
        ),
        max_leaves=12,
    )
)
def test_no_header_raises_anything_else(text: object) -> None:
    data = json.dumps(text).encode()
    whole = len(data).to_bytes(8, "little") + data
    said = refusal(lambda: decode_header(lambda at, length: whole[at : at + length], len(whole)))
    assert said.isprintable() if said is not None else isinstance(text, dict)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 1e999}, {"step": -1}, {"world": "x"}, {"shards": [["a", 0, 9, []]]}, {"shards": [["a"]]}, {"shards": 5},
        {"shards": [["../../secret", 0, 4, [0]]]},
    ],
)  # fmt: skip
def test_a_hostile_manifest_is_damaged(tmp_path: Path, change: dict[str, object]) -> None:
    body = {"step": 1, "world": 1, "time_ns": 1, "session": "a", "shards": []} | change
    text = json.dumps(body, separators=(",", ":"))
    head = {"format": "unidle-checkpoint", "version": 1, "crc32": zlib.crc32(text.encode()), "body": body}
    path = tmp_path / "ckpt"
    path.mkdir()
    (tmp_path / "secret").write_bytes(b"abcd")
    (path / "manifest.json").write_text(json.dumps(head))
    (path / "shard-00000-of-00001.safetensors").write_bytes(b"x")
    assert verify(str(path)).state == "bad"
    with pytest.raises(Damaged):
        manifest_from(b'{"body":' * 100_000)


def test_records_of_a_zip_that_overlap_are_not_read_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data/0", bytes(100_000))
        first = archive.infolist()[0]
        for _ in range(50):
            archive.filelist.append(first)
    found = verify(str(path))
    assert (found.state, found.why) == ("bad", "has records that overlap")


@pytest.mark.parametrize("name", ["a\0b", "/", ".", "./.."])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Damaged):
        open_inside(str(tmp_path), name)


def test_a_name_that_no_file_can_have_is_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="names a file that cannot exist"):
        open_inside(str(tmp_path), "part\ud800.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "part\\ud800.safetensors"}}')
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert verdict_of(tmp_path)["state"] == "bad"
