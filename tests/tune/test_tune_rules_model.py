"""Rules 3xx to 5xx: programs in which they find something, and programs in which the same calls do not matter."""

from __future__ import annotations

import pytest

from tune.programs import codes, forward, loop

PARAMETERS = "for p in model.parameters():\n    {}"
ATTENTION = "B, T, C = x.size()\nq, k, v = self.qkv(x).split(C, 2)\n"

FOUND = [
    ("UDL301", loop("total = total + loss", before="total = 0.0")),
    ("UDL301", loop("history.append(loss)", before="history = []")),
    ("UDL301", loop("stats['loss'] += loss", before="stats = {'loss': 0}")),
    ("UDL301", loop("running += loss * x.size(0)", before="running = 0")),
    ("UDL302", "import torch\ndef validate(model, loader):\n    for x, y in loader:\n        out = model(x)\n"),
    ("UDL302", "import torch\ndef score(net, loader):\n    net.eval()\n    for x, y in loader:\n        out = net(x)\n"),
    ("UDL303", "import torch\ntorch.autograd.set_detect_anomaly(True)\n"),
    ("UDL303", "import lightning as L\nL.Trainer(detect_anomaly=True)\n"),
    ("UDL303", "import torch\nwith torch.autograd.detect_anomaly():\n    run()\n"),
    ("UDL304", "import torch\nall_out = None\nfor part in parts:\n    if all_out is None:\n        all_out = part\n    else:\n        all_out = torch.cat((all_out, part))\n"),
    ("UDL304", "import torch\nclass A:\n    def add(self, items):\n        for i in items:\n            self.bank = torch.cat([self.bank, i], 0)\n"),
    ("UDL305", "import numpy as np\na = np.array([])\nfor i in range(9):\n    a = np.append(a, i)\n"),
    ("UDL305", "import pandas as pd\ndf = pd.DataFrame()\nfor f in files:\n    df = pd.concat([df, read(f)])\n"),
    ("UDL306", loop("pass", before="model = model.double()")),
    ("UDL306", loop("x = x.double()")),
    ("UDL306", loop("pass", before="torch.set_default_dtype(torch.float64)")),
    ("UDL307", loop("best = copy.deepcopy(model.state_dict())", imports="import copy")),
    ("UDL308", loop(PARAMETERS.format("norm += p.grad.norm().item()"))),
    ("UDL308", loop("for name, p in model.named_parameters():\n    stats[name] = p.grad.abs().mean().item()")),
    ("UDL309", loop(PARAMETERS.format("p.grad.data.zero_()"))),
    ("UDL401", loop("for i in range(x.size(0)):\n    out = model(x[i].unsqueeze(0))")),
    ("UDL401", loop("for sample in x:\n    out = model(sample.unsqueeze(0))")),
    ("UDL401", loop("outs = torch.stack([model(x[i : i + 1]) for i in range(len(x))])")),
    ("UDL401", loop("for one, label in zip(x, y):\n    out = model(one[None])")),
    ("UDL402", forward("h = torch.zeros(8, device=x.device)\nfor t in range(x.size(1)):\n    h = self.cell(x[:, t], h)\nreturn h", "self.cell = nn.GRUCell(4, 8)")),
    ("UDL403", forward(ATTENTION + "att = (q @ k.transpose(-2, -1)) * self.scale\natt = att.masked_fill(self.mask == 0, -1e9)\natt = F.softmax(att, dim=-1)\natt = self.drop(att)\ny = att @ v\nreturn y")),
    ("UDL403", forward(ATTENTION + "att = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(C)\np = torch.softmax(att, -1)\nreturn torch.matmul(p, v)")),
    ("UDL403", forward(ATTENTION + "att = torch.einsum('bhqd,bhkd->bhqk', q, k).softmax(dim=-1)\nreturn torch.einsum('bhqk,bhkd->bhqd', att, v)")),
    ("UDL404", forward("mask = torch.triu(torch.ones(x.size(1), x.size(1)), diagonal=1)\nreturn x + mask")),
    ("UDL404", forward("mask = torch.ones(3, 3, device=x.device).tril()\nreturn x * mask")),
    ("UDL404", forward("pos = torch.arange(x.size(1), device=x.device)\nangle = pos[:, None] * self.rate\nreturn x + torch.sin(angle)", "self.rate = 0.1")),
    ("UDL405", forward("out = torch.zeros_like(x)\nfor i in range(x.shape[0]):\n    out[i] = x[i] * 2\nreturn out")),
    ("UDL406", forward("return F.one_hot(x, 10).float() @ self.weight", "self.weight = nn.Parameter(torch.zeros(10, 4))")),
    ("UDL407", forward("return torch.log(torch.softmax(x, dim=1))")),
    ("UDL407", forward("return F.softmax(x, dim=1).log()")),
    ("UDL408", loop("f = torch.compile(model)")),
    ("UDL409", "import torch\nfrom torch import Tensor\n@torch.compile(mode='max-autotune')\ndef f(x: Tensor):\n    print('shape')\n    return x\n"),
    ("UDL410", "from transformers import TrainingArguments\nTrainingArguments('o', per_device_train_batch_size=1)\n"),
    ("UDL410", loop(before="from torch.utils.data import DataLoader\ntrain_loader = DataLoader(data)")),
    ("UDL501", loop(before="emb = nn.Embedding(9, 9)\nopt = torch.optim.AdamW(emb.parameters(), lr=1)")),
    ("UDL502", loop("optimizer = torch.optim.Adam(model.parameters())")),
    ("UDL503", loop("with torch.no_grad():\n    for p in model.parameters():\n        p -= 0.1 * p.grad")),
    ("UDL503", loop(PARAMETERS.format("p.data.add_(p.grad, alpha=-lr)"))),
    ("UDL504", "import torch.optim as optim\noptim.Adam(ps, foreach=False)\n"),
    ("UDL505", loop("for a, b in zip(ema.parameters(), model.parameters()):\n    a.data.copy_(0.9 * a.data + 0.1 * b.data)")),
    ("UDL506", loop(PARAMETERS.format("nn.utils.clip_grad_norm_(p, 1.0)"))),
    ("UDL507", "import torch\nscaler = torch.cuda.amp.GradScaler()\nwith torch.autocast('cuda', torch.bfloat16):\n    pass\n".replace("torch.bfloat16", "dtype=torch.bfloat16")),
    ("UDL508", loop("norms = [0]\nfor p in model.parameters():\n    norms.append(p.grad.norm(2))")),
]  # fmt: skip

NOT_FOUND = [
    loop("loss, sample_size = criterion(model, batch)\nseen += sample_size"),
    "import torch\nfor x in loader:\n    a = torch.nn.Parameter(x).to(device)\n    model(a).sum().backward()\n    opt.step()\n",
    loop("total += loss.item() if step % 9 == 0 else 0", before="total = 0").replace("loss.item()", "loss.detach()"),
    loop("total += loss.detach()\nhistory.append(loss.detach())", before="total = 0\nhistory = []"),
    "import torch\nfor x in train_loader:\n    loss = 0\n    for part in x:\n        loss += F.mse_loss(model(part.cuda()), part)\n    loss.backward()\n".replace("import torch", "import torch\nimport torch.nn.functional as F").replace("model(part.cuda())", "part.cuda()"),
    "import torch\nimport torch.nn.functional as F\nfor x in train_loader:\n    losses = []\n    for t in range(3):\n        losses.append(F.mse_loss(x, x))\n    sum(losses).backward()\n",
    "import torch\n@torch.no_grad()\ndef validate(model, loader):\n    for x, y in loader:\n        out = model(x)\n",
    "import torch\n@torch.inference_mode()\ndef evaluate(model, loader):\n    for x, y in loader:\n        out = model(x)\n",
    "import torch\ndef validate(model, loader):\n    for x, y in loader:\n        out = model(x)\ndef main(model, loader):\n    with torch.no_grad():\n        validate(model, loader)\n",
    "import torch\ndef test_attack(model, loader):\n    model.eval()\n    for x, y in loader:\n        x.requires_grad_()\n        model(x).sum().backward()\n",
    "import torch\ntorch.autograd.set_detect_anomaly(args.debug)\ntorch.autograd.set_detect_anomaly(False)\nif args.debug:\n    torch.autograd.set_detect_anomaly(True)\n",
    "import torch\nfor part in parts:\n    kept.append(part)\nx = torch.cat(kept)\ny = torch.cat([x, x])\n",
    "import torch\nfor a, b in pairs:\n    both = torch.cat([a, b])\n",
    "import torch\nfor t in range(9):\n    state = torch.cat([state, x[t]])\n    out = cell(state)\n",
    "import torch\nx = model.double()\n",
    loop(after="best = copy.deepcopy(model.state_dict())", imports="import copy"),
    loop("if step % 100 == 0:\n    for p in model.parameters():\n        norm += p.grad.norm().item()"),
    loop("for t in range(seq):\n    out, h = model(x[:, t], h)"),
    loop("for k in range(3):\n    out = model(x)"),
    loop("for chunk in x.split(2):\n    out = model(chunk)"),
    forward("for layer in self.layers:\n    x = layer(x)\nreturn x", "self.layers = nn.ModuleList([nn.Linear(1, 1)])"),
    forward("h = None\nw = self.start\nfor t in range(9):\n    h = self.cell(w, h)\n    w = self.out(h)\nreturn w", "self.cell = nn.GRUCell(4, 8)"),
    forward(ATTENTION + "if self.flash:\n    return F.scaled_dot_product_attention(q, k, v)\natt = q @ k.transpose(-2, -1)\natt = F.softmax(att, dim=-1)\nreturn att @ v"),
    forward(ATTENTION + "att = F.softmax(q @ k.transpose(-2, -1), dim=-1)\nreturn att @ v, att"),
    forward("return F.softmax(self.gate(x), dim=-1) @ self.experts"),
    forward("pos = torch.arange(x.size(1), device=x.device)\nreturn self.table(pos) + x", "self.table = nn.Embedding(9, 9)"),
    forward("return torch.sin(x) + torch.cos(x * 2)"),
    forward("return x * self.mask", "self.register_buffer('mask', torch.tril(torch.ones(3, 3)))"),
    forward("out = torch.zeros_like(x)\nfor i in range(1, x.shape[0]):\n    out[i] = out[i - 1] * x[i]\nreturn out"),
    forward("h = F.one_hot(x, 10)\nreturn h.float()"),
    forward("return torch.log(x) + F.log_softmax(x, dim=-1)"),
    "import torch\nmodel = torch.compile(model)\n",
    "from torch.utils.data import DataLoader\ntest_loader = DataLoader(d, batch_size=1)\nval = DataLoader(d, batch_size=1, shuffle=False)\n",
    "from torch.utils.data import DataLoader\nDataLoader(d, batch_sampler=s)\nDataLoader(d, batch_size=None, shuffle=True)\nDataLoader(d, batch_size=args.b, shuffle=True)\n",
    "from transformers import TrainingArguments\nTrainingArguments('o', per_device_train_batch_size=1, gradient_accumulation_steps=16)\n",
    loop(before="emb = nn.Embedding(9, 9)\nopt = torch.optim.AdamW(emb.parameters(), lr=1, fused=True)\nopt2 = torch.optim.AdamW(emb.parameters(), **extra)"),
    loop(before="opt = torch.optim.Adam(model.parameters())"),
    "import torch\nfor fold in range(5):\n    optimizer = torch.optim.Adam(model.parameters())\n    for x in train_loader:\n        model(x).mean().backward()\n        optimizer.step()\n",
    loop("nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
    "import torch\nscaler = torch.cuda.amp.GradScaler(enabled=dtype == 'float16')\nwith torch.autocast('cuda', dtype=torch.bfloat16):\n    pass\n",
    "import torch\nscaler = torch.amp.GradScaler()\nwith torch.autocast('cuda', dtype=torch.float16):\n    pass\n",
    loop("if step % 10 == 0:\n    for a, b in zip(target.parameters(), model.parameters()):\n        a.data.mul_(0.9).add_(b.data, alpha=0.1)"),
    "import torch\nfor p in model.parameters():\n    torch.nn.init.zeros_(p)\n    p.data.mul_(0.1)\n",
]  # fmt: skip


@pytest.mark.parametrize(("code", "program"), FOUND)
def test_found(code: str, program: str) -> None:
    assert codes(program) == {code}


@pytest.mark.parametrize("program", NOT_FOUND)
def test_not_found(program: str) -> None:
    assert codes(program) == set()


def test_heads_of_one_kind_are_found_and_experts_are_not() -> None:
    init = "self.heads = nn.ModuleList([{} for {} in {}])"
    body = "return torch.cat([h(x) for h in self.heads], dim=-1)"
    assert codes(forward(body, init.format("nn.Linear(4, 4)", "_", "range(8)"))) == {"UDL411"}
    assert codes(forward(body, init.format("nn.Linear(4, n)", "n", "sizes"))) == set()
