"""What each edit takes out and puts in."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tune.programs import forward, loop
from tune_fixes.edited import after, changed

LOADER = "from torch.utils.data import DataLoader\nfrom torchvision.datasets import ImageFolder\ntrain_set = ImageFolder('data')\n"
TRAINING = (
    "for x, y in train_loader:\n    x = x.to('cuda'{})\n    loss = model(x).sum()\n    loss.backward()\n"
)
TOKENIZER = "from transformers import AutoTokenizer\ntokenizer = AutoTokenizer.from_pretrained('a'{})\n"
SAMPLES = """
    import numpy as np
    import torch
    from torch.utils.data import Dataset
    class Rows(Dataset):
        def __init__(self, path):
            self.path = path
        def __len__(self):
            return 3
        def __getitem__(self, k):
            {}
"""
HANDLER = """
    import torch
    from fastapi import FastAPI
    app = FastAPI()
    model = torch.nn.Linear(2, 2)
    @app.post("/a")
    def answer(x: float):
        return model(torch.tensor([x, x])).tolist()
"""

CASES = (
    ("UDL204", loop("torch.cuda.synchronize()"), ["torch.cuda.synchronize()"], []),
    ("UDL205", loop("torch.cuda.empty_cache()  # free"), ["torch.cuda.empty_cache()  # free"], []),
    ("UDL206", loop("gc.collect()", imports="import gc"), ["gc.collect()"], []),
    ("UDL701", "import os\nimport torch\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'\n", ["os.environ['CUDA_LAUNCH_BLOCKING'] = '1'"], []),
    ("UDL303", loop(before="torch.autograd.set_detect_anomaly(True)"), ["torch.autograd.set_detect_anomaly(True)"], []),
    ("UDL604", loop("torch.distributed.barrier()"), ["torch.distributed.barrier()"], []),
    ("UDL211", loop("model.to(device)  # sure"), ["model.to(device)  # sure"], ["model.to(device)  # sure"]),
    ("UDL203", loop("print(loss)"), ["print(loss)"], ["if step % 100 == 0:", "print(loss)"]),
    ("UDL301", loop("total += loss", before="total = 0"), ["total += loss"], ["total += loss.detach()"]),
    ("UDL301", loop("kept.append(loss * 2)", before="kept = []"), ["kept.append(loss * 2)"], ["kept.append((loss * 2).detach())"]),
    ("UDL407", forward("return torch.log(F.softmax(x, dim=-1))"), ["return torch.log(F.softmax(x, dim=-1))"], ["return F.log_softmax(x, dim=-1)"]),
    ("UDL407", forward("return x.softmax(-1).log()"), ["return x.softmax(-1).log()"], ["return x.log_softmax(-1)"]),
    ("UDL406", forward("return F.one_hot(x, 9).float() @ self.table", init="self.table = nn.Parameter(torch.ones(9, 2))"),
     ["return F.one_hot(x, 9).float() @ self.table"], ["return self.table[x]"]),
    ("UDL404", forward("return x + torch.triu(torch.ones(4, 4, device=x.device), diagonal=1)"),
     ["return x + torch.triu(torch.ones(4, 4, device=x.device), diagonal=1)"],
     ['self.register_buffer("_table", torch.triu(torch.ones(4, 4), diagonal=1), persistent=False)', "return x + self._table"]),
    ("UDL405", forward("y = torch.zeros_like(x)\nfor k in range(x.size(0)):\n    y[k] = x[k] * 2 + 1\nreturn y"),
     ["for k in range(x.size(0)):", "y[k] = x[k] * 2 + 1"], ["y[:] = x[:] * 2 + 1"]),
    ("UDL210", loop("z = torch.zeros(3).to(device)"), ["z = torch.zeros(3).to(device)"], ["z = torch.zeros(3, device=device)"]),
    ("UDL304", "import torch\na = torch.zeros(0, 2)\nfor k in range(9):\n    a = torch.cat([a, torch.ones(1, 2)], dim=0)  # grow\nprint(a)\n",
     ["a = torch.cat([a, torch.ones(1, 2)], dim=0)  # grow"],
     ["a_parts = [a]", "a_parts.append(torch.ones(1, 2))  # grow", "a = torch.cat(a_parts, dim=0)"]),
    ("UDL305", "import torch\nimport numpy as np\na = np.zeros(0)\nfor k in range(9):\n    a = np.append(a, k)\nprint(a)\n",
     ["a = np.append(a, k)"], ["a_parts = [np.ravel(a)]", "a_parts.append(np.ravel(k))", "a = np.concatenate(a_parts)"]),
    ("UDL306", loop(before="model = model.double()"), ["model = model.double()"], ["model = model.float()"]),
    ("UDL302", "import torch\nmodel = torch.nn.Linear(2, 2)\ndef evaluate(loader):\n    model.eval()\n    for x in loader:\n        model(x)\n",
     ["for x in loader:", "model(x)"], ["with torch.no_grad():", "for x in loader:", "model(x)"]),
    ("UDL704", HANDLER, ["return model(torch.tensor([x, x])).tolist()"], ["with torch.inference_mode():", "return model(torch.tensor([x, x])).tolist()"]),
    ("UDL309", loop("for p in model.parameters():\n    if p.grad is not None:\n        p.grad.zero_()"),
     ["for p in model.parameters():", "if p.grad is not None:", "p.grad.zero_()"], ["optimizer.zero_grad(set_to_none=False)"]),
    ("UDL103", "import torch\nimport numpy as np\nrows = [np.zeros(3) for _ in range(9)]\nx = torch.tensor(rows)\n",
     ["x = torch.tensor(rows)"], ["x = torch.tensor(np.stack(rows))"]),
    ("UDL104", SAMPLES.format("row = np.zeros(k)\n            return torch.tensor(row)"), ["return torch.tensor(row)"], ["return torch.as_tensor(row)"]),
    ("UDL102", SAMPLES.format("return np.load(self.path)[k]"), ["return np.load(self.path)[k]"],
     ["self._read_once = np.load(self.path)", "return self._read_once[k]"]),
    ("UDL101", f"{LOADER}train_loader = DataLoader(train_set, shuffle=True)\nimport torch\n", ["train_loader = DataLoader(train_set, shuffle=True)"],
     ["train_loader = DataLoader(train_set, shuffle=True, num_workers=4)"]),
    ("UDL105", f"import torch\n{LOADER}model = torch.nn.Linear(2, 2)\ntrain_loader = DataLoader(train_set, shuffle=True)\n" + TRAINING.format(", non_blocking=True"),
     ["train_loader = DataLoader(train_set, shuffle=True)"], ["train_loader = DataLoader(train_set, shuffle=True, pin_memory=True)"]),
    ("UDL106", f"import torch\n{LOADER}model = torch.nn.Linear(2, 2)\ntrain_loader = DataLoader(train_set, shuffle=True, pin_memory=True)\n" + TRAINING.format(""),
     ["x = x.to('cuda')"], ["x = x.to('cuda', non_blocking=True)"]),
    ("UDL214", "import torch\nfrom transformers import TrainingArguments\na = TrainingArguments('o', logging_steps=1)\n",
     ["a = TrainingArguments('o', logging_steps=1)"], ["a = TrainingArguments('o', logging_steps=50)"]),
    ("UDL504", loop(before="o = torch.optim.Adam(model.parameters(), foreach=False)"),
     ["o = torch.optim.Adam(model.parameters(), foreach=False)"], ["o = torch.optim.Adam(model.parameters())"]),
    ("UDL501", loop(before="e = nn.Embedding(9, 2)\no = torch.optim.AdamW(e.parameters())"),
     ["o = torch.optim.AdamW(e.parameters())"], ["o = torch.optim.AdamW(e.parameters(), fused=True)"]),
    ("UDL707", TOKENIZER.format(", use_fast=False"), ["tokenizer = AutoTokenizer.from_pretrained('a', use_fast=False)"], ["tokenizer = AutoTokenizer.from_pretrained('a')"]),
    ("UDL113", TOKENIZER.format("") + "data = raw.map(lambda row: tokenizer(row['text']))\n",
     ["data = raw.map(lambda row: tokenizer(row['text']))"], ["data = raw.map(lambda row: tokenizer(row['text']), batched=True)"]),
    ("UDL403", forward("a = q @ k.transpose(-2, -1) / math.sqrt(8)\na = a.masked_fill(self.m == 0, float('-inf'))\na = F.softmax(a, dim=-1)\na = self.drop(a)\nreturn_value = a @ v\nreturn return_value",
                       init="self.drop = nn.Dropout(0.1)", arguments="q, k, v"),
     ["a = q @ k.transpose(-2, -1) / math.sqrt(8)", "a = a.masked_fill(self.m == 0, float('-inf'))", "a = F.softmax(a, dim=-1)", "a = self.drop(a)", "return_value = a @ v"],
     ["return_value = F.scaled_dot_product_attention(q, k, v, attn_mask=self.m != 0, dropout_p=self.drop.p if self.training else 0.0, scale=1.0 / (math.sqrt(8)))"]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "text", "out", "put"), CASES, ids=[f"{one[0]}-{k}" for k, one in enumerate(CASES)]
)
def test_edit_takes_out_and_puts_in(code: str, text: str, out: list[str], put: list[str]) -> None:
    assert changed(text, code) == (out, put)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("UDL206", loop("gc.collect()", before="gc.disable()", imports="import gc")),
        ("UDL205", loop("if True: torch.cuda.empty_cache()")),
        ("UDL211", loop("model.to(device)\ndevice = other")),
        ("UDL210", loop("z = torch.rand(3).to(device)")),
        ("UDL405", forward("y = torch.zeros_like(x)\nfor k in range(x.size(0)):\n    y[k] = x[k] * w[k]\nreturn y", arguments="x, w")),
        ("UDL404", forward("return x + torch.triu(torch.ones(x.size(1), x.size(1)))")),
        ("UDL104", SAMPLES.format("row = np.zeros(k)\n            row[0] = 1\n            return torch.tensor(row)")),
        ("UDL102", SAMPLES.format("row = np.load(self.path)\n            row += 1\n            return row[k]")),
        ("UDL203", loop("print(loss)").replace("step, (x, y) in enumerate(train_loader)", "x, y in train_loader")),
    ],
)  # fmt: skip
def test_place_without_a_correct_edit_has_none(code: str, text: str) -> None:
    assert after(text, code) is None


def test_comments_and_format_stay() -> None:
    text = dedent('''
        """Doc."""
        import torch
        from torch.utils.data import DataLoader as Loader

        model = torch.nn.Linear( 2,2 )   # odd   spaces
        optimizer = torch.optim.Adam(
            model.parameters(),  # all
            lr=1e-3,
            foreach=False,  # why?
        )
        for x in loader:
            # first comment
            torch.cuda.empty_cache()
            # second comment
            model(x).sum().backward(); optimizer.step()
    ''')
    assert after(text, "UDL205") == text.replace("    torch.cuda.empty_cache()\n", "")
    kept = after(text, "UDL504")
    assert kept is not None
    assert "foreach" not in kept
    assert "model.parameters(),  # all" in kept
    assert "Linear( 2,2 )   # odd   spaces" in kept


def test_body_that_would_be_empty_gets_pass() -> None:
    text = "import torch\nmodel = torch.nn.Linear(2, 2)\nfor x in loader:\n    model(x).sum().backward()\n    if x:\n        # why\n        torch.cuda.empty_cache()\n"
    assert after(text, "UDL205") == text.replace("torch.cuda.empty_cache()", "pass")


def test_import_is_added_where_it_is_needed() -> None:
    text = '"""Doc."""\nfrom __future__ import annotations\nfrom numpy import zeros\nfrom torch import tensor\nrows = [zeros(3) for _ in range(9)]\nx = tensor(rows)\n'
    assert after(text, "UDL103") == text.replace("tensor(rows)", "tensor(np.stack(rows))").replace(
        "import tensor\n", "import tensor\nimport numpy as np\n"
    )
