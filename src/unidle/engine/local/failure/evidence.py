"""Evidence of why a rank failed: the error in its output, and whether the kernel killed it for lack of memory."""

from __future__ import annotations

import signal

from ..oom import kernel_says, limit_of
from .read import read_failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..supervise import Supervisor

STOPPED = (-signal.SIGTERM, -signal.SIGKILL)


def evidence(rank: Supervisor, code: int, info: dict[str, object]) -> dict[str, object]:
    """Fields of the exit mark beyond its ``info``, which gets those of the kernel's kill."""
    last: dict[str, object] = {}
    out, err, both = (rank.last[name].take() for name in ("stdout", "stderr", "both"))
    # of one that was stopped only an error of its own matters
    if not (rank.stopping and code in STOPPED) or b"Traceback" in err:
        cut = rank.last["stdout"].cut, rank.last["stderr"].cut
        last = read_failure(out, err, both, code, rank.orders.workdir, cut)
    info.update(_out_of_memory(rank, code, oom=info["oom"] is True))
    return {"last": last} if last else {}


def _out_of_memory(rank: Supervisor, code: int, *, oom: bool) -> dict[str, object]:
    """Which limit the kernel killed a process for; asked where it did, or where the killer is unknown."""
    if not oom and (code != -signal.SIGKILL or rank.killed_ns is not None):
        return {}
    said = kernel_says(rank.group.paths, rank.pid, rank.started_us)
    if not (oom or said):
        return {}
    of_machine = bool(said.pop("oom_machine", False))
    return {"oom": True, **limit_of(rank.group, of_machine=of_machine), **said}
