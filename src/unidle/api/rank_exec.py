"""Where a command runs that is to see what a rank sees: on this machine, or in the pod of the rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.errors import BadInput, CannotRun
from unidle.jobs.pod import PodWish

if TYPE_CHECKING:
    from unidle.kube.commands import CommandCalls
    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView

SOURCE: Final = Path(__file__).parents[1] / "engine" / "local" / "ranks" / "run_inside.py"


@dataclass(frozen=True, slots=True)
class Terminal:
    """``tty``: the command gets a terminal. ``size``: rows and columns of it. ``stdin``: whether it gets our input."""

    tty: bool
    stdin: bool
    size: Callable[[], tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class InRank:
    """A command in the live attempt of a job."""

    job: str
    attempt: int
    rank: int
    node: str
    words: tuple[str, ...]
    pod: PodWish | None = None

    @property
    def python(self) -> tuple[str, ...]:
        """The arguments of an interpreter of Python."""
        return ("-c", SOURCE.read_text(), self.job, str(self.attempt), str(self.rank), *self.words)


def in_rank(job: JobView, rank: int, words: tuple[str, ...]) -> InRank:
    """Errors: BadInput for a job that does not run, or has no such rank."""
    live = job.live
    if live is None:
        raise BadInput(
            "does not run now", field="JOB", value=job.id, remedy="`unidle list` shows jobs that do"
        )
    if not 0 <= rank < len(live.places):
        raise BadInput(
            "the job has no such rank", field="--rank", value=rank, remedy=f"0 to {len(live.places) - 1}"
        )
    return InRank(job.id, live.number, rank, live.places[rank].node, words, job.spec.pod)


def run_in_rank(store: Store, wanted: InRank, terminal: Terminal) -> int:
    """The exit code of the command. Errors: CannotRun for a rank on another host; KubeError."""
    from unidle.api.open_hosts import hosts_of
    from unidle.store.cluster import calls_of

    if (calls := calls_of(store)) is not None:
        return _in_pod(calls, wanted, terminal)
    if hosts_of(store) is not None and wanted.node not in (os.uname().nodename, "local"):
        raise CannotRun(
            "the rank is on another host", field="--rank", value=f"{wanted.rank} on {wanted.node}",
            remedy="run the command there, for instance by ssh",
        )  # fmt: skip
    sys.stdout.flush()
    return subprocess.run(
        [sys.executable, "-P", *wanted.python],
        stdin=None if terminal.stdin or terminal.tty else subprocess.DEVNULL,
        check=False,
    ).returncode


def _in_pod(calls: CommandCalls, wanted: InRank, terminal: Terminal) -> int:
    from unidle.engine.kube.manifest import CONTAINER, python_of
    from unidle.kube.exec_stream import STDOUT, ExecOrder, ExecStream

    namespace = str(calls.call("hello")["namespace"])
    order = ExecOrder(
        namespace, _pod_of(calls, namespace, wanted), CONTAINER, (*python_of(wanted.pod), "-I", *wanted.python),
        0 if terminal.stdin or terminal.tty else None, terminal.tty,
    )  # fmt: skip

    def write(stream: int, data: bytes) -> None:
        out = sys.stdout.buffer if stream == STDOUT else sys.stderr.buffer
        out.write(data)
        out.flush()

    return ExecStream(calls.client, order, terminal.size).run(write)


def _pod_of(calls: CommandCalls, namespace: str, wanted: InRank) -> str:
    """The name of the rank's pod. Errors: CannotRun without one."""
    from unidle.engine.kube.manifest import JOB, JOB_NAME, NODE, label_of
    from unidle.kube.objects import PODS
    from unidle.kube.protocol import Selected

    listed = calls.client.list_all(PODS, Selected(namespace, f"{JOB}={label_of(wanted.job)}")).items
    for pod in listed:
        meta = pod.metadata
        if (meta.annotations.get(JOB_NAME), meta.annotations.get(NODE)) == (wanted.job, wanted.node):
            return meta.name
    raise CannotRun(
        "the rank has no pod now", field="--rank", value=wanted.rank, remedy="`unidle explain` shows why"
    )
