"""Of the time at tensor operators, what is their arithmetic and what is bookkeeping around it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from unidle.scope.budget import Cell, ThreadBudget
from unidle.scope.model import Frame, Profile
from unidle.scope.rules import leaf_of

# Functions that do an operator's arithmetic; what else PyTorch spends is bookkeeping around it.
_ARITHMETIC: Final = re.compile(
    r"gemm|gemv|conv|kernel|vectorized|omp_fn|mkl_|dnnl|blas|axpy|softmax|_avx|avx512|loop2d|memcpy|memmove|memset|copy_|"
    r"fft|lapack|getrf|potrf|sort|svd|dot_|reduce|parallel|norm|dropout|embedding|random|uniform|normal|bernoulli|cumsum",
    re.IGNORECASE,
)
_OF_TORCH: Final = re.compile(r"libtorch|libc10|_C\.cpython")


def split_at_operators(profile: Profile, thread: ThreadBudget) -> tuple[list[Cell], int]:
    """The bookkeeping of Python and PyTorch around operators, and the nanoseconds of the operators' own arithmetic."""
    around: list[Cell] = []
    arithmetic = 0
    for cell in thread.cells:
        if cell.state != "on" or cell.stack is None or cell.rule.category not in ("python", "compute"):
            continue
        stack = profile.stack(cell.stack)
        if not _near_tensors(stack):
            continue
        if _is_arithmetic(stack):
            arithmetic += cell.ns
        else:
            around.append(cell)
    return around, arithmetic


def _near_tensors(stack: Sequence[Frame]) -> bool:
    """Whether the code is at a tensor operator: native code of PyTorch is in the stack, or the line runs PyTorch's Python."""
    return any((f.kind == "native" and _OF_TORCH.match(f.module)) or "/torch/" in f.file for f in stack)


def _is_arithmetic(stack: Sequence[Frame]) -> bool:
    at = leaf_of(stack)
    if at is None or stack[at].kind == "python":
        return False
    deepest = [frame for frame in stack[max(at - 3, 0) :] if frame.kind == "native"]
    return any(_ARITHMETIC.search(frame.function.partition("<")[0]) for frame in deepest)
