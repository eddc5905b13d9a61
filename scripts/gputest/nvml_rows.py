"""Rows that ask NVML: discovery, the watch, MIG, the quick check, use and holders."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from gputest.common import Failed, Missing, Place, Result


def discovery(place: Place) -> Iterator[Result]:  # noqa: ARG001
    """The fleet of this machine, and that variables hide what they name."""
    from unidle.engine.local.devices.discovery import discover
    from unidle.fleet.links import describe

    began = time.perf_counter()
    fleet = discover()
    took_ms = (time.perf_counter() - began) * 1e3
    (node,) = fleet.nodes
    gpus = [device for device in node.devices if device.kind == "gpu"]
    if not gpus:
        raise Failed(fleet.source)
    bare = [gpu.id for gpu in gpus if not (gpu.uuid and gpu.model and gpu.memory_bytes)]
    if bare:
        raise Failed(f"no UUID, model or memory is known of {', '.join(bare)}")
    model, memory = gpus[0].model, gpus[0].memory_bytes / 2**30
    yield Result(
        "GPUs found",
        "ran",
        f"{model}, {memory:.0f} GiB; {fleet.source}",
        len(gpus),
        "GPU" if len(gpus) == 1 else "GPUs",
    )
    yield Result("time to find them", "ran", "library and all", took_ms, "ms")
    links = next(iter(fleet.gpu_links.values()), None)
    yield (
        Result("links between them", "ran", describe(links))
        if links
        else Result("links between them", "missing", "one GPU has no links")
    )
    hidden = discover(environ={"CUDA_VISIBLE_DEVICES": ""}).nodes[0]
    one = discover(environ={"CUDA_VISIBLE_DEVICES": gpus[-1].uuid}).nodes[0]
    if any(d.kind == "gpu" for d in hidden.devices) or [d.uuid for d in one.devices] != [gpus[-1].uuid]:
        raise Failed("CUDA_VISIBLE_DEVICES does not hide what it should")
    yield Result("hidden by CUDA_VISIBLE_DEVICES", "ran", "none with an empty one, one by its UUID")


def watch(place: Place) -> Iterator[Result]:  # noqa: ARG001
    """The detector of the guard: some looks at a machine on which nothing happens."""
    from unidle.engine.local.devices.discovery import discover
    from unidle.engine.local.vitals.utilisation import GpuMeter
    from unidle.probe.device_names import DeviceNames
    from unidle.probe.gpu_watch import GpuWatch

    (node,) = discover().nodes
    use = GpuMeter().look(next(device for device in node.devices if device.kind == "gpu"), 50_000, None, set)
    yield Result(
        "utilisation is read",
        "missing" if use.busy is None else "ran",
        use.why or ("busy" if use.busy else "idle"),
    )
    one, slowest, told = GpuWatch(node, DeviceNames(node), ""), 0.0, []
    for k in range(5):
        began = time.perf_counter()
        told += one.look(time.time_ns())
        slowest = max(slowest, time.perf_counter() - began)
        if why := one.seeing()[0]:
            raise Failed(why)
        if k < 4:
            time.sleep(0.5)
    one.close()
    found = "; ".join(f"{h.device or h.node}: {h.finding.because}" for h in told)
    yield Result(
        "looks of the guard's watch",
        "ran",
        found or "no finding",
        slowest * 1e3,
        "ms, slowest of 5",
    )


def mig(place: Place) -> Iterator[Result]:
    """MIG as it stands, and whether the table of places is the driver's."""
    from unidle.engine.local.devices.discovery import discover
    from unidle.engine.local.devices.mig import MigHands, NvmlMig
    from unidle.errors import CannotRun
    from unidle.share.mig_models import model_of

    gpu = next(device for device in discover().nodes[0].devices if device.kind == "gpu")
    driver = NvmlMig()
    try:
        state = driver.mode(gpu.uuid)
    except CannotRun as error:
        raise Missing(f"no MIG: {error.problem}") from None
    yield Result(
        "MIG mode",
        "ran",
        f"{'on' if state.current else 'off'}{', a change awaits a reset' if state.pending != state.current else ''}",
    )
    model = model_of(gpu.model, gpu.memory_bytes)
    if model is None:
        raise Failed(f"share/mig.toml has no table for {gpu.model} with {gpu.memory_bytes / 2**30:.1f} GiB")
    try:
        places = driver.placements(gpu.uuid)
    except CannotRun as error:
        raise Missing(f"MIG's places: {error.problem}") from None
    known = {profile.id: profile for profile in model.profiles}
    same = [p for p in places if p.starts and p.profile_id in known]
    wrong = [
        known[p.profile_id].name
        for p in same
        if (p.size, set(p.starts)) != (known[p.profile_id].memory, set(known[p.profile_id].starts))
    ]
    if wrong:
        raise Failed(f"the driver has other places than share/mig.toml for {', '.join(wrong)}")
    if not same:
        raise Missing("the driver lists the places of MIG instances in MIG mode only")
    why = MigHands(str(place.directory), driver).why_not(gpu)
    yield Result(
        "MIG's places are those of the table", "ran", why or "instances can be made", len(same), "profiles"
    )


def quick(place: Place) -> Iterator[Result]:
    """``unidle check``: the part that asks the driver. Unfit is an answer; unknown is none."""
    names = "devices,driver,clocks,heat,ecc,remap,pcie,nvlink,leftovers"
    began = time.perf_counter()
    told = json.loads(place.unidle("check", "--json", "--only", names, codes=(0, 1, 3)))
    took_s = time.perf_counter() - began
    unfit = [f"{c['name']} ({c['because']})" for c in told["checks"] if c["ok"] is False]
    yield Result("check, quick", "ran", f"unfit: {'; '.join(unfit)}" if unfit else "all fit", took_s, "s")
    for check in told["checks"]:
        if check["ok"] is None:
            late = "not done within" in check["because"] or "no answer" in check["because"]
            yield Result(f"check {check['name']}", "failed" if late else "missing", check["because"])


def use(place: Place) -> Iterator[Result]:
    """A program that keeps the GPU busy is seen: how busy it is, and who is on it; and that it is gone after its end."""
    from unidle.engine.local.devices.discovery import discover
    from unidle.engine.local.vitals.utilisation import GpuMeter

    gpu = next(device for device in discover().nodes[0].devices if device.kind == "gpu")
    meter = GpuMeter()

    def busy() -> bool | None:
        seen = meter.look(gpu, 50_000, None, set)
        if seen.busy is None:
            raise Missing(seen.why)
        return seen.busy

    busy()
    with subprocess.Popen(place.work("burn"), stdout=subprocess.PIPE, text=True) as burner:
        assert burner.stdout is not None
        try:
            if burner.stdout.readline().strip() != "burning":
                raise Failed("the program that keeps the GPU busy did not start")
            seen_s = until(lambda: bool(busy()), 20)
            mine, listed = _held_by(gpu.index), _strangers()
        finally:
            burner.kill()
    if seen_s is None:
        raise Failed(f"{gpu.id} was not seen busy within 20 s of full load")
    yield Result("a busy GPU is reported busy", "ran", "at full load", seen_s, "s")
    idle_s = until(lambda: not busy(), 20)
    if idle_s is None:
        raise Failed(f"{gpu.id} is still reported busy 20 s after the last program ended")
    yield Result("an idle GPU is reported idle", "ran", "after the end of what used it", idle_s, "s")
    yield from _holder(gpu.index, burner.pid, mine, listed)


def _holder(index: int, pid: int, mine: dict[int, int | None] | None, listed: str) -> Iterator[Result]:
    what = "holders of a GPU"
    if mine is None or not mine:
        yield Result(
            what, "missing", "the driver does not list processes here (a container or a virtual machine)"
        )
        return
    if pid not in mine:
        yield Result(what, "missing", f"the driver lists {len(mine)} by numbers of another process namespace")
        return
    if f": {pid} " not in listed:
        raise Failed(f"`unidle check` does not name process {pid}: {listed}")
    if until(lambda: pid not in (_held_by(index) or {}), 10) is None:
        raise Failed(f"process {pid} is listed 10 s after its end")
    yield Result(what, "ran", "by its process, and gone with it", (mine[pid] or 0) / 2**20, "MiB held")


def _strangers() -> str:
    """What the check ``leftovers`` names."""
    from unidle.probe.check.gpu import leftovers
    from unidle.probe.check.model import Context, ProbeResult

    outcome = leftovers(Context())
    checks = outcome.checks if isinstance(outcome, ProbeResult) else ()
    return next((check.because for check in checks if check.name == "leftovers"), "")


def _held_by(index: int) -> dict[int, int | None] | None:
    from unidle.probe.check.nvml import ask, gpus, opened

    with opened(None) as nvml:
        gpu: Any = next(gpu for gpu in gpus(nvml) if gpu.index == index)
        found = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", gpu.handle)
        return None if found is None else {p.pid: p.usedGpuMemory for p in found}


def until(holds: Any, limit_s: float) -> float | None:
    """Seconds until it holds; None where it does not within ``limit_s``."""
    began = time.perf_counter()
    while not holds():
        if time.perf_counter() - began > limit_s:
            return None
        time.sleep(0.1)
    return time.perf_counter() - began
