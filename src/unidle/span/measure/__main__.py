"""The process that measures: one request in, lines of JSON out."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any, TextIO


def main() -> int:
    """Exit codes: 0 measured, 1 an error that was reported, 130 by Ctrl-C."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the user's code prints is no answer
    sys.stdout = sys.stderr  # which keeps nothing back: once there is an answer the process is killed
    try:
        asked = Asked()
        told = _measure(json.loads(asked.line()), asked, answers)
    except ImportError as error:
        if error.name != "torch":
            raise
        told = _error(
            "cannot",
            "torch",
            "PyTorch is not installed for this Python",
            sys.executable,
            "pip install unidle[train]",
        )
    except KeyboardInterrupt:
        return 130  # who asked has heard it, too
    _answer(answers, told)
    return 1 if "error" in told else 0


class Asked:
    """Lines of standard input. After the first line, the process ends when its parent ends."""

    def __init__(self) -> None:
        self._lines = queue.SimpleQueue[bytes]()
        threading.Thread(target=self._listen, daemon=True).start()

    def line(self) -> bytes:
        return self._lines.get()

    def _listen(self) -> None:
        held = b""
        while part := os.read(0, 1 << 16):
            *whole, held = (held + part).split(b"\n")
            for each in whole:
                self._lines.put(each)
        os._exit(1)


def _measure(given: dict[str, Any], asked: Asked, answers: TextIO) -> dict[str, Any]:
    import torch

    from unidle.span.measure.load import (
        ProfileRefused,
        ProfileRequest,
        first_line,
        is_out_of_memory,
        load,
        place_of,
    )
    from unidle.span.measure.profiler import LayerProfiler

    request = ProfileRequest(**given)
    if request.threads:
        torch.set_num_threads(request.threads)
    doing = "building the model"
    try:
        job = load(request)
        doing = "measuring"
        profile = LayerProfiler(request, job)
        profile.warm_up()
        _answer(answers, {"ready": True})
        asked.line()
        return {"result": profile.run()}
    except ProfileRefused as refused:
        return {"error": refused.told}
    except Exception as error:
        if is_out_of_memory(error):
            problem = f"out of memory while {doing}: {first_line(error)}"
            return _error(
                "cannot",
                "memory",
                problem,
                None,
                "use a smaller --microbatch, or fewer layers: they are equal",
            )
        problem = f"{type(error).__name__} while {doing}: {first_line(error)}{place_of(error)}"
        return _error("input", "build", problem, request.build, "correct the model, or its batch or loss")


def _error(kind: str, field: str, problem: str, value: object, remedy: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "field": field, "problem": problem, "value": value, "remedy": remedy}}


def _answer(answers: TextIO, told: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(told, default=str) + "\n")
        answers.flush()
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
