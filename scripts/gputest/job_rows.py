"""Rows that run jobs: restarts with checkpoints, shares of a GPU, a span, a frozen process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gputest.common import WORK, Failed, Missing, Place, Result, last_line

_WARM_S = 12.0  # after the first step a warm Python has imported PyTorch by then


def restarts(place: Place) -> Iterator[Result]:
    """One rank is killed, and goes on from its copy in memory: cold, and from a warm Python; the state is that of a run unharmed."""
    cold, step, digest = _killed(place, "cold", 2.0, warm=False)
    yield Result(
        "restart from a checkpoint, cold",
        "ran",
        "kill to first step, with imports and the start of CUDA",
        cold,
        "s",
    )
    whole, other = _train(place, "whole", step, 0.0, warm=False)
    off = 0.0 if other == digest else _difference(whole / "state", place.directory / "cold" / "state")
    if off > 1e-4 or (place.rehearsal and off):
        raise Failed(f"after step {step} the state differs by {off:.3g} from that of a run without a failure")
    equal = "equal bit by bit" if not off else "nearly equal"
    yield Result(
        "checkpoint of tensors on the device",
        "ran",
        f"{equal} after {step} steps: state and moments",
        off,
        "largest difference",
    )
    warm, _, _ = _killed(place, "warm", _WARM_S, warm=True)
    yield Result(
        "restart from a checkpoint, warm", "ran", f"{cold / warm:.1f} times as fast as cold", warm, "s"
    )


def _difference(a: Path, b: Path) -> float:
    import numpy as np

    first, second = (np.fromfile(path, np.float32) for path in (a, b))
    return float("inf") if first.shape != second.shape else float(np.abs(first - second).max())


def _killed(place: Place, name: str, after_s: float, *, warm: bool) -> tuple[float, int, str]:
    """Seconds from the kill to the first step; the last step and the state after it."""
    folder, digest = _train(place, name, 5000, after_s, warm=warm)
    if not (folder / "resumed").exists():
        raise Failed(f"the {name} run did not resume")
    killed, resumed = (int((folder / what).read_text()) for what in ("killed", "resumed"))
    return (resumed - killed) / 1e9, int((folder / "digest").read_text().split()[0]), digest


def _train(place: Place, name: str, steps: int, after_s: float, *, warm: bool) -> tuple[Path, str]:
    folder = place.directory / name
    folder.mkdir()
    job: dict[str, Any] = {
        "name": name, "command": place.work("train", str(folder), str(steps), str(after_s)), "ranks": 1,
        "device": "cpu" if place.rehearsal else "gpu", "workdir": str(folder), "env": {"OMP_NUM_THREADS": "1"},
        "checkpoint": {"path": "checkpoints", "memory": True}, "restart": {"max": 2, "backoff_s": 0, "warm": warm},
    }  # fmt: skip
    _run(place, job, folder, 60)
    if not (folder / "digest").exists():
        raise Failed(f"the {name} run did not come to its end")
    return folder, (folder / "digest").read_text().split()[1]


def _run(place: Place, job: dict[str, Any], folder: Path, timeout_s: float, *options: str | Path) -> None:
    """``unidle run``; its error is the last line of the rank's output, where it has one."""
    file = place.file(f"{job['name']}.json", job)
    store = folder / "store.db"
    try:
        place.unidle(
            "run",
            file,
            "--store",
            store,
            "--progress",
            "off",
            "--cpu-devices",
            "1",
            *options,
            timeout_s=timeout_s,
        )
    except Failed as error:
        logs = [path.read_text(errors="replace") for path in sorted(folder.glob("store.db.d/runs/**/*.log"))]
        said = last_line(logs[-1]) if logs else "the rank printed nothing"
        raise Failed(f"{error}; {said}") from None


# -- shares ----------------------------------------------------------------------------------------


def by_time(place: Place) -> Iterator[Result]:
    """Two ranks on one GPU take turns."""
    yield from _shared(place, "time")


def by_mps(place: Place) -> Iterator[Result]:
    """Two ranks on one GPU through MPS, by a daemon of our own that ends with them."""
    from unidle.engine.local.devices.mps import MpsControl

    if why := MpsControl("test-gpu").why_not():
        raise Missing(why)
    yield from _shared(place, "mps")


def _shared(place: Place, mode: str) -> Iterator[Result]:
    from unidle.engine.local.devices.discovery import discover

    gpu = next(device for device in discover().nodes[0].devices if device.kind == "gpu")
    device = {
        "count": 1, "kind": "gpu", "model": gpu.model, "uuid": gpu.uuid, "number": gpu.index,
        "memory": f"{gpu.memory_bytes >> 30}GiB", "share": {"modes": [mode]},
    }  # fmt: skip
    fleet = place.file(
        "fleet.json",
        {"nodes": [{"id": os.uname().nodename.split(".")[0].lower() or "here", "devices": [device]}]},
    )
    (alone,) = _rates(place, fleet, mode, 1, None)
    both = _rates(place, fleet, mode, 2, {"fraction": 0.5, "mode": mode})
    if mode == "mps" and not all(one["mps"] and one["threads"] for one in both):
        raise Failed("the ranks were not clients of an MPS daemon")
    rates = [one["rate"] for one in both]
    slower, total = alone["rate"] / min(rates), sum(rates) / alone["rate"]
    says = f"{alone['rate']:.0f} products/s alone, {' and '.join(f'{rate:.0f}' for rate in rates)} together"
    yield Result(f"two ranks by {mode}: slow-down", "ran", says, slower, "times")
    yield Result(f"two ranks by {mode}: work together", "ran", "of what one does alone", 100 * total, "%")


def _rates(
    place: Place, fleet: Path, mode: str, ranks: int, share: dict[str, Any] | None
) -> list[dict[str, Any]]:
    folder = place.directory / f"{mode}-{ranks}"
    folder.mkdir()
    job: dict[str, Any] = {
        "name": f"{mode}-{ranks}", "command": place.work("rate", str(folder), str(ranks), "4"), "ranks": ranks,
        "device": "gpu", "workdir": str(folder),
    }  # fmt: skip
    _run(place, job | ({"share": share} if share else {}), folder, 60, "--fleet", fleet)
    return [json.loads((folder / f"rate.{rank}").read_text()) for rank in range(ranks)]


# -- a span, a frozen process ----------------------------------------------------------------------


def span(place: Place) -> Iterator[Result]:
    """One stage on one GPU, next to the same in one process."""
    model = Path(__file__).resolve().parents[2] / "examples" / "span" / "model.py"
    file = place.file("span.json", {
        "stage_ns": {"forward": 1_000_000, "backward": 1_000_000, "weight": 1_000_000},
        "activation_bytes": 131072, "pipelines": 1, "stages": 1, "microbatches": 4,
        "sites": [{"name": "here", "stages": 1}],
        "train": {
            "model": {"build": f"{model}:build", "arguments": {"blocks": 4, "width": 64}},
            "data": f"{model}:batch", "loss": f"{model}:loss", "microbatch": 8,
            "optimizer": {"name": "adamw", "arguments": {"lr": 0.001}}, "steps": 20, "device": place.device,
        },
    })  # fmt: skip
    store = place.directory / "span.db"
    told = json.loads(
        place.unidle(
            "span",
            "run",
            file,
            "--json",
            "--no-namespaces",
            "--compare",
            "single",
            "--store",
            store,
            timeout_s=80,
        )
    )
    single = told["compare"]["single"]
    # sums on a GPU come in another order from one kernel to the next
    most = 0 if place.rehearsal else 1e-3
    if single["loss_difference"] > most:
        raise Failed(f"losses differ by {single['loss_difference']:g} from one process")
    says = f"20 steps; losses differ by {single['loss_difference']:g} at most from one process"
    yield Result(f"span run with device: {place.device}", "ran", says)


def frozen(place: Place) -> Iterator[Result]:
    """A process that counts on the GPU is frozen into files, and counts on after the thaw."""
    from unidle.checkpoint.criu import ability

    can = ability()
    if can.cuda is None and not place.rehearsal:
        raise Missing("cuda-checkpoint not found" + ("" if can.works else f"; {can.because}"))
    if not can.works:
        raise Missing(can.because)
    number, images = place.directory / "number", place.directory / "images"
    with subprocess.Popen(
        [sys.executable, str(WORK), place.device, "count", str(number)], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            _until(
                lambda: number.exists() and int(number.read_text() or 0) > 5, 30, "it does not begin to count"
            )
            place.unidle("checkpoint", "freeze", str(process.pid), images, timeout_s=40)
        finally:
            process.kill()
    before = int(number.read_text())
    place.unidle("checkpoint", "thaw", images, timeout_s=40)
    _until(lambda: int(number.read_text() or 0) > before + 3, 20, "it does not count on after the thaw")
    os.kill(process.pid, 9)
    yield Result("a process with CUDA frozen and thawed", "ran", f"counts on after {before}")


def _until(holds: Any, limit_s: float, problem: str) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until:
            raise Failed(problem)
        time.sleep(0.05)
