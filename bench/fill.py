"""Prefill in the bubbles of training, simulated: utilisation, slow-down and time to the first token; and what admission takes.

All but admission is modelled. The headline setting is `examples/fill/headline.yaml` under the schedule `atlas-keep`: three sites 40 ms
apart, 48 GPUs, about 45 % in use before, as in BubbleTea's paper. BubbleTea, PipeFill and FreeRide published no code that this could
run; the policies named after the last two are reconstructed. Load is the work of all prompts over the time in bubbles. Dedicated
serving has as many GPUs as the bubbles have GPU-seconds a second, rounded up to whole pipelines, and the same prompts.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from _table import Row, main
from unidle.fill.files.setting import load_fill
from unidle.fill.model.prefill import InferenceModel
from unidle.fill.policy.controller import FillController
from unidle.fill.policy.pipelines import InferencePipeline
from unidle.fill.policy.requests import Accepted, PrefillRequest
from unidle.fill.policy.windows import FillWindow
from unidle.fill.simulate.arrivals import PromptProcess, arrivals
from unidle.fill.simulate.dedicated import served_alone
from unidle.fill.simulate.planned import PlannedWaits, planned_waits
from unidle.fill.simulate.rules import POLICIES
from unidle.fill.simulate.run import FillOutcome, FillSetting, capacity_ns, filled
from unidle.span.simulate.iteration import Simulation, simulate
from unidle.span.simulate.schedules import SCHEDULES

FILE = Path(__file__).parents[1] / "examples" / "fill" / "headline.yaml"
SCHEDULE = "atlas-keep"
PUBLISHED, BEFORE = 94.0, 45.0
LOADS, FULL = (0.1, 0.2, 0.3, 0.4, 0.7), (1.0, 1.5)
JITTERS = (10, 20)
SPEEDS = (1, 4, 16, 32, 64, 128)  # times as fast a training: windows are as many times shorter
LENGTHS = (128, 512, 2048, 8192, 32768)
LONG_S = 60.0  # for quantiles of few prompts
GPUS, WINDOWS, LIMIT_US = 1000, 10_000, 200.0
ROUNDS, DECISIONS = 7, 1500


@dataclass(frozen=True, slots=True)
class World:
    simulation: Simulation
    planned: PlannedWaits
    model: InferenceModel
    prompts: PromptProcess
    seconds: float

    def setting(self, load: float, jitter: int, prompts: PromptProcess) -> FillSetting:
        """Prompts whose work is so large a part of the bubbles."""
        empty = FillSetting(self.simulation, self.model, (), self.seconds)
        drawn = arrivals(
            replace(prompts, rate_per_s=2000 / self.seconds), self.seconds, np.random.default_rng(1)
        )
        work = sum(self.work_ns(each.tokens) for each in drawn) / len(drawn)
        rate = load * capacity_ns(empty, self.planned) * 1e9 / work
        requests = arrivals(replace(prompts, rate_per_s=rate), self.seconds, np.random.default_rng(2))
        return replace(empty, requests=requests, jitter=jitter / 100, seed=3)

    def work_ns(self, tokens: int) -> int:
        return self.model.layer_ns(0, tokens) * self.model.layers

    def filled(
        self, load: float, jitter: int = 0, policy: str = "unidle", prompts: PromptProcess | None = None
    ) -> FillOutcome:
        return filled(
            self.setting(load, jitter, prompts or self.prompts), POLICIES[policy], planned=self.planned
        )

    def alone(self, load: float, prompts: PromptProcess | None = None) -> list[int]:
        """Times to the first token on dedicated devices with as many GPU-seconds."""
        setting = self.setting(load, 0, prompts or self.prompts)
        pp = self.model.pp
        devices = -(-capacity_ns(setting, self.planned) // pp) * pp
        return served_alone(self.model, int(devices), setting.requests)


@cache
def world(speed: int = 1) -> World:
    wanted = load_fill(FILE)
    setting = wanted.setting
    if speed != 1:
        links = tuple(
            replace(link, latency_ns=link.latency_ns // speed, capacity_gbps=link.capacity_gbps * speed)
            for link in setting.links
        )
        stages = tuple(
            replace(
                stage, forward_ns=stage.forward_ns // speed, backward_ns=stage.backward_ns // speed,
                weight_ns=stage.weight_ns // speed, recompute_ns=stage.recompute_ns // speed,
            )
            for stage in setting.stages
        )  # fmt: skip
        setting = replace(setting, stages=stages, links=links, local_gbps=(setting.local_gbps or 1.0) * speed)
    simulation = simulate(setting, SCHEDULES[SCHEDULE])
    return World(
        simulation,
        planned_waits(simulation),
        wanted.model,
        wanted.prompts,
        wanted.seconds / max(speed // 4, 1),
    )


def ms(values: list[int] | tuple[int, ...], part: float) -> float:
    ranked = sorted(values)
    return ranked[min(int(part * len(ranked)), len(ranked) - 1)] / 1e6 if ranked else float("nan")


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    wanted: dict[str, Callable[[], Iterator[Row]]] = {
        "headline": _headline, "ttft": _ttft, "jitter": _jitter, "peers": _peers, "sweep": _sweep, "admission": _admission,
    }  # fmt: skip
    for part in arguments.parts or wanted:
        yield from wanted[part]()


def _headline() -> Iterator[Row]:
    here = world()
    for load in FULL:
        found = here.filled(load)
        after, goal = 100 * found.utilisation_after, 97.0 if load > 1 else PUBLISHED
        yield Row(
            f"headline, load {load:g}: utilisation with filling", "%", after, PUBLISHED, "BubbleTea, published", after / PUBLISHED,
            f"at least {goal:g}", after >= goal,
            f"modelled; before {100 * found.utilisation_before:.1f} %, BubbleTea's about {BEFORE:g} %; {found.accepted} prompts"
            f" accepted, {found.rejected} not; time to first token p50 {ms(found.ttft_ns, 0.5):,.0f}, p99 {ms(found.ttft_ns, 0.99):,.0f} ms",
        )  # fmt: skip
        yield Row(
            f"headline, load {load:g}: slow-down of training", "%", found.slowdown_pct, 0.0, "BubbleTea, published: none", None,
            "exactly 0", found.end_ns == found.unfilled_end_ns, f"modelled; {found.iterations} iterations without jitter",
        )  # fmt: skip


def _ttft() -> Iterator[Row]:
    here, paid, paying = replace(world(), seconds=LONG_S), 0.0, True
    for load in (*LOADS, *FULL):
        found, alone = here.filled(load), here.alone(load)
        for part, most in ((0.5, 1.1), (0.99, 1.5)):
            ours, theirs = ms(found.ttft_ns, part), ms(alone, part)
            bound = load <= 0.4
            if part == 0.5:
                # above a load of 1 dedicated serving has a queue, too
                paying = paying and ours <= 1.1 * theirs
                paid = load if paying else paid
            yield Row(
                f"headline, load {load:g}: time to first token, p{100 * part:.0f}", "ms", ours, theirs,
                "dedicated serving with as many GPU-seconds", theirs / ours,
                f"at most {most:g} times as long" if bound else None, ours <= most * theirs if bound else None,
                f"modelled; {len(found.ttft_ns)} and {len(alone)} prompts in time",
            )  # fmt: skip

    yield Row(
        "rates: highest load at which bubbles answer within 1.1 times dedicated serving, p50", "load", paid,
        how=f"modelled; of {', '.join(f'{load:g}' for load in (*LOADS, *FULL))}",
    )  # fmt: skip


def _jitter() -> Iterator[Row]:
    here = world()
    for jitter in JITTERS:
        found = here.filled(1.0, jitter)
        after, error = 100 * found.utilisation_after, found.forecast
        how = (
            f"modelled; before {100 * found.utilisation_before:.1f} %; {error.waits} waits forecast, {error.early} ended early, mean"
            f" error {error.mean_ns / 1e6:.1f} ms; {100 * found.spent['discarded prefill'] / sum(found.spent.values()):.2f} % of"
            " device time discarded"
        )
        yield Row(f"jitter {jitter} %, load 1: slow-down of training", "%", found.slowdown_pct, goal="at most 1", holds=found.slowdown_pct <= 1, how=how)  # fmt: skip
        yield Row(f"jitter {jitter} %, load 1: utilisation with filling", "%", after, goal="at least 85", holds=after >= 85, how=how)  # fmt: skip


def _peers() -> Iterator[Row]:
    here = world()
    for jitter in (0, *JITTERS):
        ours = here.filled(1.0, jitter)
        for name, policy in POLICIES.items():
            found = ours if name == "unidle" else here.filled(1.0, jitter, name)
            made = ", reconstructed" if policy.reconstructed else ""
            yield Row(
                f"policies, jitter {jitter} %, load 1: utilisation under {name}{made}", "%", 100 * found.utilisation_after,
                100 * ours.utilisation_after, "unidle", None,
                how=f"modelled; slow-down {found.slowdown_pct:.3f} %; time to first token p50 {ms(found.ttft_ns, 0.5):,.0f}, p99"
                f" {ms(found.ttft_ns, 0.99):,.0f} ms; {found.accepted} prompts in time, {found.rejected} not",
            )  # fmt: skip


def _net(found: FillOutcome) -> float:
    """Device time won by filling less what training loses, in percent of all."""
    whole = sum(found.spent.values())
    return 100 * found.spent["prefill"] / whole - found.slowdown_pct


def _sweep() -> Iterator[Row]:
    pays = None
    for speed in SPEEDS:
        here = world(speed)
        lengths = sorted(each.length_ns for each in here.planned.waits)
        middle, found = lengths[len(lengths) // 2] / 1e6, here.filled(1.0, 10)
        net = _net(found)
        if net > 1:
            pays = middle
        yield Row(
            f"windows of {middle:.1f} ms (median), jitter 10 %, load 1: device time won less lost", "%", net,
            how=f"modelled; slow-down {found.slowdown_pct:.3f} %; longest {lengths[-1] / 1e6:.0f} ms; headline with training {speed} times as fast; most that could be"
            f" won {100 * found.bubble_ns / sum(found.unfilled_spent.values()):.1f} %",
        )  # fmt: skip
    yield Row(
        "windows: shortest median with which filling pays (wins more than 1 %)", "ms", pays if pays is not None else float("nan"),
        how="modelled; jitter 10 %; waits under 15 ms are not forecast, and so not filled",
    )  # fmt: skip
    yield from _sweep_lengths()


def _sweep_lengths() -> Iterator[Row]:
    here, paid = world(), 0
    for tokens in LENGTHS:
        prompts = replace(here.prompts, least=tokens, most=tokens, slo_ttft_ms=None)
        found, alone = here.filled(0.4, 0, prompts=prompts), here.alone(0.4, prompts)
        if not found.ttft_ns:
            yield Row(
                f"prompts of {tokens:,} tokens, load 0.4: answered in bubbles", "%", 0.0,
                how=f"modelled; {next(iter(found.reasons), 'none arrived')}; windows are known 3 s ahead",
            )  # fmt: skip
            continue
        ours, theirs = ms(found.ttft_ns, 0.5), ms(alone, 0.5)
        if ours <= 1.1 * theirs:
            paid = tokens
        yield Row(
            f"prompts of {tokens:,} tokens, load 0.4: time to first token, p50", "ms", ours, theirs, "dedicated", theirs / ours,
            how=f"modelled; p99 {ms(found.ttft_ns, 0.99):,.0f} and {ms(alone, 0.99):,.0f} ms; whole prompt"
            f" {here.work_ns(tokens) / 1e6:,.0f} ms of one device",
        )  # fmt: skip
    yield Row(
        "prompts: longest that bubbles answer within 1.1 times dedicated serving, p50",
        "tokens",
        paid,
        how="modelled; load 0.4",
    )


def _admission() -> Iterator[Row]:
    for pp in (1, 2, 8):
        rounds = [_decisions(pp) for _ in range(ROUNDS)]
        least = tuple(map(min, zip(*rounds, strict=True)))
        plain = min(ms(each, 0.99) for each in rounds) * 1000
        p99 = ms(least, 0.99) * 1000
        yield Row(
            f"admission, {GPUS:,} GPUs, {WINDOWS:,} windows, {GPUS // pp} pipelines of {pp}: p99 of a decision", "us", p99,
            goal=f"at most {LIMIT_US:g}", holds=p99 <= LIMIT_US,
            how=f"measured here, CPU time of the thread, {DECISIONS} decisions, of each the least of {ROUNDS} equal runs, so that other"
            f" processes count less; median {ms(least, 0.5) * 1000:.0f}; p99 of the best single run {plain:.0f}",
        )  # fmt: skip


def _decisions(pp: int) -> tuple[int, ...]:
    """Nanoseconds of each decision, the same ones in every run. Prompts of 32 to 8192 tokens."""
    chance = np.random.default_rng(0)
    model = replace(world().model, pp=pp)
    count = GPUS // pp
    pipelines = [InferencePipeline(tuple(range(k * pp, (k + 1) * pp)), 40 * 10**9) for k in range(count)]
    controller = FillController(pipelines, model)
    for number, each in enumerate(pipelines):
        lengths = chance.integers(15, 300, size=(WINDOWS // GPUS, 2)) * 10**6
        for device in each.devices:
            moment, windows = int(number * 30_000), list[FillWindow]()
            for inside, outside in lengths.tolist():
                windows.append(FillWindow(device, moment, moment + inside, 70 * 10**9))
                moment += inside + outside
            controller.windows(device, windows)
    taken, now, accepted = list[int](), 0, 0
    gc.collect()
    gc.freeze()
    for number in range(DECISIONS):
        now += int(chance.exponential(1e6))
        tokens = round(float(np.exp(chance.uniform(np.log(32), np.log(8192)))))
        request = PrefillRequest(number, now, tokens, now + 3 * 10**9)
        begin = time.thread_time_ns()
        decision = controller.decide(request, now)
        taken.append(time.thread_time_ns() - begin)
        accepted += isinstance(decision, Accepted)
    gc.unfreeze()
    assert accepted > 0.9 * DECISIONS, accepted
    return tuple(taken)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "parts", nargs="*", help="headline, ttft, jitter, peers, sweep, admission; none means all"
    )


if __name__ == "__main__":
    main("fill", rows, add_arguments)
