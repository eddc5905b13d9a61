"""Matrix products by PyTorch: right ones pass, one wrong bit anywhere is found."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.probe.check import Check, Context, Outcome, ProbeResult, shipped
from unidle.probe.check.allreduce import run_ranks
from unidle.probe.check.burn_in import burn_in
from unidle.probe.check.gemm import KINDS, Product, exact_only, gemm

BITS = {"float64": torch.int64, "float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}


def checks(outcome: Outcome) -> dict[str, Check]:
    assert isinstance(outcome, ProbeResult)
    return {check.name: check for check in outcome.checks}


def flip(c: torch.Tensor, row: int, column: int, bit: int) -> None:
    """Turn one bit of one element over."""
    bits = c.view(BITS[str(c.dtype).removeprefix("torch.")])
    mask = torch.tensor(1, dtype=bits.dtype) << bit
    bits[row, column] ^= mask


def test_products_on_this_machine_are_exact():
    found = checks(gemm(Context(book=shipped())))
    assert (found["gemm"].ok, found["gemm"].value) == (True, 0)
    assert {"gemm.float64", "gemm.float32", "gemm.bfloat16"} <= set(found)
    assert found["gemm.float32"].value > 0  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_every_partial_sum_fits_the_type(kind):
    exact = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[kind.name]
    assert kind.inner * kind.largest**2 <= 2**exact


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_the_proof_accepts_what_another_order_of_sums_gives(kind):
    """Summed backwards, in pieces: with exact sums the order cannot matter."""
    exact_only()
    product = Product(kind, 96, "cpu", 3)
    c = product.multiply()
    assert product.wrong(c) is None
    pieces = sum(
        product.a[:, k : k + 32].double() @ product.b[k : k + 32].double()
        for k in reversed(range(0, kind.inner, 32))
    )
    assert torch.equal(pieces, c.double())  # type: ignore[arg-type]
    assert product.wrong(pieces) is None  # type: ignore[arg-type]


PRODUCTS = {
    kind.name: (Product(kind, 64, "cpu", 5), Product(kind, 64, "cpu", 5).multiply()) for kind in KINDS
}


@settings(max_examples=300)
@given(st.sampled_from(sorted(PRODUCTS)), st.integers(0, 63), st.integers(0, 63), st.integers(0, 63))
def test_one_bit_that_flips_is_found_and_its_element_named(name: str, row: int, column: int, bit: int):
    product, right = PRODUCTS[name]
    c = right.clone()
    bit %= 8 * c.element_size()
    before = c[row, column].item()
    flip(c, row, column, bit)
    found = product.wrong(c)
    if before == 0 and bit == 8 * c.element_size() - 1:
        assert found is None  # a zero with a sign is the same number
    else:
        assert found is not None and (found.row, found.column) == (row, column)


def test_a_wrong_row_a_nan_and_products_that_were_swapped_are_found():
    product, right = PRODUCTS["float32"]
    for damage in (
        lambda c: c[3].zero_(),
        lambda c: c[3, 4].fill_(float("nan")),
        lambda c: c[3, 4].fill_(float("inf")),
    ):
        c = right.clone()
        damage(c)
        assert product.wrong(c) is not None
    swapped = right.clone()
    swapped[[1, 2]] = swapped[[2, 1]]
    found = product.wrong(swapped)
    assert found is not None and found.rows == 2 and found.row is None


def test_a_device_that_corrupts_one_bit_is_unfit_and_the_element_is_named():
    count = 0

    def damage(c: torch.Tensor) -> None:
        nonlocal count
        count += 1
        if count == 7:  # the second product of float32
            flip(c, 17, 23, 4)

    found = checks(gemm(Context(book=shipped(), damage=damage)))["gemm"]
    assert (found.ok, found.value) == (False, 1)
    assert "float32: 1 rows differ, element (17, 23)" in found.because


def test_burn_in_checks_every_product_that_it_makes():
    count = 0

    def damage(c: torch.Tensor) -> None:
        nonlocal count
        count += 1
        if count == 2:
            flip(c, 1, 2, 3)

    context = Context(book=shipped(), tier="burn-in", duration_s=0.0)
    found = checks(burn_in(context))
    assert found["burn_in.gemm"].ok is True and found["burn_in.gemm"].because == "3 products exact"
    found = checks(burn_in(Context(book=shipped(), tier="burn-in", duration_s=1.0, damage=damage)))
    assert count >= 3 and (found["burn_in.gemm"].ok, found["burn_in.gemm"].value) == (False, 1)


@pytest.mark.slow
def test_an_all_reduce_of_real_processes_has_a_rate_and_its_failure_one_line():
    assert run_ranks("gloo", 2, 4 << 20, 3, timeout_s=200) > 0
    with pytest.raises(RuntimeError, match="the nccl all-reduce failed: ") as error:
        run_ranks("nccl", 2, 4 << 20, 1, timeout_s=200)
    assert "\n" not in str(error.value)


def test_a_rank_of_the_all_reduce_that_hangs_is_ended():
    with pytest.raises(RuntimeError, match=r"did not end within 0\.2 s"):
        run_ranks("gloo", 2, 4 << 20, 1, timeout_s=0.2)


def test_the_quick_tier_does_not_import_torch_or_numpy():
    code = (
        "import sys\n"
        "from unidle.probe.check import *\n"
        "from unidle.probe.check.runner import answer\n"
        "for probe in chosen('quick'): answer(probe, Context(book=shipped()))\n"
        "print(sorted({'torch', 'numpy', 'polars'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
