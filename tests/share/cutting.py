"""Small worlds with devices that are cut on demand, driven by the real loop on the simulated engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sim.worlds import S
from unidle.control.replay.simulate import Arrival, SimulationOptions, simulate
from unidle.engine.protocol import StartGang
from unidle.engine.sim.workload import SimJob
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.fleet import WHOLE_PPM, Fleet, device_of
from unidle.ledger.current import check_batches
from unidle.place.policy import Unidle
from unidle.place.snapshot import snapshot_of
from unidle.share.mig_models import Instance, model_of
from unidle.store.memory import MemoryStore
from unidle.view.fold import apply
from unidle.view.source import ledger_source
from unidle.view.state import View


@dataclass(frozen=True)
class World:
    """A fleet, jobs with what they truly do, and faults of nodes. Times in seconds from the start."""

    fleet: Fleet
    arrivals: tuple[Arrival, ...]
    work: dict[str, SimJob]
    faults: tuple[tuple[int, str, int], ...] = field(default=())

    @classmethod
    def of(cls, scenario: dict[str, Any]) -> World:
        arrivals, work = [], {}
        for name, given in scenario["jobs"].items():
            data = {k: v for k, v in given.items() if k not in ("at", "work", "step")}
            spec = job_from_mapping({"command": ["x"], "name": name, "user": "u", **data}, name, ".")
            arrivals.append(Arrival(ns(given["at"]), name, spec))
            work[name] = SimJob(int(given["work"] * S), step_ns=int(given.get("step", 0) * S))
        faults = tuple((ns(at), node, ns(until)) for at, node, until in scenario.get("faults", ()))
        return cls(fleet_from_mapping(scenario["fleet"], "fleet"), tuple(arrivals), work, faults)

    def workload(self, command: StartGang) -> SimJob:
        return self.work[command.job]


class Told(NamedTuple):
    """Where a job runs (device and mode of each rank), or the code and the words of why it waits."""

    runs: list[tuple[str, str]]
    code: str = ""
    text: str = ""


def ns(seconds: float) -> int:
    return 1 + int(seconds * S)


def run(world: World, until_s: float | None = None) -> tuple[MemoryStore, View]:
    """Drive the world to a time, or to its end."""
    store = MemoryStore()
    until_ns = None if until_s is None else ns(until_s)
    view = simulate(
        store,
        world.fleet,
        world.arrivals,
        world.workload,
        Unidle(),
        faults=world.faults,
        options=SimulationOptions(until_ns=until_ns),
    )
    return store, view


def told(view: View, name: str) -> Told:
    job = next(job for job in view.jobs.values() if job.spec.name == name)
    if job.live is None:
        verdict = job.verdict or job.because
        return Told([], verdict.code if verdict else "", verdict.text if verdict else "")
    found = []
    for place in job.live.places:
        device = view.cuttable(device_of(place.slices[0]))
        mode = device.cut.mode if device is not None and device.cut is not None else "whole"
        found.append((device_of(place.slices[0]), mode))
    return Told(found)


def used_by(view: View) -> dict[str, int]:
    """Thousandths of devices that each queue uses."""
    return {share.queue: sum(share.used) for share in snapshot_of(view, view.time_ns).shares.report()}


def check_ledger(store: MemoryStore) -> None:
    """Every slice's time has one cause at each time, and every device's time is that of its slices."""
    view = refolded(store)
    source = ledger_source(store, view)
    assert check_batches(source.batches(source.extent())) == []
    by_device: dict[str, list[tuple[int, int, int]]] = {}
    for ref in view.book.slices:
        last_ns = view.time_ns if ref.gone_ns is None else ref.gone_ns
        by_device.setdefault(ref.device, []).append((ref.first_ns, last_ns, ref.share_ppm))
    for device, spans in by_device.items():
        for at in sorted({t for first, last, _ in spans for t in (first, last)})[:-1]:
            assert sum(ppm for first, last, ppm in spans if first <= at < last) == WHOLE_PPM, (device, at)


def refolded(store: MemoryStore) -> View:
    """The view told again event by event; after each of them no device is over what may be promised."""
    from unidle.events import types as ev

    view = View()
    for stored in store.read():
        apply(view, ev.decode(stored.kind, stored.body, stored.seq), stored.seq, stored.time_ns)
        check_devices(view)
    return view


def check_devices(view: View) -> None:
    """What holds of every device at any time, from the view alone."""
    held: dict[str, str] = {}
    for job_id in view.live:
        attempt = view.jobs.open[job_id].attempts[-1]
        for place in (
            attempt.places if attempt.yielded_ns is None else ()
        ):  # a filler that leaves holds nothing
            for slice_id in place.slices:
                assert slice_id not in held, f"{slice_id} is held twice"
                held[slice_id] = job_id
    for device in view.fleet.devices():
        if device.sharing is None or device.cut is None:
            continue
        parts, sharing = device.cut.parts, device.sharing
        assert sum(part.share_ppm for part in parts) == WHOLE_PPM
        assert all(part.share_ppm > 0 for part in parts)
        assert len({part.name for part in parts}) == len(parts)
        assert sum(not part.job for part in parts) <= 1, "more than one rest"
        assert device.cut.mode in sharing.modes
        for part in parts:
            holder = held.get(f"{device.id}#{part.name}")
            assert holder is None or holder == part.job
        compute, memory = sum(p.compute_ppm for p in parts), sum(p.memory_bytes for p in parts)
        assert compute <= (WHOLE_PPM if device.cut.mode == "mig" else sharing.compute_ppm)
        assert memory * WHOLE_PPM <= sharing.memory_ppm * device.memory_bytes
        if device.cut.mode == "mig":
            _check_instances(
                device.model, device.memory_bytes, [(p.profile, p.start) for p in parts if p.job]
            )


def _check_instances(name: str, memory_bytes: int, found: list[tuple[str, int]]) -> None:
    model = model_of(name, memory_bytes)
    assert model is not None
    taken = 0
    for profile, start in found:
        assert start in model.profile(profile).starts
        mask = model.mask(Instance(profile, start))
        assert not taken & mask, "two instances on one memory slice"
        taken |= mask
