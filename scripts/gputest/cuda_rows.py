"""Rows that compute on the GPU: what PyTorch sees, the check under load, NCCL, and the roofline."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from gputest.common import Failed, Missing, Place, Result, last_line


def cuda(place: Place) -> Iterator[Result]:
    """Whether there is CUDA, and of which versions."""
    import torch

    if place.rehearsal:
        yield Result("CUDA", "missing", "a rehearsal on the CPU")
        return
    if not torch.cuda.is_available():
        raise Missing(f"PyTorch {torch.__version__} cannot use a GPU")
    properties = torch.cuda.get_device_properties(0)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    says = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}, capability {properties.major}.{properties.minor}"
    yield Result("CUDA", "ran", says, torch.cuda.device_count(), "GPUs")


def visible(place: Place) -> Iterator[Result]:
    """The variables that the engine gives a rank, as CUDA understands them."""
    from unidle.engine.local.devices.discovery import discover
    from unidle.engine.local.devices.visible import visible_devices

    gpus = [device for device in discover().nodes[0].devices if device.kind == "gpu"]
    for mine, wanted in (([gpus[-1]], 1), ([], 0)):
        env = os.environ | visible_devices(mine, {"nvidia"})
        done = subprocess.run(
            place.work("visible"), env=env, capture_output=True, text=True, timeout=50, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise Failed(
                f"PyTorch did not start with {env['CUDA_VISIBLE_DEVICES']!r}: {last_line(done.stderr)}"
            )
        seen = json.loads(last_line(done.stdout))
        wrong_gpu = mine and seen["uuid"] and seen["uuid"] not in mine[0].uuid
        if seen["count"] != wanted or wrong_gpu:
            raise Failed(
                f"with {env['CUDA_VISIBLE_DEVICES']!r} PyTorch sees {seen['count']} GPUs {seen['uuid']}"
            )
        what = f"{wanted} GPU visible to a rank" if wanted else "no GPU visible to a rank without one"
        yield Result(what, "ran", "PyTorch sees it, and by its UUID" if wanted else "PyTorch sees none")


def loaded(place: Place) -> Iterator[Result]:
    """``unidle check``: exact products and their speed, copies, the all-reduce of several GPUs."""
    names = "gemm,host_to_device,allreduce"
    told = json.loads(place.unidle("check", "--json", "--only", names, timeout_s=140, codes=(0, 1, 3)))
    for check in told["checks"]:
        if check["ok"] is None:
            yield Result(check["name"], "failed", check["because"])
            continue
        wrong = check["name"] == "gemm" and not check["ok"]
        goal = None if check["threshold"] is None else f"{check['threshold']} {check['unit']}"
        says = check["because"] if check["ok"] else f"below what its model has: {check['because']}"
        yield Result(check["name"], "failed" if wrong else "ran", says, check["value"], check["unit"], goal)
    for gone in told["absent"]:
        yield Result(gone["name"], "missing", gone["because"])


def collective(place: Place) -> Iterator[Result]:
    """NCCL starts and adds up, on every GPU that there is: the ranks of ``unidle check``."""
    import torch

    from unidle.probe.check.allreduce import run_ranks

    backend, ranks = ("gloo", 2) if place.rehearsal else ("nccl", torch.cuda.device_count())
    try:
        rate = run_ranks(backend, ranks, 64 << 20, 5, timeout_s=50 * place.patience)
    except RuntimeError as error:
        raise Failed(str(error)) from None
    if ranks == 1:
        yield Result("NCCL starts, all-reduce is right", "ran", "one GPU: NCCL's start and one rank's sum")
        yield Result("all-reduce between GPUs", "missing", "one GPU: nothing crosses a link")
    else:
        yield Result(
            f"{backend.upper()} all-reduce", "ran", f"{ranks} ranks, 64 MiB, bus bandwidth", rate, "GB/s"
        )


def roofline(place: Place) -> Iterator[Result]:
    """Measured peaks of arithmetic and memory, and where a training step stands under them."""
    import torch

    from unidle.predict.by_gpu_model import peak_of

    device = "cuda:0" if not place.rehearsal else "cpu"
    size = 8192 if not place.rehearsal else 512
    kind = torch.bfloat16 if not place.rehearsal else torch.float32
    peak = _peak(device, size, kind)
    stated = None if place.rehearsal else peak_of(torch.cuda.get_device_name(0))
    says = f"{str(kind).removeprefix('torch.')}, {size} wide, random data"
    if stated is not None:
        says += f"; {peak / stated.tflops:.0%} of the {stated.tflops:g} that the vendor states"
        if not 0.2 * stated.tflops < peak < 1.05 * stated.tflops:
            raise Failed(f"{peak:.0f} TFLOP/s measured, {stated.tflops:g} stated: one of the two is wrong")
    yield Result("peak arithmetic", "ran", says, peak, "TFLOP/s")
    bandwidth = _bandwidth(device, (2 << 30) if not place.rehearsal else (64 << 20))
    yield Result("memory bandwidth", "ran", "copies, read and written", bandwidth, "GB/s")
    yield Result(
        "ridge of the roofline", "ran", "below it memory bounds", peak * 1e3 / bandwidth, "FLOP/byte"
    )
    flops, seconds = _step(device, kind)
    rate = flops / seconds / 1e12
    mfu = 100 * rate / peak
    # Other processes may have had the CPU while the peak was measured, and not during the step.
    if mfu <= 0 or (mfu > 105 and not place.rehearsal):
        raise Failed(f"a training step at {mfu:.0f} % of the measured peak cannot be")
    yield Result("a training step", "ran", "four transformer layers, forward and backward", rate, "TFLOP/s")
    yield Result("MFU of it", "ran", "of the measured peak", mfu, "%")
    if stated is not None:
        yield Result(
            "MFU of it, by the data sheet",
            "ran",
            f"of {stated.tflops:g} TFLOP/s",
            100 * rate / stated.tflops,
            "%",
        )


def _peak(device: str, size: int, kind: Any) -> float:
    """TFLOP/s of square products."""
    import torch

    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))

    def work() -> None:
        for _ in range(10):
            torch.mm(a, b)

    return 2 * size**3 * 10 / _best(work, device) / 1e12


def _bandwidth(device: str, n_bytes: int) -> float:
    """GB/s read and written by a copy on the device."""
    import torch

    source = torch.ones(n_bytes, dtype=torch.uint8, device=device)
    into = torch.empty_like(source)

    def work() -> None:
        for _ in range(5):
            into.copy_(source)

    return 2 * n_bytes * 5 / _best(work, device) / 1e9


def _best(work: Callable[[], None], device: str) -> float:
    """The shortest of five, in seconds, after two that are not counted."""
    from unidle.probe.check.gemm import timed

    for _ in range(2):
        work()
    return min(timed(work, device)[0] for _ in range(5))


def _step(device: str, kind: Any) -> tuple[float, float]:
    """FLOP of a training step, counted by PyTorch, and its seconds."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    width, length, batch = (2048, 1024, 8) if device != "cpu" else (64, 32, 2)
    layer = torch.nn.TransformerEncoderLayer(
        width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device, kind)
    data = torch.randn(batch, length, width, device=device, dtype=kind)

    def step() -> None:
        model(data).float().pow(2).mean().backward()
        model.zero_grad()

    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops()), _best(step, device)
