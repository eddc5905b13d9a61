"""Thresholds: those of unidle, and a user's file over them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from unidle.errors import BadInput
from unidle.probe.check import Thresholds, load_thresholds, shipped

DOCS = Path(__file__).parents[3] / "docs/how-to/check.md"


def test_the_figures_that_operators_of_h100_use_are_kept():
    h100 = shipped().of("NVIDIA H100 80GB HBM3")
    assert (h100.devices, h100.h2d_gb_per_s, h100.allreduce_gb_per_s, h100.nvlinks) == (8, 52, 460, 18)
    assert (h100.sram_uncorrectable, h100.remap_pending, h100.remap_failed) == (0, 0, 0)
    assert (h100.carrier_losses_24h, h100.ib_flaps_6h) == (4, 1)  # five losses or two flaps are too many
    assert h100.ecc_required


@pytest.mark.parametrize(
    ("model", "entry"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H100 PCIe", "H100 PCIe"), ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe"), ("NVIDIA H200", "H200"), ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA B200", "B200"), ("Tesla V100-SXM2-16GB", ""), ("cpu", ""), ("", ""), ("NVIDIA GH100X", ""),
    ],
)  # fmt: skip
def test_a_device_has_the_thresholds_of_the_model_that_its_name_has(model: str, entry: str):
    assert shipped().entry(model) == entry


def test_a_users_file_goes_before_what_unidle_brings(tmp_path: Path):
    file = tmp_path / "t.yaml"
    file.write_text("default: {fsync_ms: 5}\nmodels:\n  H100: {h2d_gb_per_s: 40}\n  L40S: {devices: 4}\n")
    book = load_thresholds(file)
    assert (book.of("H100").h2d_gb_per_s, book.of("H100").nvlinks, book.of("H100").fsync_ms) == (40, 18, 5)
    assert (
        book.of("NVIDIA L40S").devices == 4
        and book.of("NVIDIA L40S").free_bytes == shipped().of("").free_bytes
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("- 1\n", "must be a mapping"),
        ("defaults: {fsync_ms: 5}\n", "is not a part of a thresholds file"),
        ("default: {fsync: 5}\n", "did you mean fsync_ms?"),
        ("default: {fsync_ms: -5}\n", "must be from 0"),
        ("default: {fsync_ms: fast}\n", "must be a number"),
        ("default: {fsync_ms: true}\n", "must be a number"),
        ("default: {fsync_ms: .nan}\n", "must be a finite number"),
        ("default: {ecc_required: 1}\n", "must be true or false"),
        ("default: {memory_ratio: 1.5}\n", "must be from 0 to 1"),
        ("default: {nvlinks: 1.5}\n", "must be a whole number"),
        ("default: [1]\n", "must be a mapping"),
        ("models: 3\n", "must be a mapping"),
        ("models: {'': {devices: 8}}\n", "is no name of a model"),
        ("models: {H100: {devices: 8, device: 8}}\n", "there is no such threshold"),
    ],
)
def test_nonsense_in_a_thresholds_file_is_one_error_with_its_place(tmp_path: Path, text: str, says: str):
    file = tmp_path / "t.yaml"
    file.write_text(text)
    with pytest.raises(BadInput) as error:
        load_thresholds(file)
    assert says in error.value.line() and str(file) in error.value.line()
    assert error.value.exit_code == 2


def test_every_threshold_is_documented():
    text = DOCS.read_text()
    assert [f.name for f in fields(Thresholds) if f"`{f.name}`" not in text] == []
