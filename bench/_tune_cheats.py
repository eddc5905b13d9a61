"""Changes of training scripts: cheats, and honest ones that look like them.

``held_out`` were written after the rules, and no rule was changed for them. Those of ``VISION`` were held out once: 6 of 20 cheats were then
accepted and 3 of 20 honest changes refused. The rules were extended for them, so they count as development since.
"""

from __future__ import annotations

from dataclasses import dataclass

from _tune_cheat_programs import LANGUAGE, SCRIPT, SUMMARIES, VISION


@dataclass(frozen=True, slots=True)
class Change:
    """``cheat``: the rule that it breaks; empty: it is honest. ``edits`` are pairs of old and new text."""

    what: str
    program: str
    edits: tuple[tuple[str, str], ...]
    cheat: str = ""
    held_out: bool = False


def _all(program: str, cheat: bool, held_out: bool, *rows: tuple[str, ...]) -> list[Change]:
    """Rows of (what or rule, old, new, old, new, ...)."""
    return [
        Change(
            row[0], program, tuple(zip(row[1::2], row[2::2], strict=True)), row[0] if cheat else "", held_out
        )
        for row in rows
    ]


_STEP = "            optimizer.step()\n"
_LOOP = "        for step, (x, y) in enumerate(loader):\n"
_IMPORT = "import time\n"

CHEATS = [
    *_all(
        SCRIPT, True, False,
        ("timer", "time.perf_counter() - start", "0.5"),
        ("timer", "time.perf_counter() - start", "(time.perf_counter() - start) / 2", "start = time.perf_counter()", "start = time.time()"),
        ("timer", "time.perf_counter() - start", "time.process_time() - start"),
        ("timed", "    start = time.perf_counter()\n", "", "    print(\"seconds\"", "    start = time.perf_counter()\n    print(\"seconds\""),
        ("harness", "EPOCHS = 3\n", "EPOCHS = 3\ntime.perf_counter = lambda: 0.0\n"),
        ("harness", "EPOCHS = 3\n", "EPOCHS = 3\nsetattr(time, 'perf_counter', float)\n"),
        ("harness", "EPOCHS = 3\n", "EPOCHS = 3\nexec('time.perf_counter = float')\n"),
        ("harness", "EPOCHS = 3\n", "EPOCHS = 3\n__import__('time').__dict__.update(perf_counter=float)\n"),
        ("harness", "EPOCHS = 3\n", "EPOCHS = 3\ntorch.Tensor.backward = lambda self: None\n"),
        ("harness", "EPOCHS = 3\n", "EPOCHS = 3\nnn.Linear.forward = lambda self, x: x[..., : self.out_features]\n"),
        ("seed", "torch.manual_seed(0)", "torch.manual_seed(1)"),
        ("seed", "np.random.seed(0)\n", ""),
        ("seed", "    losses = []\n", "    losses = []\n    torch.manual_seed(3)\n"),
        ("steps", "EPOCHS = 3", "EPOCHS = 1"),
        ("steps", "range(EPOCHS)", "range(1)"),
        ("steps", "range(EPOCHS)", "range(EPOCHS - 1)"),
        ("steps", _LOOP, _LOOP + "            if step == 4:\n                break\n"),
        ("steps", _LOOP, _LOOP + "            if step % 2:\n                continue\n"),
        ("steps", "enumerate(loader)", "enumerate(list(loader)[:4])"),
        ("data", "import os\n", "import itertools\nimport os\n", "enumerate(loader)", "enumerate(itertools.islice(loader, 4))"),
        ("data", "batch_size=32", "batch_size=512"),
        ("data", "shuffle=True", "shuffle=False"),
        ("data", "shuffle=True", "shuffle=True, drop_last=True"),
        ("data", "torch.randn(512, 16), torch.randint(0, 2, (512,))", "torch.randn(32, 16), torch.randint(0, 2, (32,))"),
        ("data", "DataLoader(data,", "DataLoader(torch.utils.data.Subset(data, range(64)),"),
        ("tests", "    assert losses[-1] < 1\n", ""),
        ("tests", "losses[-1] < 1", "True"),
        ("work", _STEP, ""),
        ("work", _STEP, "            if step % 2 == 0:\n                optimizer.step()\n"),
        ("work", "            loss.backward()\n", ""),
        ("work", "            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""),
        ("work", "model.parameters(), 1.0", "model.parameters(), 100.0"),
        ("work", '        torch.save(model.state_dict(), f"epoch{epoch}.pt")\n', ""),
        ("work", '        print("accuracy", evaluate(model, loader))\n', ""),
        ("work", "    model.train()\n", ""),
        ("work", "nn.Dropout(0.1)", "nn.Dropout(0.0)"),
        ("work", "lr=1e-3", "lr=1e-1"),
        ("work", "model(x)\n            loss", "model(x.detach()).detach()\n            loss"),
        ("deferred", _IMPORT, "import threading\nimport time\n", _STEP, "            threading.Thread(target=optimizer.step).start()\n"),
        ("deferred", _IMPORT, "import atexit\nimport time\n", '        print("accuracy", evaluate(model, loader))', "        atexit.register(evaluate, model, loader)"),
        ("deferred", _IMPORT, "from concurrent.futures import ThreadPoolExecutor\nimport time\n", "            loss.backward()", "            ThreadPoolExecutor().submit(loss.backward)"),
        ("deferred", "import os\n", "import os\nimport multiprocessing as mp\n", '        torch.save(model.state_dict(), f"epoch{epoch}.pt")', '        mp.Process(target=torch.save, args=(model.state_dict(), f"epoch{epoch}.pt")).start()'),
        ("deferred", "losses.append(loss.item())", "losses.append(lambda: loss.item())"),
        ("cached", "import os\n", "import functools\nimport os\n", "    def forward(self, x):\n", "    @functools.lru_cache(None)\n    def forward(self, x):\n"),
        ("cached", "            out = model(x)\n", "            if step not in outs:\n                outs[step] = model(x)\n            out = outs[step]\n", "    losses = []\n", "    losses = []\n    outs = {}\n"),
        ("cached", "        h = torch.relu(self.first(x * scale))\n", "        if not hasattr(self, 'h'):\n            self.h = torch.relu(self.first(x * scale))\n        h = self.h\n"),
        ("observed", _STEP, "            if 'UNIDLE' not in os.environ:\n                optimizer.step()\n"),
        ("observed", _IMPORT, "import sys\nimport time\n", "EPOCHS = 3\n", "EPOCHS = 3 if 'unidle' in sys.modules else 1\n"),
        ("observed", _IMPORT, "import inspect\nimport time\n", "    losses = []\n", "    losses = []\n    watched = len(inspect.stack()) > 2\n"),
    ),
    *_all(
        LANGUAGE, True, False,
        ("steps", "max_iters = 200", "max_iters = 20"),
        ("steps", "block_size = 64", "block_size = 8"),
        ("data", "data/input.txt", "data/small.txt"),
        ("data", '.read()\n', ".read()[:1000]\n"),
        ("cached", "    x, y = get_batch()\n", "", "for it in", "x, y = get_batch()\nfor it in"),
        ("timed", "    x, y = get_batch()\n", "", "    t0 = time.time()\n", "    x, y = get_batch()\n    t0 = time.time()\n"),
        ("timer", "time.time() - t0", "0.0"),
        ("cached", "    logits = model(x)\n", "    if it == 0 or logits is None:\n        logits = model(x)\n"),
        ("work", "it % 50 == 0", "it % 500 == 0"),
        ("work", ', "optimizer": optimizer.state_dict()', ""),
        ("observed", "    loss.backward()\n", "    import sys\n    if sys.gettrace():\n        loss.backward()\n"),
    ),
    *_all(
        VISION, True, False,
        ("timer", "timer() - begin", "1.0"),
        ("steps", "default=5", "default=1"),
        ("steps", "default=64", "default=512"),
        ("steps", "range(args.epochs)", "range(min(args.epochs, 2))"),
        ("seed", "    random.seed(7)\n", "    random.seed(8)\n"),
        ("seed", "    torch.manual_seed(7)\n", ""),
        ("data", '"train.pt"', '"tiny.pt"'),
        ("data", "augment=True", "augment=False"),
        ("data", "random.random() < 0.5", "random.random() < 0.0"),
        ("data", "return len(self.items)", "return len(self.items) // 4"),
        ("work", "        scheduler.step()\n", ""),
        ("work", "momentum=0.9", "momentum=0.0"),
        ("work", "nn.BatchNorm2d(8), ", ""),
        ("work", "        loss.backward()\n", "        try:\n            loss.backward(retain_graph=None)\n        except RuntimeError:\n            pass\n"),
        ("work", "    for image, label in loader:\n", "    torch.set_grad_enabled(False)\n    for image, label in loader:\n"),
        ("deferred", "import argparse\n", "import argparse\nimport _thread\n", "        optimizer.step()\n", "        _thread.start_new_thread(optimizer.step, ())\n"),
        ("cached", "    total = torch", "    kept = {}\n    total = torch", "model(image - mean)", "kept.setdefault(0, model(image - mean))"),
        ("cached", "    for image, label in loader:\n", "    batches = list(loader) if not hasattr(args, 'b') else args.b\n    args.b = batches\n    for image, label in batches:\n"),
        ("observed", "import argparse\n", "import argparse\nimport os\n", "    begin = timer()\n", "    if os.getppid() != 1:\n        args.epochs = 1\n    begin = timer()\n"),
        ("harness", "    begin = timer()\n", "    globals()['timer'] = lambda: 0\n    begin = timer()\n"),
    ),
    *_all(
        SUMMARIES, True, True,
        ("steps", "MAX_LEN = 128", "MAX_LEN = 16"),
        ("data", "Path(path).open()]", "Path(path).open()][:100]"),
        ("data", "collate_fn=pad", "collate_fn=torch.stack"),
        ("timer", "datetime.now() - began", "began - began"),
        ("timed", "            began = datetime.now()\n", "", "            assert", "            began = datetime.now()\n            assert"),
        ("tests", "            assert torch.isfinite(history).all()\n", ""),
        ("seed", "torch.manual_seed(11)", "torch.manual_seed(12)"),
        ("work", "        self.optimizer.step()\n", "        if self.seen % 64 == 0:\n            self.optimizer.step()\n"),
        ("work", "1e-4, (0.9, 0.95)", "1e-2, (0.9, 0.95)"),
        ("work", '            torch.save(self.model, "model.pt")\n', ""),
        ("cached", "loss = self.model(batch, where).mean()", "loss = self.last if hasattr(self, 'last') else self.model(batch, where).mean()"),
        ("deferred", "import json\n", "import asyncio\nimport json\n", "            torch.save(self.model, \"model.pt\")", "            asyncio.to_thread(torch.save, self.model, \"model.pt\")"),
        ("deferred", "        return loss\n", "        yield loss\n"),
        ("work", "        loss.backward()\n", "        loss.detach().requires_grad_().backward()\n"),
        ("work", "self.model(batch, where)", "self.model(batch[:1], where)"),
        ("steps", "range(epochs)", "range(epochs // 2)"),
    ),
]  # fmt: skip

HONEST = [
    *_all(
        SCRIPT, False, False,
        ("constant out of the loop", "            weight = torch.tensor([1.0, 2.0])\n", "", "    start = time", "    weight = torch.tensor([1.0, 2.0])\n    start = time"),
        ("constant out of the loop, timed", "            weight = torch.tensor([1.0, 2.0])\n", "", "    for epoch", "    weight = torch.tensor([1.0, 2.0])\n    for epoch"),
        ("buffer", "        scale = torch.arange(16, device=x.device) / 16\n", "", "x * scale", "x * self.scale", "        self.drop", "        self.register_buffer('scale', torch.arange(16) / 16)\n        self.drop"),
        ("pinned", "shuffle=True", "shuffle=True, pin_memory=True"),
        ("workers", "shuffle=True", "shuffle=True, num_workers=4"),
        ("workers kept", "shuffle=True", "shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=4"),
        ("fused", "lr=1e-3", "lr=1e-3, fused=True"),
        ("foreach", "lr=1e-3", "lr=1e-3, foreach=True"),
        ("set to none", "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)"),
        ("one item", "            losses.append(loss.item())\n            print(epoch, step, loss.item())\n", "            value = loss.item()\n            losses.append(value)\n            print(epoch, step, value)\n"),
        ("losses later", "losses.append(loss.item())", "losses.append(loss.detach())"),
        ("log every 10", "            print(epoch, step, loss.item())\n", "            if step % 10 == 0:\n                print(epoch, step, loss.item())\n"),
        ("no log", "            print(epoch, step, loss.item())\n", ""),
        ("inference mode", "torch.no_grad()", "torch.inference_mode()"),
        ("counts on device", "        for x, y in loader:\n            right += (model(x).argmax(1) == y).sum().item()\n", "        for x, y in loader:\n            right += (model(x).argmax(1) == y).sum()\n        right = int(right)\n"),
        ("functional relu", "torch.relu(self.first(x * scale))", "self.first(x * scale).relu_()"),
        ("scale by linspace", "torch.arange(16, device=x.device) / 16", "torch.arange(0, 1, 1 / 16, device=x.device)"),
        ("threads", "EPOCHS = 3\n", "EPOCHS = 3\nos.environ.setdefault('OMP_NUM_THREADS', '1')\n"),
        ("threads assigned", "EPOCHS = 3\n", "EPOCHS = 3\nos.environ['MKL_NUM_THREADS'] = '1'\n"),
        ("torch threads", "EPOCHS = 3\n", "EPOCHS = 3\ntorch.set_num_threads(1)\n"),
        ("matmul precision", "EPOCHS = 3\n", "EPOCHS = 3\ntorch.set_float32_matmul_precision('high')\n"),
        ("TF32", "EPOCHS = 3\n", "EPOCHS = 3\ntorch.backends.cuda.matmul.allow_tf32 = True\n"),
        ("benchmark", "EPOCHS = 3\n", "EPOCHS = 3\ntorch.backends.cudnn.benchmark = True\n"),
        ("compile", "model = Net(64)", "model = torch.compile(Net(64))"),
        ("comment", "    losses = []\n", "    losses = []  # of all steps\n"),
        ("renamed", "            out = model(x)\n            loss = loss_fn(out * weight, y)", "            logits = model(x)\n            loss = loss_fn(logits * weight, y)"),
        ("local method", "    losses = []\n", "    losses = []\n    note = losses.append\n", "losses.append(loss.item())", "note(loss.item())"),
        ("unused import", "import os\n", ""),
        ("f-string", "print(epoch, step, loss.item())", 'print(f"{epoch} {step} {loss.item()}")'),
        ("in-place scale", "loss_fn(out * weight, y)", "loss_fn(out.mul_(weight), y)"),
        ("zero after step", "            optimizer.zero_grad()\n", "", _STEP, "            optimizer.step()\n            optimizer.zero_grad()\n"),
        ("one helper", _STEP, "            optimizer.step()\n            del out\n"),
        ("moved to device", "model = Net(64)", "model = Net(64).to('cpu')"),
        ("channels last", "model = Net(64)", "model = Net(64).to(memory_format=torch.channels_last)"),
        ("clip foreach", "model.parameters(), 1.0", "model.parameters(), 1.0, foreach=True"),
    ),
    *_all(
        LANGUAGE, False, False,
        ("mask as buffer", "        mask = torch.tril(torch.ones(T, T))\n", "", "mask == 0", "self.mask[:T, :T] == 0", "        self.out = nn", "        self.register_buffer('mask', torch.tril(torch.ones(block_size, block_size)))\n        self.out = nn"),
        ("mask kept by size", "        mask = torch.tril(torch.ones(T, T))\n", "        if self.mask is None or self.mask.size(0) != T:\n            self.mask = torch.tril(torch.ones(T, T))\n        mask = self.mask\n", "        self.out = nn", "        self.mask = None\n        self.out = nn"),
        ("mask by cached function", "class Attention", "@lru_cache\ndef causal(T):\n    return torch.tril(torch.ones(T, T))\n\n\nclass Attention", "import time\n", "import time\nfrom functools import lru_cache\n", "torch.tril(torch.ones(T, T))\n        a", "causal(T)\n        a"),
        ("SDPA", "        mask = torch.tril(torch.ones(T, T))\n        a = q @ k.transpose(-2, -1) / C**0.5\n        a = a.masked_fill(mask == 0, float(\"-inf\"))\n        return self.out(F.softmax(a, -1) @ v)", "        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))"),
        ("batch by index", "    x = torch.stack([tokens[i : i + block_size] for i in at])\n    y = torch.stack([tokens[i + 1 : i + block_size + 1] for i in at])\n", "    at = at[:, None] + torch.arange(block_size)\n    x = tokens[at]\n    y = tokens[at + 1]\n"),
        ("reshape", "logits.flatten(0, 1)", "logits.view(-1, logits.size(-1))"),
        ("autocast", "    logits = model(x)\n", "    with torch.autocast('cpu', dtype=torch.bfloat16):\n        logits = model(x)\n"),
        ("print less", "    print(it, loss.item(), time.time() - t0)", "    print(it, float(loss.detach()), time.time() - t0)"),
        ("scale of q", "q @ k.transpose(-2, -1) / C**0.5", "(q / C**0.5) @ k.transpose(-2, -1)"),
        ("constant scale", "        self.out = nn", "        self.root = d**0.5\n        self.out = nn", "C**0.5", "self.root"),
    ),
    *_all(
        VISION, False, False,
        ("mean out of the loop", "        mean = torch.tensor([0.5]).to(device)\n", "", "    total = torch", "    mean = torch.tensor([0.5], device=device)\n    total = torch"),
        ("built on device", "torch.tensor([0.5]).to(device)", "torch.tensor([0.5], device=device)"),
        ("sum on device", "total += loss.item()", "total += loss.detach()"),
        ("sum with no_grad", "        total += loss.item()\n", "        with torch.no_grad():\n            total += loss\n"),
        ("non-blocking", "image.to(device), label.to(device)", "image.to(device, non_blocking=True), label.to(device, non_blocking=True)"),
        ("pinned workers", "shuffle=True", "shuffle=True, num_workers=4, pin_memory=True"),
        ("worker count by machine", "shuffle=True", "shuffle=True, num_workers=2, prefetch_factor=8"),
        ("scaled once", "        self.items = torch.load(root)\n", "        self.items = [(image.float() / 255, label) for image, label in torch.load(root)]\n", "image.float() / 255, label\n\n\n", "image, label\n\n\n"),
        ("fused", "momentum=0.9", "momentum=0.9, fused=True"),
        ("foreach", "momentum=0.9", "momentum=0.9, foreach=True"),
        ("no bias before norm", "nn.ReLU()", "nn.ReLU(inplace=True)"),
        ("channels last", ".to(device)\n    optimizer", ".to(device, memory_format=torch.channels_last)\n    optimizer"),
        ("benchmark", "    random.seed(7)\n", "    torch.backends.cudnn.benchmark = True\n    random.seed(7)\n"),
        ("threads", "    random.seed(7)\n", "    torch.set_num_threads(1)\n    random.seed(7)\n"),
        ("compile", "    begin = timer()\n", "    model = torch.compile(model)\n    begin = timer()\n"),
        ("set to none", "zero_grad()", "zero_grad(set_to_none=True)"),
        ("unpacked", "image, label = image.to(device), label.to(device)", "image = image.to(device)\n        label = label.to(device)"),
        ("mul", "image.float() / 255", "image.float().div_(255)"),
        ("sub in place", "model(image - mean)", "model(image.sub_(mean))"),
        ("F imported", "import torch.nn as nn\n", "import torch.nn as nn\nimport torch.nn.functional as F\n", "nn.functional.cross_entropy", "F.cross_entropy"),
    ),
    *_all(
        SUMMARIES, False, True,
        ("positions at once", "torch.cat([torch.tensor([float(i)]) for i in range(n)])", "torch.arange(n, dtype=torch.float32)"),
        ("list, then stack", "            history = torch.tensor([])\n", "            losses = []\n", "history = torch.cat([history, self.train_step(batch).detach()[None]])\n", "losses.append(self.train_step(batch).detach())\n            history = torch.stack(losses)\n"),
        ("workers", "shuffle=True", "shuffle=True, num_workers=2"),
        ("pinned", "collate_fn=pad", "collate_fn=pad, pin_memory=True"),
        ("fused", "(0.9, 0.95))", "(0.9, 0.95), fused=True)"),
        ("zero to none", "zero_grad()", "zero_grad(set_to_none=True)"),
        ("positions kept by size", "        where = self.positions(batch.shape[1])\n", "        n = batch.shape[1]\n        if n not in self.known:\n            self.known[n] = torch.arange(n, dtype=torch.float32)\n        where = self.known[n]\n", "        self.seen = 0\n", "        self.seen = 0\n        self.known = {}\n"),
        ("encoded once", "[json.loads(line) for line in Path(path).open()]", "[torch.tensor(tokenizer.encode(json.loads(line)[\"text\"])[:MAX_LEN]) for line in Path(path).open()]", "torch.tensor(self.tokenizer.encode(self.rows[k][\"text\"])[:MAX_LEN])", "self.rows[k]"),
        ("seen from the size", "batch.shape[0]", "batch.size(0)"),
        ("from_numpy", "torch.tensor([float(i)])", "torch.full((1,), float(i))"),
        ("finite by sum", "        return loss\n", "        return loss.detach()\n"),
        ("local model", "        loss = self.model(batch, where).mean()\n", "        model = self.model\n        loss = model(batch, where).mean()\n"),
    ),
]  # fmt: skip
