"""How the engine requires a supervisor to run its rank: the content of ``orders.json``. Standard library only."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would slow the supervisor's start
if TYPE_CHECKING:
    from typing import Any


class Orders:
    """How to run one rank.

    ``env`` is added to the supervisor's own environment, ``unset`` taken away from it; ``groups`` is
    the rank's control group (:class:`~unidle.engine.local.cgroups.Group`), ``clock_offset_ns`` turns
    the boot-time clock into the controller's. ``boot`` names the boot of the machine.
    """

    def __init__(
        self,
        *,
        argv: list[str],
        workdir: str,
        env: dict[str, str],
        unset: list[str],
        clock_offset_ns: int,
        grace_ns: int,
        groups: dict[str, str],
        memory_bytes: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        progress_pattern: str | None = None,
        checkpoint_path: str | None = None,
        log_file_bytes: int = 16 * 1024 * 1024,
        log_files: int = 4,
        boot: str = "",
    ) -> None:
        self.argv = argv
        self.workdir = workdir
        self.env = env
        self.unset = unset
        self.clock_offset_ns = clock_offset_ns
        self.grace_ns = grace_ns
        self.groups = groups
        self.memory_bytes = memory_bytes
        self.cpus = cpus
        self.pids = pids
        self.progress_pattern = progress_pattern
        self.checkpoint_path = checkpoint_path
        self.log_file_bytes = log_file_bytes
        self.log_files = log_files
        self.boot = boot

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Orders:
        return cls(**content)

    def as_json(self) -> dict[str, object]:
        return dict(self.__dict__)
