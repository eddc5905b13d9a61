"""The gang of a run on this machine: an ordinary job of the local engine, with its log, ledger and restarts."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from unidle.atomic import replaced
from unidle.control.job_ids import new_job_id
from unidle.control.session import ControllerSession, take_up
from unidle.control.store_files import run_root
from unidle.engine.local.engine import LocalEngine
from unidle.errors import CannotRun
from unidle.files.fleet import fleet_from_mapping
from unidle.jobs import JobSpec
from unidle.jobs.restart import Restart, RestartPolicy
from unidle.span.rank.member import AGAIN
from unidle.span.run.hosts import RunHosts
from unidle.store.open import open_store
from unidle.store.protocol import Store
from unidle.view.jobs import JobView

_GUARD: Final = {"preflight": "off", "suspect": "1s", "probation": "1s", "out": {"nodes": 0}}
"""A dead rank is no evidence about its node: devices of one machine represent several nodes.

Faults are reported, but no node is taken out: the site has no other one. All sites would wait until it is returned, since its
launcher is there. A rank that cannot run fails, and the coordinator decides what follows.
"""

_MEMBER: Final = "unidle.span.rank.member"
_MEMBERS: Final = frozenset({_MEMBER, "unidle.rank.span_member"})  # and its former name
_GRACE_S: Final = 5.0
_RESTARTS: Final = 1000  # the coordinator ends a run that gets nowhere
_IMPORTS: Final = ("torch", "torch.fx.experimental.symbolic_shapes")
_BY_OPTIMIZERS: Final = ("torch._dynamo",)  # when one of PyTorch's is made
_KILLED: Final = (128 + 9, 128 + 15, 128 + 6, 128 + 11, 128 + 7)


@dataclass(slots=True)
class SpanGang:
    """The job while it runs. ``place``: the run's directory, from which its members take their plans."""

    session: ControllerSession
    store: Store
    job: str
    place: Path
    runs: Path

    def run(self, turn: Callable[[JobView], bool]) -> JobView:
        """Run the controller until ``turn`` returns True. It is called many times a second."""
        controller = self.session.controller
        controller.run(lambda: turn(controller.view.jobs[self.job]))
        return controller.view.jobs[self.job]

    def write_plan(self, attempt: int, plan: dict[str, Any]) -> Path:
        """Where the members of an attempt wait for it."""
        (self.place / f"out-{attempt}").mkdir(exist_ok=True)
        path = self.place / f"plan-{attempt}.json"
        _whole(path, json.dumps(plan))
        return path

    def stop_attempt(self, attempt: int) -> None:
        """All ranks leave; another attempt follows."""
        (self.place / f"stop-{attempt}").touch()

    def over(self) -> None:
        """Members that stand by leave."""
        (self.place / "over").touch()

    def cancel(self, by: str, *, at_once: bool = False) -> None:
        self.over()
        self.session.controller.cancel(self.job, by)
        if at_once:
            self.session.controller.kill(self.job)

    def said(self, attempt: int, rank: int) -> str:
        """The last line that a rank printed, where it printed any."""
        path = self.runs / self.job / str(attempt) / str(rank) / "log"
        for each in (path, *sorted(path.parent.glob("*log*"))):
            if each.is_file() and (lines := each.read_text(errors="replace").strip().splitlines()):
                return lines[-1]
        return ""


@contextmanager
def gang_of(
    hosts: RunHosts, name: str, store_path: str, data_dir: Path, optimizer: str, secret: str = ""
) -> Iterator[SpanGang]:
    """The job of all devices that this machine starts, submitted; nothing of it runs when the block ends.

    Its ranks are forked from one Python that has imported PyTorch, and what making the ``optimizer`` imports.

    Errors: :class:`unidle.errors.StoreHeld`, :class:`CannotRun`.
    """
    fleet = fleet_from_mapping({"nodes": list(hosts.nodes), "guard": _GUARD}, "span")
    imports = _IMPORTS if ".py:" in optimizer else (*_IMPORTS, *_BY_OPTIMIZERS)
    Path(store_path).absolute().parent.mkdir(parents=True, exist_ok=True)
    store = open_store(store_path, create=True)
    try:
        with take_up(store, fleet, data_dir, "unidle span run") as session:
            assert isinstance(session.engine, LocalEngine)
            session.engine.import_once(imports)
            _end_those_left(session)
            job = new_job_id(name)
            place = run_root(store, data_dir).parent / "span" / job
            place.mkdir(parents=True, mode=0o700)
            _secret(place, secret or secrets.token_hex(32))
            session.controller.submit(job, _spec(hosts, name, place))
            gang = SpanGang(session, store, job, place, run_root(store, data_dir))
            try:
                yield gang
            finally:
                (place / "secret").unlink(missing_ok=True)
                _end(gang)
    finally:
        store.close()


def _spec(hosts: RunHosts, name: str, place: Path) -> JobSpec:
    restart = Restart(
        max=_RESTARTS, backoff_s=0.0, on=(AGAIN, *_KILLED, "signal", "lost"), warm=True,
        policies=(RestartPolicy("hang", "requeue", max=_RESTARTS),),
    )  # fmt: skip
    path = [str(Path(part).absolute()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    env = {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": os.pathsep.join(path)} if path else {})
    command = (sys.executable, "-P", "-m", _MEMBER, str(place))
    return JobSpec(
        command, name, workdir=str(place), env=env, ranks=len(hosts.nodes), restart=restart, grace_s=_GRACE_S
    )


def _end(gang: SpanGang) -> None:
    """End the job, also when the block failed: without its launcher, a rank would train to no purpose."""
    view = gang.session.controller.view.jobs[gang.job]
    if view.terminal:
        return
    gang.over()
    _end_jobs(gang.session, [gang.job])


def _end_those_left(session: ControllerSession) -> None:
    """End the jobs of launchers that were killed: they would get no more plans, and they hold the devices."""
    jobs = session.controller.view.jobs.values()
    _end_jobs(
        session, [job.id for job in jobs if not job.terminal and not _MEMBERS.isdisjoint(job.spec.command)]
    )


def _end_jobs(session: ControllerSession, jobs: Sequence[str]) -> None:
    controller = session.controller
    for job in jobs:
        controller.cancel(job, "unidle span run")
        controller.kill(job)
    if jobs:
        controller.run(lambda: all(controller.view.jobs[job].terminal for job in jobs))


def _secret(place: Path, secret: str) -> None:
    fd = os.open(place / "secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as stream:
        stream.write(secret)


def _whole(path: Path, text: str) -> None:
    try:
        with replaced(path, 0o666, umask=True) as file:
            file.write(text.encode())
    except OSError as error:
        raise CannotRun(
            f"the plan cannot be written: {error.strerror}", field=str(path), remedy="free space there"
        ) from error
