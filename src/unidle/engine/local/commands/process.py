"""The process that runs one remedy or check, and outlives the controller that began it. Standard library only.

Its directory holds ``order.json`` (``words``, ``limit_s``, ``env``: more variables), ``lock``, which it holds while it lives, and at the end
``result.json``: ``code`` (None where it had to be killed), ``late``, ``text`` (the end of what it printed).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time

KEPT_BYTES = 1 << 16
LET_GO_S = 2.0


def main(directory: str) -> None:
    with open(f"{directory}/order.json") as file:
        order = json.load(file)
    result = run(order["words"], float(order["limit_s"]), order.get("env", {}))
    path = f"{directory}/result.json"
    with open(f"{path}.new", "w") as file:
        json.dump(result, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def run(words: list[str], limit_s: float, env: dict[str, str]) -> dict[str, object]:
    """Run the command, at most so long; nothing that it started in its process group stays when it was late."""
    until = time.monotonic() + limit_s
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            env={**os.environ, **env},
        )
    except (OSError, ValueError) as error:
        return {"code": 127, "late": False, "text": f"cannot be started: {error}"}
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    os.set_blocking(pipe, False)
    text, late = b"", False
    while child.poll() is None:
        left = until - time.monotonic()
        if left <= 0:
            late = True
            _end(child)
            break
        if select.select([pipe], [], [], min(left, 0.05))[0]:
            part = _read(pipe)
            text = (text + part)[-KEPT_BYTES:]
            if not part:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(min(max(left, 0), 0.05))
    text = (text + _read(pipe))[-KEPT_BYTES:]
    return {"code": None if late else child.returncode, "late": late, "text": text.decode(errors="replace")}


def _read(pipe: int) -> bytes:
    try:
        return os.read(pipe, KEPT_BYTES)
    except OSError:
        return b""


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LET_GO_S)
            if number == signal.SIGKILL:
                return


if __name__ == "__main__":
    main(sys.argv[1])
