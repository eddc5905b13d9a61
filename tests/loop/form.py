"""The form of a scenario of the whole loop: YAML in, a :class:`Scene` or one loud error out (see ``tests/scenarios``)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from unidle.engine.sim.workload import SimJob
from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.fleet import Fleet
from unidle.jobs import JobSpec
from unidle.place.scheduler import Scheduler
from unidle.view.placement_input import view_of

S = 1_000_000_000
CAPABILITIES = range(1, 16)


class FailPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rank fails by itself, ``after_s`` after the start of the attempt."""

    after_s: float
    rank: int = 0
    code: int = 1


class SimPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a job is submitted, and what it truly does, which no policy knows."""

    job: str
    submit_s: float = 0
    copies: int | None = None  # name0, name1, ...
    work_s: float
    startup_s: float = 0
    step_s: float = 0
    checkpoint_every: int = 0
    checkpoint_s: float = 0
    restore_s: float = 0
    stop_s: float = 0
    saves_on_stop: bool = False
    comm_ppm: int = 0
    fails: dict[int, FailPart] = {}  # by attempt

    def behaviour(self) -> SimJob:
        fails = {k: (f.rank, _ns(f.after_s), f.code) for k, f in self.fails.items()}
        return SimJob(
            _ns(self.work_s), _ns(self.startup_s), _ns(self.step_s), self.checkpoint_every, fails or None,
            _ns(self.checkpoint_s), _ns(self.restore_s), _ns(self.stop_s), self.saves_on_stop, 1, self.comm_ppm,
        )  # fmt: skip


class EventPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens from outside. Exactly one of ``fail``, ``cancel`` and ``controller``."""

    at_s: float
    fail: str | None = None  # a node, repaired at until_s
    until_s: float | None = None
    cancel: str | None = None
    by: str = "ann"
    controller: str | None = None  # killed: another one takes the store up at once


class RunsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a job runs, as far as the scenario says it."""

    within: str | None = None  # a tier or a node, that holds all ranks
    ranks: list[str] | None = None  # the node of each
    nodes: dict[str, int] | None = None  # ranks by node
    devices: list[str] | None = None  # slices, in rank order
    models: list[str] | None = None  # of its devices, sorted, each once
    attempt: int | None = None
    code: str | None = None  # of the reason
    says: str | None = None  # a part of it
    figures: dict[str, int | float | str] = {}


class WaitsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why a job waits: what the log says, and (``now``) what ``unidle explain`` says of this moment."""

    code: str | None = None
    says: str | None = None
    figures: dict[str, int | float | str] = {}
    planned_s: float | None = None  # the queue's plan
    expected_s: float | None = None  # what the user is told
    now: str | None = None
    now_says: str | None = None
    now_figures: dict[str, int | float | str] = {}
    ahead: int | None = None


class EndPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a job stands when nothing happens any more."""

    state: str = "succeeded"
    attempts: int | None = None
    started_s: float | None = None  # the first attempt
    ended_s: float | None = None
    code: str | None = None
    says: str | None = None


class Moment(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be seen at ``at_s``, when all that happens then has happened."""

    at_s: float
    started: list[str] | None = None  # since the last moment, sorted by name
    stopped: dict[str, list[str]] | None = None  # since the last moment, by the job that they made room for
    runs: dict[str, str | list[str] | RunsPart] = {}
    waits: dict[str, str | WaitsPart] = {}
    ended: dict[str, str] = {}
    queues: dict[str, dict[str, float]] = {}  # amounts of GPUs, or of the resource in ``of``
    of: str = "gpu"
    kept: dict[str, dict[str, int]] | None = None  # devices held by node, by waiting job
    down: list[str] | None = None
    free: int | None = None  # slices of any kind


class SceneFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of ``tests/scenarios/loop``."""

    capability: int | list[int]
    about: str
    start: dt.datetime = dt.datetime(2026, 1, 5, tzinfo=dt.UTC)  # a Monday
    store: str = "memory"
    fleet: dict[str, Any]
    defaults: dict[str, Any] = {}  # of the jobs below
    jobs: list[dict[str, Any]]
    events: list[EventPart] = []
    expected: list[Moment]
    ends: dict[str, str | EndPart] = {}  # jobs that are not named have to succeed
    until_s: float = 30 * 86_400


class Job(Struct, frozen=True):
    """A job of a scene: when it comes, what it asks for, what it does."""

    id: str
    at_ns: int
    spec: JobSpec
    behaviour: SimJob


class Scene(Struct, frozen=True):
    """A scenario that was read and makes sense."""

    name: str
    file: SceneFile
    fleet: Fleet
    start_ns: int
    jobs: list[Job]

    def ns(self, at_s: float) -> int:
        return self.start_ns + _ns(at_s)

    def s(self, at_ns: int) -> float:
        return (at_ns - self.start_ns) / S


class BadScene(ValueError):
    """The scenario is not well formed: this is a mistake in the file, not in the product."""


def load_scene(path: Path) -> Scene:
    """The scenario of one YAML file. :class:`BadScene` names the file and the field."""
    return scene_of(yaml.safe_load(path.read_text()), path.stem)


def scene_of(data: Any, name: str) -> Scene:
    try:
        file = msgspec.convert(data, SceneFile)
        fleet = fleet_from_mapping(file.fleet, f"{name}: fleet")
        jobs = [job for given in file.jobs for job in _jobs({**file.defaults, **given}, file, name)]
        for job in jobs[:1]:  # what only all queues together can break
            Scheduler().ever(view_of(fleet), job.spec)
    except (msgspec.ValidationError, BadInput) as error:
        raise BadScene(f"{name}: {error}") from error
    scene = Scene(name, file, fleet, int(file.start.timestamp()) * S, jobs)
    scene.jobs[:] = [
        Job(job.id, scene.start_ns + job.at_ns, job.spec, job.behaviour)
        for job in sorted(jobs, key=lambda job: job.at_ns)
    ]
    for problem in _problems(scene):
        raise BadScene(f"{name}: {problem}")
    return scene


def _jobs(given: dict[str, Any], file: SceneFile, name: str) -> list[Job]:
    ours = {key: value for key, value in given.items() if key in SimPart.__struct_fields__}
    theirs = {key: value for key, value in given.items() if key not in ours}
    sim = msgspec.convert(ours, SimPart)
    names = [sim.job] if sim.copies is None else [f"{sim.job}{k}" for k in range(sim.copies)]
    fields: dict[str, Any] = {"command": ["train"], "user": "ann", **theirs}
    return [
        Job(
            id_,
            _ns(sim.submit_s),
            job_from_mapping({"name": id_, **fields}, f"{name}: job {id_}", "/"),
            sim.behaviour(),
        )
        for id_ in names
    ]


def _problems(scene: Scene) -> list[str]:
    """What the parts say that does not fit together."""
    file, found = scene.file, []
    names, nodes = {job.id for job in scene.jobs}, {node.id for node in scene.fleet.nodes}
    places = nodes | {tier.id for tier in scene.fleet.tiers}
    given = file.capability if isinstance(file.capability, list) else [file.capability]
    found += [f"there is no capability {k}" for k in given if k not in CAPABILITIES]
    if len(names) < len(scene.jobs):
        found.append("two jobs have the same name")
    if file.store not in ("memory", "sqlite"):
        found.append(f"store is memory or sqlite, not {file.store}")
    if [m.at_s for m in file.expected] != sorted({m.at_s for m in file.expected}):
        found.append("expected goes by time, one entry each")
    if not file.expected:
        found.append("nothing is expected")
    for event in file.events:
        found += _problems_of(event, names, nodes)
    for moment in file.expected:
        told = {*(moment.started or ()), *(moment.stopped or ()), *moment.runs, *moment.waits, *moment.ended}
        told |= {victim for victims in (moment.stopped or {}).values() for victim in victims}
        told |= set(moment.kept or ())
        found += [f"at {moment.at_s}: there is no job {job}" for job in sorted(told - names)]
        where = {w for part in moment.runs.values() for w in _places(part)} | set(moment.down or ())
        found += [f"at {moment.at_s}: there is no node or tier {w}" for w in sorted(where - places)]
        queues = set(moment.queues) - {queue.name for queue in scene.fleet.queues}
        found += [f"at {moment.at_s}: there is no queue {queue}" for queue in sorted(queues)]
        if moment == Moment(at_s=moment.at_s):
            found.append(f"at {moment.at_s}: nothing is expected")
    found += [f"ends: there is no job {job}" for job in sorted(set(file.ends) - names)]
    return found


def _problems_of(event: EventPart, jobs: set[str], nodes: set[str]) -> list[str]:
    given = [what for what in ("fail", "cancel", "controller") if getattr(event, what) is not None]
    if len(given) != 1:
        return [f"the event at {event.at_s} is to be one of fail, cancel, controller; it is {given}"]
    if event.fail is not None and event.fail not in nodes:
        return [f"there is no node {event.fail}"]
    if event.cancel is not None and event.cancel not in jobs:
        return [f"there is no job {event.cancel}"]
    if event.controller not in (None, "killed"):
        return [f"a controller is killed, not {event.controller}"]
    if event.until_s is not None and (event.fail is None or event.until_s <= event.at_s):
        return [f"until_s belongs to fail and is later than {event.at_s}"]
    return []


def _places(part: str | list[str] | RunsPart) -> list[str]:
    if isinstance(part, RunsPart):
        return [*(part.ranks or ()), *(part.nodes or ()), *([part.within] if part.within else ())]
    return [part] if isinstance(part, str) else part


def _ns(seconds: float) -> int:
    return round(seconds * S)
