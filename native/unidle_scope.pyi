# The profiler's native part, made for unidle.scope.tiers.native.

from typing import Any

FORM: int
# of what Session.take gives
SOURCES: dict[str, str]
# the C source of the BPF programs, by file name
KERNELS_LIBRARY: bytes
# the library of inject/kernels.c, as a file's bytes
__version__: str

def loaded_programs() -> list[str]: ...
def demangled(names: list[str]) -> list[str]: ...

class Session:
    # A look at running processes that lasts until close. Raises ProcessLookupError (a pid that is not there),
    # PermissionError, OSError (what the kernel lacks).
    tier: str
    misses: list[str]

    def __init__(
        self,
        pids: list[int],
        *,
        hz: int = 99,
        off_cpu: bool = True,
        follow: bool = True,
        tier: str | None = None,
        calls: dict[str, Any] | None = None,
    ) -> None: ...
    def run(self, seconds: float) -> int: ...
    def add(self, pid: int) -> None: ...
    def take(self) -> dict[str, Any]: ...
    def program_costs(self) -> list[tuple[str, int, int]]: ...
    def close(self) -> None: ...
