"""A profile of ranks on hosts: their agents make one each, at the same time; here they become one."""

from __future__ import annotations

import base64
import gzip
import io
import secrets
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from unidle import wire
from unidle.errors import BadInput, CannotRun

if TYPE_CHECKING:
    from unidle.api.open_hosts import HostsOfStore
    from unidle.scope.model import Profile
    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView

LONGEST_S: Final = 3600.0
_PAUSE_S: Final = 0.2
_AFTER_S: Final = 150.0  # for the start of profilers and their symbols, and for a loaded host
_PART_S: Final = 30.0
_MOST_BYTES: Final = 1 << 30  # of one profile, unpacked


@dataclass(frozen=True, slots=True)
class HostRanks:
    """Ranks of the live attempt of a job, by the host that they are on. ``connect``: to these."""

    connect: Callable[[], HostsOfStore]
    job: str
    attempt: int
    ranks: dict[str, tuple[int, ...]]


def ranks_on_hosts(store: Store, job: JobView, chosen: Sequence[int] | None) -> HostRanks | None:
    """None for a job that runs on this machine, or does not run. Errors: BadInput."""
    from unidle.api.open_hosts import hosts_of_job
    from unidle.api.stores import data_dir
    from unidle.control.store_files import run_root

    connect = None if job.live is None else hosts_of_job(store, run_root(store, data_dir()), job.id)
    if job.live is None or connect is None:
        return None
    places = job.live.places
    for rank in chosen or ():
        if not 0 <= rank < len(places):
            raise BadInput("the job has no such rank", field="--rank", value=rank, remedy=f"0 to {len(places) - 1}")  # fmt: skip
    found: dict[str, list[int]] = {}
    for rank in range(len(places)) if chosen is None else chosen:
        found.setdefault(places[rank].node, []).append(rank)
    return HostRanks(connect, job.id, job.live.number, {node: tuple(ranks) for node, ranks in found.items()})


def look_on_hosts(
    wanted: HostRanks, seconds: float, goes_on: Callable[[], bool] = lambda: True, *, follow: bool = True, **how: Any
) -> Profile:  # fmt: skip
    """Samples of the ranks in that time. Hosts that give none are notes of the profile, unless all of them do.

    Errors: BadInput; CannotRun where no host has a profile, or no controller answers.
    """
    if seconds > LONGEST_S:
        raise BadInput("is longer than a profile of ranks on hosts may be", field="--seconds", value=seconds, remedy=f"at most {LONGEST_S:.0f}")  # fmt: skip
    name = secrets.token_hex(16)
    with wanted.connect() as files:
        asked = {
            node: files.ask(
                node, wire.PROFILE, _order(wanted, name, ranks, seconds, {**how, "follow": follow})
            )
            for node, ranks in wanted.ranks.items()
        }
        found, missing = _collected(files, asked, name, seconds, goes_on)
    if not found:
        node, why = next(iter(missing.items()))
        raise CannotRun(f"host {node}: {why}", field="JOB", value=wanted.job, remedy="`unidle doctor` on the host shows what profiling needs")  # fmt: skip
    return _together(found, missing, wanted.job)


def _order(
    wanted: HostRanks, name: str, ranks: tuple[int, ...], seconds: float, how: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name, "job": wanted.job, "attempt": wanted.attempt, "ranks": ranks, "seconds": seconds, "how": how,
        "children": how["follow"],
    }  # fmt: skip


def _collected(
    files: HostsOfStore, asked: dict[str, int], name: str, seconds: float, goes_on: Callable[[], bool]
) -> tuple[dict[str, Profile], dict[str, str]]:
    """Profiles by host, and why others have none."""
    found: dict[str, Profile] = {}
    missing: dict[str, str] = {}
    waiting = dict(asked)
    end_s = time.monotonic() + seconds + _AFTER_S
    ends = False
    while waiting:
        for node, number in list(waiting.items()):
            done = files.answer(number, _PAUSE_S / len(waiting))
            if done is None:
                continue
            del waiting[node]
            try:
                if not done.ok:
                    raise CannotRun(done.why)
                found[node] = _profile(_fetched(files, node, name, done.data.get("size")))
            except (BadInput, CannotRun) as error:
                missing[node] = error.problem
        if not ends and not goes_on():
            ends = True
            end_s = time.monotonic() + _AFTER_S
            for node in waiting:
                files.ask(node, wire.PROFILE, {"name": name, "end": True})
        if time.monotonic() >= end_s:
            missing |= dict.fromkeys(waiting, "it did not answer in time")
            break
    return found, missing


def _fetched(files: HostsOfStore, node: str, name: str, size: object) -> bytes:
    """The file of a host, in parts. Errors: CannotRun."""
    data = b""
    while isinstance(size, int) and len(data) < size:
        done = files.answer(files.ask(node, wire.PROFILE, {"name": name, "offset": len(data)}), _PART_S)
        text = None if done is None or not done.ok else done.data.get("text")
        part = base64.b64decode(text) if isinstance(text, str) else b""
        if not part:
            raise CannotRun(
                "its profile could not be read" if done is None else done.why or "its profile is cut off"
            )
        data += part
    return data


def _profile(data: bytes) -> Profile:
    """Errors: BadInput."""
    from unidle.scope.model import Profile

    try:
        with gzip.open(io.BytesIO(data), "rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BadInput(f"its profile has more than {_MOST_BYTES} bytes")
        told = msgspec.json.decode(content, type=dict[str, Any])
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise BadInput(f"its profile cannot be read: {error}") from error
    return Profile.from_json(told)


def _together(found: dict[str, Profile], missing: dict[str, str], job: str) -> Profile:
    """One profile. All hosts began at the same time, whatever their clocks show; process numbers are moved apart."""
    from unidle.scope.continuous.windows import APART, shifted
    from unidle.scope.merge import merge, renumbered

    profiles = list(found.values())
    begin_ns = profiles[0].start_ns
    moved = []
    for k, one in enumerate(profiles, 1):
        pids = {process.pid for process in one.processes} | {sample.pid for sample in one.samples}
        apart = renumbered(one, {pid: pid + k * APART for pid in pids})
        moved.append(shifted(apart, begin_ns - one.start_ns))
    seen = merge(moved)
    notes = tuple(f"host {node}: {why}" for node, why in missing.items())
    processes = tuple(replace(process, job=process.job or job) for process in seen.processes)
    return replace(
        seen, processes=processes, quality=replace(seen.quality, notes=(*seen.quality.notes, *notes))
    )
