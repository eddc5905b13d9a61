"""One member of the gang that ``unidle span run`` starts: runs the rank of its device, and reports it to the
supervisor.

``python -m unidle.span.rank.member DIR``: DIR is the run's directory. The launcher writes ``plan-N.json`` for
attempt N; a member whose device the plan leaves out waits, and reports whether the others are reachable. Standard
library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from typing import Any, Final, NoReturn

import unidle.rank as helper

SECRET: Final = "UNIDLE_SPAN_SECRET"  # noqa: S105
AGAIN: Final = 75  # a link or a peer was lost, or the launcher wants another attempt
_LOOK_S: Final = 0.05
_TRY_S: Final = 2.0
_QUIET_NS: Final = 200_000  # shorter waits are not worth a record


def main(directory: str) -> int:
    """Run the part of the attempt's plan for this node's device; the exit code."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0) + 1
    node = os.environ.get("UNIDLE_NODE", "")
    plan_path = os.path.join(directory, f"plan-{attempt}.json")
    plan = _awaited(directory, plan_path)
    if plan is None:
        return 0
    for line in plan.get("because", []):  # why there is another attempt
        print(f"unidle span: {line}", file=sys.stderr, flush=True)
    out = os.path.join(directory, f"out-{attempt}")
    device = next((each for each in plan["devices"] if dashed(each["device"]) == node), None)
    if device is None:
        return _stand_by(directory, attempt, plan, os.path.join(out, f"{node}.jsonl"))
    with open(os.path.join(directory, "secret")) as stream:
        os.environ[SECRET] = stream.read()
    child = _started([plan_path, "--device", device["device"], "--out", out])
    signal.signal(signal.SIGTERM, lambda *_: _pass_on(child, signal.SIGTERM))
    told = _Told(os.path.join(out, f"{node}.jsonl"))
    stopped = False
    while child.poll() is None:
        told.look()
        if not stopped and os.path.exists(os.path.join(directory, f"stop-{attempt}")):
            stopped = True
            _pass_on(child, signal.SIGTERM)
        time.sleep(_LOOK_S)
    told.look()
    code = child.returncode or 0
    if code < 0:
        return 128 - code
    return AGAIN if stopped else code


def _started(words: list[str]) -> subprocess.Popen[bytes] | _Forked:
    """The rank: a fork of this process where that has PyTorch already, as it was forked from a Python that imported it."""
    if "torch" in sys.modules:
        return _Forked(words)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "unidle.span.rank", *words], stdin=subprocess.DEVNULL
    )


class _Forked:
    """A rank that was forked, with what is used of :class:`subprocess.Popen`."""

    def __init__(self, words: list[str]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become_rank(words)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _become_rank(words: list[str]) -> NoReturn:
    code = 1
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        import unidle.span.rank.__main__ as rank

        sys.argv = [str(rank.__file__), *words]
        code = rank.main(words)
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def dashed(device: str) -> str:
    """A device as the name of a node and of a file."""
    return device.replace("/", "-")


def _pass_on(child: subprocess.Popen[bytes] | _Forked, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


def _awaited(directory: str, path: str) -> dict[str, Any] | None:
    """The attempt's plan once it is there; None where the run is over."""
    while True:
        with contextlib.suppress(FileNotFoundError), open(path) as stream:
            found: dict[str, Any] = json.load(stream)
            return found
        if os.path.exists(os.path.join(directory, "over")):
            return None
        time.sleep(_LOOK_S)


def _stand_by(directory: str, attempt: int, plan: dict[str, Any], path: str) -> int:
    """Until the run is over; which of those that work answer goes into this member's records, whenever it changes."""
    tried, told = 0.0, None
    node = os.environ.get("UNIDLE_NODE", "")
    others: dict[str, list[Any]] = next(
        (found for name, found in plan.get("standing_by", {}).items() if dashed(name) == node), {}
    )
    while not os.path.exists(os.path.join(directory, "over")):
        if os.path.exists(os.path.join(directory, f"stop-{attempt}")):
            return AGAIN
        if time.monotonic() - tried > _TRY_S:
            tried = time.monotonic()
            reached = [name for name, address in others.items() if _answers(address)]
            if reached != told:
                told = reached
                with open(path, "a") as stream:
                    stream.write(json.dumps({"kind": "reach", "reached": reached}) + "\n")
        time.sleep(_LOOK_S)
    return 0


def _answers(address: list[Any]) -> bool:
    try:
        socket.create_connection((address[0], address[1]), timeout=_TRY_S).close()
    except OSError:
        return False
    return True


class _Told:
    """What the rank wrote, as marks: steps as they end, before them what was waited for and made again in them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at, self._rest = 0, b""
        self._rows: dict[int, list[dict[str, Any]]] = {}
        self._offset = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()

    def look(self) -> None:
        try:
            with open(self._path, "rb") as stream:
                stream.seek(self._at)
                read = stream.read()
        except FileNotFoundError:
            return
        self._at += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, KeyError):
                self._take(json.loads(line))

    def _take(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == "ready":
            helper.tell({"k": "ready", "t": record["ns"] + self._offset})
            if "resumed" in record:
                helper.tell({"k": "restored", "t": record["ns"] + self._offset, "n": record["resumed"]})
        elif kind == "row":
            self._rows.setdefault(record["step"], []).append(record)
        elif kind == "step":
            self._step(record)
        elif kind == "checkpoint":
            helper.tell({"k": "saved", "t": time.clock_gettime_ns(time.CLOCK_BOOTTIME), "n": record["step"]})

    def _step(self, record: dict[str, Any]) -> None:
        for start, end, what in spans(record, self._rows.pop(record["step"], [])):
            if end - start >= _QUIET_NS:
                helper.tell({"k": "span", "t": start + self._offset, "e": end + self._offset, "w": what})
        helper.tell({"k": "step", "t": record["end_ns"] + self._offset, "n": record["step"]})


def spans(step: dict[str, Any], rows: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    """What of a step was no useful work: ``again`` (recompute), ``bubble``, ``wan``, and of these what a filler used, in nanoseconds.

    One stretch of each kind, back to back at the step's end: their lengths are measured, where they were is in the rows.
    Waits between operations are the step's ``exposed_wan_ns``, as far as it goes; what is left is the schedule's bubble.
    """
    begin, end = int(step["begin_ns"]), int(step["end_ns"])
    free, waits, again = begin, 0, 0
    for row in sorted((r for r in rows if r["op"] in ("F", "B", "W", "R")), key=lambda r: int(r["start_ns"])):
        waits += max(int(row["start_ns"]) - free, 0)
        again += int(row["end_ns"]) - int(row["start_ns"]) if row["op"] == "R" else 0
        free = max(free, int(row["end_ns"]))
    wan = int(step.get("exposed_wan_ns") or 0)
    wan = min(wan, waits) if rows else wan
    bubble = waits - wan
    used = []
    for what, name in (("fill", "filled_ns"), ("discarded", "discarded_ns")):
        length = min(int(step.get(name) or 0), max(bubble, 0) + wan)
        of_bubble = min(length, max(bubble, 0))
        bubble, wan = bubble - of_bubble, wan - (length - of_bubble)
        used.append((length, what))
    found, at = [], end
    for length, what in (*used, (wan, "wan"), (bubble, "bubble"), (again, "again")):
        if length > 0:
            found.append((max(at - length, begin), at, what))
            at = max(at - length, begin)
    return found[::-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
