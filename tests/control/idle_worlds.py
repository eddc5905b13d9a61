"""A controller on simulated gangs that may fall quiet, with fleets and jobs as their files say them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from unidle.clock import VirtualClock
from unidle.control.loop import Controller
from unidle.control.services import ControllerTiming
from unidle.engine.protocol import StartGang
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import SimJob
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.ledger.columns import rows as part_rows
from unidle.ledger.current import check_batches
from unidle.ledger.export import standing_rows
from unidle.place.policy import Unidle
from unidle.store.memory import MemoryStore
from unidle.view.jobs import JobView
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source

S = 1_000_000_000
SECONDS = ("work", "startup", "step", "checkpoint", "restore", "stop", "quiet_at", "quiet")


class IdleWorld:
    """``fleet``: fields of a fleet file. ``jobs``: name -> fields of a job file, and ``does``: a ``SimJob`` in seconds
    (``fails``: attempt -> [rank, after so many, exit code])."""

    def __init__(self, fleet: dict[str, Any], jobs: dict[str, dict[str, Any]]) -> None:
        self.jobs = jobs
        self.clock = VirtualClock(1)
        self.engine = SimEngine(fleet_from_mapping(fleet, "scenario"), self.clock, self._workload)
        self.store = MemoryStore()
        self.take_up()

    def take_up(self) -> None:
        self.lease = self.store.acquire("test")
        self.controller = Controller(
            self.store,
            self.lease,
            self.engine,
            Unidle(),
            self.clock,
            timing=ControllerTiming(inbox_every_ns=None),
        )
        self.controller.start("test")

    def kill(self) -> None:
        """As by ``kill -9``: nothing is said, and the next one may take over."""
        self.store.release(self.lease)

    def submit(self, name: str) -> None:
        fields = {key: value for key, value in self.jobs[name].items() if key != "does"}
        spec = job_from_mapping({"command": ["train"], "name": name, **fields}, name, ".")
        self.controller.submit(name, spec)

    def until(self, at_s: float) -> None:
        end_ns = 1 + int(at_s * S)
        while True:
            wake_ns = self.controller.turn()
            if self.clock.now_ns() >= end_ns:
                return
            self.engine.wait(end_ns if wake_ns is None else min(wake_ns, end_ns))

    def job(self, name: str) -> JobView:
        return self.controller.view.jobs[name]

    def logged(self, kind: str) -> int:
        return Counter(event.kind for event in self.store.read())[kind]

    def ledger_s(self, job: str) -> dict[str, float]:
        """Device-seconds of the job by leaf; the whole ledger has to add up."""
        view = load_view(self.store)
        source = ledger_source(self.store, view)
        assert check_batches(source.batches(source.extent())) == []
        totals: dict[str, float] = {}
        for part in standing_rows(source):
            for row in part_rows(part):
                if row.job == job:
                    totals[row.leaf] = totals.get(row.leaf, 0) + (row.end_ns - row.start_ns) / S
        return totals

    def _workload(self, command: StartGang) -> SimJob:
        does = dict(self.jobs[command.job]["does"])
        times = {f"{name}_ns": int(does.pop(f"{name}_s") * S) for name in SECONDS if f"{name}_s" in does}
        fails = {
            k: (rank, int(after_s * S), code) for k, (rank, after_s, code) in does.pop("fails", {}).items()
        }
        return SimJob(**times, **does, fails=fails)
