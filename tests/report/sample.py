"""A realistic report: 8 CPU devices, a gang of 4, one rank killed midway, resumed from a checkpoint."""

from __future__ import annotations

import random
from collections import defaultdict

from unidle.ledger.taxonomy import GROUP_OF
from unidle.report.model import (
    AttemptLine,
    DeviceTrack,
    EventLine,
    JobLine,
    LeafTime,
    RatioLine,
    ReportData,
    TimelineBar,
)

START_NS = 1_790_000_000_000_000_000
S = 1_000_000_000
MS = 1_000_000
PRICE_PER_HOUR = 2.4


def bar(start_s: float, end_s: float, leaf: str, **more: object) -> TimelineBar:
    at = [START_NS + round(t * 1_000) * MS for t in (start_s, end_s)]
    return TimelineBar(at[0], at[1], leaf, GROUP_OF[leaf], **more)  # type: ignore[arg-type]


def _steps(start_s: float, first: int, last: int, leaf: str, attempt: int) -> list[TimelineBar]:
    return [
        bar(
            start_s + k * 0.25,
            start_s + (k + 1) * 0.25,
            leaf,
            job="job-1",
            attempt=attempt,
            step=n,
            observer="nanogpt",
        )
        for k, n in enumerate(range(first, last + 1))
    ]


def _gang_bars(rank: int) -> list[TimelineBar]:
    mine = {"job": "job-1", "attempt": 1}
    again = {"job": "job-1", "attempt": 2}
    ready = 5.4 + 0.2 * rank
    return [
        bar(0, 0.04, "scheduler_latency", how="measured"),
        bar(0.04, 0.3 + 0.05 * rank, "gang_wait", **mine),
        bar(0.3 + 0.05 * rank, ready, "start", **mine, observer="supervisor"),
        bar(ready, 6.5, "compile", **mine, how="inferred", observer="progress"),
        *_steps(6.5, 1, 200, "useful", 1),
        bar(56.5, 57.3, "checkpoint", **mine, step=200, observer="rank"),
        *_steps(57.3, 201, 240, "replayed", 1),
        bar(67.3, 69.1, "hang", **mine, how="inferred", observer="supervisor"),
        bar(69.1, 70.2, "idle", **mine),
        bar(70.2, 74.9 + 0.1 * rank, "start", **again, observer="supervisor"),
        bar(74.9 + 0.1 * rank, 75.8, "restore", **again, observer="rank"),
        *_steps(75.8, 201, 300, "useful", 2),
        bar(100.8, 104.8, "evaluation", **again, observer="rank"),
        *_steps(104.8, 301, 400, "useful", 2),
        bar(129.8, 130.6, "checkpoint", **again, step=400, observer="rank"),
        bar(130.6, 132, "no_demand"),
    ]


def _free_bars(k: int) -> list[TimelineBar]:
    if k == 7:
        return [
            bar(0, 60, "no_demand"),
            bar(60, 64, "unseen", how="inferred"),
            bar(64, 132, "fault", how="inferred", observer="probe"),
        ]
    return [bar(0, 132, "no_demand")]


def tracks() -> tuple[DeviceTrack, ...]:
    bars = [_gang_bars(k) if k < 4 else _free_bars(k) for k in range(8)]
    return tuple(DeviceTrack(f"host/{k}", "host", "cpu", tuple(own)) for k, own in enumerate(bars))


def totals(devices: tuple[DeviceTrack, ...], price: float | None = PRICE_PER_HOUR) -> tuple[LeafTime, ...]:
    """The leaves of the tracks, one total per leaf and way it is known."""
    sums: dict[tuple[str, str, str], int] = defaultdict(int)
    for track in devices:
        for b in track.bars:
            sums[b.leaf, b.group, b.how] += (b.end_ns - b.start_ns) * track.share_ppm // 1_000_000
    return tuple(
        LeafTime(leaf, group, ns, how, None if price is None else ns / 3.6e12 * price)  # type: ignore[arg-type]
        for (leaf, group, how), ns in sums.items()
    )


def ratio(name: str, part: int, whole: int, definition: str) -> RatioLine:
    return RatioLine(name, part / whole if whole else None, part, whole, definition)


def report(
    devices: tuple[DeviceTrack, ...] | None = None,
    *,
    title: str = "train: 4 ranks on this machine",
    store: str = "unidle.db",
    name: str = "train",
    price: float | None = PRICE_PER_HOUR,
    end_s: float = 132,
) -> ReportData:
    devices = tracks() if devices is None else devices
    leaves = totals(devices, price)
    capacity = sum(leaf.ns for leaf in leaves)
    of = {leaf.leaf: leaf.ns for leaf in leaves}
    useful, down, unseen = of.get("useful", 0), of.get("fault", 0), of.get("unseen", 0)
    free = sum(leaf.ns for leaf in leaves if leaf.group == "free")
    up = capacity - unseen - down
    return ReportData(
        title=title,
        generated_ns=START_NS + 133 * S,
        store=store,
        window_start_ns=START_NS,
        window_end_ns=START_NS + round(end_s * 1_000) * MS,
        capacity_ns=capacity,
        leaves=leaves,
        ratios=(
            ratio("availability", up, capacity - unseen, "1 - down / (capacity - unseen)"),
            ratio(
                "scheduling goodput",
                up - free,
                up,
                "(capacity - unseen - down - free) / (capacity - unseen - down)",
            ),
            ratio("runtime goodput", useful, up - free, "useful / (capacity - unseen - down - free)"),
            ratio("utilisation", useful, capacity, "useful / capacity"),
            ratio("ETTR", 0, 0, "useful time of the job / all time with that job"),
        ),
        currency="USD",
        devices=devices,
        jobs=(
            JobLine(
                "job-1",
                name,
                "succeeded",
                "ada",
                "default",
                4,
                2,
                400,
                40,
                START_NS,
                START_NS + 300 * MS,
                START_NS + 130_600 * MS,
                "all ranks exited with 0",
            ),
        ),
        attempts=(
            AttemptLine(
                "job-1",
                1,
                START_NS + 40 * MS,
                START_NS + 69_100 * MS,
                ("host/0", "host/1", "host/2", "host/3"),
                "failed",
                "rank 2 was killed by SIGKILL",
                (-15, -15, -9, -15),
                1,
                240,
                200,
            ),
            AttemptLine(
                "job-1",
                2,
                START_NS + 70_200 * MS,
                START_NS + 130_600 * MS,
                ("host/0", "host/1", "host/2", "host/3"),
                "succeeded",
                "",
                (0, 0, 0, 0),
                201,
                400,
                400,
            ),
        ),
        events=(
            EventLine(START_NS, "submitted", "job-1", None, None, f"{name}: 4 ranks, 1 device each"),
            EventLine(START_NS + 40 * MS, "placed", "job-1", 1, None, "first fit: host/0 to host/3"),
            EventLine(
                START_NS + 57_300 * MS, "checkpoint", "job-1", 1, 0, "step 200 is durable", "checkpoint"
            ),
            EventLine(START_NS + 67_300 * MS, "exit", "job-1", 1, 2, "killed by SIGKILL", "failure"),
            EventLine(
                START_NS + 67_320 * MS, "stop", "job-1", 1, None, "the gang is stopped: rank 2 failed", "kill"
            ),
            EventLine(
                START_NS + 70_200 * MS, "restart", "job-1", 2, None, "try 1 of 3 after 1.0 s", "restart"
            ),
            EventLine(
                START_NS + 130_600 * MS, "checkpoint", "job-1", 2, 0, "step 400 is durable", "checkpoint"
            ),
            EventLine(START_NS + 130_600 * MS, "ended", "job-1", 2, None, "succeeded after 2 attempts"),
        ),
    )


def large(devices: int, bars: int, seed: int = 1) -> ReportData:
    """``bars`` bars over ``devices`` devices, in gangs of 8 with jitter, for scale."""
    rng = random.Random(seed)
    per_device = bars // devices
    window_s = 3_600.0
    leaves = ["useful"] * 14 + ["checkpoint", "start", "data_stall", "replayed", "no_demand", "exposed_local"]
    built = []
    for d in range(devices):
        gang = d // 8
        if d % 8 == 0:
            cuts = sorted(round(rng.random() * window_s, 3) for _ in range(per_device - 1))
            kinds = [rng.choice(leaves) for _ in range(per_device)]
        edges = [0.0, *(c + rng.random() * 0.02 for c in cuts), window_s]
        edges.sort()
        own = []
        for k, leaf in enumerate(kinds):
            job = {} if leaf == "no_demand" else {"job": f"job-{gang}", "attempt": 1 + k // 50}
            own.append(bar(edges[k], edges[k + 1], leaf, step=k if leaf == "useful" else -1, **job))
        built.append(
            DeviceTrack(
                f"node-{gang:04d}/{d % 8}",
                f"node-{gang:04d}",
                "H100",
                tuple(b for b in own if b.end_ns > b.start_ns),
            )
        )
    return report(tuple(built), title=f"{devices:,} devices, {bars:,} bars", end_s=window_s)
