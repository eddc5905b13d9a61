"""Controllers and agents of a rig, forked from one process that has imported what they need, each in the network of its node.

A start takes 0.1 s of processor time, not 1 s, so that it can be killed at each of its lines.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from warm_commands import ROOMS, WarmCommands, import_all, run_to_end, serve, take_on

SPACE, SPEC = "HOST_FAULTS_SPACE", "HOST_FAULTS_SPEC"
SOON_NS = 100_000_000  # between two looks at what is missing, and two requests for the same box: the next start comes soon
_NEW_NET = 0x40000000


class WarmHosts(WarmCommands):
    """The client's end. The environment of a task has the namespace of its node, and the file of what to follow, if anything.

    ``env``: of all of them; by it, processes of the rig are found.
    """

    def __init__(self, env: dict[str, str]) -> None:
        super().__init__(Path(__file__), env)


def _become(task: dict[str, Any], streams: list[int]) -> NoReturn:
    take_on(task, streams)
    from host_faults import at_line
    from unidle.__main__ import main
    from unidle.engine.hosts import core
    from unidle.engine.hosts.timing import HostsTiming

    space = os.open(os.environ.pop(SPACE), os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, _NEW_NET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(space)
    *others, _ = HostsTiming.__init__.__defaults__ or ()
    HostsTiming.__init__.__defaults__ = (*others, SOON_NS)
    core._LOOK_NS = SOON_NS
    sys.argv = ["unidle", *task["words"]]
    role = task["words"][0]
    if spec := os.environ.pop(SPEC, ""):
        if role == "agent":
            at_line.agent_boxes(spec)
        at_line.traced(spec, role, "")
    run_to_end(main)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as its_line:
        os.set_inheritable(its_line.fileno(), False)
        import_all((*ROOMS, "agent", "hub", "engine.hosts", "probe", "scope"))
        serve(its_line, _become)
