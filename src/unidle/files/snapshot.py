"""Snapshots of the input of a placement decision: one JSON object per line, so that errors have a line.

The first line names the format, the second has the fleet, then one line per job that has not ended, in
the order of submission, and a last line with their number, so that a torn file is noticed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final, TypeVar

import msgspec

from unidle.errors import BadInput
from unidle.fleet import CutMode, Fleet, Health
from unidle.jobs import JobSpec, RankPlace
from unidle.jobs.speeds import Speeds
from unidle.jobs.state import StopWhy

FORMAT: Final = "unidle-snapshot"
VERSION: Final = 3
OLDEST: Final = 2
"""Version 2 has no ``pairs``: decisions were made without them."""
_LONGEST_LINE: Final = 512 << 20
_T = TypeVar("_T")


class AttemptState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt of a job: where, since when, when its first step began and when it last saved its work.

    ``stop``: why it is to be stopped, and for which job. One that has ended keeps its places only where the job
    may come back to them.
    """

    placed_ns: int
    places: tuple[RankPlace, ...] = ()
    begun_ns: int | None = None
    saved_ns: int | None = None
    stop: StopWhy | None = None
    stop_ns: int | None = None
    stop_for: str | None = None
    ended_ns: int | None = None


class DevicesHeld(msgspec.Struct, frozen=True):
    """Devices of a kind, by node, that are kept for a waiting job."""

    kind: str
    devices: dict[str, int]
    expires_ns: int


class RunTime(msgspec.Struct, frozen=True):
    """How long a job was predicted to run, with bounds of probability ``level_ppm``."""

    value_ns: int
    low_ns: int
    high_ns: int
    level_ppm: int
    by: str


class OpenJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that has not ended; one without ``holds`` waits (``not_before_ns``: at least so long).

    ``past`` are its last attempts before, the latest at the end.
    """

    job: str
    spec: JobSpec
    submitted_ns: int
    waiting_since_ns: int = 0
    not_before_ns: int = 0
    holds: AttemptState | None = None
    kept: DevicesHeld | None = None
    run_time: RunTime | None = None
    past: tuple[AttemptState, ...] = ()


class RunTimes(msgspec.Struct, frozen=True):
    """How long the latest jobs of one user and name (None: of any) took, in the order in which they ended."""

    user: str
    name: str | None
    durations_ns: tuple[int, ...]


class Pair(msgspec.Struct, frozen=True):
    """How much slower work of one name was when it shared with another on a device cut by ``mode``: the sum of ``times`` looks."""

    mode: CutMode
    load: str
    other: str
    total_ppm: Annotated[int, msgspec.Meta(ge=0)]
    times: Annotated[int, msgspec.Meta(ge=1)]


class PlacementSnapshot(msgspec.Struct, frozen=True):
    """``policy`` is the one that decides, empty for the usual one; ``history`` the run times that it uses.

    ``past_ppb``: what queues used on average, by resource; ``speeds``: steps that jobs showed; ``pairs``: what work
    that shared a device did to each other, the one that was seen last at the end.
    """

    time_ns: int
    fleet: Fleet
    health: dict[str, Health]
    jobs: tuple[OpenJob, ...]
    policy: str = ""
    history: tuple[RunTimes, ...] = ()
    past_ppb: dict[str, dict[str, int]] = {}
    speeds: Speeds = {}
    pairs: tuple[Pair, ...] = ()


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int
    time_ns: int = 0


class _FleetLine(msgspec.Struct, frozen=True, omit_defaults=True):
    fleet: Fleet
    health: dict[str, Health]
    policy: str = ""
    history: tuple[RunTimes, ...] = ()
    past_ppb: dict[str, dict[str, int]] = {}
    speeds: Speeds = {}
    pairs: tuple[Pair, ...] = ()


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    jobs: int


def write_snapshot(snapshot: PlacementSnapshot, out: BinaryIO) -> None:
    out.writelines(msgspec.json.encode(line) + b"\n" for line in _lines(snapshot))


def _lines(snapshot: PlacementSnapshot) -> Iterator[object]:
    yield _Header(FORMAT, VERSION, snapshot.time_ns)
    yield _FleetLine(
        snapshot.fleet,
        snapshot.health,
        snapshot.policy,
        snapshot.history,
        snapshot.past_ppb,
        snapshot.speeds,
        snapshot.pairs,
    )
    yield from snapshot.jobs
    yield _End(len(snapshot.jobs))


def load_snapshot(path: str | os.PathLike[str]) -> PlacementSnapshot:
    """Read what :func:`write_snapshot` wrote. :class:`BadInput` names file, line, field and remedy."""
    try:
        with Path(path).open("rb") as file:
            return _Reader(os.fspath(path), iter(lambda: file.readline(_LONGEST_LINE), b"")).read()
    except OSError as error:
        raise BadInput(
            f"the snapshot cannot be read: {error.strerror}", field=os.fspath(path),
            remedy="`unidle fleet snapshot > FILE` writes one",
        ) from None  # fmt: skip


class _Reader:
    def __init__(self, name: str, lines: Iterable[bytes]) -> None:
        self._name, self._lines, self._number = name, iter(lines), 0

    def read(self) -> PlacementSnapshot:
        header = self._next(_Header)
        if header.format != FORMAT:
            raise self._bad("is not a snapshot", "format", header.format)
        if not OLDEST <= header.version <= VERSION:
            age = "a newer" if header.version > VERSION else "an older"
            remedy = f"this unidle reads versions {OLDEST} to {VERSION}: {'upgrade it' if age == 'a newer' else 'take the snapshot again'}"
            raise self._bad(f"a snapshot of {age} version", "version", header.version, remedy)
        fleet = self._next(_FleetLine)
        jobs: list[OpenJob] = []
        decode = msgspec.json.Decoder(OpenJob)
        for line in self._lines:
            self._number += 1
            if line.startswith(b'{"jobs":'):
                if self._decoded(msgspec.json.Decoder(_End), line).jobs != len(jobs):
                    raise self._bad("the snapshot has lost lines", "jobs", len(jobs))
                return PlacementSnapshot(
                    header.time_ns,
                    fleet.fleet,
                    fleet.health,
                    tuple(jobs),
                    fleet.policy,
                    fleet.history,
                    fleet.past_ppb,
                    fleet.speeds,
                    fleet.pairs,
                )
            jobs.append(self._checked(self._decoded(decode, line), fleet.fleet, jobs))
        raise self._bad("the snapshot ends too early", "jobs", len(jobs))

    def _checked(self, job: OpenJob, fleet: Fleet, before: list[OpenJob]) -> OpenJob:
        if not before:
            self._slices = {piece.id for piece in fleet.slices()}
            self._nodes = {node.id for node in fleet.nodes}
            self._known = frozenset(self._slices)
            self._jobs: set[str] = set()
        if job.job in self._jobs:
            raise self._bad("the job is there twice", "job", job.job)
        self._jobs.add(job.job)
        strange = next(
            (node for node in (job.kept.devices if job.kept else ()) if node not in self._nodes), None
        )
        if strange is not None:
            raise self._bad("is not a node of the fleet", "kept.devices", strange)
        places = job.holds.places if job.holds is not None else ()
        for slice_id in (s for place in places for s in place.slices):
            if slice_id not in self._slices:
                raise self._bad("is not in the fleet, or held twice", "holds.places", slice_id)
            self._slices.discard(slice_id)
        for slice_id in (s for attempt in job.past for place in attempt.places for s in place.slices):
            if slice_id not in self._known:
                raise self._bad("is not in the fleet", "past.places", slice_id)
        if any(attempt.ended_ns is None for attempt in job.past):
            raise self._bad("an attempt of the past has no end", "past.ended_ns", job.job)
        return job

    def _next(self, kind: type[_T]) -> _T:
        self._number += 1
        return self._decoded(msgspec.json.Decoder(kind), next(self._lines, b""))

    def _decoded(self, decoder: msgspec.json.Decoder[_T], line: bytes) -> _T:
        try:
            return decoder.decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
            text, _, at = str(error).partition(" - at `")
            raise self._bad(f"cannot be read: {text}", at.rstrip("`").lstrip("$.") or None) from None

    def _bad(
        self, problem: str, field: str | None, value: object = None, remedy: str = "take the snapshot again"
    ) -> BadInput:
        where = f"{self._name}: line {self._number}" + (f": {field}" if field else "")
        return BadInput(problem, field=where, value=value, remedy=remedy)
