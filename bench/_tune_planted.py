"""Slow-downs and decoys for the slots of `_tune_templates.py`."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

STEP = ("step", "step_self", "step_module", "step_trainer")
LOOP = ("step", "step_self")
EPOCH = ("epoch_end", "epoch_self", "epoch_module")
GRADS = ("grads", "grads_self")
SETUP = ("setup", "setup_trainer")


@dataclass(frozen=True, slots=True)
class Planted:
    """Lines for one of some slots; the line that a rule should find has ``<<<`` at its end. ``code`` is empty for a decoy."""

    code: str
    slots: tuple[str, ...]
    text: str
    imports: str = ""


def planted(code: str, slots: tuple[str, ...] | str, text: str, imports: str = "") -> Planted:
    """Short for :class:`Planted`."""
    return Planted(code, (slots,) if isinstance(slots, str) else slots, dedent(text).strip("\n"), imports)


SLOW = (
    planted("UDL201", STEP, "current = {loss}.item() <<<"),
    planted("UDL201", STEP, "stats = dict(loss=float({loss})) <<<\nassert stats"),
    planted("UDL201", "step", "hits = ({out}.argmax(1) == {y}).float().mean().item() <<<"),
    planted("UDL202", STEP, "snapshot = {loss}.detach().cpu() <<<"),
    planted(
        "UDL202",
        ("step", "step_self", "step_module"),
        "guesses = {out}.argmax(dim=-1).detach().cpu().numpy() <<<",
    ),
    planted("UDL203", STEP, "print('loss now', {loss}) <<<"),
    planted("UDL203", LOOP, "print('loss: {{:.3f}}'.format({loss}.item())) <<<"),
    planted("UDL204", STEP, "torch.cuda.synchronize() <<<", "import torch"),
    planted("UDL205", STEP, "torch.cuda.empty_cache() <<<", "import torch"),
    planted("UDL205", STEP, "cuda.empty_cache() <<<", "from torch import cuda"),
    planted("UDL206", STEP, "gc.collect() <<<", "import gc"),
    planted(
        "UDL207", "step", "torch.save({{'model': {model}.state_dict(), 'step': {step}}}, 'latest.pt') <<<"
    ),
    planted("UDL207", "step_self", "t.save(self.{optimizer}.state_dict(), 'opt.pt') <<<"),
    planted("UDL208", ("step", "step_self"), "if {loss} > 50.0: <<<\n    print('diverges')"),
    planted("UDL208", STEP, "if torch.isnan({loss}).any(): <<<\n    bad = True", "import torch"),
    planted("UDL210", ("step",), "jitter = torch.rand({x}.shape).to({device}) <<<"),
    planted("UDL210", ("forward",), "noise = torch.randn(4, 4).to({x}.device) <<<", "import torch"),
    planted("UDL211", "step", "{model}.to({device}) <<<"),
    planted(
        "UDL213",
        LOOP,
        "board.add_histogram('grad', {loss}) <<<",
        "from torch.utils.tensorboard import SummaryWriter\nboard = SummaryWriter()",
    ),
    planted("UDL215", LOOP, "plt.savefig('curve.png') <<<", "from matplotlib import pyplot as plt"),
    planted("UDL303", SETUP, "torch.autograd.set_detect_anomaly(True) <<<"),
    planted(
        "UDL304",
        SETUP,
        "bank = torch.zeros(0, 8)\nfor chunk in range(100):\n    bank = torch.cat((bank, torch.ones(1, 8)), dim=0) <<<",
    ),
    planted(
        "UDL305",
        SETUP,
        "curve = np.zeros(0)\nfor value in range(500):\n    curve = np.append(curve, value) <<<",
        "import numpy as np",
    ),
    planted("UDL306", "setup", "{model} = {model}.double() <<<"),
    planted("UDL306", "setup", "torch.set_default_dtype(torch.float64) <<<"),
    planted("UDL307", "step", "backup = copy.deepcopy({model}) <<<", "import copy"),
    planted(
        "UDL308",
        "grads",
        "total_norm = 0.0\nfor weight in {model}.parameters():\n    total_norm += weight.grad.data.norm(2).item() ** 2 <<<",
    ),
    planted(
        "UDL308",
        "grads_self",
        "for weight in self.{model}.parameters():\n    self.history.append(weight.grad.abs().max().item()) <<<",
    ),
    planted(
        "UDL401",
        "step",
        "per_sample = []\nfor row in range({x}.size(0)):\n    per_sample.append({model}({x}[row : row + 1])) <<<",
    ),
    planted(
        "UDL404",
        "forward",
        "causal = torch.triu(torch.ones(16, 16, device={x}.device), diagonal=1) <<<",
        "import torch",
    ),
    planted(
        "UDL404",
        "forward",
        "future = torch.ones(8, 8, dtype=torch.bool, device={x}.device).tril() <<<",
        "import torch",
    ),
    planted(
        "UDL405",
        "forward",
        "doubled = torch.zeros_like({x})\nfor place in range({x}.size(0)):\n    doubled[place] = {x}[place] * 2.0 <<<",
        "import torch",
    ),
    planted("UDL407", "forward", "entropy = torch.log(F.softmax({x}, dim=-1)) <<<", "import torch"),
    planted("UDL408", "step", "compiled = torch.compile({model}) <<<"),
    planted("UDL410", "setup", "slow_loader = DataLoader(train_set, batch_size=1, shuffle=True) <<<"),
    planted(
        "UDL107", "setup", "{loader} = DataLoader(train_set, batch_size=64, shuffle=True, num_workers=4) <<<"
    ),
    planted("UDL110", "step", "probe, _ = next(iter({loader})) <<<"),
    planted("UDL112", "step", "picture = cv2.imread('overlay.png') <<<", "import cv2"),
    planted("UDL113", "setup_trainer", "data = raw.map(lambda row: tokenizer(row['text'])) <<<"),
    planted(
        "UDL109",
        "setup_trainer",
        "data = raw.map(lambda rows: tokenizer(rows['text'], padding='max_length'), batched=True) <<<",
    ),
    planted("UDL214", "setup_trainer", "noisy = TrainingArguments('noisy', logging_steps=1) <<<"),
    planted("UDL207", "setup_trainer", "eager = TrainingArguments('eager', save_steps=2) <<<"),
    planted("UDL410", "setup_trainer", "tiny = TrainingArguments('tiny', per_device_train_batch_size=1) <<<"),
    planted("UDL707", "setup_trainer", "tokenizer = AutoTokenizer.from_pretrained(name, use_fast=False) <<<"),
    planted("UDL502", "step", "{optimizer} = torch.optim.Adadelta({model}.parameters()) <<<"),
    planted(
        "UDL503",
        "grads",
        "for weight in {model}.parameters():\n    weight.data.sub_(weight.grad, alpha=0.01) <<<",
    ),
    planted("UDL504", "setup", "other = torch.optim.Adam({model}.parameters(), foreach=False) <<<"),
    planted(
        "UDL505",
        "step",
        "for slow, fast in zip(shadow.parameters(), {model}.parameters()):\n    slow.data.mul_(0.99).add_(fast.data, alpha=0.01) <<<",
    ),
    planted(
        "UDL506",
        "grads",
        "for weight in {model}.parameters():\n    nn.utils.clip_grad_norm_(weight, 1.0) <<<",
    ),
    planted("UDL601", "setup", "{model} = nn.DataParallel({model}) <<<"),
    planted("UDL602", "step_self", "dist.all_reduce({loss}) <<<"),
    planted(
        "UDL603",
        "grads_self",
        "for weight in self.{model}.parameters():\n    dist.all_reduce(weight.grad) <<<",
    ),
    planted("UDL604", "step_self", "dist.barrier() <<<"),
    planted("UDL607", "step_self", "dist.all_gather_object([None] * 8, dict(rank=self.rank)) <<<"),
    planted("UDL609", "step_module", "self.log('loss_all', {loss}, sync_dist=True) <<<"),
    planted("UDL701", SETUP, "os.environ['CUDA_LAUNCH_BLOCKING'] = '1' <<<", "import os"),
    planted(
        "UDL703",
        "routes",
        "@app.post('/embed')\ndef embed(text: str):\n    encoder = AutoModelForCausalLM.from_pretrained('gpt2') <<<\n    return str(encoder)",
    ),
    planted(
        "UDL704",
        "routes",
        "@app.post('/score')\ndef score(text: str):\n    ids = tokenizer(text, return_tensors='pt').to('cuda')\n    return {model}(**ids).logits.mean().item() <<<",
    ),
    planted(
        "UDL705",
        "routes",
        "@torch.no_grad()\ndef continue_text({x}, count):\n    for _ in range(count):\n        {out} = {model}({x}).logits <<<\n        {x} = torch.cat([{x}, {out}[:, -1:].argmax(-1)], dim=1)\n    return {x}",
    ),
    planted(
        "UDL706",
        "routes",
        "def warm(texts):\n    for text in texts:\n        {model}.generate(**tokenizer(text, return_tensors='pt').to('cuda')) <<<",
    ),
    planted(
        "UDL708",
        "routes",
        "@app.post('/fast')\nasync def fast(prompt: str):\n    ids = tokenizer(prompt, return_tensors='pt').to('cuda')\n    with torch.inference_mode():\n        return {model}.generate(**ids).tolist() <<<",
    ),
    planted(
        "UDL710",
        "routes",
        "@torch.no_grad()\ndef start({x}, cache):\n    for place in range({x}.shape[1]):\n        {out} = {model}({x}[:, place : place + 1], past_key_values=cache) <<<\n    return {out}.logits[:, -1]",
    ),
    planted(
        "UDL711",
        "routes",
        "@torch.no_grad()\ndef rounds(waiting):\n    while waiting:\n        for one in waiting:\n            {out} = {model}(one.ids[:, -1:], past_key_values=one.past) <<<\n            one.add({out}.logits[:, -1].argmax(-1), {out}.past_key_values)\n        waiting = [one for one in waiting if one.is_open]",
    ),
    planted(
        "UDL712",
        "routes",
        "@torch.no_grad()\ndef words({x}, past, count):\n    text = []\n    for _ in range(count):\n        {out} = {model}({x}, past_key_values=past)\n        {x} = {out}.logits[:, -1:].argmax(-1)\n        text.append({x}.flatten()[0])\n        send(tokenizer.decode(text)) <<<",
    ),
    planted(
        "UDL713",
        "routes",
        "quick = torch.compile({model}) <<<\n\n@app.post('/quick')\ndef quick_score(prompt: str):\n    ids = tokenizer(prompt, return_tensors='pt').to('cuda')\n    with torch.inference_mode():\n        return quick(**ids).logits.mean().tolist()",
    ),
    planted(
        "UDL301",
        "step",
        "if not hasattr(main, 'losses'):\n    main.losses = []\nmain.losses.append({loss}) <<<",
    ),
    planted(
        "UDL402",
        "forward",
        "state = {x}.new_zeros(4, 8)\nfor moment in range({x}.size(1)):\n    state = self.memory({x}[:, moment], state) <<<",
    ),
    planted("UDL406", "forward", "vectors = F.one_hot({x}.argmax(-1), 10).float() @ self.lookup <<<"),
)

DECOYS = (
    planted("", EPOCH, "print('done with an epoch')"),
    planted("", "epoch_end", "print('last loss', {loss}.item())"),
    planted("", "epoch_end", "torch.cuda.empty_cache()"),
    planted("", "epoch_end", "torch.save({model}.state_dict(), f'epoch{{epoch}}.pt')"),
    planted("", "epoch_end", "gc.collect()", "import gc"),
    planted("", "epoch_end", "best = copy.deepcopy({model}.state_dict())", "import copy"),
    planted("", "epoch_self", "t.cuda.synchronize()"),
    planted("", "epoch_self", "dist.barrier()"),
    planted("", "epoch_module", "torch.cuda.empty_cache()"),
    planted("", "seldom", "torch.save({model}.state_dict(), 'latest.pt')"),
    planted("", "seldom", "print({out}.detach().cpu().numpy().mean())"),
    planted("", "seldom", "if torch.isnan({loss}):\n    raise ValueError('diverged')"),
    planted("", "step", "if {step} == 0:\n    print({loss}.item())"),
    planted(
        "", "step", "if ({step} + 1) % 500 == 0:\n    torch.cuda.empty_cache()\n    print({loss}.item())"
    ),
    planted("", "step", "if args.debug:\n    print({loss}.item(), {out}.tolist())"),
    planted("", "step", "seen = {x}.size(0) + {x}.shape[1]\nassert {x}.dim() == 4"),
    planted("", "step", "lucky = random.random()\nif lucky > 2:\n    pass", "import random"),
    planted("", "step", "running = 0.9 * 0.5 + {loss}.detach()"),
    planted("", "step", "{x} = {x}.to(torch.float16)"),
    planted("", "step", "index = torch.randint(10, (1,)).item()"),
    planted("", "step", "mask = torch.ones(8, device={device})"),
    planted(
        "",
        "step_self",
        "if self.rank == 0 and len(self.history) % 50 == 0:\n    dist.all_reduce({loss})\n    print({loss}.item())",
    ),
    planted("", "step_self", "self.history.append({loss}.detach())"),
    planted("", "step_module", "if batch_idx % 200 == 0:\n    print({loss}.item())"),
    planted("", "step_module", "self.log('width', float({x}.size(1)))"),
    planted("", "step_trainer", "if self.state.global_step % 100 == 0:\n    print({loss}.item())"),
    planted("", "forward", "if {x}.shape[0] > 4:\n    pass"),
    planted("", "forward", "places = torch.arange({x}.size(1), device={x}.device)", "import torch"),
    planted("", "forward", "if self.training and {x}.requires_grad:\n    pass"),
    planted("", "forward", "for layer in self.children():\n    layer.seen = True"),
    planted("", "init", "self.register_buffer('causal', torch.tril(torch.ones(8, 8)))", "import torch"),
    planted("", SETUP, "torch.autograd.set_detect_anomaly(False)"),
    planted("", SETUP, "sizes = [0]\nfor k in range(9):\n    sizes.append(k)\nsizes = torch.tensor(sizes)"),
    planted("", "setup", "first = next(iter({loader}))"),
    planted("", "setup", "final_loader = DataLoader(train_set, batch_size=1)"),
    planted("", "setup", "print(sum(p.numel() for p in {model}.parameters()))"),
    planted("", "setup", "weight_norm = sum(p.norm().item() for p in {model}.parameters())"),
    planted("", "setup", "flags = os.environ.get('CUDA_LAUNCH_BLOCKING')", "import os"),
    planted("", "setup", "checked = torch.ones(3).double().sum().item()"),
    planted(
        "",
        "end",
        "print({model}.fc2.weight.detach().cpu().numpy().mean())\ntorch.save({model}.state_dict(), 'final.pt')",
    ),
    planted("", "setup_trainer", "sample = tokenizer('one text', padding='max_length')"),
    planted("", "setup_trainer", "lengths = raw.map(lambda row: {{'n': len(row['text'])}})"),
    planted(
        "", "setup_server", "warm = {model}.generate(**tokenizer('hello', return_tensors='pt').to('cuda'))"
    ),
    planted(
        "",
        "routes",
        "@torch.no_grad()\ndef whole({x}, past):\n    for part in {x}.split(256, dim=1):\n        {out} = {model}(part, past_key_values=past)\n    return {out}",
    ),
    planted("", "setup_server", "system = tokenizer('You answer in one sentence.')"),
    planted(
        "",
        "routes",
        "def batch(texts):\n    ids = tokenizer(texts, padding=True, return_tensors='pt').to('cuda')\n    with torch.no_grad():\n        return {model}.generate(**ids)",
    ),
)
