"""What a run may not leave: processes on the GPUs, their memory, other settings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Final

from gputest.common import Result, answer

_SETTINGS: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "persistence": ("nvmlDeviceGetPersistenceMode", ()),
    "compute mode": ("nvmlDeviceGetComputeMode", ()),
    "MIG mode": ("nvmlDeviceGetMigMode", ()),
    "ECC": ("nvmlDeviceGetEccMode", ()),
    "power limit": ("nvmlDeviceGetPowerManagementLimit", ()),
    "clock of the SMs": ("nvmlDeviceGetApplicationsClock", (1,)),
    "clock of the memory": ("nvmlDeviceGetApplicationsClock", (2,)),
}
_SPARE_BYTES: Final = 64 << 20  # the driver keeps some after the first program
_WAIT_S: Final = 8.0
_ASK_S: Final = 5.0


class Left:
    """Looks at each GPU when it is made, and again at the end."""

    def __init__(self) -> None:
        self._before = _asked()

    def results(self) -> Iterator[Result]:
        """Waits a little: the driver takes a moment to free what processes had."""
        until = time.monotonic() + _WAIT_S
        while _worse(self._before, now := _asked()) and time.monotonic() < until:
            time.sleep(0.25)
        changed = [
            f"GPU {k}: {name} was {old['settings'][name]}, is {value}"
            for k, (old, new) in enumerate(zip(self._before, now, strict=False))
            for name, value in new["settings"].items()
            if old["settings"][name] != value
        ]
        yield _told("settings", changed, "as before on all GPUs")
        yield _told(
            "processes", _strangers(self._before, now), "no process on a GPU that was not there before"
        )
        grown = max(
            (new["used"] - old["used"] for old, new in zip(self._before, now, strict=False)), default=0
        )
        bad = [f"{grown / 2**20:.0f} MiB more in use than before"] if grown > _SPARE_BYTES else []
        yield _told("memory", bad, f"{max(grown, 0) / 2**20:.0f} MiB more in use than before")
        if len(now) != len(self._before):
            yield Result("GPUs", "failed", f"{len(self._before)} answered before, {len(now)} do now")


def _told(what: str, bad: list[str], well: str) -> Result:
    return Result(what, "failed" if bad else "ran", "; ".join(bad) or well)


def _strangers(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    known = {pid for gpu in before for pid in gpu["pids"]}
    return [
        f"process {pid} on GPU {k}" for k, gpu in enumerate(now) for pid in gpu["pids"] if pid not in known
    ]


def _worse(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> bool:
    grown = any(new["used"] - old["used"] > _SPARE_BYTES for old, new in zip(before, now, strict=False))
    return grown or bool(_strangers(before, now))


def _asked() -> list[dict[str, Any]]:
    """:func:`look` in a process of its own. Errors: :class:`~gputest.common.Hung`, :class:`~gputest.common.Failed`."""
    found: list[dict[str, Any]] = json.loads(
        answer("import json, gputest.left as it; print(json.dumps(it.look()))", _ASK_S)
    )
    return found


def look() -> list[dict[str, Any]]:
    """Settings, memory and processes of each GPU that answers."""
    from unidle.probe.check.nvml import Missing, ask, gpus, opened

    try:
        with opened(None) as nvml:
            return [
                {
                    "settings": {
                        name: ask(nvml, function, gpu.handle, *more)
                        for name, (function, more) in _SETTINGS.items()
                    },
                    "used": ask(
                        nvml, "nvmlDeviceGetMemoryInfo", gpu.handle, read=lambda memory: int(memory.used)
                    )
                    or 0,
                    "pids": [
                        p.pid for p in ask(nvml, "nvmlDeviceGetComputeRunningProcesses", gpu.handle) or ()
                    ],
                }
                for gpu in gpus(nvml)
            ]
    except Missing:
        return []
