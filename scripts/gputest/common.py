"""What a row is, what it is given, and how it runs: in a process of its own, within its time."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

WORK: Final = Path(__file__).with_name("work.py")
TOKEN: Final = "UNIDLE_TEST_GPU_TOKEN"
"""In the environment of all that a run starts: what is left behind is found by it."""
MODULES: Final = ("msgspec", "numpy", "pynvml", "rich", "typer", "yaml")
State = Literal["ran", "failed", "missing"]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. ``value`` in ``unit`` where it is a figure; ``goal`` in words where it has one."""

    what: str
    state: State
    says: str = ""
    value: float | None = None
    unit: str = ""
    goal: str | None = None


class Missing(Exception):
    """The machine lacks what the row needs; the text says what."""


class Failed(Exception):
    """What was looked at is not as it must be; the text says how."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a row is given: a directory of its own, and ``cuda``, or ``cpu`` in a rehearsal."""

    directory: Path
    device: str

    @property
    def rehearsal(self) -> bool:
        return self.device == "cpu"

    @property
    def patience(self) -> float:
        """By which time limits are multiplied: a rehearsal shares its processors with whatever else runs there."""
        return 4.0 if self.rehearsal else 1.0

    def file(self, name: str, content: Any) -> Path:
        """A job, fleet or span file: JSON is YAML, too."""
        path = self.directory / name
        path.write_text(json.dumps(content))
        return path

    def unidle(self, *arguments: str | Path, timeout_s: float = 120.0, codes: Sequence[int] = (0,)) -> str:
        """The command's standard output. Errors: :class:`Failed`."""
        command = [sys.executable, "-m", "unidle", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, errors="replace",
            timeout=timeout_s * self.patience, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode not in codes:
            why = last_line(done.stderr or done.stdout)
            if arguments[0] == "profile" and done.returncode == 3:
                raise Missing(why)  # not permitted, or not possible on this kernel
            raise Failed(f"unidle {arguments[0]} exited with {done.returncode}: {why}")
        return done.stdout

    def work(self, *arguments: str) -> list[str]:
        """The command of a program in ``work.py`` on this device."""
        return [sys.executable, str(WORK), self.device, *arguments]


@dataclass(frozen=True, slots=True)
class Row:
    """One path: ``look`` is ``module:function`` here, ``needs`` of ``gpu`` (NVML), ``torch``, ``cuda``, ``unidle`` (all its
    packages) and names of modules, ``limit_s`` its time."""

    name: str
    look: str
    needs: tuple[str, ...]
    limit_s: float

    def run(self, place: Place) -> Iterator[Result]:
        module, _, function = self.look.partition(":")
        look: Callable[[Place], Iterator[Result]] = getattr(import_module(f"gputest.{module}"), function)
        return look(place)


ROWS: Final = (
    Row("discovery", "nvml_rows:discovery", ("gpu", "pynvml", "numpy"), 30),
    Row("watch", "nvml_rows:watch", ("gpu", "pynvml", "msgspec"), 30),
    Row("mig", "nvml_rows:mig", ("gpu", "pynvml", "msgspec"), 30),
    Row("check", "nvml_rows:quick", ("gpu", "unidle"), 40),
    Row("cuda", "cuda_rows:cuda", ("cuda", "torch"), 60),
    Row("visible", "cuda_rows:visible", ("cuda", "gpu", "pynvml"), 60),
    Row("use", "nvml_rows:use", ("cuda", "gpu", "pynvml", "numpy"), 60),
    Row("check under load", "cuda_rows:loaded", ("cuda", "unidle"), 150),
    Row("nccl", "cuda_rows:collective", ("cuda",), 60),
    Row("checkpoint", "job_rows:restarts", ("cuda", "unidle"), 150),
    Row("share by time", "job_rows:by_time", ("cuda", "gpu", "unidle"), 75),
    Row("share by MPS", "job_rows:by_mps", ("cuda", "gpu", "unidle"), 90),
    Row("profile", "profile_rows:live", ("cuda", "unidle", "unidle_scope"), 75),
    Row("kernels", "profile_rows:kernels", ("cuda", "unidle"), 120),
    Row("span run", "job_rows:span", ("cuda", "unidle"), 90),
    Row("roofline", "cuda_rows:roofline", ("cuda", "numpy"), 60),
    Row("cuda-checkpoint", "job_rows:frozen", ("cuda", "unidle"), 60),
)


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no message"


def lacking(needs: Sequence[str], why_no: Mapping[str, Callable[[], str]]) -> str:
    """What of ``needs`` is not here, in words. ``why_no``: of what is no module, why it is not here; empty where it is."""
    modules = [
        name for need in needs if need not in why_no for name in (MODULES if need == "unidle" else (need,))
    ]
    gone = [name for name in modules if find_spec(name) is None]
    if gone == ["unidle_scope"]:
        return "the profiler's native part (unidle_scope) is not installed"
    if gone:
        return f"Python has no {', '.join(gone)}"
    return next((why for need in needs if need in why_no and (why := why_no[need]())), "")


class Hung(Exception):
    """A driver's call has not returned."""


def answer(source: str, limit_s: float) -> str:
    """What a Python prints that runs ``source``: all that asks the driver is a process of its own, for any of its calls
    may hang in the kernel, where no signal reaches it. Errors: :class:`Hung`."""
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, error = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            let_go(process)
            raise Hung(f"the driver did not answer within {limit_s:g} s") from None
    if process.returncode:
        raise Failed(last_line(error))
    return out


def let_go(process: subprocess.Popen[Any]) -> None:
    """Kill it and what is in its group; one that the kernel does not let go of is left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # not waited for any more


def no_gpu() -> str:
    """Why there is no NVIDIA GPU here, asked without any package; empty where there is one. It may never return."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return f"no NVIDIA driver ({error})"
    if code := nvml.nvmlInit_v2():
        return f"NVML does not start (error {code})"
    count = ctypes.c_uint()
    code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    return (
        ""
        if code == 0 and count.value
        else f"NVML lists no GPU (error {code})"
        if code
        else "NVML lists no GPU"
    )


@cache
def no_cuda() -> str:
    """Why PyTorch cannot use a GPU. It is asked in a process of its own."""
    source = "import torch; torch.cuda.init(); torch.ones(1, device='cuda').item(); print('works', torch.__version__)"
    try:
        return "" if "works" in answer(source, 60) else "PyTorch gives no answer"
    except Hung:
        return "PyTorch did not start CUDA within 60 s"
    except Failed as error:
        why = str(error).partition(": ")[2].partition(". ")[0]
        return f"PyTorch cannot use a GPU ({why or 'it died'})"


def marked(token: str) -> list[int]:
    """Processes of a run that still live, by the token in their environment."""
    found = []
    wanted = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except (OSError, IndexError):
            continue
    return found
