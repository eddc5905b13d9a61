"""Matrix products that must come out exactly, and how fast they are; by PyTorch on GPU and CPU.

Entries are small integers, such that every partial sum, in whatever order it is taken, is an integer that the type
holds exactly: a right product has no rounding at all. It is checked without a second product of matrices: for random
integer vectors r, C r = A (B r) and r C = (r A) B, in integers modulo 2^64 on the CPU (Freivalds 1977). r is odd, so
that one wrong element always shows, and the two together say which it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from unidle.probe.check.model import Absent, Check, Context, Outcome, ProbeResult, least, most

if TYPE_CHECKING:
    import torch


class Kind(NamedTuple):
    """A type of number: the inner size and the largest entry, with inner * largest**2 <= 2**bits of its significand."""

    name: str
    inner: int
    largest: int


# float64 holds integers to 2^53, float32 to 2^24, float16 to 2^11, bfloat16 to 2^8
KINDS: Final = (
    Kind("float64", 1024, 1024),
    Kind("float32", 1024, 127),
    Kind("float16", 512, 2),
    Kind("bfloat16", 256, 1),
)
_CPU_KINDS: Final = frozenset({"float64", "float32", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Wrong:
    """A product that is not what it must be; row and column where one element alone explains it."""

    kind: str
    rows: int
    row: int | None
    column: int | None

    def __str__(self) -> str:
        where = (
            f", element ({self.row}, {self.column})"
            if self.row is not None and self.column is not None
            else ""
        )
        return f"{self.kind}: {self.rows} rows differ{where}"


class Product:
    """One product with its proof: ``a`` (m x k) and ``b`` (k x n) on a device, integers in ``kind``."""

    def __init__(self, kind: Kind, size: int, device: str, seed: int) -> None:
        import torch

        make = torch.Generator().manual_seed(seed)

        def some(rows: int, columns: int, largest: int) -> torch.Tensor:
            return torch.randint(-largest, largest + 1, (rows, columns), generator=make, dtype=torch.int64)

        a, b = some(size, kind.inner, kind.largest), some(kind.inner, size, kind.largest)
        self.kind = kind
        self._right = 2 * some(size, 1, 1 << 30) + 1
        self._left = 2 * some(1, size, 1 << 30) + 1
        self._rows = a @ (b @ self._right)
        self._columns = (self._left @ a) @ b
        number: torch.dtype = getattr(torch, kind.name)
        self.a, self.b = a.to(number).to(device), b.to(number).to(device)
        self.flops = 2 * size * size * kind.inner

    def multiply(self) -> torch.Tensor:
        return self.a @ self.b

    def wrong(self, c: torch.Tensor) -> Wrong | None:
        """What is wrong with a product; None where every bit is right (but for the sign of a zero)."""
        import torch

        here = c.cpu().to(torch.float64)
        whole = here.nan_to_num(0.5, 0.5, 0.5)
        broken = whole != whole.trunc()
        exact = torch.where(broken | (whole.abs() > 2.0**53), torch.zeros_like(whole), whole).to(torch.int64)
        rows = ((exact @ self._right != self._rows).flatten() | broken.any(1)).nonzero().flatten()
        columns = ((self._left @ exact != self._columns).flatten() | broken.any(0)).nonzero().flatten()
        if not len(rows) and not len(columns):
            return None
        one = len(rows) == 1 and len(columns) == 1
        return Wrong(
            self.kind.name, len(rows), int(rows[0]) if one else None, int(columns[0]) if one else None
        )


def exact_only() -> None:
    """Switch off what trades digits for speed: sums in halved precision."""
    import torch

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def devices() -> list[str]:
    """``cuda:0`` and so on; ``cpu`` on a machine without CUDA devices."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"cuda:{k}" for k in range(count)] or ["cpu"]


def name_of(device: str) -> str:
    """The model of the device as its driver reports it; empty for the CPU."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.startswith("cuda") else ""


def gemm(context: Context) -> Outcome:
    """Each device's products of each type: exact, and how fast."""
    try:
        import torch  # noqa: F401
    except ImportError:
        if context.declared_gpus():
            return ProbeResult(
                (Check("gemm", None, None, "", None, "PyTorch is not installed in unidle's environment"),)
            )
        return Absent("PyTorch is not installed in unidle's environment")
    exact_only()
    checks: list[Check] = []
    rates: dict[str, dict[str, float]] = {}
    wrong: dict[str, list[str]] = {}
    for device in devices():
        wrong[device] = []
        for kind in _kinds(device):
            found, rate = _try(context, kind, device)
            wrong[device] += found
            rates.setdefault(kind.name, {})[device] = rate
    bad = [f"{device}: {'; '.join(found)}" for device, found in wrong.items() if found]
    count = sum(len(found) for found in wrong.values())
    says = " | ".join(bad) or f"exact on {', '.join(wrong)}"
    checks.append(most("gemm", count, "wrong products", context.limits().gemm_wrong, says))
    checks += _speeds(context, rates)
    return ProbeResult(tuple(checks))


def _kinds(device: str) -> list[Kind]:
    return [kind for kind in KINDS if device != "cpu" or kind.name in _CPU_KINDS]


def _try(context: Context, kind: Kind, device: str, times: int = 5) -> tuple[list[str], float]:
    """Wrong products of ``times``, and the best rate in TFLOP/s."""
    product = Product(kind, 4096 if device != "cpu" else 512, device, seed=7)
    best = float("inf")
    found: list[str] = []
    for _ in range(times):
        seconds, c = timed(product.multiply, device)
        best = min(best, seconds)
        if context.damage is not None:
            context.damage(c)
        if (problem := product.wrong(c)) is not None:
            found.append(str(problem))
    if device != "cpu":
        best = min(best, _rate_of(kind, device))
    return found, product.flops / best / 1e12


def _rate_of(kind: Kind, device: str) -> float:
    """Seconds that the exact product would take at the rate of a large square one, which fills the device."""
    import torch

    number: torch.dtype = getattr(torch, kind.name)
    size = 8192 if kind.name != "float64" else 4096
    a, b = (torch.randn(size, size, device=device).to(number) for _ in range(2))
    best = min(timed(lambda: a @ b, device)[0] for _ in range(6))
    return best * (2 * 4096 * 4096 * kind.inner) / (2 * size**3)


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds, to the end of what it started on the device."""
    import torch

    gpu = device.startswith("cuda")
    if gpu:
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    result = work()
    if gpu:
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin, result


def _speeds(context: Context, rates: dict[str, dict[str, float]]) -> Iterator[Check]:
    for kind, found in rates.items():
        slow = min(found, key=lambda device: found[device])
        limits = context.limits(name_of(slow)) if slow != "cpu" else context.limits("")
        short = {"bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}.get(kind)
        limit = getattr(limits, f"gemm_{short}_tflops") if short and slow != "cpu" else None
        yield least(f"gemm.{kind}", found[slow], "TFLOP/s", limit, f"slowest is {slow}")


def host_to_device(context: Context) -> Outcome:
    """Copies between pinned memory and each GPU, one GPU after the other."""
    try:
        import torch
    except ImportError:
        return Absent("PyTorch is not installed in unidle's environment")
    gpus = [device for device in devices() if device != "cpu"]
    if not gpus:
        return Absent("no GPU that PyTorch can use")
    size = 256 << 20
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    checks = []
    ways: dict[str, dict[str, float]] = {"h2d": {}, "d2h": {}}
    for device in gpus:
        there = torch.empty(size, dtype=torch.uint8, device=device)
        for way, into, source in (("h2d", there, host), ("d2h", host, there)):
            copy = partial(into.copy_, source, non_blocking=True)
            best = min(timed(copy, device)[0] for _ in range(6))
            ways[way][device] = size / best / 1e9
        del there
    for way, found in ways.items():
        slow = min(found, key=lambda device: found[device])
        limit = getattr(context.limits(name_of(slow)), f"{way}_gb_per_s")
        checks.append(least(f"pcie.{way}", found[slow], "GB/s", limit, f"slowest is {slow}"))
    return ProbeResult(tuple(checks))
