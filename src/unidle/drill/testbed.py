"""The testbed of a drill: a fleet, a store, `unidle up` in a process of its own, and one job on it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

import msgspec

from unidle.control.inbox import CancelRequest, SubmitRequest
from unidle.control.job_ids import new_job_id
from unidle.drill.disk import Disk
from unidle.drill.lab import Lab
from unidle.drill.scratch import Scratch, end_processes
from unidle.errors import BadInput, CannotRun, UnidleError
from unidle.events import types as ev
from unidle.files.drill import Drill
from unidle.store.open import open_store
from unidle.store.protocol import Store
from unidle.view.fold import apply
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View

DISK_KINDS: Final = ("disk_full", "disk_slow")
POWER_KIND: Final = "power_cut"
_QUIET_END_S: Final = 15.0
_TOLD: Final = (ev.HealthSet, ev.StopAsked, ev.ControllerStarted)


@dataclass(slots=True)
class DrillLog:
    """The log so far: folded, and the events that the view does not keep, with their times in ns."""

    view: View = field(default_factory=View)
    told: list[tuple[int, ev.Event]] = field(default_factory=list)

    def follow(self, store: Store) -> None:
        for row in store.read(self.view.seq):
            event = ev.decode(row.kind, row.body, row.seq)
            apply(self.view, event, row.seq, row.time_ns)
            if isinstance(event, _TOLD) or row.kind == "fault_seen":
                self.told.append((row.time_ns, event))


_GUARD: Final = {"preflight": "off", "suspect": "1s", "probation": "1s"}
"""A drill hurts the same few nodes again and again: none stays out for what was done to it on purpose."""


class Testbed:
    """One run of the drill's job. ``name`` distinguishes the runs of a drill; close it in any case."""

    def __init__(
        self, drill: Drill, scratch: Scratch, name: str, *, store: Path | None = None, lab: Lab | None = None,
        disk: bool = False, power: bool = False,
    ) -> None:  # fmt: skip
        self.drill, self.lab = drill, lab
        self._scratch, self.place = scratch, scratch.directory / name
        self.place.mkdir()
        self._power: Disk | None = None
        self._boots = 0
        self._copy_to = store if power else None
        if power:  # all that a machine loses with its power is on one disk
            image = scratch.directory / f"{name}.img"
            self._power = Disk(self.place, image, drill.disk_bytes, journaled=True)
        self.store_path = self.place / "store.db" if power or store is None else store
        self.store_path.parent.mkdir(parents=True, exist_ok=True)
        self.workdir, self.checkpoint = _mirrored(drill, self.place / "work")
        self.spec = replace(drill.job, workdir=str(self.workdir), checkpoint_path=_text(self.checkpoint))
        self.job_id = new_job_id(self.spec.name)
        self.log = DrillLog()
        self.disk: Disk | None = None
        if disk and self.checkpoint is not None:
            self.disk = Disk(self.checkpoint, self.place / "disk.img", drill.disk_bytes)
        self._up: subprocess.Popen[bytes] | None = None
        self._up_text = scratch.directory / f"{name}-up.txt"
        self._said: IO[bytes] = self._up_text.open("ab")
        self._fleet = self.place / "fleet.json"
        self._fleet.write_text(json.dumps(self._fleet_file()))
        self._store: Store = open_store(str(self.store_path), create=True)
        self._store.request("submit", msgspec.json.encode(SubmitRequest(self.job_id, self.spec)))
        if self._power is not None:
            self._power.sync()  # files of the user, written long ago
        self.start()

    # -- the controller --------------------------------------------------------------------------

    def start(self) -> None:
        """Let `unidle up` drive the store."""
        command = [
            sys.executable, "-P", "-m", "unidle", "up", "--store", str(self.store_path), "--fleet", str(self._fleet),
            "--progress", "off",
        ]  # fmt: skip
        if self._boots:
            command = another_boot(self._scratch.directory / "boot_id", command)
        self._up = subprocess.Popen(
            command, env=self._scratch.environment(), stdin=subprocess.DEVNULL, stdout=self._said,
            stderr=self._said, start_new_session=True,
        )  # fmt: skip

    def kill_controller(self) -> None:
        """SIGKILL; no controller drives the store until :meth:`start`."""
        assert self._up is not None
        self._up.kill()
        self._up.wait()

    def cut_power(self) -> None:
        """Every process ends at once, what was not synced is lost, and the next :meth:`start` is in another boot."""
        assert self._power is not None
        assert self._up is not None
        self._store.close()
        self._power.cut()
        self._up.kill()
        self._up.wait()
        end_processes(self._scratch.name)
        self._power.mount_again()
        self._boots += 1
        self._store = open_store(str(self.store_path), create=False)

    # -- what is seen ----------------------------------------------------------------------------

    def look(self, *, may_be_down: bool = False) -> JobView | None:
        """The job as the log has it by now; None before a controller adopted it. Errors: :class:`CannotRun`."""
        assert self._up is not None
        ended = self._up.poll()
        self.log.follow(self._store)
        if ended is not None and not may_be_down:
            said = self._up_text.read_text(errors="replace").strip().splitlines()
            raise CannotRun(
                f"`unidle up` ended with exit code {ended}: {said[-1] if said else 'no output'}",
                remedy="try the job with `unidle run` first",
            )
        return self.log.view.jobs.get(self.job_id)

    def attempt(self) -> AttemptView | None:
        """The attempt that runs, if any."""
        job = self.log.view.jobs.get(self.job_id)
        return job.live if job is not None else None

    def ranks_of(self, target: str) -> list[int]:
        """The ranks of ``rank:2`` or ``node:n1``."""
        kind, _, name = target.partition(":")
        attempt = self.attempt()
        if kind == "rank":
            return [int(name)]
        places = attempt.places if attempt is not None else ()
        return [place.rank for place in places if place.node == name]

    def pids_of(self, target: str) -> dict[int, int]:
        """Process ids by rank, of those ranks that run."""
        attempt = self.attempt()
        if attempt is None:
            return {}
        ranks = {rank: attempt.ranks[rank] for rank in self.ranks_of(target)}
        return {rank: seen.pid for rank, seen in ranks.items() if seen.pid is not None and not seen.ended}

    def kernel_log(self, node: str) -> Path:
        """The file that is used as a node's kernel log."""
        return self.place / f"kernel-{node}.log"

    @property
    def readings(self) -> Path:
        """The file that overlays NVML's readings: {"n1/0": {"dram_errors": 3}}."""
        return self.place / "nvml.json"

    def pci_of(self, device: str) -> str:
        """The PCI address that a device is declared to have, as kernel logs write it."""
        node, _, index = device.rpartition("/")
        number = 1 + sum(self.drill.devices[: self.drill.nodes.index(node)]) + int(index)
        return f"{number >> 8:04x}:{number & 255:02x}:00"

    # -- the end ---------------------------------------------------------------------------------

    def cancel(self) -> None:
        self._store.request("cancel", msgspec.json.encode(CancelRequest(self.job_id, "unidle drill")))

    def close(self) -> None:
        """Nothing of it runs any more; its files stay for a look until the scratch is closed."""
        if self._said.closed:
            return
        with contextlib.suppress(UnidleError):  # its controller is gone: the scratch ends what is left
            self._end_job()
        if self._up is not None and self._up.poll() is None:
            self._up.send_signal(signal.SIGTERM)
            try:
                self._up.wait(_QUIET_END_S)
            except subprocess.TimeoutExpired:
                self._up.kill()
                self._up.wait()
        self._store.close()
        self._said.close()
        if self._copy_to is not None:
            self._copy_to.parent.mkdir(parents=True, exist_ok=True)
            for file in self.place.glob(f"{self.store_path.name}*"):
                if file.is_file():
                    shutil.copyfile(
                        file,
                        self._copy_to.with_name(
                            self._copy_to.name + file.name.removeprefix(self.store_path.name)
                        ),
                    )
        if self.disk is not None:
            self.disk.close()

    def _end_job(self) -> None:
        job = self.look()
        if job is not None and job.terminal:
            return
        self.cancel()
        end = time.monotonic() + self.spec.grace_s + _QUIET_END_S
        while time.monotonic() < end:
            job = self.look()
            if job is not None and job.terminal:
                return
            time.sleep(0.05)

    def _fleet_file(self) -> dict[str, object]:
        watched = bool({fault.kind for fault in self.drill.faults} & {"kernel_log", "nvml"})
        # the kernel reports how a power cut is made: a file system that is shut down takes its node out of use
        watched = watched or self._power is not None
        kind = "gpu" if self.drill.job.device == "gpu" else "cpu"
        nodes: list[dict[str, object]] = []
        for k, name in enumerate(self.drill.nodes):
            devices: dict[str, object] = {"count": self.drill.devices[k], "kind": kind}
            if kind == "gpu":
                devices["number"] = sum(self.drill.devices[:k])
            node: dict[str, object] = {"id": name, "devices": devices}
            if self.lab is not None:
                node |= {"address": self.lab.address(name), "netns": self.lab.space(name)}
            if watched:
                self.kernel_log(name).touch()
                self.readings.write_text("{}")
                pci = [f"{self.pci_of(f'{name}/{j}')}.0" for j in range(self.drill.devices[k])]
                node["watch"] = {
                    "kernel_log": str(self.kernel_log(name)),
                    "nvml": str(self.readings),
                    "pci": pci,
                }
            nodes.append(node)
        return {"nodes": nodes, "guard": _GUARD}


def another_boot(file: Path, command: list[str]) -> list[str]:
    """The command in a mount namespace where the kernel's name of this boot is a new one, kept in ``file``. Needs root."""
    file.write_text(f"{uuid.uuid4()}\n")
    mounted = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mounted, str(file), *command]


def _mirrored(drill: Drill, place: Path) -> tuple[Path, Path | None]:
    """The job's workdir by links, with checkpoints and result of its own; and where its checkpoints are."""
    source = Path(drill.job.workdir).absolute()
    checkpoint = drill.job.checkpoint_path
    relative = None if checkpoint is None else os.path.relpath(checkpoint, source)
    if relative is not None and (relative == "." or relative.startswith("..")):
        raise BadInput(
            "is not below the workdir, so a drill cannot keep its checkpoints apart from yours",
            field="job.checkpoint.path", value=checkpoint, remedy="name a directory below the workdir",
        )  # fmt: skip
    own = [Path(name) for name in (relative, drill.result) if name]
    _mirror(source, place, own)
    return place, None if relative is None else place / relative


def _mirror(source: Path, place: Path, own: list[Path]) -> None:
    """Links in ``place`` to all in ``source``, but what is ``own`` is left out, and its parents are real."""
    place.mkdir(parents=True, exist_ok=True)
    first = {
        path.parts[0]: [p.relative_to(path.parts[0]) for p in own if p.parts[0] == path.parts[0]]
        for path in own
    }
    for entry in source.iterdir() if source.is_dir() else ():
        if entry.name not in first:
            (place / entry.name).symlink_to(entry)
    for name, below in first.items():
        deeper = [path for path in below if path.parts]
        if deeper and len(deeper) == len(below):
            _mirror(source / name, place / name, deeper)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
