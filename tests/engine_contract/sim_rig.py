"""The simulated engine for the contract: what gangs do is a model, and the engine outlives its controllers."""

from __future__ import annotations

from pathlib import Path

from engine_contract.rigs import FAILED, Behaviour, EngineRig, S, fleet_of
from unidle.clock import VirtualClock
from unidle.engine.protocol import StartGang
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import SimJob
from unidle.jobs import JobSpec

_JOBS = {
    "finish": SimJob(S // 10),
    "fail": SimJob(300 * S, fails={1: (1, S // 10, FAILED)}),
    "run": SimJob(300 * S, measurable=False),
    "wakes": SimJob(300 * S, quiet_ns=60 * S),
    "stubborn": SimJob(300 * S, stop_ns=600 * S),
}


class SimRig(EngineRig):
    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.clock = VirtualClock(S)
        self.engine: SimEngine = SimEngine(
            fleet_of(), self.clock, lambda command: _JOBS[command.spec.command[0]]
        )

    def spec(self, behaviour: Behaviour, ranks: int) -> JobSpec:
        return JobSpec((behaviour,), ranks=ranks)

    def new_engine(self, *, ahead_ns: int = 0) -> SimEngine:
        self.clock.advance_to(self.clock.now_ns() + ahead_ns)
        return self.engine

    def begun(self, command: StartGang, rank: int) -> int:
        gang = next(gang for gang in self.followed if gang.command == command)
        return sum(mark.k == "spawn" for mark in gang.marks[rank])

    def wake(self) -> None:
        self.clock.advance_to(self.clock.now_ns() + 60 * S)

    def pump(self) -> None:
        for seen in self.engine.poll():
            self.hand_over(seen)
        self.engine.wait(self.clock.now_ns() + S)

    def close(self) -> None:
        self.engine.close()
