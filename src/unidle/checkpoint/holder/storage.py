"""From memory to storage: one shard by its node's holder, the manifest by the holder of rank 0."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from typing import Final

from unidle import private
from unidle.checkpoint import layout
from unidle.checkpoint.find import candidates
from unidle.checkpoint.holder.attempts import Superseded
from unidle.checkpoint.holder.memory_copies import PAGE, Label
from unidle.checkpoint.layout import CHUNK_BYTES, Damaged, Manifest, Shard
from unidle.checkpoint.prune import choose, remove
from unidle.checkpoint.verify import verify, verify_shard

TRIAL_S: Final = 3600.0
_REPLACED: Final = ".replaced"


def write_shard(storage: str, label: Label, copy_fd: int) -> Shard:
    """Write one shard next to the final place, make it durable, read it back from the device.

    Raises OSError, :class:`Damaged`; what was written is removed then.
    """
    folder = os.path.join(storage, layout.partial_name(label.step, label.session))
    os.makedirs(folder, exist_ok=True)
    name = layout.shard_name(label.rank, label.world)
    path = os.path.join(folder, name)
    fd = _new_file(folder, name)
    try:
        try:
            crcs = _copy(copy_fd, fd, label.size_bytes)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # so that reading it back asks the device
        finally:
            os.close(fd)
        layout.sync_directory(folder)
        shard = Shard(name, label.rank, label.size_bytes, crcs)
        verify_shard(folder, shard)
    except BaseException:
        try:
            os.unlink(path)
        except OSError:
            pass
        raise
    return shard


def _new_file(folder: str, name: str) -> int:
    """A descriptor of an empty file; a link of that name, or of the directory, is not followed."""
    with private.folder(folder) as at:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)  # of an earlier try
        return os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=at
        )


def _copy(source: int, target: int, size_bytes: int) -> tuple[int, ...]:
    crcs = []
    for at in range(0, size_bytes, CHUNK_BYTES):
        data = os.pread(source, min(CHUNK_BYTES, size_bytes - at), PAGE + at)
        crcs.append(zlib.crc32(data))
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
    return tuple(crcs)


def finish(storage: str, session: str, step: int, shards: list[Shard], refusal: Callable[[], str]) -> str:
    """All shards are there: write the manifest last, then give the checkpoint its name. Returns its path.

    Raises OSError; :class:`~unidle.checkpoint.holder.attempts.Superseded` where ``refusal()`` has a reason.
    """
    folder = os.path.join(storage, layout.partial_name(step, session))
    shards = sorted(shards, key=lambda s: s.rank)
    manifest = Manifest(step, len(shards), time.time_ns(), session, tuple(shards))
    layout.write_durably(os.path.join(folder, layout.MANIFEST), manifest.to_bytes())
    if why := refusal():  # after the last byte and before the name: see `attempts`
        raise Superseded(why)
    final = os.path.join(storage, layout.step_name(step))
    try:
        os.rename(folder, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        _replace(folder, final)
    layout.sync_directory(storage)
    return final


def _replace(folder: str, final: str) -> None:
    """Give ``folder`` the name of a checkpoint of the same step, which is from before a restart.

    That one is moved into ``folder`` first: where a newer attempt has taken ``folder`` away, nothing of it is touched.
    """
    before = os.path.join(folder, _REPLACED)
    os.rename(final, before)
    os.rename(folder, final)
    _away(os.path.join(final, _REPLACED), os.path.dirname(final), os.path.basename(final))


def _away(path: str, storage: str, name: str) -> None:
    """Rename something to a name that marks it for removal, and remove it."""
    doomed = os.path.join(storage, f".{name}.pruned")
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(OSError):  # it has its name since a moment ago
        os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def discard(storage: str, session: str, step: int) -> None:
    """Remove what was written of a checkpoint that will not be finished."""
    shutil.rmtree(os.path.join(storage, layout.partial_name(step, session)), ignore_errors=True)


def sweep(storage: str, busy: set[str]) -> None:
    """Remove what was left half-written, except the names in ``busy``."""
    try:
        names = os.listdir(storage)
    except OSError:
        return
    for name in names:
        if layout.is_partial(name) and name not in busy:
            # by another name first: it has its final name before that, or never
            _away(os.path.join(storage, name), storage, name.strip("."))


def restore_test(path: str, how: str) -> str | None:
    """Load the checkpoint as a restart would (``how``: ``load``), or trust the reading back (``read``).

    Notes in it that it is good. Returns what is wrong, None where nothing is.
    """
    try:
        if how == "load":
            done = subprocess.run(
                [sys.executable, "-P", "-m", "unidle.rank.checkpoint.trial", path],
                capture_output=True, text=True, timeout=TRIAL_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode:
                return (
                    done.stderr.strip().splitlines()[-1]
                    if done.stderr.strip()
                    else "the restore test ended without a result"
                )
        else:
            verdict = verify(path, deep=False)
            if verdict.state == "bad":
                return verdict.why
        text = f'{{"how": "{how}", "time_ns": {time.time_ns()}}}\n'
        layout.write_durably(os.path.join(path, layout.GOOD), text.encode())
    except (OSError, subprocess.SubprocessError, Damaged) as error:
        return str(error)
    return None


def retain(storage: str, keep: int, every: int) -> None:
    """Remove what is older than the newest ``keep``; bytes are not read again for it. Raises OSError."""
    found = [
        v
        for v in (verify(path, deep=False) for path in candidates(storage))
        if v.format in ("unidle", "partial")
    ]
    for fate in choose(found, keep, every):
        # a bad one is evidence, and it is the user's to remove; unfinished ones are swept elsewhere
        if not fate.keep and fate.verdict.state != "bad":
            remove(fate.verdict.path)
