"""The same call under all the names that it has."""

from __future__ import annotations

import pytest

from tune.programs import codes

LOADERS = [
    ("import torch", "torch.utils.data.DataLoader"),
    ("import torch as t", "t.utils.data.DataLoader"),
    ("from torch.utils.data import DataLoader", "DataLoader"),
    ("from torch.utils.data import DataLoader as DL", "DL"),
    ("from torch.utils import data", "data.DataLoader"),
    ("import torch.utils.data as tud", "tud.DataLoader"),
    ("from torch import utils", "utils.data.DataLoader"),
    ("from torch.utils.data.dataloader import DataLoader", "DataLoader"),
    ("import torch\nMake = torch.utils.data.DataLoader", "Make"),
]


@pytest.mark.parametrize(("imports", "name"), LOADERS)
def test_a_loader_by_any_name(imports: str, name: str) -> None:
    assert codes(f"{imports}\nloader = {name}(data, batch_size=1, shuffle=True)\n") == {"UDL410"}


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("import torch", "torch.nn.DataParallel(m)"),
        ("import torch.nn as nn", "nn.DataParallel(m)"),
        ("from torch import nn", "nn.DataParallel(m)"),
        ("from torch.nn import DataParallel", "DataParallel(m)"),
        ("from torch.nn.parallel import DataParallel as DP", "DP(m)"),
        ("from torch.nn.parallel.data_parallel import DataParallel", "DataParallel(m)"),
    ],
)
def test_data_parallel_by_any_name(imports: str, call: str) -> None:
    assert codes(f"{imports}\nmodel = {call}\n") == {"UDL601"}


def test_a_function_of_the_same_name_from_elsewhere_is_another() -> None:
    assert codes("from mine import DataParallel\nimport torch\nmodel = DataParallel(m)\n") == set()
    assert (
        codes("import torch\nclass DataLoader: pass\nDataLoader(data, batch_size=1, shuffle=True)\n") == set()
    )


def test_a_parameter_hides_an_import() -> None:
    assert codes("import torch\nfrom torch import nn\ndef f(nn):\n    return nn.DataParallel(1)\n") == set()


def test_imports_inside_functions_count() -> None:
    assert codes("def f(m):\n    import torch.nn as net\n    return net.DataParallel(m)\n") == {"UDL601"}
