"""Rules 6xx and 7xx: programs in which they find something, and programs in which the same calls do not matter."""

from __future__ import annotations

import pytest

from tune.programs import codes, loop

DIST = "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP"
SERVER = "import torch\nfrom fastapi import FastAPI, APIRouter\napp = FastAPI()\nmodel = torch.jit.load('m.pt').eval()\n"
LANGUAGE = "import torch\nfrom transformers import AutoModelForCausalLM as M, AutoTokenizer as T, pipeline\nmodel = M.from_pretrained('gpt2')\ntok = T.from_pretrained('gpt2')\n"

FOUND = [
    ("UDL601", "import torch\nm = torch.nn.DataParallel(m, device_ids=[0, 1])\n"),
    ("UDL601", "import lightning as L\nL.Trainer(strategy='dp')\n"),
    ("UDL602", loop("dist.all_reduce(loss)", imports=DIST)),
    ("UDL602", loop("total_loss = loss.detach()\ndist.reduce(total_loss, 0)", imports=DIST)),
    ("UDL603", loop("for p in model.parameters():\n    dist.all_reduce(p.grad.data, op=dist.ReduceOp.SUM)", imports=DIST)),
    ("UDL604", loop("dist.barrier()", imports=DIST)),
    ("UDL604", loop("accelerator.wait_for_everyone()")),
    ("UDL607", loop("dist.all_gather_object(out, info)", imports=DIST)),
    ("UDL608", "import torch\nfrom torch.nn.parallel import DistributedDataParallel\nm = DistributedDataParallel(m)\nl = torch.utils.data.DataLoader(d, 8, shuffle=True)\n"),
    ("UDL701", "import os, torch\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'\n"),
    ("UDL701", "import os, torch\nos.environ.setdefault('TORCH_DISTRIBUTED_DEBUG', 'DETAIL')\n"),
    ("UDL702", "import torch\nwith torch.autograd.profiler.profile(use_cuda=True) as prof:\n    for x in train_loader:\n        model(x).mean().backward()\n"),
    ("UDL702", "import lightning as L\nL.Trainer(profiler='advanced')\n"),
    ("UDL703", SERVER + "@app.get('/')\ndef f(q: str):\n    with torch.no_grad():\n        return load()(q)\ndef load():\n    return torch.load('x.pt')\n"),
    ("UDL704", SERVER + "@app.post('/p')\ndef f(q: str):\n    return run(q)\ndef run(q):\n    return model(q)\n"),
    ("UDL705", "import torch\nclass G(torch.nn.Module):\n    def forward(self, idx):\n        return idx\n    @torch.no_grad()\n    def generate(self, idx, n):\n        for _ in range(n):\n            cond = idx[:, -self.size:]\n            logits, _ = self(cond)\n            nxt = torch.multinomial(logits[:, -1], 1)\n            idx = torch.cat((idx, nxt), dim=1)\n        return idx\n"),
    ("UDL705", LANGUAGE + "out = model.generate(**ids, use_cache=False)\n"),
    ("UDL706", LANGUAGE + "for text in texts:\n    ids = tok(text)\n    out = model.generate(**ids)\n"),
    ("UDL706", LANGUAGE + "pipe = pipeline('text-generation')\nfor text in texts:\n    print(pipe(text))\n"),
    ("UDL707", "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('x', use_fast=False)\n"),
    ("UDL708", SERVER + "@app.post('/p')\nasync def f(q: str):\n    with torch.no_grad():\n        return model(q)\n"),
    ("UDL710", "import torch\n@torch.no_grad()\ndef start(model, prompt, kv_cache):\n    for token in prompt.split(1, dim=1):\n        out = model(token, past_key_values=kv_cache)\n    return out\n"),
    ("UDL710", "import torch\nclass E:\n    def prefill(self, ids):\n        with torch.inference_mode():\n            for k in range(ids.shape[1]):\n                y = self.model(ids[:, k], cache=self.cache)\n        return y\n"),
    ("UDL711", "import torch\n@torch.inference_mode()\ndef loop(model, queue):\n    for _ in range(64):\n        for seq in queue:\n            out = model(seq['ids'][:, -1:], past_key_values=seq['past'])\n            seq['past'] = out.past_key_values\n            seq['ids'] = torch.cat([seq['ids'], out.logits[:, -1:].argmax(-1)], 1)\n"),
    ("UDL712", LANGUAGE + "@torch.no_grad()\ndef talk(ids, past):\n    for _ in range(9):\n        out = model(ids[:, -1:], past_key_values=past)\n        ids = torch.cat([ids, out.logits[:, -1:].argmax(-1)], dim=1)\n        print(tok.decode(ids[0]))\n"),
    ("UDL712", SERVER + "from transformers import AutoTokenizer\ntok = AutoTokenizer.from_pretrained('gpt2')\nSYSTEM = 'You are kind.'\n@app.post('/p')\ndef f(q: str):\n    with torch.no_grad():\n        return model(tok(SYSTEM) + tok(q))\n"),
    ("UDL713", SERVER + "fast = torch.compile(model)\n@app.post('/p')\ndef f(q: str):\n    with torch.no_grad():\n        return fast(q)\n"),
    ("UDL709", LANGUAGE + "model.config.use_cache = False\nmodel.generate(x)\n"),
]  # fmt: skip

NOT_FOUND = [
    loop("if step % 100 == 0:\n    dist.all_reduce(loss)", imports=DIST),
    loop(after="dist.all_reduce(total)\ndist.barrier()\ndist.all_gather_object(out, info)", imports=DIST),
    "import torch\nfrom torch.nn.parallel import DistributedDataParallel\nfrom torch.utils.data import DistributedSampler\nm = DistributedDataParallel(m)\nl = torch.utils.data.DataLoader(d, 8, shuffle=False, sampler=DistributedSampler(d))\n",
    "import torch\nfrom torch.nn.parallel import DistributedDataParallel\nm = DistributedDataParallel(m)\nd = Data(files[rank::world_size])\nl = torch.utils.data.DataLoader(d, 8, shuffle=True)\n",
    "import os, torch\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\nos.environ['CUDA_LAUNCH_BLOCKING'] = '0'\nif args.debug:\n    os.environ['CUDA_LAUNCH_BLOCKING'] = '1'\n",
    "import torch\nfrom torch.profiler import profile, schedule\nwith profile(schedule=schedule(wait=1, warmup=1, active=3)) as prof:\n    for x in train_loader:\n        model(x).mean().backward()\n        prof.step()\n",
    "import torch\nwith torch.profiler.profile() as prof:\n    model(x)\n",
    SERVER + "@app.post('/p')\ndef f(q: str):\n    with torch.inference_mode():\n        return model(q)\n",
    SERVER + "import asyncio\n@app.post('/p')\nasync def f(q: str):\n    return await asyncio.to_thread(run, q)\n@torch.no_grad()\ndef run(q):\n    return model(q)\n",
    SERVER + "@app.on_event('startup')\ndef start():\n    global model\n    model = torch.jit.load('x')\n",
    "import torch\n@torch.no_grad()\ndef generate(model, idx, past):\n    for _ in range(9):\n        logits, past = model(idx[:, -1:], past_key_values=past)\n        idx = torch.cat([idx, logits.argmax(-1)], dim=1)\n    return idx\n",
    "import torch\nclass U(torch.nn.Module):\n    def forward(self, x):\n        for block, up in self.ups:\n            x = torch.cat((x, self.skips.pop()), dim=1)\n            x = up(block(x))\n        return x\n",
    "import torch\nclass V(torch.nn.Module):\n    def forward(self, x):\n        for k, block in enumerate(self.blocks):\n            if k == self.first:\n                x = torch.cat((self.token, x), dim=1)\n            x = block(x)\n        return x\n",
    "import torch\n@torch.no_grad()\ndef chunked(model, prompt, past):\n    for part in prompt.split(512, dim=1) if prompt.size(1) > 512 else [prompt]:\n        out, past = model(part, past)\n    return out, past\n",
    "import torch\n@torch.no_grad()\ndef decode(model, new, past, prompt):\n    for at in range(prompt.size(1)):\n        logits, past = model(new[:, at : at + 1], past)\n        new = torch.cat([new, logits[:, -1:].argmax(-1)], 1)\n    return new\n",
    "import torch\nclass R(torch.nn.Module):\n    def forward(self, x, state):\n        for t in range(x.size(1)):\n            y, state = self.net(x[:, t], state)\n        return y\n",
    "import torch\n@torch.no_grad()\ndef loop(model, groups):\n    while groups:\n        for batch in groups:\n            batch.logits, batch.past = model(batch.last, batch.past)\n",
    "import torch\nclass S(torch.nn.Module):\n    def run(self, x, cache):\n        while self.open:\n            for layer in self.layers:\n                x, cache[layer.name] = self.net(layer.norm(x), cache)\n        return x\n",
    LANGUAGE + "@torch.no_grad()\ndef talk(ids, past):\n    for _ in range(9):\n        out = model(ids[:, -1:], past_key_values=past)\n        new = out.logits[:, -1:].argmax(-1)\n        ids = torch.cat([ids, new], dim=1)\n        print(tok.decode(new[0]))\n    return tok.decode(ids[0])\n",
    SERVER + "from transformers import AutoTokenizer\ntok = AutoTokenizer.from_pretrained('gpt2')\nSYSTEM = tok('You are kind.')\n@app.post('/p')\ndef f(q: str):\n    with torch.no_grad():\n        return model(SYSTEM + tok(q))\n",
    SERVER + "fast = torch.compile(model)\n@app.on_event('startup')\ndef warm():\n    with torch.no_grad():\n        fast('hello')\n@app.post('/p')\ndef f(q: str):\n    with torch.no_grad():\n        return fast(q)\n",
    LANGUAGE + "for batch in batches(texts, 8):\n    out = model.generate(**tok(batch))\n",
    LANGUAGE + "for _ in range(3):\n    out = model.generate(**ids)\n",
    LANGUAGE + "for i in range(0, len(texts), 8):\n    out = model.generate(**tok(texts[i : i + 8]))\n",
    LANGUAGE + "model.config.use_cache = False\nmodel.gradient_checkpointing_enable()\n",
    "import lightning as L\nclass N(L.LightningModule):\n    def validation_step(self, b, i):\n        self.log('x', self.net(b), sync_dist=True)\n    def training_step(self, b, i):\n        self.log('x', 1, sync_dist=True, on_step=False, on_epoch=True)\n",
]  # fmt: skip


@pytest.mark.parametrize(("code", "program"), FOUND)
def test_found(code: str, program: str) -> None:
    assert codes(program) == {code}


@pytest.mark.parametrize("program", NOT_FOUND)
def test_not_found(program: str) -> None:
    assert codes(program) == set()


def test_accumulation_without_no_sync() -> None:
    body = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)\nfor i, x in enumerate(train_loader):\n    {}\n    if (i + 1) % 4 == 0:\n        optimizer.step()\n"
    assert codes(body.format("model(x).mean().backward()")) == {"UDL605"}
    assert codes(body.format("with model.no_sync():\n        model(x).mean().backward()")) == set()


def test_unused_parameters_are_searched_for_nothing_only_without_a_branch() -> None:
    body = "from torch import nn\nfrom torch.nn.parallel import DistributedDataParallel as DDP\nclass N(nn.Module):\n    def forward(self, x):\n        {}\nm = DDP(N().cuda(), find_unused_parameters=True)\n"
    assert codes(body.format("return x")) == {"UDL606"}
    assert codes(body.format("return x if self.a else self.b(x)")) == set()
