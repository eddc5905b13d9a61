"""Starts ranks by forking a process that has PyTorch loaded already: real processes without seconds of imports each."""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
import traceback

CLONE_NEWNET = 0x4000_0000


def main() -> None:
    """Each line of standard input starts one: ``{"arguments": [...], "environment": {...}, "errors": path}``, its pid is the answer.

    ``space`` is the network namespace that it is in, where it is given.
    """
    import torch

    import unidle.span.rank.__main__ as ranks

    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)  # loads what every optimizer loads
    children: set[int] = set()
    print("ready", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        if "wait" in told:
            pid = told["wait"]
            _, status = os.waitpid(pid, 0)
            children.discard(pid)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid:
            children.add(pid)
            print(pid, flush=True)
            continue
        _become(ranks, told)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _become(ranks: object, told: dict[str, object]) -> None:
    code = 1
    try:
        os.environ.update(told["environment"])  # type: ignore[call-overload]
        if (space := told.get("space")) is not None:
            _enter(str(space))
        errors = os.open(str(told["errors"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(errors, 2)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        if (output := told.get("output")) is not None:
            null = os.open(str(output), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(null, 1)
        if (script := told.get("script")) is not None:
            runpy.run_path(str(script), run_name="__main__")
            code = 0
        else:
            code = ranks.main(told["arguments"])  # type: ignore[attr-defined]
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _enter(space: str) -> None:
    with open(f"/run/netns/{space}") as entered:
        if ctypes.CDLL(None, use_errno=True).setns(entered.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")


if __name__ == "__main__":
    main()
    os._exit(0)  # unloading PyTorch takes long
