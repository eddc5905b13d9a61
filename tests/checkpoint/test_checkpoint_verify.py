"""Files that others wrote, whole and harmed: torch.save, safetensors, DCP, plain ones; and what is chosen and pruned."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.commands import unidle
from unidle.checkpoint import criu, sums
from unidle.checkpoint.find import candidates, find_newest_good
from unidle.checkpoint.interval import Costs, best_interval, ettr, observed_mttf, young
from unidle.checkpoint.layout import (
    CHUNK_BYTES,
    GOOD,
    MANIFEST,
    Manifest,
    Shard,
    check_cover,
    decode_header,
    encode_header,
    shard_name,
)
from unidle.checkpoint.prune import choose, remove
from unidle.checkpoint.verify import CheckpointVerdict, verify
from unidle.errors import BadInput, CannotRun

torch = pytest.importorskip("torch", reason="needs PyTorch (pip install unidle[train])")


def crcs_of(data: memoryview) -> tuple[int, ...]:
    """CRC-32 of each chunk of 4 MiB."""
    return tuple(zlib.crc32(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES))


def own_checkpoint(parent: Path, step: int, world: int = 2) -> Path:
    """A checkpoint in unidle's form, written without PyTorch."""
    path = parent / f"step_{step:010d}"
    path.mkdir(parents=True)
    shards = []
    for rank in range(world):
        head, places = encode_header(
            {f"w@{rank * 500},0": ("F32", (500, 3), "w", (rank * 500, 0), (world * 500, 3))}, 10
        )
        data = head + random.Random(rank).randbytes(places["@own"][1] - len(head))
        (path / shard_name(rank, world)).write_bytes(data)
        shards.append(
            Shard(
                shard_name(rank, world),
                rank,
                len(data),
                tuple(zlib.crc32(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)),
            )
        )
    (path / MANIFEST).write_bytes(Manifest(step, world, 1, "aa", tuple(shards)).to_bytes())
    return path


def saved(path: Path) -> Path:
    torch.save({"w": torch.arange(5000.0), "b": torch.ones(300), "step": 3}, path)
    return path


def tensors(path: Path) -> Path:
    head, places = encode_header({"w": ("F32", (1000,), "w", (0,), (1000,))}, 0)
    path.write_bytes(head + bytes(places["@own"][1] - len(head)))
    return path


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch.distributed.checkpoint itself writes."""
    path = tmp_path_factory.mktemp("dcp") / "step_7"
    code = (
        "import sys, torch, torch.distributed.checkpoint as dcp\n"
        "dcp.save({'w': torch.arange(9000.0), 'b': torch.ones(40), 'n': 3}, checkpoint_id=sys.argv[1], no_dist=True)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(path)], check=True, capture_output=True)
    return path


def test_what_is_whole_is_good_or_cannot_be_told(tmp_path: Path, distributed: Path) -> None:
    assert verify(str(own_checkpoint(tmp_path, 5))).state == "good"
    assert verify(str(saved(tmp_path / "step_3.pt"))).state == "good"
    assert verify(str(distributed)).state == "good"
    assert verify(str(tensors(tmp_path / "m.safetensors"))).state == "unverified"
    (tmp_path / "state.bin").write_bytes(b"anything")
    assert verify(str(tmp_path / "state.bin")).state == "unverified"


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_of_unidles_own_is_found(
    tmp_path_factory: pytest.TempPathFactory, where: float, bit: int
) -> None:
    path = own_checkpoint(tmp_path_factory.mktemp("flip"), 5)
    files = sorted(path.iterdir())
    at = int(where * sum(f.stat().st_size for f in files))
    for file in files:
        size = file.stat().st_size
        if at < size:
            data = bytearray(file.read_bytes())
            data[at] ^= 1 << bit
            file.write_bytes(data)
            break
        at -= size
    verdict = verify(str(path))
    shutil.rmtree(path.parent)
    # whitespace between the fields of the manifest's first line is no content
    assert verdict.state == "bad" or (file.name == MANIFEST and verdict.state == "good")


@given(part=st.floats(0, 1, exclude_max=True), which=st.integers(0, 2))
def test_any_truncation_of_unidles_own_is_found(
    tmp_path_factory: pytest.TempPathFactory, part: float, which: int
) -> None:
    path = own_checkpoint(tmp_path_factory.mktemp("cut"), 5)
    file = sorted(path.iterdir())[which]
    data = file.read_bytes()
    file.write_bytes(data[: min(int(part * len(data)), len(data) - 2)])
    verdict = verify(str(path))
    shutil.rmtree(path.parent)
    assert verdict.state == "bad"
    assert verdict.why


@pytest.mark.parametrize("harm", ["cut", "flip", "empty"])
def test_a_harmed_torch_file_is_named_with_the_reason(tmp_path: Path, harm: str) -> None:
    path = saved(tmp_path / "step_3.pt")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 16
    path.write_bytes({"cut": data[:-300], "flip": data, "empty": b""}[harm])
    verdict = verify(str(path))
    assert verdict.state == "bad"
    assert {"cut": "not a complete zip", "flip": "CRC", "empty": "not a complete zip"}[harm] in verdict.why


def test_a_torch_file_written_without_crcs_is_not_called_bad(tmp_path: Path) -> None:
    from torch.serialization import set_crc32_options

    set_crc32_options(False)
    try:
        path = saved(tmp_path / "step_3.pt")
    finally:
        set_crc32_options(True)
    assert verify(str(path)).state in ("unverified", "good")


@pytest.mark.parametrize(
    ("harm", "why"), [("cut", "bytes; .metadata needs"), ("flip", "CRC"), ("metadata", "not finished"), ("file", "missing"), ("pickle", "cannot be read")]
)  # fmt: skip
def test_a_harmed_distributed_checkpoint_is_named_with_the_reason(
    tmp_path: Path, distributed: Path, harm: str, why: str
) -> None:
    path = tmp_path / "step_7"
    shutil.copytree(distributed, path)
    file = next(path.glob("*.distcp"))
    data = bytearray(file.read_bytes())
    if harm == "cut":
        file.write_bytes(data[:-2000])
    elif harm == "flip":
        data[data.index(b"\x00\x00\x80\x3f\x00\x00\x00\x40") + 40] ^= 1
        file.write_bytes(data)
    elif harm == "pickle":
        (path / ".metadata").write_bytes((path / ".metadata").read_bytes()[:-50])
    else:
        (path / ".metadata" if harm == "metadata" else file).unlink()
    verdict = verify(str(path))
    assert verdict.state == "bad", verdict
    assert why in verdict.why


def test_no_code_in_a_foreign_checkpoint_is_run(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "was-run"),)

    path = tmp_path / "step_9"
    path.mkdir()
    (path / ".metadata").write_bytes(pickle.dumps(Evil()))
    (path / "__0_0.distcp").write_bytes(b"x")
    assert verify(str(path)).state == "bad"
    assert not (tmp_path / "was-run").exists()


def test_kept_checksums_find_a_flip_that_the_format_cannot(tmp_path: Path) -> None:
    path = tensors(tmp_path / "step_4.safetensors")
    assert sums.remember(str(path))
    assert verify(str(path)).state == "good"
    when = path.stat()
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    verdict = verify(str(path))
    assert verdict.state == "bad"
    assert "does not match the checksum of when it was durable" in verdict.why


def test_a_file_written_anew_is_not_held_against_old_checksums(tmp_path: Path) -> None:
    path = tensors(tmp_path / "step_4.safetensors")
    assert sums.remember(str(path))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    assert verify(str(path)).state == "unverified"


def test_the_newest_good_one_is_found_past_bad_ones(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        saved(tmp_path / f"step_{step}.pt")
    (tmp_path / "step_30.pt").write_bytes(b"PK\x03\x04 torn")
    (tmp_path / "latest").symlink_to("step_30.pt")
    (tmp_path / "train.log").write_text("no checkpoint")
    os.utime(tmp_path / "step_10.pt")  # times do not count where names say the step
    found, passed = find_newest_good(str(tmp_path))
    assert found is not None
    assert found.step == 20
    assert [verdict.step for verdict in passed] == [30]


def test_hugging_face_directories_are_checked_file_by_file(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    tensors(folder / "model.safetensors")
    saved(folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text("{}")
    assert verify(str(folder)).state == "unverified"
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"w": "model-2.safetensors"}})
    )
    verdict = verify(str(folder))
    assert verdict.state == "bad"
    assert "model-2.safetensors is missing" in verdict.why


def verdicts() -> st.SearchStrategy[list[CheckpointVerdict]]:
    one = st.builds(
        CheckpointVerdict, st.uuids().map(str), st.sampled_from(["unidle", "zip", "partial"]), st.sampled_from(["good", "bad", "unverified"]),
        st.just("why"), st.integers(0, 1000), st.just(1), st.just(1), st.just(0),
    )  # fmt: skip
    return st.lists(one, max_size=12)


@given(found=verdicts(), keep=st.integers(1, 5), every=st.integers(0, 20))
def test_pruning_never_takes_the_newest_good_one(
    found: list[CheckpointVerdict], keep: int, every: int
) -> None:
    fates = choose(found, keep, every)
    assert [fate.verdict for fate in fates] == found
    good = [fate for fate in fates if fate.verdict.state == "good"]
    assert not good or good[0].keep
    if not good:  # then what may be the only one is not touched either
        assert all(
            fate.keep for fate in fates if fate.verdict.format != "partial" or fate.verdict.state != "bad"
        )


def test_pruning_refuses_to_keep_nothing() -> None:
    with pytest.raises(BadInput, match="--keep"):
        choose([], 0)


def test_a_kill_in_the_middle_of_a_removal_leaves_nothing_that_looks_like_a_checkpoint(
    tmp_path: Path,
) -> None:
    for step in (1, 2):
        own_checkpoint(tmp_path, step)
    doomed = tmp_path / ".step_0000000001.pruned"  # what a kill after the rename leaves
    (tmp_path / "step_0000000001").rename(doomed)
    (doomed / MANIFEST).unlink()
    found, _ = find_newest_good(str(tmp_path))
    assert found is not None
    assert found.step == 2
    fates = choose([verify(path) for path in candidates(str(tmp_path))], 2)
    assert {Path(fate.verdict.path).name for fate in fates if not fate.keep} == {doomed.name}
    remove(str(doomed))
    assert not doomed.exists()


costs = st.builds(
    Costs, stall_s=st.floats(0.001, 600), mttf_s=st.floats(60, 1e8), restart_s=st.floats(0, 600),
    detect_s=st.floats(0, 600), least_s=st.floats(0, 600),
)  # fmt: skip


@given(costs=costs, fixed=st.floats(0.01, 1e7))
def test_the_chosen_interval_is_never_worse_than_any_fixed_one(costs: Costs, fixed: float) -> None:
    assert ettr(best_interval(costs), costs) >= ettr(max(fixed, costs.least_s), costs) - 1e-9


def test_the_interval_becomes_youngs_where_failures_are_rare() -> None:
    rare = Costs(stall_s=1, mttf_s=1e8)
    assert best_interval(rare) == pytest.approx(young(rare), rel=1e-3)


def test_the_rate_of_failures_moves_from_the_prior_to_what_is_seen() -> None:
    assert observed_mttf(0, 0, 1000) == 1000
    assert observed_mttf(100, 100 * 50, 1000) == pytest.approx(59.4, abs=0.1)


@given(
    st.lists(st.tuples(st.sampled_from(["F32", "BF16", "U8"]), st.integers(0, 5)), max_size=6),
    st.integers(0, 9),
)
def test_a_header_says_what_was_put_in(shapes: list[tuple[str, int]], own: int) -> None:
    entries = {f"t{k}": (dtype, (size,), f"t{k}", (0,), (size,)) for k, (dtype, size) in enumerate(shapes)}
    head, places = encode_header(entries, own)
    whole = head + bytes(places["@own"][1] - len(head))
    header = decode_header(lambda at, length: whole[at : at + length], len(whole))
    assert {piece.key: (piece.start, piece.end) for piece in header.pieces} == {
        k: v for k, v in places.items() if k != "@own"
    }
    check_cover([header])


def test_unidles_shards_are_files_that_others_can_read(tmp_path: Path) -> None:
    path = own_checkpoint(tmp_path, 5)
    data = (path / shard_name(0, 2)).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert all(isinstance(value, str) for value in header["__metadata__"].values())
    assert (
        max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
        == len(data) - 8 - length
    )


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return unidle("checkpoint", *arguments)


def test_the_command_line_says_good_bad_and_could_not_tell(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        own_checkpoint(tmp_path, step)
    assert run("verify", str(tmp_path)).returncode == 0
    shard = tmp_path / "step_0000000003" / shard_name(1, 2)
    shard.write_bytes(shard.read_bytes()[:-9])
    done = run("verify", str(tmp_path))
    assert done.returncode == 1
    assert "step_0000000002: good" in done.stdout
    listed = json.loads(run("list", str(tmp_path), "--json").stdout)
    assert [(line["step"], line["state"], line["shards"]) for line in listed] == [
        (3, "bad", 2),
        (2, "good", 2),
        (1, "good", 2),
    ]
    dry = run("prune", str(tmp_path), "--keep", "1")
    assert "would be removed" in dry.stdout
    assert len(list(tmp_path.glob("step_*"))) == 3
    assert run("prune", str(tmp_path), "--keep", "1", "--yes").returncode == 0
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_0000000002"]
    (tmp_path / "other").mkdir()
    tensors(tmp_path / "other" / "step_9.safetensors")
    assert run("verify", str(tmp_path / "other")).returncode == 3
    assert run("verify", str(tmp_path / "nowhere")).returncode == 2


def test_without_good_json_a_quick_look_does_not_say_good(tmp_path: Path) -> None:
    path = own_checkpoint(tmp_path, 1)
    assert verify(str(path), deep=False).state == "unverified"
    (path / GOOD).write_text("{}")
    assert verify(str(path), deep=False).state == "good"


def test_criu_freezes_and_thaws_a_process_or_says_why_it_cannot(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["sleep", "60"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        can = criu.ability()
        if can.works:
            criu.dump(process.pid, str(tmp_path / "frozen"))
            process.wait()
            assert criu.restore(str(tmp_path / "frozen")) == process.pid
            os.kill(process.pid, 9)
        else:
            with pytest.raises(CannotRun) as refused:
                criu.dump(process.pid, str(tmp_path / "frozen"))
            assert can.because in refused.value.line()
            assert process.poll() is None
            assert not list(tmp_path.iterdir())
    finally:
        process.kill()
        process.wait()
