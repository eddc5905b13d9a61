"""``python -m unidle.fill.runtime.neighbour``: the process of one filler, next to one rank.

The supervisor writes two lines of JSON to its standard input: first the directories of the filler's control group, which it enters before it
imports anything large. Then, once the supervisor found that it gives way there: the filler, its arguments, the rank's board, the rules.
Whatever happens here ends this process alone.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final

_PDEATHSIG: Final = 1


def main() -> int:
    """The exit code: 0 once the filler is finished or was ended, 2 where it cannot be made, 1 where it failed."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: the supervisor decides
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for group in json.loads(sys.stdin.readline() or "[]"):
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write("0")
    sys.stdout.write("here\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        return 0  # refused
    os.dup2(2, 1)  # what a filler prints goes to its log
    return _work(json.loads(line))


def _work(order: Mapping[str, Any]) -> int:
    from unidle.errors import BadInput
    from unidle.fill.fillers.load import load
    from unidle.fill.runtime.shared_counters import SharedCounters
    from unidle.fill.runtime.slots import AlwaysOpen, SlotRules, Slots
    from unidle.rank.waits import BoardReader

    counters = SharedCounters(order["counters"])
    try:
        board = BoardReader(order["pid"], order["board"]) if order["board"] is not None else AlwaysOpen()
    except (OSError, ValueError):
        return 0  # training has ended
    try:
        filler = load(order["filler"], order["arguments"])
    except BadInput as error:
        sys.stderr.write(f"unidle: {error}\n")
        return 2
    gc.collect()
    gc.freeze()
    rules = SlotRules(order["piece_ns"], order["memory_bytes"], order["paced"])
    Slots(filler, board, counters, rules).run()
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever threads or exit handlers the filler left
