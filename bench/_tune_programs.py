"""Realistic training and serving scripts with slow-downs put in, from a seed; and decoys: the same calls where they do not matter.

The text of a script has slots. Slow-downs and decoys are lines for a slot; names of a script take the place of words in braces.
None of these texts is one of the tests or pages of the rules.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from textwrap import dedent

PLAIN = '''
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
#@imports

class {Net}(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.fc1 = nn.Linear(21632, width)
        self.fc2 = nn.Linear(width, 10)
        #@init

    def forward(self, {x}):
        {x} = F.relu(self.conv1({x}))
        {x} = torch.flatten({x}, 1)
        #@forward
        {x} = F.relu(self.fc1({x}))
        return F.log_softmax(self.fc2({x}), dim=1)


def train(args, {model}, {device}, {loader}, {optimizer}, epoch):
    {model}.train()
    #@epoch
    for {step}, ({x}, {y}) in enumerate({loader}):
        {x}, {y} = {x}.to({device}), {y}.to({device})
        {optimizer}.zero_grad()
        {out} = {model}({x})
        {loss} = F.nll_loss({out}, {y})
        {loss}.backward()
        #@grads
        {optimizer}.step()
        #@step
        if {step} % args.log_interval == 0:
            print(f"epoch {{epoch}} [{{{step} * len({x})}}] loss {{{loss}.item():.6f}}")
            #@seldom
    #@epoch_end


def evaluate({model}, {device}, test_loader):
    {model}.eval()
    correct = 0
    with torch.no_grad():
        for {x}, {y} in test_loader:
            {x}, {y} = {x}.to({device}), {y}.to({device})
            correct += {model}({x}).argmax(dim=1).eq({y}).sum().item()
    print(f"accuracy {{correct / len(test_loader.dataset)}}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()
    {device} = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = datasets.MNIST("../data", train=True, download=True, transform=transforms.ToTensor())
    {loader} = DataLoader(train_set, batch_size=64, shuffle=True)
    test_loader = DataLoader(datasets.MNIST("../data", train=False, transform=transforms.ToTensor()), batch_size=1000)
    {model} = {Net}().to({device})
    {optimizer} = torch.optim.Adadelta({model}.parameters(), lr=1.0)
    #@setup
    for epoch in range(14):
        train(args, {model}, {device}, {loader}, {optimizer}, epoch)
        evaluate({model}, {device}, test_loader)
    #@end


if __name__ == "__main__":
    main()
'''

RUNNER = '''
import os
import torch as t
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader as DL, DistributedSampler
#@imports

class {Net}(nn.Module):
    def __init__(self, vocabulary, width, heads):
        super().__init__()
        self.heads = heads
        self.table = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, vocabulary)
        #@init

    def forward(self, {x}):
        {x} = self.norm(self.table({x}))
        b, n, c = {x}.shape
        q, k, v = self.qkv({x}).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        #@forward
        return self.proj(mixed.transpose(1, 2).reshape(b, n, c))


class Runner:
    def __init__(self, {model}, {loader}, {optimizer}, save_every):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.{model} = DDP({model}.to(self.rank), device_ids=[self.rank])
        self.{loader} = {loader}
        self.{optimizer} = {optimizer}
        self.save_every = save_every
        self.history = []
        #@setup_self

    def _run_batch(self, {x}, {y}):
        self.{optimizer}.zero_grad(set_to_none=True)
        {out} = self.{model}({x})
        {loss} = F.cross_entropy({out}.flatten(0, 1), {y}.flatten())
        {loss}.backward()
        #@grads_self
        t.nn.utils.clip_grad_norm_(self.{model}.parameters(), 1.0)
        self.{optimizer}.step()
        #@step_self
        return {loss}

    def _run_epoch(self, epoch):
        self.{loader}.sampler.set_epoch(epoch)
        for {step}, ({x}, {y}) in enumerate(self.{loader}):
            {x}, {y} = {x}.to(self.rank), {y}.to(self.rank)
            {loss} = self._run_batch({x}, {y})
            if {step} % 100 == 0 and self.rank == 0:
                print(f"{{epoch}} {{{step}}} {{{loss}.item():.4f}}")

    def train(self, epochs):
        for epoch in range(epochs):
            self._run_epoch(epoch)
            #@epoch_self
            if self.rank == 0 and epoch % self.save_every == 0:
                t.save(self.{model}.module.state_dict(), "checkpoint.pt")


def main():
    dist.init_process_group("nccl")
    t.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    train_set = t.load("tokens.pt")
    {loader} = DL(train_set, batch_size=32, sampler=DistributedSampler(train_set), pin_memory=False)
    {model} = {Net}(1000, 256, 8)
    {optimizer} = t.optim.SGD({model}.parameters(), lr=0.1, momentum=0.9)
    Runner({model}, {loader}, {optimizer}, 5).train(20)
    dist.barrier()
    dist.destroy_process_group()


main()
'''

LIGHTNING = '''
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
#@imports

class {Net}(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.body = nn.Sequential(nn.Linear(784, 256), nn.GELU(), nn.Linear(256, 10))
        #@init

    def forward(self, {x}):
        #@forward
        return self.body({x})

    def training_step(self, batch, batch_idx):
        {x}, {y} = batch
        {out} = self({x})
        {loss} = F.cross_entropy({out}, {y})
        self.log("train_loss", {loss})
        #@step_module
        return {loss}

    def validation_step(self, batch, batch_idx):
        {x}, {y} = batch
        self.log("val_acc", (self({x}).argmax(1) == {y}).float().mean(), sync_dist=True)

    def on_train_epoch_end(self):
        print("epoch", self.current_epoch)
        #@epoch_module

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


trainer = L.Trainer(max_epochs=10, log_every_n_steps=50)
trainer.fit({Net}(), data)
'''

TRAINER = '''
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments
from datasets import load_dataset
import torch
#@imports

name = "distilbert-base-uncased"
tokenizer = AutoTokenizer.from_pretrained(name)
{model} = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
raw = load_dataset("imdb")


def encode(rows):
    return tokenizer(rows["text"], truncation=True)


class {Net}(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        {y} = inputs.get("labels")
        outputs = model(**inputs)
        {loss} = torch.nn.functional.cross_entropy(outputs.logits, {y})
        #@step_trainer
        return ({loss}, outputs) if return_outputs else {loss}


data = raw.map(encode, batched=True)
#@setup_trainer
arguments = TrainingArguments("out", per_device_train_batch_size=16, logging_steps=100, save_strategy="epoch", num_train_epochs=3)
{Net}(model={model}, args=arguments, train_dataset=data["train"], data_collator=DataCollatorWithPadding(tokenizer)).train()
'''

SERVER = '''
import torch
from fastapi import FastAPI
from transformers import AutoModelForCausalLM, AutoTokenizer
#@imports

app = FastAPI()
tokenizer = AutoTokenizer.from_pretrained("gpt2")
{model} = AutoModelForCausalLM.from_pretrained("gpt2").cuda().eval()
#@setup_server


@app.get("/health")
def health():
    return {{"ok": True}}


@app.post("/generate")
def generate(prompt: str):
    inputs = tokenizer(prompt, return_tensors="pt").to("cuda")
    with torch.inference_mode():
        tokens = {model}.generate(**inputs, max_new_tokens=64)
    return {{"text": tokenizer.decode(tokens[0].tolist())}}

#@routes
'''

TEMPLATES = {"plain": PLAIN, "runner": RUNNER, "lightning": LIGHTNING, "trainer": TRAINER, "server": SERVER}

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
    planted("UDL202", ("step", "step_self", "step_module"), "guesses = {out}.argmax(dim=-1).detach().cpu().numpy() <<<"),
    planted("UDL203", STEP, "print('loss now', {loss}) <<<"),
    planted("UDL203", LOOP, "print('loss: {{:.3f}}'.format({loss}.item())) <<<"),
    planted("UDL204", STEP, "torch.cuda.synchronize() <<<", "import torch"),
    planted("UDL205", STEP, "torch.cuda.empty_cache() <<<", "import torch"),
    planted("UDL205", STEP, "cuda.empty_cache() <<<", "from torch import cuda"),
    planted("UDL206", STEP, "gc.collect() <<<", "import gc"),
    planted("UDL207", "step", "torch.save({{'model': {model}.state_dict(), 'step': {step}}}, 'latest.pt') <<<"),
    planted("UDL207", "step_self", "t.save(self.{optimizer}.state_dict(), 'opt.pt') <<<"),
    planted("UDL208", ("step", "step_self"), "if {loss} > 50.0: <<<\n    print('diverges')"),
    planted("UDL208", STEP, "if torch.isnan({loss}).any(): <<<\n    bad = True", "import torch"),
    planted("UDL210", ("step",), "jitter = torch.rand({x}.shape).to({device}) <<<"),
    planted("UDL210", ("forward",), "noise = torch.randn(4, 4).to({x}.device) <<<", "import torch"),
    planted("UDL211", "step", "{model}.to({device}) <<<"),
    planted("UDL213", LOOP, "board.add_histogram('grad', {loss}) <<<", "from torch.utils.tensorboard import SummaryWriter\nboard = SummaryWriter()"),
    planted("UDL215", LOOP, "plt.savefig('curve.png') <<<", "from matplotlib import pyplot as plt"),
    planted("UDL303", SETUP, "torch.autograd.set_detect_anomaly(True) <<<"),
    planted("UDL304", SETUP, "bank = torch.zeros(0, 8)\nfor chunk in range(100):\n    bank = torch.cat((bank, torch.ones(1, 8)), dim=0) <<<"),
    planted("UDL305", SETUP, "curve = np.zeros(0)\nfor value in range(500):\n    curve = np.append(curve, value) <<<", "import numpy as np"),
    planted("UDL306", "setup", "{model} = {model}.double() <<<"),
    planted("UDL306", "setup", "torch.set_default_dtype(torch.float64) <<<"),
    planted("UDL307", "step", "backup = copy.deepcopy({model}) <<<", "import copy"),
    planted("UDL308", "grads", "total_norm = 0.0\nfor weight in {model}.parameters():\n    total_norm += weight.grad.data.norm(2).item() ** 2 <<<"),
    planted("UDL308", "grads_self", "for weight in self.{model}.parameters():\n    self.history.append(weight.grad.abs().max().item()) <<<"),
    planted("UDL401", "step", "per_sample = []\nfor row in range({x}.size(0)):\n    per_sample.append({model}({x}[row : row + 1])) <<<"),
    planted("UDL404", "forward", "causal = torch.triu(torch.ones(16, 16, device={x}.device), diagonal=1) <<<", "import torch"),
    planted("UDL404", "forward", "future = torch.ones(8, 8, dtype=torch.bool, device={x}.device).tril() <<<", "import torch"),
    planted("UDL405", "forward", "doubled = torch.zeros_like({x})\nfor place in range({x}.size(0)):\n    doubled[place] = {x}[place] * 2.0 <<<", "import torch"),
    planted("UDL407", "forward", "entropy = torch.log(F.softmax({x}, dim=-1)) <<<", "import torch"),
    planted("UDL408", "step", "compiled = torch.compile({model}) <<<"),
    planted("UDL410", "setup", "slow_loader = DataLoader(train_set, batch_size=1, shuffle=True) <<<"),
    planted("UDL107", "setup", "{loader} = DataLoader(train_set, batch_size=64, shuffle=True, num_workers=4) <<<"),
    planted("UDL110", "step", "probe, _ = next(iter({loader})) <<<"),
    planted("UDL112", "step", "picture = cv2.imread('overlay.png') <<<", "import cv2"),
    planted("UDL113", "setup_trainer", "data = raw.map(lambda row: tokenizer(row['text'])) <<<"),
    planted("UDL109", "setup_trainer", "data = raw.map(lambda rows: tokenizer(rows['text'], padding='max_length'), batched=True) <<<"),
    planted("UDL214", "setup_trainer", "noisy = TrainingArguments('noisy', logging_steps=1) <<<"),
    planted("UDL207", "setup_trainer", "eager = TrainingArguments('eager', save_steps=2) <<<"),
    planted("UDL410", "setup_trainer", "tiny = TrainingArguments('tiny', per_device_train_batch_size=1) <<<"),
    planted("UDL707", "setup_trainer", "tokenizer = AutoTokenizer.from_pretrained(name, use_fast=False) <<<"),
    planted("UDL502", "step", "{optimizer} = torch.optim.Adadelta({model}.parameters()) <<<"),
    planted("UDL503", "grads", "for weight in {model}.parameters():\n    weight.data.sub_(weight.grad, alpha=0.01) <<<"),
    planted("UDL504", "setup", "other = torch.optim.Adam({model}.parameters(), foreach=False) <<<"),
    planted("UDL505", "step", "for slow, fast in zip(shadow.parameters(), {model}.parameters()):\n    slow.data.mul_(0.99).add_(fast.data, alpha=0.01) <<<"),
    planted("UDL506", "grads", "for weight in {model}.parameters():\n    nn.utils.clip_grad_norm_(weight, 1.0) <<<"),
    planted("UDL601", "setup", "{model} = nn.DataParallel({model}) <<<"),
    planted("UDL602", "step_self", "dist.all_reduce({loss}) <<<"),
    planted("UDL603", "grads_self", "for weight in self.{model}.parameters():\n    dist.all_reduce(weight.grad) <<<"),
    planted("UDL604", "step_self", "dist.barrier() <<<"),
    planted("UDL607", "step_self", "dist.all_gather_object([None] * 8, dict(rank=self.rank)) <<<"),
    planted("UDL609", "step_module", "self.log('loss_all', {loss}, sync_dist=True) <<<"),
    planted("UDL701", SETUP, "os.environ['CUDA_LAUNCH_BLOCKING'] = '1' <<<", "import os"),
    planted("UDL703", "routes", "@app.post('/embed')\ndef embed(text: str):\n    encoder = AutoModelForCausalLM.from_pretrained('gpt2') <<<\n    return str(encoder)"),
    planted("UDL704", "routes", "@app.post('/score')\ndef score(text: str):\n    ids = tokenizer(text, return_tensors='pt').to('cuda')\n    return {model}(**ids).logits.mean().item() <<<"),
    planted("UDL705", "routes", "@torch.no_grad()\ndef continue_text({x}, count):\n    for _ in range(count):\n        {out} = {model}({x}).logits <<<\n        {x} = torch.cat([{x}, {out}[:, -1:].argmax(-1)], dim=1)\n    return {x}"),
    planted("UDL706", "routes", "def warm(texts):\n    for text in texts:\n        {model}.generate(**tokenizer(text, return_tensors='pt').to('cuda')) <<<"),
    planted("UDL708", "routes", "@app.post('/fast')\nasync def fast(prompt: str):\n    ids = tokenizer(prompt, return_tensors='pt').to('cuda')\n    with torch.inference_mode():\n        return {model}.generate(**ids).tolist() <<<"),
    planted("UDL301", "step", "if not hasattr(main, 'losses'):\n    main.losses = []\nmain.losses.append({loss}) <<<"),
    planted("UDL402", "forward", "state = {x}.new_zeros(4, 8)\nfor moment in range({x}.size(1)):\n    state = self.memory({x}[:, moment], state) <<<"),
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
    planted("", "step", "if ({step} + 1) % 500 == 0:\n    torch.cuda.empty_cache()\n    print({loss}.item())"),
    planted("", "step", "if args.debug:\n    print({loss}.item(), {out}.tolist())"),
    planted("", "step", "seen = {x}.size(0) + {x}.shape[1]\nassert {x}.dim() == 4"),
    planted("", "step", "lucky = random.random()\nif lucky > 2:\n    pass", "import random"),
    planted("", "step", "running = 0.9 * 0.5 + {loss}.detach()"),
    planted("", "step", "{x} = {x}.to(torch.float16)"),
    planted("", "step", "index = torch.randint(10, (1,)).item()"),
    planted("", "step", "mask = torch.ones(8, device={device})"),
    planted("", "step_self", "if self.rank == 0 and len(self.history) % 50 == 0:\n    dist.all_reduce({loss})\n    print({loss}.item())"),
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
    planted("", "end", "print({model}.fc2.weight.detach().cpu().numpy().mean())\ntorch.save({model}.state_dict(), 'final.pt')"),
    planted("", "setup_trainer", "sample = tokenizer('one text', padding='max_length')"),
    planted("", "setup_trainer", "lengths = raw.map(lambda row: {{'n': len(row['text'])}})"),
    planted("", "setup_server", "warm = {model}.generate(**tokenizer('hello', return_tensors='pt').to('cuda'))"),
    planted("", "routes", "def batch(texts):\n    ids = tokenizer(texts, padding=True, return_tensors='pt').to('cuda')\n    with torch.no_grad():\n        return {model}.generate(**ids)"),
)

NAMES = {
    "Net": ("Net", "Classifier", "TinyModel", "Backbone"), "model": ("model", "net", "network"), "optimizer": ("optimizer", "optim", "opt"),
    "loader": ("train_loader", "loader", "train_dataloader"), "loss": ("loss", "train_loss", "objective"), "device": ("device",),
    "x": ("data", "x", "images", "inputs"), "y": ("target", "y", "labels"), "step": ("batch_idx", "step", "i"), "out": ("output", "logits", "pred"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TuneProgram:
    """``slow``: line to code; ``decoys``: the lines of decoys."""

    text: str
    slow: dict[int, str]
    decoys: frozenset[int]


def program(seed: int) -> TuneProgram:
    """A script with up to three slow-downs and up to four decoys. Every eighth has no slow-down."""
    chance = random.Random(seed)
    template = TEMPLATES[chance.choice(list(TEMPLATES))]
    slots = set(re.findall(r"#@(\w+)", template))
    slow = [one for one in SLOW if slots & set(one.slots)]
    chosen = chance.sample(slow, 0 if seed % 8 == 0 else min(len(slow), chance.randint(1, 3)))
    decoys = [one for one in DECOYS if slots & set(one.slots)]
    chosen += chance.sample(decoys, min(len(decoys), chance.randint(1, 4)))
    chance.shuffle(chosen)
    names = {word: chance.choice(options) for word, options in NAMES.items()}
    if names["x"] == "x" and names["y"] == "y":
        names["y"] = "target"
    return _filled(template, chosen, names, slots, chance)


def _filled(template: str, chosen: list[Planted], names: dict[str, str], slots: set[str], chance: random.Random) -> TuneProgram:
    at: dict[str, list[Planted]] = {}
    for one in chosen:
        at.setdefault(chance.choice(sorted(slots & set(one.slots))), []).append(one)
    initial = {"self.memory": "self.memory = nn.GRUCell(8, 8)", "self.lookup": "self.lookup = nn.Parameter(torch.zeros(10, 8))"}
    lines: list[str] = []
    slow: dict[int, str] = {}
    decoys: set[int] = set()
    for line in template.strip("\n").splitlines():
        slot = line.strip().removeprefix("#@") if line.strip().startswith("#@") else ""
        indent = line[: len(line) - len(line.lstrip())]
        if not slot:
            lines.append(line.format(**names))
        elif slot == "imports":
            lines += dict.fromkeys(part for one in chosen for part in one.imports.splitlines())
        elif slot == "init":
            lines += [indent + made for used, made in initial.items() if any(used in one.text for one in chosen)]
        for one in at.get(slot, ()):
            for text in one.text.format(**names).splitlines():
                lines.append(indent + text.removesuffix(" <<<"))
                if text.endswith(" <<<"):
                    slow[len(lines)] = one.code
                elif not one.code:
                    decoys.add(len(lines))
    return TuneProgram("\n".join(lines) + "\n", slow, frozenset(decoys))
