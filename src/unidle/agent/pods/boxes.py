"""The boxes of a node that are pods: found, and never made. What is known of their ranks is kept as on a host.

For each job there is a small copy of its run directory, with the numbers that processes have on the node. So all that
observes ranks (samples, stacks, profiles) works as on a host, and reads nothing that the pod can change meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from unidle import private
from unidle.agent.boxes import RUNS, BoxOrder
from unidle.agent.pods import files, processes
from unidle.agent.pods.processes import BoxProcess
from unidle.engine.local.ranks import rundir

LOOK_EVERY_S: Final = 0.5
VOLUME: Final = ("volumes", "kubernetes.io~empty-dir", "unidle")
"""Where the kubelet keeps the volume of a pod that has the box, below the directory of the pod."""
_BOX: Final = "box"
_LOCK: Final = "box.lock"
_MOST_ATTEMPTS: Final = 64
_NOT_HERE: Final = "boxes are pods here: the controller makes them at the API server"


@dataclass(slots=True)
class _Pod:
    """``done``: the ranks of which a copy was made, and those that cannot be found any more."""

    uid: str
    job: str
    box: BoxProcess
    done: set[tuple[int, int]] = field(default_factory=set)
    over: set[int] = field(default_factory=set)  # attempts that were released


class BoxesInPods:
    """``pods`` is the kubelet's directory of pods, ``root`` the agent's own for copies; ``authority`` names the controller
    whose pods are meant. ``find`` finds the box of a pod: see :func:`unidle.agent.pods.processes.box_of`.
    """

    def __init__(
        self, pods: Path, root: Path, authority: str, find: Callable[[str], BoxProcess | None] = processes.box_of
    ) -> None:  # fmt: skip
        self._pods, self._root, self._authority, self._find = str(pods), root, authority.strip(), find
        self._known: dict[str, _Pod] = {}  # by uid
        self._others: dict[str, BoxProcess] = {}  # pods of other controllers
        self._due_s = 0.0
        shutil.rmtree(root, ignore_errors=True)  # of an earlier agent: all is found again
        private.make_directory(root)

    # -- as of the boxes of a host ---------------------------------------------------------------

    def begin(self, order: BoxOrder, env: Mapping[str, str]) -> None:  # noqa: ARG002
        """Errors: ValueError always."""
        raise ValueError(_NOT_HERE)

    def answer(self, job: str) -> str | None:  # noqa: ARG002
        return _NOT_HERE

    def point(self, hub: str, authority: str) -> list[str]:  # noqa: ARG002
        """Nothing: a pod has the addresses of its controller in its specification."""
        return []

    def running(self) -> list[str]:
        """Jobs of which a pod runs here."""
        self._due_s = 0.0
        return self.live()

    def live(self) -> list[str]:
        """The same, as of the last look: there is one twice a second."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + LOOK_EVERY_S
            self._look()
        return sorted({pod.job for pod in self._known.values()})

    def ended(self) -> list[str]:
        """Nothing: the API server reports the ends of pods."""
        return []

    def end(self) -> bool:
        """Pods are ended at the API server."""
        return True

    def prune(self, now_s: float) -> None:
        """What is kept goes with its pod."""

    def directory(self, job: str) -> Path:
        """Where the copy for a job is. Errors: ValueError for a job that cannot be a directory."""
        return self._root / rundir.path_part(job)

    # -- the look --------------------------------------------------------------------------------

    def _look(self) -> None:
        try:
            uids = set(os.listdir(self._pods))  # noqa: PTH208 - twice a second
        except OSError:
            uids = set()
        for known in (self._known, self._others):
            for uid in [uid for uid in known if uid not in uids]:
                del known[uid]
        for uid in sorted(uids):
            self._look_at(uid)
        self._forget_others()

    def _look_at(self, uid: str) -> None:
        pod = self._known.get(uid)
        if pod is not None and not pod.box.lives:
            del self._known[uid]
            pod = None
        if uid in self._others and self._others[uid].lives:
            return
        try:
            with files.opened(self._pods, uid, *VOLUME, _BOX) as at:
                if pod is None and (pod := self._found(uid, at)) is None:
                    return
                self._copy(pod)
        except OSError:
            return  # a pod without a box, or one that goes

    def _found(self, uid: str, at: int) -> _Pod | None:
        """The pod of a box that has its lock, if it is of this controller."""
        os.stat(_LOCK, dir_fd=at, follow_symlinks=False)
        box = self._find(uid)
        if box is None:
            return None
        job = box.given.get("job")
        if str(box.given.get("authority", "")).strip() != self._authority or not isinstance(job, str):
            self._others[uid] = box
            return None
        try:
            directory = self.directory(job)
        except ValueError:
            self._others[uid] = box
            return None
        shutil.rmtree(directory, ignore_errors=True)  # of an earlier pod of the job
        for other in [other for other, pod in self._known.items() if pod.job == job]:
            del self._known[other]
        self._known[uid] = _Pod(uid, job, box)
        return self._known[uid]

    def _copy(self, pod: _Pod) -> None:
        """Copy what is new of the ranks of a pod."""
        with files.opened(self._pods, pod.uid, *VOLUME, _BOX, RUNS, pod.job) as runs:
            attempts = sorted(files.numbered(runs).items())[-_MOST_ATTEMPTS:]
        for attempt, name in attempts:
            if attempt in pod.over:
                continue
            with files.opened(self._pods, pod.uid, *VOLUME, _BOX, RUNS, pod.job, name) as at:
                ranks = files.numbered(at, "rank")
                released = rundir.RELEASED in os.listdir(at)  # noqa: PTH208
            own = Path(rundir.attempt_dir(self.directory(pod.job) / RUNS, pod.job, attempt))
            if released:
                pod.over.add(attempt)
                shutil.rmtree(own, ignore_errors=True)
                continue
            for rank, folder in ranks.items():
                if (attempt, rank) not in pod.done:
                    with files.opened(self._pods, pod.uid, *VOLUME, _BOX, RUNS, pod.job, name, folder) as at:
                        self._copy_rank(pod, (attempt, rank), at, own / folder)

    def _copy_rank(self, pod: _Pod, place: tuple[int, int], at: int, own: Path) -> None:
        """Keep which processes on the node are the rank's own and its supervisor, once these have begun."""
        told = files.json_object(rundir.SUPERVISOR, at)
        spawn = _spawned(at)
        if spawn is None or not _is_process(told):
            return
        pod.done.add(place)
        supervisor = processes.on_node(pod.uid, told["pid"], told["ticks"])
        pid = processes.on_node(pod.uid, spawn["pid"], spawn["ticks"])
        if supervisor is None or pid is None:
            return  # it has ended
        env = files.json_object(rundir.ORDERS, at).get("env")
        ranks = env.get("UNIDLE_RANKS", "") if isinstance(env, dict) else ""
        own.mkdir(parents=True, exist_ok=True)
        rundir.write_json(str(own / rundir.ORDERS), {"env": {"UNIDLE_RANKS": str(ranks)[:16]}})
        rundir.write_json(str(own / rundir.SUPERVISOR), {"pid": supervisor, "ticks": told["ticks"]})
        mark = {"k": "spawn", "t": spawn.get("t", 0), "pid": pid, "ticks": spawn["ticks"]}
        (own / rundir.JOURNAL).write_text(json.dumps(mark) + "\n")

    def _forget_others(self) -> None:
        """Remove copies for jobs that have no pod here any more."""
        jobs = {pod.job for pod in self._known.values()}
        for entry in list(self._root.iterdir()):
            if entry.name not in jobs:
                shutil.rmtree(entry, ignore_errors=True)


def _spawned(at: int) -> dict[str, Any] | None:
    """The mark of the start in a rank's journal; None while there is none."""
    try:
        lines: Iterable[bytes] = files.head(rundir.JOURNAL, at).split(b"\n")[:-1]
    except OSError:
        return None
    for line in lines:
        if b'"spawn"' not in line:
            continue
        try:
            mark = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(mark, dict) and mark.get("k") == "spawn" and _is_process(mark):
            return mark
    return None


def _is_process(told: dict[str, Any]) -> bool:
    """Whether it names a process: number and start time."""
    return all(isinstance(told.get(name), int) and told[name] > 0 for name in ("pid", "ticks"))
