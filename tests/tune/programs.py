"""Programs for the tests of rules, from a few lines each."""

from __future__ import annotations

from textwrap import dedent, indent

from unidle.tune.check import check_text


def codes(text: str) -> set[str]:
    """The codes that are found in a program."""
    return {one.code for one in check_text(dedent(text))}


def lines(text: str, code: str) -> list[int]:
    """The lines where a rule finds something."""
    return [one.line for one in check_text(dedent(text)) if one.code == code]


def loop(body: str = "", before: str = "", after: str = "", imports: str = "") -> str:
    """A training loop on a GPU with lines at its end, before it and after it."""
    return "\n".join([
        "import torch", "import torch.nn as nn", "import torch.nn.functional as F", dedent(imports),
        "device = torch.device('cuda')", "model = nn.Linear(4, 2).to(device)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", dedent(before),
        "for epoch in range(10):", "    for step, (x, y) in enumerate(train_loader):",
        "        x, y = x.to(device), y.to(device)", "        output = model(x)", "        loss = F.cross_entropy(output, y)",
        "        optimizer.zero_grad()", "        loss.backward()", "        optimizer.step()", indent(dedent(body), " " * 8),
        indent(dedent(after), " " * 4), "",
    ])  # fmt: skip


def forward(body: str, init: str = "pass", imports: str = "", arguments: str = "x") -> str:
    """A module with these lines in its forward pass."""
    return "\n".join([
        "import math", "import torch", "from torch import nn", "from torch.nn import functional as F", dedent(imports),
        "class Net(nn.Module):", "    def __init__(self):", "        super().__init__()", indent(dedent(init), " " * 8),
        f"    def forward(self, {arguments}):", indent(dedent(body), " " * 8), "",
    ])  # fmt: skip
