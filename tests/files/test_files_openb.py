"""The reader of openb traces: every kind of bad input is one error with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.errors import BadInput
from unidle.files.openb import read_nodes, read_pods
from unidle.jobs.packing import NodeSize, PodDemand

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,96000,786432,8,V100\nn1,32000,65536,2,T4\nn2,64000,65536,0,\n"
POD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
SIZES = (NodeSize("n0", 96_000, 786_432, 8, "V100"), NodeSize("n1", 32_000, 65_536, 2, "T4"), NodeSize("n2", 64_000, 65_536, 0))  # fmt: skip


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "list.csv"
    path.write_text(text)
    return path


def test_nodes_are_read(tmp_path: Path):
    assert read_nodes(written(tmp_path, NODES)) == SIZES


def test_pods_are_read_with_more_columns_and_with_fewer(tmp_path: Path):
    full = f"{POD},gpu_spec,qos,pod_phase\np0,4000,1024,1,460,T4|V100,LS,Running\np1,1000,0,0,0,,BE,Running\n"
    assert read_pods(written(tmp_path, full), SIZES) == (
        ("p0", "p1"),
        (PodDemand(4000, 1024, 1, 460, frozenset({"T4", "V100"})), PodDemand(1000)),
    )
    assert read_pods(written(tmp_path, f"{POD}\np0,4000,1024,2,1000\n"), SIZES).demands == (
        PodDemand(4000, 1024, 2, 1000),
    )


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("name,cpu_milli,num_gpu,gpu_milli\np,1,1,1000\n", 1, ["memory_mib", "column is missing"]),
        (f"{POD}\np,-1,1,1,1000\n", 2, ["cpu_milli", "'-1'", "0 or more"]),
        (f"{POD}\np,1,nan,1,1000\n", 2, ["memory_mib", "'nan'"]),
        (f"{POD}\np,1,1,1,1000\nq,1,1,1,1001\n", 3, ["gpu_milli", "'1001'", "1,000"]),
        (f"{POD}\np,1,1,1.5,1000\n", 2, ["num_gpu", "'1.5'"]),
        (f"{POD}\np,1,1,1,\n", 2, ["gpu_milli", "''"]),
        (f"{POD}\np,1,1,1,0\n", 2, ["gpu_milli", "requests GPUs"]),
        (f"{POD}\np,1,1,1\n", 2, ["4 columns, the header 5"]),
        (f"{POD},gpu_spec\np,1,1,1,500,T5\n", 2, ["gpu_spec", "'T5'", "known are T4, V100"]),
        (f"{POD}\np,1,1,9,1000\n", 2, ["num_gpu", "9", "the most there is 8"]),
        (f"{POD}\np,96001,1,1,1000\n", 2, ["cpu_milli", "96001", "96,000"]),
        (f"{POD}\np,1,786433,1,1000\n", 2, ["memory_mib", "786433", "786,432"]),
        (f"{POD}\np,1,1,1,1000\np,2,1,1,1000\n", 3, ["name", "is there twice (got 'p')"]),
        (f"{POD}\n,1,1,1,1000\n", 2, ["name", "is empty"]),
        (f"{POD},num_gpu\np,1,1,1,1000,2\n", 1, ["num_gpu", "the column is there twice"]),
        (f"{POD}\np,{'9' * 5000},1,1,1000\n", 2, ["cpu_milli", "is not an amount (got '999"]),
    ],
)
def test_a_bad_pod_is_one_error_with_line_field_value_and_remedy(
    tmp_path: Path, text: str, line: int, words: list[str]
):
    path = written(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        read_pods(path, SIZES)
    message = caught.value.line()
    assert message.startswith(f"{path}:{line}: ") and "; " in message and "\n" not in message
    assert all(word in message for word in words), message


def test_a_pod_too_large_for_the_models_that_it_names_is_read_as_it_is(tmp_path: Path):
    path = written(tmp_path, f"{POD},gpu_spec\np,1,65537,4,1000,T4\n")
    assert read_pods(path, SIZES).demands == (PodDemand(1, 65_537, 4, 1000, frozenset({"T4"})),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sn,cpu_milli,memory_mib\nn,1,1\n", [":1:", "gpu", "column is missing"]),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,1,T4\nn,1,1,1,T4\n", [":3:", "sn", "twice"]),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,1,\n", [":2:", "model", "is empty"]),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,65,T4\n", [":2:", "gpu", "65"]),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,0,\n", ["no node has a GPU"]),
        ("sn,cpu_milli,memory_mib,gpu,model\n", ["holds no node"]),
        ("", [":1:", "sn", "column is missing"]),
        ('sn,cpu_milli,memory_mib,gpu,model\n"n,1,1,0,\n', ["not CSV"]),
    ],
)
def test_a_bad_node_is_one_error(tmp_path: Path, text: str, words: list[str]):
    with pytest.raises(BadInput) as caught:
        read_nodes(written(tmp_path, text))
    assert all(word in caught.value.line() for word in words), caught.value.line()


def test_a_file_that_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(BadInput, match="no such file"):
        read_nodes(tmp_path / "none.csv")
