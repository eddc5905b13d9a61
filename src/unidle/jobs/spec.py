"""What a user asks for: one job, already validated (see ``unidle.files`` for the file format)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

DeviceWish = Literal["gpu", "cpu", "any"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the parallel groups; ``tp * dp * pp`` equals the number of ranks where given."""

    tp: int = 1
    dp: int = 1
    pp: int = 1


@dataclass(frozen=True, slots=True)
class Restart:
    """Which failures are retried, how often and how soon.

    ``on`` holds ``"any"``, ``"signal"`` (killed by any signal), ``"exit"`` (any non-zero exit code),
    ``"lost"`` (the rank's end was not seen), a signal name such as ``"SIGKILL"`` or an exit code.
    The wait before try n (from 1) is ``backoff_s * 2 ** (n - 1)``, at most 300 s.
    """

    max: int = 0
    backoff_s: float = 1.0
    on: tuple[str | int, ...] = ("any",)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds per rank; ``None`` is unbounded."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One gang of ``ranks`` equal processes, each on ``devices_per_rank`` devices."""

    command: tuple[str, ...]
    name: str = "job"
    workdir: str = "."
    env: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    devices_per_rank: int = 1
    device: DeviceWish = "any"
    queue: str = "default"
    priority: int = 0
    user: str = ""
    layout: Layout | None = None
    checkpoint_path: str | None = None
    progress_pattern: str | None = None
    restart: Restart = field(default_factory=Restart)
    limits: Limits = field(default_factory=Limits)
    timeout_s: float | None = None
    queue_timeout_s: float | None = None
    grace_s: float = 10.0
    price_per_device_hour: float | None = None

    @property
    def devices(self) -> int:
        """Devices that the whole gang needs."""
        return self.ranks * self.devices_per_rank
