"""Ascend NPUs in what npu-smi prints, in outputs written from the documented format."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import npu_outputs
from fleet.kfd_trees import pci_device
from unidle.errors import BadInput
from unidle.fleet.npu_smi import parse_info, parse_npu_topo

GIB = 1 << 30


def test_cards_of_one_chip_are_numbered_as_they_are_listed(tmp_path: Path):
    gpus, shown = parse_info(npu_outputs.A2_INFO)
    assert [gpu.number for gpu in gpus] == list(range(8)) == list(shown)
    assert {(gpu.model, gpu.memory_bytes) for gpu in gpus} == {("Ascend 910B3", 64 * GIB)}
    assert gpus[4].bus_id == "0000:01:00.0"
    pci_device(tmp_path, "0000:c1:00.0", "pci0000:c0", numa=6)
    links = parse_npu_topo(npu_outputs.A2_TOPO, gpus, shown, tmp_path)
    assert {links.way(a, b) for a in range(8) for b in range(a)} == {"HCCS"}
    assert links.numa == (6, *(None,) * 7)
    assert links.cpus[0] == "144-167" and links.cpus[7] == "0-23"


def test_chips_of_one_card_are_found_by_their_number_on_the_node(tmp_path: Path):
    gpus, shown = parse_info(npu_outputs.A3_INFO)
    assert [gpu.number for gpu in gpus] == [0, 1, 2, 3] and shown == (12, 13, 14, 15)
    assert {gpu.model for gpu in gpus} == {"Ascend910"}
    links = parse_npu_topo(npu_outputs.A3_TOPO, gpus, shown, tmp_path)
    assert [links.way(0, k) for k in (1, 2, 3)] == ["SIO", "HCCS_SW", "HCCS_SW"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "npu-smi info:1: there is no table of NPUs"),
        ("DrvMngGetConsoleLogLevel failed.\n", "there is no table of NPUs"),
        (npu_outputs.A2_INFO.replace("0000:C1:00.0", "C1:00.0     "), "npu-smi info:8: not the second line of a chip"),
        (npu_outputs.A2_INFO.replace("| 1     910B3", "| one   910B3"), "npu-smi info:10: not the first line of a chip"),
        ("\n".join(npu_outputs.A2_INFO.splitlines()[:7]), "npu-smi info:7: the table ends within a chip"),
    ],
)  # fmt: skip
def test_what_is_no_such_table_is_refused_with_its_line(text: str, problem: str):
    with pytest.raises(BadInput) as caught:
        parse_info(text)
    assert str(caught.value).startswith(problem) or problem in str(caught.value)
    assert "declare the fleet in a file" in str(caught.value)


def test_a_matrix_of_other_npus_is_refused():
    gpus, shown = parse_info(npu_outputs.A3_INFO)
    with pytest.raises(
        BadInput, match=r"it has NPUs \[0, 1, 2, 3, 4, 5, 6, 7\], and npu-smi info has \[12, 13, 14, 15\]"
    ):
        parse_npu_topo(npu_outputs.A2_TOPO, gpus, shown)


def test_a_machine_without_npus_has_an_empty_table():
    assert parse_info(npu_outputs.info([])) == ((), ())


@given(st.lists(st.sampled_from(npu_outputs.A3_INFO.splitlines()), max_size=20))
def test_any_lines_are_a_table_or_one_clear_error(lines: list[str]):
    found: int | BadInput
    try:
        gpus, shown = parse_info("\n".join(lines))
        found = len(gpus) - len(shown)
    except BadInput as error:
        found = error
    assert found == 0 or ("\n" not in str(found) and "npu-smi info:" in str(found))
