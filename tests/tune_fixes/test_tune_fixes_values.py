"""Programs compute the same after an edit: both texts run, and what they leave in ``result`` is compared."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from tune_fixes.edited import after

TRAIN = """
    import gc
    import torch
    from torch import nn
    from torch.nn import functional as F
    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.table = nn.Parameter(torch.randn(6, 3))
        def forward(self, x):
            x = self.first(x)
            {forward}
            return x
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(5)]
    losses = []
    total = torch.zeros(())
    for step, (x, y) in enumerate(data):
        {zero}
        loss = model(x)[:, :3].square().mean() + model(x).sum() * 0.1
        loss.backward()
        optimizer.step()
        {step}
    result = [*model.parameters(), total, *losses]
"""
ZERO = "optimizer.zero_grad()"
CASES = {
    "UDL206": TRAIN.format(forward="pass", zero=ZERO, step="gc.collect()"),
    "UDL211": TRAIN.format(forward="pass", zero=ZERO, step="model.to(x.device)").replace("x.device", "'cpu'"),
    "UDL301": TRAIN.format(forward="pass", zero=ZERO, step="total += loss"),
    "UDL309": TRAIN.format(forward="pass", zero="for p in model.parameters():\n            if p.grad is not None:\n                p.grad.zero_()", step="pass"),
    "UDL404": TRAIN.format(forward="x = x @ torch.tril(torch.ones(6, 6, device=x.device))", zero=ZERO, step="pass"),
    "UDL405": TRAIN.format(forward="y = torch.zeros_like(x)\n            for k in range(x.size(0)):\n                y[k] = x[k] * 2 + 1\n            x = y", zero=ZERO, step="pass"),
    "UDL406": TRAIN.format(forward="x = F.one_hot(x.argmax(-1), 6).float() @ self.table + x[:, :3]", zero=ZERO, step="pass"),
    "UDL407": TRAIN.format(forward="x = torch.log(F.softmax(x, dim=-1))", zero=ZERO, step="pass"),
    "UDL303": TRAIN.format(forward="pass", zero=ZERO, step="pass").replace("model = Net()", "torch.autograd.set_detect_anomaly(True)\n    model = Net()"),
    "UDL304": "import torch\na = torch.zeros(0, 2)\nfor k in range(5):\n    a = torch.cat([a, torch.full((1, 2), k)], dim=0)\nresult = [a]\n",
    "UDL305": "import torch\nimport numpy as np\na = np.zeros(0)\nfor k in range(5):\n    a = np.append(a, k)\nresult = [torch.from_numpy(a)]\n",
    "UDL302": "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(2, 2)\nout = []\ndef evaluate(loader):\n    model.eval()\n    for x in loader:\n        out.append(model(x))\nevaluate([torch.ones(1, 2)])\nresult = out\n",
}  # fmt: skip


def run(text: str) -> list[Any]:
    import torch

    names: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(text, "program.py", "exec"), names)
    finally:
        torch.autograd.set_detect_anomaly(False)
    return [one.detach() for one in names["result"]]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("code", CASES)
def test_program_computes_the_same(code: str) -> None:
    import torch

    before = dedent(CASES[code])
    changed = after(before, code)
    assert changed is not None
    assert changed != before
    one, other = run(before), run(changed)
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("kind", ["float64", "float32", "int64", "int32", "bool"])
@pytest.mark.parametrize(
    "make", ["torch.tensor(rows)", "torch.tensor(rows, dtype=torch.float32)", "torch.FloatTensor(rows)"]
)
def test_stacked_arrays_have_the_same_type_and_values(kind: str, make: str) -> None:
    import torch

    if make == "torch.FloatTensor(rows)" and kind not in ("float32", "float64"):
        return
    text = f"import torch\nimport numpy as np\nrows = [np.ones(3, dtype=np.{kind}) for _ in range(4)]\nresult = [{make}]\n"
    changed = after(text, "UDL103")
    assert changed is not None
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = run(text)[0]
    now = run(changed)[0]
    assert before.dtype == now.dtype
    torch.testing.assert_close(before, now)


def test_attention_in_one_call_computes_the_same() -> None:
    import torch

    text = dedent("""
        import math
        import torch
        from torch import nn
        from torch.nn import functional as F
        torch.manual_seed(0)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mask", torch.tril(torch.ones(5, 5)))
                self.drop = nn.Dropout(0.5)
            def forward(self, q, k, v):
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
                att = att.masked_fill(self.mask == 0, float("-inf"))
                att = F.softmax(att, dim=-1)
                att = self.drop(att)
                y = att @ v
                return y
        result = [Net().eval()(*torch.randn(3, 2, 4, 5, 8))]
    """)
    changed = after(text, "UDL403")
    assert changed is not None
    assert "scaled_dot_product_attention" in changed
    torch.testing.assert_close(run(text)[0], run(changed)[0])
