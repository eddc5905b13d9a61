"""Which ranks of a run store which parts of a checkpoint, and how they resume from one.

Ranks that see the same directory are a group. With one group all parts lie in it. With several, each part goes to
every group over the transport, block by block and each block checked, so that each has the whole model: a site that is
lost takes nothing along, and layers may move. If that is not possible, or with ``{site}`` in the directory, each group
keeps its own layers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, Protocol

from torch import Tensor

from unidle.checkpoint.layout import (
    CHUNK_BYTES,
    MANIFEST,
    Damaged,
    Manifest,
    Shard,
    manifest_from,
    partial_name,
    shard_name,
    step_name,
    write_durably,
)
from unidle.errors import BadInput
from unidle.span.rank.plan import SaveSpec
from unidle.span.rank.shards import State, finish, prune, read, steps_in, write_shard
from unidle.span.wan import Channel, WanError

_DEPTH: Final = 8  # blocks on their way at a time


class Courier:
    """Carries files to and from other devices, by their number in the plan. ``channel`` gives the one to a device."""

    def __init__(self, channel: Callable[[int], Channel]) -> None:
        self._channel = channel

    def exchange(
        self,
        directory: str,
        gives: Iterable[tuple[int, Sequence[Shard]]],
        gets: Sequence[tuple[int, Sequence[Shard]]],
    ) -> tuple[str, str]:
        """Give files of a directory to devices, and get files from devices into it, durably.

        Returns the errors of this rank's disk and of a link; empty on success.
        """
        disks: list[str] = []
        links: list[str] = []

        def give(to: int, shards: Sequence[Shard]) -> None:
            try:
                for shard in shards:
                    self._give(self._channel(to), os.path.join(directory, shard.name), shard)
            except WanError as error:
                links.append(str(error))
            except OSError as error:
                disks.append(f"{directory}: {error.strerror}")
                self._channel(to).close(0)  # nobody may wait for the rest

        threads = [threading.Thread(target=give, args=each, daemon=True) for each in gives]
        for thread in threads:
            thread.start()
        with contextlib.suppress(OSError):  # files say it then
            if gets:
                os.makedirs(directory, exist_ok=True)
        for source, shards in gets:
            for shard in shards:  # all of them, also after a problem: who gives waits for that
                try:
                    self._get(self._channel(source), os.path.join(directory, shard.name), shard)
                except WanError as error:
                    links.append(str(error))
                except OSError as error:
                    disks.append(f"{directory}: {error.strerror}")
        for thread in threads:
            thread.join()
        return (disks or [""])[0], (links or [""])[0]

    @staticmethod
    def _give(channel: Channel, path: str, shard: Shard) -> None:
        going: deque[Future[int]] = deque()
        with open(path, "rb") as file:
            for _ in shard.crcs:
                going.append(channel.send(shard.name, file.read(CHUNK_BYTES)))
                if len(going) > _DEPTH:
                    going.popleft().result()
        for future in going:
            future.result()

    @staticmethod
    def _get(channel: Channel, path: str, shard: Shard) -> None:
        """All blocks are taken, also after the disk is full: who gives waits for that."""
        coming: deque[Future[memoryview]] = deque()
        left, problem, fd = shard.size_bytes, None, -1
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        except OSError as error:
            problem = error
        try:
            for k, crc in enumerate(shard.crcs):
                while len(coming) < min(_DEPTH, len(shard.crcs) - k):
                    size = min(CHUNK_BYTES, left)
                    left -= size
                    coming.append(channel.recv(shard.name, bytearray(size)))
                data = coming.popleft().result()
                try:
                    if problem is None and zlib.crc32(data) != crc:
                        raise OSError(errno.EIO, f"{shard.name} is not what was written")
                    while problem is None and len(data):
                        data = data[os.write(fd, data) :]
                except OSError as error:
                    problem = error
            if problem is not None:
                raise problem
            os.fsync(fd)
        finally:
            if fd >= 0:
                os.close(fd)


class Gather(Protocol):
    """Every device's value, on every device. Calls under one tag are made by all at the same time."""

    def __call__(self, value: Any, tag: str = ...) -> list[Any]: ...


class CheckpointKeeper:
    """Saves and restores one rank's part. Calls are made by all ranks at the same step.

    ``index``: of this device; ``writes``: whether it saves at all. ``{site}`` in the directory is replaced by
    ``site``. Without a ``courier`` nothing is copied between groups. ``notice`` is the advice if groups keep only
    their own layers.
    """

    def __init__(
        self,
        keep: SaveSpec,
        index: int,
        site: str,
        writes: bool,
        gather: Gather,
        courier: Courier | None = None,
    ) -> None:
        self._keep, self._index, self.writes = keep, index, writes
        self._gather, self._courier = gather, courier
        self.directory = os.path.abspath(keep.directory.replace("{site}", site))
        problem = ""
        try:
            os.makedirs(self.directory, exist_ok=True)
        except OSError as error:
            problem = f"{error.strerror}"
        if problem or not os.access(self.directory, os.W_OK | os.X_OK):
            raise BadInput(
                f"cannot be written: {problem or 'no permission'}", field="checkpoint.directory", value=self.directory,
                remedy="name a directory that every rank may write",
            )  # fmt: skip
        self._session = str(gather(secrets.token_hex(6))[0])
        told = gather([self._who_shares(), writes, site])
        self._groups = sorted({tuple(group) for group, _, _ in told})
        self._writers = [k for k, (_, each, _) in enumerate(told) if each]
        self._group = next(group for group in self._groups if index in group)
        self._lead = index == self._group[0]
        self._sites = [str(each) for _, _, each in told]
        self._spread = len(self._groups) > 1 and courier is not None and "{site}" not in keep.directory
        self.notice = ""

    def _who_shares(self) -> list[int]:
        """The ranks that see this directory, by a file of each."""
        mine = os.path.join(self.directory, f".span-{self._session}.{self._index}.tmp")
        write_durably(mine, b"")
        self._gather(None)
        start = f".span-{self._session}."
        seen = [n[len(start) :].split(".")[0] for n in os.listdir(self.directory) if n.startswith(start)]
        self._gather(None)
        os.unlink(mine)
        return sorted(map(int, seen))

    def _stay_apart(self, problem: str) -> None:
        """From now on each group keeps what it has."""
        self._spread = False
        groups = "; ".join(", ".join(sorted({self._sites[k] for k in group})) for group in self._groups)
        self.notice = str(
            BadInput(
                "is not the same storage at all sites, and parts cannot be copied between them, so each keeps only its own layers: a"
                f" site that is lost takes them along, and layers cannot move ({problem})", field="checkpoint.directory",
                value=f"{self.directory}: {groups}",
                remedy="name storage that all sites share, or let all sites connect to each other",
            )
        )  # fmt: skip

    # -- saving --------------------------------------------------------------------------------------

    def write(
        self, step: int, tensors: Mapping[str, Tensor], own: Mapping[str, Any], whole: Callable[[str], None]
    ) -> tuple[str, bool]:
        """Write this rank's shard, and where it is the first of its group the manifest. Errors: WanError.

        ``whole`` receives the path once all parts of all groups are on storage, at the first of each group.
        Returns why the step was not saved, if so, and whether this rank reports it; older checkpoints are as they
        were then.
        """
        partial = os.path.join(self.directory, partial_name(step, self._session))
        shard, problem = self._shard(partial, tensors, own) if self.writes else (None, "")
        told = self._gather([shard, problem], "saved")
        shards = {
            k: Shard(n, r, b, tuple(c))
            for k, (found, _) in enumerate(told)
            if found
            for n, r, b, c in (found,)
        }
        sound, spread = not any(each[1] for each in told), self._spread
        if sound and spread:
            problems = self._copy(partial, shards)
            sound, problem = not any(problems), problems[self._index]
        held = [shards[k] for k in self._writers if k in shards and (self._spread or k in self._group)]
        path = ""
        if sound and self._lead and held:
            try:
                if spread and not self._spread:
                    held = _alone(partial, held)
                manifest = Manifest(step, len(held), time.time_ns(), self._session, tuple(held))
                path = finish(self.directory, partial, manifest)
            except OSError as error:
                problem = f"{partial}: {error.strerror}"
        problems = self._gather(problem, "saved")
        if (first := next((k for k, each in enumerate(problems) if each), None)) is not None:
            if self._lead:
                shutil.rmtree(partial, ignore_errors=True)
            return f"step {step} was not saved: {problems[first]}", first == self._index
        if path:
            whole(path)
            prune(self.directory, self._keep.keep, self._session)  # none before all sites have the new one
        return "", False

    def _shard(
        self, partial: str, tensors: Mapping[str, Tensor], own: Mapping[str, Any]
    ) -> tuple[list[Any] | None, str]:
        """The manifest entry of this rank's shard, or the reason why it could not be written."""
        held = self._writers if self._spread else [k for k in self._writers if k in self._group]
        try:
            os.makedirs(partial, exist_ok=True)
            shard = write_shard(partial, held.index(self._index), len(held), tensors, own)
        except OSError as error:
            return None, f"{partial}: {error.strerror}"
        return [shard.name, shard.rank, shard.size_bytes, list(shard.crcs)], ""

    def _copy(self, partial: str, shards: Mapping[int, Shard]) -> list[str]:
        """Each part to every group that does not see it. Returns as :meth:`_exchange`."""
        others = [group[0] for group in self._groups if group != self._group]
        gives = [(lead, [shards[self._index]]) for lead in others] if self.writes else []
        gets = [(k, [shards[k]]) for k in self._writers if self._lead and k not in self._group]
        return self._exchange(partial, gives, gets, "saved")

    def _exchange(
        self,
        partial: str,
        gives: list[tuple[int, list[Shard]]],
        gets: list[tuple[int, list[Shard]]],
        tag: str,
    ) -> list[str]:
        """What is wrong with the disk of each rank, if anything. Where a link is missing the groups stay apart from now on."""
        assert self._courier is not None
        told = self._gather(self._courier.exchange(partial, gives, gets), tag)
        if not any(disk for disk, _ in told) and (first := next((link for _, link in told if link), "")):
            self._stay_apart(first)
        return [disk for disk, _ in told]

    # -- going on ------------------------------------------------------------------------------------

    def restore(self, resume: int | None, state: State, tell: Callable[[str], None]) -> int:
        """The newest step that every rank can read, read into ``state``; 0 without such a step.

        ``resume`` 0: none, and what is there steps aside. Errors: BadInput if a checkpoint is of another model,
        or the requested one cannot be read.
        """
        if resume == 0:
            if self._lead:
                self._step_aside()
            return 0
        if self._spread:
            self._bring(resume)
        here = steps_in(self.directory)
        every = self._gather(sorted(here))
        common = sorted(set.intersection(*map(set, every)), reverse=True)
        if resume is None and not common and any(every):
            raise BadInput(
                "has checkpoints that not every rank sees", field="checkpoint.directory", value=self.directory,
                remedy="name a directory that all sites share, or start the sites that have them; --fresh begins from the start",
            )  # fmt: skip
        wanted = common if resume is None else [resume]
        for step in wanted:
            problem, found = "", None
            try:
                found = read(here.get(step, os.path.join(self.directory, step_name(step))), state)
            except (Damaged, OSError) as error:
                problem = str(error)
            except BadInput as error:
                problem = f"!{error}"
            problems = [p for p in self._gather(problem) if p]
            if not problems:
                assert found is not None
                state.accept(*found)
                return step
            for p in problems:
                if p.startswith("!"):
                    raise BadInput(
                        p[1:],
                        remedy="restore into the model that was saved, name another directory, or begin from the start (--fresh)",
                    )
            tell(f"the checkpoint of step {step} is left out: {problems[0]}")
        if wanted:
            raise BadInput(
                "no checkpoint in it can be read by every rank", field="checkpoint.directory", value=self.directory,
                remedy="`unidle checkpoint verify` shows why; --fresh starts from step 0",
            )  # fmt: skip
        return 0

    def _step_aside(self) -> None:
        """Checkpoints of a run before are no part of this one: the newest of all would be kept, and they may be."""
        here = steps_in(self.directory)
        if not here:
            return
        aside = os.path.join(self.directory, f"before-{self._session}")
        try:
            os.makedirs(aside, exist_ok=True)
            for step, path in here.items():
                os.rename(path, os.path.join(aside, step_name(step)))
        except OSError as error:
            raise BadInput(
                f"its checkpoints cannot be moved aside: {error.strerror}", field="checkpoint.directory",
                value=self.directory, remedy="name another directory",
            ) from None  # fmt: skip

    def _bring(self, resume: int | None) -> None:
        """Copy the checkpoint to resume from to the groups that do not have it."""
        here = steps_in(self.directory)
        every = self._gather(sorted(here) if self._lead else [])
        step = max((max(each) for each in every if each), default=0) if resume is None else resume
        leads = [group[0] for group in self._groups]
        having = [k for k in leads if step in every[k]]
        lacking = [k for k in leads if k not in having]
        if not having or not lacking:
            return
        told = b""
        if self._index == having[0]:
            with contextlib.suppress(OSError), open(os.path.join(here[step], MANIFEST), "rb") as file:
                told = file.read()
        try:
            manifest = manifest_from(self._gather(told.decode())[having[0]].encode())
        except Damaged:
            return  # reading it says more
        shards = list(manifest.shards)
        partial = os.path.join(self.directory, partial_name(step, self._session))
        place = here[step] if self._index == having[0] else partial
        gives = [(k, shards) for k in lacking] if self._index == having[0] else []
        gets = [(having[0], shards)] if self._index in lacking else []
        problems = self._exchange(place, gives, gets, "gather")
        if gets and self._spread and not any(problems):
            with contextlib.suppress(OSError):  # who reads it says that it is not there
                finish(self.directory, partial, manifest)
        self._gather(None)


def _alone(partial: str, held: list[Shard]) -> list[Shard]:
    """Some parts of a larger checkpoint as one of their own; the others go. Errors: ``OSError``."""
    found = [replace(shard, name=shard_name(k, len(held)), rank=k) for k, shard in enumerate(held)]
    for old, new in zip(held, found, strict=True):
        os.rename(os.path.join(partial, old.name), os.path.join(partial, new.name))
    for name in set(os.listdir(partial)) - {shard.name for shard in found}:
        os.unlink(os.path.join(partial, name))
    return found
