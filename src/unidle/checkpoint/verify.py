"""Is a checkpoint good? Reads all of its bytes, what wrote it; nothing in it is ever executed."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Final, Literal, cast

from unidle.checkpoint import dcp, formats, sums
from unidle.checkpoint.layout import (
    GOOD,
    MANIFEST,
    Damaged,
    Shard,
    ShardHeader,
    check_cover,
    decode_header,
    file_chunks,
    is_partial,
    read_manifest,
    shard_name,
)
from unidle.checkpoint.safe_open import FilePart, Outside, open_file, open_inside, read_inside, shown
from unidle.words import counted

State = Literal["good", "bad", "unverified"]
_JSON_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """What is known of one checkpoint. ``why``: the reason that it is bad, or what was checked or could not be checked."""

    path: str
    format: str
    state: State
    why: str
    step: int | None
    size_bytes: int
    shards: int
    time_ns: int


def verify(path: str, *, deep: bool = True) -> CheckpointVerdict:
    """Judge the checkpoint at ``path``, a file or a directory; ``deep``: read every byte.

    Without ``deep`` what cannot be seen in sizes and headers stays ``unverified``. Never raises for what
    is in it; OSError other than a missing file becomes ``unverified`` with its reason.
    """
    name = os.path.basename(os.path.normpath(path))
    kind, size_bytes, shards, time_ns, step = "unknown", 0, 0, 0, formats.step_in(name)
    try:
        kind = kind_of(path)
        files = files_of(path)
        size_bytes, shards = sum(state.st_size for _, state in files), len(files)
        time_ns = max((state.st_mtime_ns for _, state in files), default=os.stat(path).st_mtime_ns)
        if kind == "unidle":
            manifest = read_manifest(path)
            step, shards, time_ns = manifest.step, len(manifest.shards), manifest.time_ns
        state, why = _judge(kind, path, deep)
    except Outside as damage:
        state, why = "unverified", str(damage)
    except Damaged as damage:
        state, why = "bad", str(damage)
    except FileNotFoundError as error:
        state, why = "bad", f"{_inner(path, str(error.filename or path))} is missing"
    except OSError as error:
        state, why = "unverified", f"cannot be read: {error.strerror or error}"
    return CheckpointVerdict(path, kind, state, why, step, size_bytes, shards, time_ns)


def kind_of(path: str, within: str = "") -> str:
    """``unidle``, ``dcp``, ``zip`` (torch.save, .npz), ``safetensors``, ``json``, ``file``, ``directory`` or ``partial``.

    ``within``: the checkpoint directory of which ``path`` is a file. Raises :class:`Damaged`, OSError.
    """
    if not within and os.path.isdir(path):
        if is_partial(os.path.basename(os.path.normpath(path))):
            return "partial"
        names = set(os.listdir(path))
        if MANIFEST in names and (GOOD in names or any(n.startswith("shard-") for n in names)):
            return "unidle"
        if ".metadata" in names or any(n.endswith(".distcp") for n in names):
            return "dcp"
        return "unidle" if any(n.startswith("shard-") and "-of-" in n for n in names) else "directory"
    with os.fdopen(_opened(path, within), "rb") as file:
        head = file.read(4)
    if head == b"PK\x03\x04":
        return "zip"
    if path.endswith(".safetensors"):
        return "safetensors"
    if path.endswith((".pt", ".pth", ".npz")) and not head:
        return "zip"
    return "json" if path.endswith(".json") else "file"


def files_of(path: str) -> list[tuple[str, os.stat_result]]:
    """The files of a checkpoint, sorted by name. Links that lead out of it, and what is no file, are among them."""
    if not os.path.isdir(path):
        return [(path, os.stat(path))]
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            file = os.path.join(folder, name)
            found.append((file, os.stat(file)))
    return sorted(found)


def _opened(path: str, within: str) -> int:
    return open_inside(within, os.path.relpath(path, within)) if within else open_file(path)


def _judge(kind: str, path: str, deep: bool, within: str = "") -> tuple[State, str]:
    if kind == "partial":
        raise Damaged("was not finished: it has no manifest")
    if kind == "unidle":
        return verify_own(path, deep=deep)
    known = sums.compare(path, deep=deep)  # raises where bytes changed
    state: State
    if kind == "dcp":
        state, why = dcp.verify(path, deep)
    elif kind == "directory":
        state, why = _directory(path, deep)
    else:
        fd = _opened(path, within)
        judge: Callable[[IO[bytes], bool], tuple[State, str]] = {
            "zip": zip_state, "safetensors": _safetensors, "json": _json,
        }.get(kind, _plain)  # fmt: skip
        try:
            state, why = judge(cast("IO[bytes]", FilePart(fd, 0, os.fstat(fd).st_size)), deep)
        finally:
            os.close(fd)
    if known is not None and state != "bad" and deep:
        return "good", known
    return state, why


def verify_own(path: str, *, deep: bool = True) -> tuple[State, str]:
    """Judge what unidle wrote: manifest, sizes, headers, cover, and with ``deep`` all checksums. Raises :class:`Damaged`."""
    manifest = read_manifest(path)
    if len(manifest.shards) != manifest.world:
        raise Damaged(f"{MANIFEST} lists {len(manifest.shards)} of {counted(manifest.world, 'shard')}")
    if [s.name for s in manifest.shards] != [shard_name(r, manifest.world) for r in range(manifest.world)]:
        raise Damaged(f"{MANIFEST} lists shards of other names")
    headers = [verify_shard(path, shard, deep=deep) for shard in manifest.shards]
    check_cover(headers)
    if not deep:
        if os.path.exists(os.path.join(path, GOOD)):
            return "good", "was read back and loaded after it was written; not read again now"
        return "unverified", "sizes and headers are right; the bytes were not read"
    loaded = os.path.exists(os.path.join(path, GOOD))
    return "good", "all checksums match" + ("; a restore test loaded it" if loaded else "")


def verify_shard(path: str, shard: Shard, *, deep: bool = True) -> ShardHeader:
    """One shard of the directory ``path``. Raises :class:`Damaged`, OSError."""
    fd = open_inside(path, shard.name)
    try:
        size = os.fstat(fd).st_size
        if size != shard.size_bytes:
            raise Damaged(f"{shard.name} has {size} of {shard.size_bytes} bytes")
        for k, data in enumerate(file_chunks(fd, size) if deep else ()):
            if zlib.crc32(data) != shard.crcs[k]:
                raise Damaged(f"{shard.name} does not match its checksum in the 4 MiB from byte {k << 22}")
        try:
            return decode_header(lambda at, length: os.pread(fd, length, at), size)
        except Damaged as damage:
            raise Damaged(f"{shard.name} {damage}") from None
    finally:
        os.close(fd)


def zip_state(file: IO[bytes], deep: bool) -> tuple[State, str]:
    """Judge a zip file as ``torch.save`` and ``numpy.savez`` write it, by its directory and CRCs. Raises :class:`Damaged`."""
    size = file.seek(0, os.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if not entries:
                raise Damaged("is an empty zip file")
            _check_records(entries, size)
            if not deep:
                return (
                    "unverified",
                    f"its zip directory lists {counted(len(entries), 'record')}; the bytes were not read",
                )
            wrong = [entry.filename for entry in entries if not _record_is_whole(archive, entry)]
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, RuntimeError, struct.error) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise Damaged(f"is not a complete zip file: {shown(str(error))}") from None
    tensors = [e.filename for e in entries if "/data/" in e.filename and e.file_size]
    if wrong and len(tensors) > 1 and set(wrong) == {e.filename for e in entries if e.file_size}:
        return (
            "unverified",
            "no record matches its CRC: torch.serialization.set_crc32_options(False) writes such files",
        )
    if wrong:
        raise Damaged(
            f"{shown(wrong[0])} does not match its CRC"
            + (f", and {len(wrong) - 1} more" if wrong[1:] else "")
        )
    return "good", f"CRCs match ({counted(len(entries), 'record')})"


def _check_records(entries: list[zipfile.ZipInfo], size: int) -> None:
    """No more than the file holds: records that overlap would be read many times. Raises :class:`Damaged`."""
    for entry in entries:
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
            raise Damaged(f"has a record that PyTorch and NumPy do not write: {shown(entry.filename)}")
    if sum(entry.compress_size for entry in entries) > size:
        raise Damaged("has records that overlap")


def _record_is_whole(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(entry) as record:
            while record.read(1 << 20):
                pass
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return False
    return True


def _safetensors(file: IO[bytes], _deep: bool) -> tuple[State, str]:
    def read(at: int, length: int) -> bytes:
        file.seek(at)
        return file.read(length)

    header = decode_header(read, file.seek(0, os.SEEK_END))
    return (
        "unverified",
        f"complete by its header ({counted(len(header.pieces), 'tensor')}); the format has no checksums",
    )


def _json(file: IO[bytes], _deep: bool) -> tuple[State, str]:
    if file.seek(0, os.SEEK_END) > _JSON_MOST_BYTES:
        return "unverified", f"JSON of more than {_JSON_MOST_BYTES >> 20} MiB is not parsed"
    file.seek(0)
    try:
        json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise Damaged(f"is not complete JSON: {shown(str(error))}") from None
    return "unverified", "it is complete JSON; the format has no checksums"


def _plain(file: IO[bytes], _deep: bool) -> tuple[State, str]:
    if file.seek(0, os.SEEK_END) == 0:
        raise Damaged("is empty")
    return "unverified", "a file of this kind has nothing that proves it complete"


def _directory(path: str, deep: bool) -> tuple[State, str]:
    """Each file by its own format; the whole is as good as the worst file in it."""
    files = [file for file, _ in files_of(path)]
    judged = [file for file in files if not formats.never_a_checkpoint(os.path.basename(file))]
    if not judged:
        raise Damaged("holds no file of a checkpoint")
    open_ = []
    for file in judged:
        name = os.path.relpath(file, path)
        if formats.in_flux(os.path.basename(file)):
            raise Damaged(f"{shown(name)} was not finished")
        try:
            state, why = _judge(kind_of(file, path), file, deep, path)
        except Outside as damage:
            state, why = "unverified", str(damage)
        except Damaged as damage:
            raise Damaged(f"{shown(name)} {str(damage).removeprefix(f'{shown(name)} ')}") from None
        if state == "unverified":
            open_.append(f"{shown(name)}: {why}")
    missing = _missing_from_index(path)
    if missing:
        raise Damaged(f"{missing} is missing, which its index names")
    if open_:
        return "unverified", open_[0] + (
            f" (and {counted(len(open_) - 1, 'more file')})" if open_[1:] else ""
        )
    return "good", f"CRCs match ({counted(len(judged), 'file')})"


def _missing_from_index(path: str) -> str | None:
    """A file that an index of Hugging Face's form (``*.index.json``) names and that is not there."""
    for name in sorted(os.listdir(path)):
        if name.endswith(".index.json"):
            try:
                weights = json.loads(read_inside(path, name, _JSON_MOST_BYTES))["weight_map"]
                wanted = {str(v) for v in weights.values()}
            except (Damaged, ValueError, KeyError, AttributeError, TypeError, RecursionError):
                continue
            for file_name in sorted(wanted):
                try:
                    os.close(open_inside(path, file_name))
                except Outside:
                    continue
                except FileNotFoundError:
                    return shown(file_name)
    return None


def _inner(path: str, file: str) -> str:
    return os.path.relpath(file, path) if file != path and file.startswith(path) else "it"
