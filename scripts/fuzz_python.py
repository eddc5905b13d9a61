"""Fuzzes the readers and listeners that are written in Python: any input gives a result or one of unidle's own errors.

    python scripts/fuzz_python.py                      every target for 10 seconds each
    python scripts/fuzz_python.py job --seconds 600    one target (`--list` names them)
    python scripts/fuzz_python.py job --input FILE     one input again

Inputs are changed from those in tests/fuzz/corpus/TARGET, and an input that reaches new lines of unidle is changed further.
The same --seed gives the same sequence of inputs. A finding is: another exception than unidle's own, more than INPUT_S seconds
for one input, or more than MEMORY_BYTES of memory. It is written to .cache/fuzz/found/. Exit code 1: there is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import fuzz_targets

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
FOUND = ROOT / ".cache" / "fuzz" / "found"
INPUT_S = 10.0  # of one input, with the coverage of lines recorded
MEMORY_BYTES = 512 << 20  # more than what the process has after the corpus
MOST_BYTES = 64 << 10  # of one input
POOL = 2000
_ODD = [b"\0", b"\xff", b"\x7f", b"\n", b"\r", b"\t", b"\x1b[2J", b"[", b"{", b'"', b"\\ud800", b"\xed\xa0\x80", b"..", b"/", b"-1",
        b"1e999", b"NaN", b"9" * 30, b"0x", b"%s", b"\xef\xbb\xbf", b"*a", b"&a ", b": ", b"- ", b", ", b"null"]  # fmt: skip


class TooSlow(BaseException):
    """Not an Exception: no reader may take it for bad input."""


class Coverage:
    """The lines of unidle that ran. Only functions of unidle are traced."""

    def __init__(self) -> None:
        self._inside: dict[CodeType, bool] = {}
        self._seen: set[tuple[CodeType, int]] = set()
        self.new = 0

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if event == "call":
            inside = self._inside.get(code)
            if inside is None:
                inside = self._inside[code] = "unidle" in code.co_filename
            return self._trace if inside else None
        if event == "line" and (key := (code, frame.f_lineno)) not in self._seen:
            self._seen.add(key)
            self.new += 1
        return self._trace

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        self.new = 0
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)


def changed(pool: list[bytes], words: list[bytes], dice: random.Random) -> bytes:
    """An input of the pool with one to eight changes."""
    data = bytearray(dice.choice(pool))
    for _ in range(1 << dice.randrange(4)):
        at = dice.randrange(len(data) + 1)
        to = min(len(data), at + dice.choice((1, 1, 2, 4, 16, 200)))
        way = dice.randrange(7)
        if way == 0 and data:
            data[min(at, len(data) - 1)] = dice.randrange(256)
        elif way == 1:
            del data[at:to]
        elif way == 2:
            data[at:at] = dice.choice(words)
        elif way == 3:
            data[at:to] = dice.choice(words)
        elif way == 4:
            data[at:at] = bytes(data[at:to]) * dice.choice((1, 2, 8, 500))
        elif way == 5:
            other = dice.choice(pool)
            start = dice.randrange(len(other) + 1)
            data[at:to] = other[start : start + dice.choice((1, 4, 16, 64, 1000))]
        else:
            data[at : at + 8] = dice.choice((0, 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1)).to_bytes(
                8, dice.choice(("little", "big"))
            )
    return bytes(data[:MOST_BYTES])


def seeds(target: str) -> list[bytes]:
    folder = CORPUS / target
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def _late(_number: int, _frame: FrameType | None) -> None:
    raise TooSlow


def tried(run: Callable[[bytes], None], data: bytes) -> str:
    """What was wrong with the input, in one paragraph; empty for nothing."""
    signal.setitimer(signal.ITIMER_REAL, INPUT_S)
    try:
        run(data)
    except TooSlow:
        return f"took longer than {INPUT_S:g} s\n{traceback.format_exc(limit=-8)}"
    except MemoryError:
        return f"took more than {MEMORY_BYTES >> 20} MiB\n{traceback.format_exc(limit=-8)}"
    except Exception:
        return traceback.format_exc(limit=-8)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


def limit_memory() -> None:
    """From here on the process gets no more than MEMORY_BYTES."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def fuzz(target: str, seconds: float, seed: int, most: int | None = None) -> int:
    """Run one target in this process, with at most ``most`` changed inputs. Returns the exit code."""
    signal.signal(signal.SIGALRM, _late)
    warnings.simplefilter("ignore")  # of patterns that will be read otherwise by a later Python
    dice = random.Random(f"{target} {seed}")
    coverage = Coverage()
    with tempfile.TemporaryDirectory(prefix="unidle-fuzz-") as place:
        run = fuzz_targets.TARGETS[target](Path(place))
        pool = seeds(target) or [b""]
        words = _ODD + [word for data in pool for word in data.split()[:400] if len(word) < 60]
        inputs = 0
        end_s = time.monotonic() + seconds
        queue = list(pool)
        known = len(queue)
        while queue or (time.monotonic() < end_s and (most is None or inputs < known + most)):
            from_corpus = bool(queue)
            data = queue.pop(0) if queue else changed(pool, words, dice)
            with coverage.recorded():
                wrong = tried(run, data)
            inputs += 1
            if wrong:
                return _report(target, data, wrong)
            if coverage.new and not from_corpus and len(pool) < POOL:
                pool.append(data)
            if from_corpus and not queue:
                limit_memory()
    print(f"fuzz: python {target}: {inputs} inputs, {len(pool)} of them kept, no finding", flush=True)
    return 0


def _report(target: str, data: bytes, wrong: str) -> int:
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"python-{target}-{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    print(
        f"fuzz: python {target}: a finding, in {path.relative_to(ROOT)}\n{wrong}", file=sys.stderr, flush=True
    )
    return 1


def again(target: str, path: Path) -> int:
    signal.signal(signal.SIGALRM, _late)
    with tempfile.TemporaryDirectory(prefix="unidle-fuzz-") as place:
        run = fuzz_targets.TARGETS[target](Path(place))
        limit_memory()
        wrong = tried(run, path.read_bytes())
    print(wrong or "no finding")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the readers that are written in Python.")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=10, help="of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, help="at most so many changed inputs: the same ones each time")
    parser.add_argument("--input", type=Path, help="run the one target with this file only")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    if chosen.list:
        print(*fuzz_targets.TARGETS, sep="\n")
        return 0
    targets = chosen.targets or list(fuzz_targets.TARGETS)
    if unknown := set(targets) - set(fuzz_targets.TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; --list names them")
    if chosen.input:
        if len(targets) != 1:
            parser.error("--input needs one TARGET")
        return again(targets[0], chosen.input)
    if len(targets) == 1:
        return fuzz(targets[0], chosen.seconds, chosen.seed, chosen.inputs)
    worst = 0  # each target in a process of its own: it has a limit of memory
    for target in targets:
        command = [
            sys.executable,
            __file__,
            target,
            "--seconds",
            str(chosen.seconds),
            "--seed",
            str(chosen.seed),
        ]
        worst = max(worst, abs(subprocess.run(command).returncode))
    return min(worst, 1)


if __name__ == "__main__":
    raise SystemExit(main())
