"""A training schedule, requests, and what a policy makes of its waits; next to the same training without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from unidle.fill.model.prefill import InferenceModel
from unidle.fill.policy.controller import FillController
from unidle.fill.policy.fit import QueuedPrefill
from unidle.fill.policy.forecast import ForecastError, WaitForecast
from unidle.fill.policy.pipelines import InferencePipeline, pipelines_of
from unidle.fill.policy.requests import Accepted, PrefillRequest
from unidle.fill.simulate.accounts import DeviceAccounts, SpentRow
from unidle.fill.simulate.dedicated import DedicatedPool
from unidle.fill.simulate.events import Events
from unidle.fill.simulate.filler import AHEAD_NS, BubbleFiller
from unidle.fill.simulate.links import LinkRow, handoff_row, link_rows
from unidle.fill.simulate.planned import PlannedWaits, fill_devices, planned_waits
from unidle.fill.simulate.rules import FillPolicy
from unidle.fill.simulate.training import TrainingRun, Unfilled
from unidle.span.simulate.iteration import Simulation

DRAIN = 3  # iterations after the windows that are known, in which accepted prompts may end


@dataclass(frozen=True, slots=True)
class FillSetting:
    """``jitter``: the coefficient of variation of every operation and transfer. ``dedicated_gpus``: for what does not fit."""

    simulation: Simulation
    model: InferenceModel
    requests: tuple[PrefillRequest, ...]
    seconds: float
    jitter: float = 0.0
    seed: int = 0
    dedicated_gpus: int = 0


@dataclass(frozen=True, slots=True)
class FillOutcome:
    """``spent``: nanoseconds of all devices by cause, up to ``end_ns``. ``ttft_ns`` by route; ``late``: accepted and not in time."""

    end_ns: int
    unfilled_end_ns: int
    iterations: int
    spent: dict[str, int]
    unfilled_spent: dict[str, int]
    ttft_ns: tuple[int, ...]
    dedicated_ttft_ns: tuple[int, ...]
    token_ns: tuple[int, ...]
    accepted: int
    spilled: int
    rejected: int
    late: int
    reasons: dict[str, int]
    bubble_ns: int
    pipelines: tuple[InferencePipeline, ...]
    forecast: ForecastError
    rows: tuple[SpentRow, ...]
    links: tuple[LinkRow, ...]

    @property
    def utilisation_before(self) -> float:
        """Forward and backward over the time of all devices, without the filler."""
        return self.unfilled_spent["computation"] / sum(self.unfilled_spent.values())

    @property
    def utilisation_after(self) -> float:
        """The same with useful prefill."""
        return (self.spent["computation"] + self.spent["prefill"]) / sum(self.spent.values())

    @property
    def slowdown_pct(self) -> float:
        """How much longer the same iterations took."""
        return 100 * (self.end_ns / self.unfilled_end_ns - 1) if self.end_ns != self.unfilled_end_ns else 0.0


@dataclass(slots=True)
class _Routes:
    """Which way each request went."""

    pool: DedicatedPool
    accepted: dict[int, PrefillRequest] = field(default_factory=dict)
    served: dict[int, int] = field(default_factory=dict)
    spilled: dict[int, int] = field(default_factory=dict)
    rejected: list[int] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    items: list[tuple[int, QueuedPrefill]] = field(default_factory=list)

    def spill(self, request: PrefillRequest, now_ns: int, reason: str) -> None:
        """To dedicated capacity, if it is in time there."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        end = self.pool.serve(request, now_ns)
        if end is None:
            self.rejected.append(request.number)
        else:
            self.spilled[request.number] = end - request.arrival_ns

    def gone(self, events: Events, request: PrefillRequest) -> None:
        """It was accepted, has not begun, and would be late now."""
        del self.accepted[request.number]
        self.spill(request, events.now_ns, "training changed, and it would have been late")

    def enter(self, row: int, item: QueuedPrefill) -> None:
        """Its first token is made, on that inference pipeline."""
        self.items.append((row, item))
        self.served[item.request.number] = item.first_token_ns - item.request.arrival_ns


def filled(
    setting: FillSetting, policy: FillPolicy, *, rows: bool = False, planned: PlannedWaits | None = None
) -> FillOutcome:
    """Play the training with and without the filler, for whole iterations of at most ``seconds``, one at least.

    ``rows``: keep the timeline. ``planned``: the waits of the schedule where they are known already.
    """
    planned = planned or planned_waits(setting.simulation)
    iterations, unfilled_end, unfilled = _unfilled(setting)
    play = _Play.made(setting, policy, planned, rows=rows)
    end = play.run_through(iterations)
    routes = play.routes
    late = sum(
        request.deadline_ns is not None
        and routes.served.get(number, 1 << 62) > request.deadline_ns - request.arrival_ns
        for number, request in routes.accepted.items()
    )
    by_number = {request.number: request for request in setting.requests}
    answered = [*routes.served, *routes.spilled]
    return FillOutcome(
        end, unfilled_end, iterations, play.accounts.spent, unfilled, tuple(routes.served.values()),
        tuple(routes.spilled.values()), tuple(setting.model.token_ns(by_number[n].tokens) for n in answered),
        len(routes.accepted), len(routes.spilled), len(routes.rejected), late, routes.reasons, unfilled["waits"],
        play.pipelines, play.error, tuple(row for row in play.accounts.rows or () if row.start_ns < end),
        tuple(row for row in play.links(setting) if row.start_ns < end) if rows else (),
    )  # fmt: skip


@dataclass(slots=True)
class _Play:
    """Training and its filler, with one queue of events."""

    events: Events
    accounts: DeviceAccounts
    run: TrainingRun
    routes: _Routes
    pipelines: tuple[InferencePipeline, ...]
    error: ForecastError
    arrived_ns: int
    drain: int

    @classmethod
    def made(cls, setting: FillSetting, policy: FillPolicy, planned: PlannedWaits, *, rows: bool) -> _Play:
        """All parts, with the arrivals entered."""
        simulation, exact = setting.simulation, not setting.jitter
        pipelines = pipelines_of(fill_devices(simulation), setting.model.pp, setting.model.weight_bytes())
        controller = FillController(pipelines, setting.model, policy.pieces)
        longest = max((each.tokens for each in setting.requests), default=1)
        forecast = WaitForecast(policy.forecast(setting.model, longest, exact=exact))
        events, accounts = Events(), DeviceAccounts(simulation.setting.devices, rows=rows)
        filler = BubbleFiller(controller, forecast, planned, events, accounts, policy.yields, exact=exact)
        routes = _Routes(DedicatedPool(setting.model, setting.dedicated_gpus))
        filler.served, filler.gone = routes.enter, partial(routes.gone, events)
        for request in setting.requests:
            events.at(request.arrival_ns, partial(_arrives, filler, routes, request))
        run = TrainingRun(simulation, setting.jitter, setting.seed, events, accounts, filler)
        arrived = max((each.arrival_ns for each in setting.requests), default=0)
        drain = 1 + AHEAD_NS // planned.iteration_ns + DRAIN
        return cls(events, accounts, run, routes, pipelines, forecast.error, arrived, drain)

    def links(self, setting: FillSetting) -> Iterator[LinkRow]:
        """Rows of links, of training and of hand-offs."""
        yield from link_rows(setting.simulation, self.run.sent or ())
        for row, item in self.routes.items:
            for device in self.pipelines[row].devices:
                times = (item.first_token_ns, item.release_ns)
                size = setting.model.kv_bytes(item.request.tokens)
                yield handoff_row(setting.simulation.setting, device, item.request.number, times, size)

    def run_through(self, iterations: int) -> int:
        """So many iterations count; in those after them accepted prompts end. The end of the ones that count."""
        begins, routes = self.run.begins_ns, self.routes
        self.run.start()
        self.events.run(lambda: len(begins) <= iterations)
        self.accounts.until_ns = begins[iterations]

        def wanted() -> bool:
            """The next iteration as a whole, so that all time before it is entered."""
            waiting = len(begins) <= iterations + self.drain and len(routes.served) < len(routes.accepted)
            return len(begins) <= iterations + 1 or self.events.now_ns < self.arrived_ns or waiting

        self.events.run(wanted)
        return begins[iterations]


def _arrives(filler: BubbleFiller, routes: _Routes, request: PrefillRequest) -> None:
    decision = filler.arrives(request)
    if isinstance(decision, Accepted):
        routes.accepted[request.number] = request
    else:
        routes.spill(request, request.arrival_ns, decision.reason)


def _unfilled(setting: FillSetting) -> tuple[int, int, dict[str, int]]:
    """Whole iterations within the seconds (one at least) without a filler, their end, and what the devices did."""
    events, accounts = Events(), DeviceAccounts(setting.simulation.setting.devices, rows=False)
    run = TrainingRun(setting.simulation, setting.jitter, setting.seed, events, accounts, Unfilled())
    until = round(setting.seconds * 1e9)
    run.start()
    events.run(lambda: len(run.begins_ns) < 2 or run.begins_ns[-1] <= until)
    iterations = max(len(run.begins_ns) - 2, 1)
    # Again up to there, so that nothing of the next iteration counts.
    events, accounts = Events(), DeviceAccounts(setting.simulation.setting.devices, rows=False)
    run = TrainingRun(setting.simulation, setting.jitter, setting.seed, events, accounts, Unfilled())
    run.start()
    events.run(lambda: len(run.begins_ns) <= iterations)
    end = run.begins_ns[iterations]
    for device, mark in enumerate(accounts.marks):
        if mark < end:
            accounts.spend(device, end, "waits")
    return iterations, end, accounts.spent


def capacity_ns(setting: FillSetting, planned: PlannedWaits) -> float:
    """Nanoseconds of waits of all devices of inference pipelines, for each nanosecond of training."""
    pipelines = pipelines_of(fill_devices(setting.simulation), setting.model.pp, setting.model.weight_bytes())
    inside = {device for each in pipelines for device in each.devices}
    return sum(each.length_ns for each in planned.waits if each.device in inside) / planned.iteration_ns
