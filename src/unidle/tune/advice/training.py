"""Loader workers, accumulated gradients, and buckets of gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from unidle.errors import BadInput
from unidle.tune.advice.answer import WorkedAdvice
from unidle.tune.fit.memory import largest_batch, memory_of
from unidle.tune.fit.model import DecoderModel, ShardedOver, Use

_HEADROOM: Final = 1.25
"""Samples take longer at times; a step that waits for one waits for all ranks."""
PREFETCH: Final = 2
"""Batches that each worker of a DataLoader keeps ready, by default."""
_BUCKETS_MB: Final = (1, 2, 5, 10, 25, 50, 100, 200, 400, 800)


@dataclass(frozen=True, slots=True)
class LoaderLoad:
    """Milliseconds of a sample in one process and of a step without waiting; bytes of a batch; cores of the node, and ranks on it."""

    sample_ms: float
    step_ms: float
    batch: int
    cores: int
    ranks: int = 1
    batch_bytes: int = 0


def loader_workers(load: LoaderLoad) -> WorkedAdvice:
    """So many that batches are made as fast as steps take them, or as many as there are cores for."""
    busy = load.sample_ms * load.batch / load.step_ms
    wanted = math.ceil(busy * _HEADROOM)
    free = max(0, load.cores // load.ranks - 1)
    workers = min(wanted, free)
    wait = max(0.0, load.sample_ms * load.batch / max(workers, 1) - load.step_ms) if workers else load.sample_ms * load.batch  # fmt: skip
    ready = workers * PREFETCH * load.batch_bytes
    lines = [
        f"a batch costs {load.sample_ms:g} ms x {load.batch} = {load.sample_ms * load.batch:g} ms of one core; a step takes {load.step_ms:g} ms",
        f"workers: ceil({load.sample_ms * load.batch:g} / {load.step_ms:g} x {_HEADROOM}) = {wanted}",
        f"cores: {load.cores} / {load.ranks} ranks - 1 of each rank itself = {free} for workers",
        f"in use: min({wanted}, {free}) = {workers}; a step still waits {wait:.1f} ms",
    ]
    if load.batch_bytes:
        lines.append(
            f"batches ready: {workers} x {PREFETCH} x {load.batch_bytes:,} B = {ready:,} B of each rank"
        )
    values = {"workers": workers, "wanted": wanted, "wait_ms": wait, "ready_bytes": ready}
    return WorkedAdvice(values, tuple(lines), (f"DataLoader(..., num_workers={workers}, prefetch_factor={PREFETCH})",) if workers else ())  # fmt: skip


def accumulation(model: DecoderModel, use: Use, cut: ShardedOver, device: tuple[str, int], sequences: int) -> WorkedAdvice:  # fmt: skip
    """The largest batch that fits and divides the part of each replica, and how often it is accumulated. ``use.batch`` does not count.

    Errors: BadInput where the sequences cannot be divided by the replicas, or not one fits.
    """
    name, device_bytes = device
    if sequences % cut.data:
        raise BadInput(
            "cannot be divided by the replicas", field="--sequences", value=sequences, remedy=f"use a multiple of {cut.data}"
        )  # fmt: skip
    most, part = largest_batch(model, use, cut, device_bytes), sequences // cut.data
    if not most:
        raise BadInput("does not fit this device with one sequence", field="FILE", value=name, remedy="shard it, recompute, or use a larger device")  # fmt: skip
    batch = max(one for one in range(1, min(most, part) + 1) if part % one == 0)
    peak = memory_of(model, Use(batch, use.sequence, use.precision, use.training, use.optimizer, use.recompute), cut).peak  # fmt: skip
    lines = [
        f"each of {cut.data} replicas: {sequences} / {cut.data} = {part} sequences of a step",
        f"{name}: at most {most} at once; the largest divisor of {part} up to that is {batch} ({peak / 2**30:.2f} GiB at most)",
        f"passes before an update: {part} / {batch} = {part // batch}",
        f"tokens of an update: {sequences} x {use.sequence} = {sequences * use.sequence:,}",
    ]
    if part // batch > 1 and cut.data > 1:
        lines.append(
            f"gradients are exchanged once in {part // batch} passes with model.no_sync() (DDP), each time without it"
        )
    values = {"batch": batch, "passes": part // batch, "largest_batch": most, "tokens": sequences * use.sequence, "peak_bytes": peak}  # fmt: skip
    return WorkedAdvice(values, tuple(lines), (f"batch_size={batch}", f"gradient_accumulation_steps={part // batch}"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class GradientLoad:
    """Bytes of all gradients, milliseconds of the backward pass, ranks of the ring, its slowest link in Gbit/s, and microseconds of a hop."""

    gradient_bytes: int
    backward_ms: float
    ranks: int
    gbps: float
    latency_us: float


def gradient_buckets(load: GradientLoad) -> WorkedAdvice:
    """The size of a bucket with the least communication that the backward pass does not hide, on a ring.

    Gradients become ready evenly over the backward pass; buckets go out one after the other, each as soon as it is full.
    """
    each = {size: _exposed_ms(load, size * 1_000_000) for size in _BUCKETS_MB}
    best = min(each, key=lambda size: (round(each[size], 3), size))
    hops = 2 * (load.ranks - 1)
    wire = hops / load.ranks * load.gradient_bytes * 8 / (load.gbps * 1e6)
    lines = [
        f"all gradients on the wire: 2 x {load.ranks - 1} / {load.ranks} x {load.gradient_bytes:,} B x 8 / {load.gbps:g} Gbit/s = {wire:.2f} ms",
        f"a bucket more: {hops} hops x {load.latency_us:g} us = {hops * load.latency_us / 1000:.3f} ms",
        *(f"{size} MB: {max(1, math.ceil(load.gradient_bytes / (size * 1e6)))} buckets, {ms:.2f} ms after the backward pass of {load.backward_ms:g} ms" for size, ms in each.items()),
    ]  # fmt: skip
    values = {"bucket_mb": best, "exposed_ms": each[best], "exposed_of_25_mb_ms": each[25], "wire_ms": wire}
    return WorkedAdvice(values, tuple(lines), (f"DistributedDataParallel(..., bucket_cap_mb={best})",))


def _exposed_ms(load: GradientLoad, size: int) -> float:
    """What is left to send when the backward pass ends."""
    if load.ranks < 2:
        return 0.0
    hops, left, sent, done = 2 * (load.ranks - 1), load.gradient_bytes, 0, 0.0
    while left > 0:
        one = min(size, left)
        sent, left = sent + one, left - one
        ready = load.backward_ms * sent / load.gradient_bytes
        done = (
            max(done, ready) + hops / load.ranks * one * 8 / (load.gbps * 1e6) + hops * load.latency_us / 1000
        )
    return max(0.0, done - load.backward_ms)
