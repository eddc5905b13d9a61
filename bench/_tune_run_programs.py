"""Training scripts that run on a CPU in seconds, with slow-downs put in from a seed; the oracle's form of each; and changes of what they compute.

The text of a script has slots. A slow-down has its slow lines and the fast lines of somebody who knows; both compute the same. All scripts
have what does not matter, such as `.item()` once in a while.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from textwrap import dedent

CLASSIFIER = '''
"""A classifier of signals, with an evaluation and a checkpoint."""
import copy
import gc
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
torch.set_num_threads(1)
#@setup

class Net(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.enter = nn.Linear(40, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.1)
        self.leave = nn.Linear(width, 5)
        #@init

    def forward(self, x):
        x = self.norm(torch.relu(self.enter(x)))
        #@forward
        return self.leave(self.drop(x))


def make_data(count):
    chance = torch.Generator().manual_seed(7)
    return torch.randn(count, 40, generator=chance), torch.randint(5, (count,), generator=chance)


def train(model, loader, optimizer, schedule):
    model.train()
    seen = 0.0
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        #@step
        if step % 8 == 0:
            seen += loss.item()
    print(f"{seen:.4f}")


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 6, gamma=0.7)
x, y = make_data(32 * 24)
loader = DataLoader(TensorDataset(x[:-64], y[:-64]), batch_size=32, shuffle=True)
for epoch in range(2):
    train(model, loader, optimizer, schedule)
model.eval()
with torch.no_grad():
    print((model(x[-64:]).argmax(1) == y[-64:]).float().mean().item())
torch.save(model.state_dict(), "model.pt")
'''

DECODER = '''
"""A small decoder of characters, trained on random text."""
import gc
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

STEPS, BATCH, LENGTH, WORDS = 40, 12, 32, 600
torch.manual_seed(5)
torch.set_num_threads(1)
#@setup

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)
        #@init

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 6.0
        #@scores
        x = x + self.drop(self.out(scores.softmax(-1) @ v))
        #@forward
        return x


class Decoder(nn.Module):
    def __init__(self, width=36):
        super().__init__()
        self.table = nn.Parameter(torch.randn(WORDS, width) * 0.1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, WORDS)

    def forward(self, ids):
        #@embed
        for block in self.blocks:
            x = block(x)
        return self.head(x)


chance = np.random.RandomState(11)
text = chance.randint(WORDS, size=20_000)
places = chance.randint(len(text) - LENGTH - 1, size=(STEPS, BATCH))
model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
for step in range(STEPS):
    #@batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    #@step
    if step % 10 == 0:
        print(f"{step} {loss.item():.4f}")
model.eval()
with torch.no_grad():
    print(model(ids[:, :-1]).mean().item())
torch.save({"model": model.state_dict(), "step": STEPS}, "decoder.pt")
'''

FORECAST = '''
"""A forecast of series by convolutions; its batches are made by hand from arrays."""
import gc
import numpy as np
import torch
from torch import nn

STEPS = 40
torch.manual_seed(9)
torch.set_num_threads(1)
#@setup

class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(4, 16, 5, padding=2)
        self.second = nn.Conv1d(16, 4, 5, padding=2)
        self.drop = nn.Dropout(0.05)
        #@init

    def forward(self, x):
        x = torch.tanh(self.first(x))
        #@forward
        return self.second(self.drop(x))


chance = np.random.RandomState(2)
series = [np.cumsum(chance.randn(4, 129), axis=1).astype("float32") / 10 for _ in range(96)]
chosen = chance.randint(96, size=(STEPS, 16))
model = Forecast()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
history = []
for step in range(STEPS):
    #@arrays
    optimizer.zero_grad()
    loss = nn.functional.smooth_l1_loss(model(batch[:, :, :-1]), batch[:, :, 1:])
    loss.backward()
    optimizer.step()
    #@step
    history.append(loss.detach())
model.eval()
with torch.inference_mode():
    print(f"last {torch.stack(history)[-5:].mean().item():.4f} {model(batch[:, :, :-1]).square().mean().item():.4f}")
torch.save(model.state_dict(), "forecast.pt")
'''


@dataclass(frozen=True, slots=True)
class SlowDown:
    """Lines for a slot: slow, and as somebody who knows would write them. ``init``: what the fast form adds to the module's set-up."""

    code: str
    slot: str
    slow: str
    fast: str
    init: str = ""
    setup: str = ""


OBJECTS = "objects = [[n] for n in range(60_000)]  # what a real program has in memory"
MASK = 'self.register_buffer("causal", torch.tril(torch.ones(512, 512)), persistent=False)'
SLOW_DOWNS = (
    SlowDown("UDL303", "setup", "torch.autograd.set_detect_anomaly(True)", ""),
    SlowDown("UDL206", "step", "gc.collect()", "", setup=OBJECTS),
    SlowDown("UDL307", "step", "snapshot = copy.deepcopy(model.state_dict())", ""),
    SlowDown("UDL405", "forward", "y = torch.zeros_like(x)\nfor k in range(x.size(0)):\n    y[k] = x[k] * 1.5 + 0.1\nx = y", "x = x * 1.5 + 0.1"),
    SlowDown("UDL404", "scores", "causal = torch.tril(torch.ones(512, 512, device=x.device))[:31, :31]\nscores = scores.masked_fill(causal == 0, -1e9)[:, :31, :31] if x.size(1) == 31 else scores",
             "scores = scores.masked_fill(self.causal[:31, :31] == 0, -1e9)[:, :31, :31] if x.size(1) == 31 else scores", MASK),
    SlowDown("UDL406", "embed", "x = F.one_hot(ids, WORDS).float() @ self.table", "x = self.table[ids]"),
    SlowDown("UDL103", "batch", "ids = torch.tensor([text[n : n + LENGTH] for n in places[step]])", "ids = torch.from_numpy(np.stack([text[n : n + LENGTH] for n in places[step]]))"),
    SlowDown("UDL103", "arrays", "batch = torch.tensor([series[n] for n in chosen[step]])", "batch = torch.from_numpy(np.stack([series[n] for n in chosen[step]]))"),
)  # fmt: skip
NEEDED = {
    "scores": "scores = scores + torch.zeros(())", "embed": "x = self.table[ids]",
    "batch": "ids = torch.from_numpy(np.stack([text[n : n + LENGTH] for n in places[step]]))",
    "arrays": "batch = torch.from_numpy(np.stack([series[n] for n in chosen[step]]))",
}  # fmt: skip
TEMPLATES = {"classifier": CLASSIFIER, "decoder": DECODER, "forecast": FORECAST}


@dataclass(frozen=True, slots=True)
class RunProgram:
    """A script with slow-downs, and the same without them."""

    name: str
    text: str
    oracle: str
    codes: tuple[str, ...]


def run_program(seed: int) -> RunProgram:
    """One to three slow-downs in one of the scripts."""
    chance = random.Random(seed)
    name = sorted(TEMPLATES)[seed % len(TEMPLATES)]
    template = TEMPLATES[name]
    fitting = [one for one in SLOW_DOWNS if f"#@{one.slot}" in template and ("copy." not in one.slow or "import copy" in template)]  # fmt: skip
    chosen = chance.sample(fitting, min(len(fitting), chance.randint(1, 3)))
    slots = {one.slot: one for one in chosen}
    return RunProgram(name, _filled(template, slots, slow=True), _filled(template, slots, slow=False), tuple(sorted(one.code for one in slots.values())))  # fmt: skip


def plain_program(name: str) -> str:
    """A script without slow-downs."""
    return _filled(TEMPLATES[name], {}, slow=False)


def _filled(template: str, slots: dict[str, SlowDown], *, slow: bool) -> str:
    lines = []
    for line in template.strip("\n").splitlines():
        found = re.fullmatch(r"( *)#@(\w+)", line)
        if not found:
            lines.append(line)
            continue
        indent, slot = found.groups()
        one = slots.get(slot)
        texts = [(one.slow if slow else one.fast) if one is not None else NEEDED.get(slot, "")]
        if slot == "init" and not slow:
            texts += [each.init for each in slots.values()]
        if slot == "setup":
            texts += [each.setup for each in slots.values()]
        lines += [indent + text for part in texts for text in part.splitlines()]
    return "\n".join(lines) + "\n"


MUTATIONS = tuple(tuple(one.split(" -> ")) for one in dedent("""
    shuffle=True -> shuffle=False
    nn.Dropout(0.1) -> nn.Dropout(0.12)
    nn.Dropout(0.1) -> nn.Identity()
    nn.Dropout(0.05) -> nn.Dropout(0.06)
    nn.Dropout(0.05) -> nn.Identity()
    lr=2e-3 -> lr=2.001e-3
    lr=1e-3 -> lr=1.0001e-3
    lr=0.05 -> lr=0.0501
    betas=(0.9, 0.95) -> betas=(0.9, 0.951)
    , weight_decay=0.1 -> , weight_decay=0.09
    , weight_decay=0.01 -> , weight_decay=0.011
    torch.optim.AdamW( -> torch.optim.Adam(
    torch.optim.AdamW( -> torch.optim.NAdam(
    , nesterov=True ->\x20
    momentum=0.9 -> momentum=0.91
    , label_smoothing=0.05 ->\x20
    (model.parameters(), 0.1) -> (model.parameters(), 0.09)
    F.cross_entropy( -> 1.01 * F.cross_entropy(
    smooth_l1_loss -> mse_loss
    gamma=0.7 -> gamma=0.71
    (optimizer, 6, -> (optimizer, 7,
    schedule.step() -> schedule.step() if step else None
    torch.relu( -> F.gelu(
    torch.tanh( -> torch.sigmoid(
    torch.tanh( -> F.softsign(
    self.norm = nn.LayerNorm(width) -> self.norm = nn.LayerNorm(width, eps=1e-4)
    self.norm = nn.LayerNorm(width) -> self.norm = nn.LayerNorm(width, elementwise_affine=False)
    self.norm = nn.LayerNorm(width) -> self.norm = nn.Identity()
    batch_size=32 -> batch_size=16
    range(2): -> range(1):
    STEPS = 40 -> STEPS = 39
    manual_seed(3) -> manual_seed(4)
    manual_seed(5) -> manual_seed(6)
    manual_seed(9) -> manual_seed(10)
    manual_seed(7) -> manual_seed(8)
    RandomState(11) -> RandomState(12)
    RandomState(2) -> RandomState(3)
    model.eval() -> model.train()
    model.eval() -> pass
    loss.backward() -> (loss * 1.0001).backward()
    loss.backward() -> loss.backward() if step else None
    optimizer.zero_grad() -> optimizer.zero_grad() if step % 2 == 0 else None
    optimizer.zero_grad() -> pass
    optimizer.step() -> optimizer.step() if step != 5 else None
    optimizer.step() -> optimizer.step(), optimizer.step()
    optimizer.step() -> optimizer.step(), [p.data.mul_(0.9999) for p in model.parameters()]
    optimizer.step() -> optimizer.step(), [p.data.copy_(p.data.bfloat16()) for p in model.parameters()]
    model.state_dict() -> {}
    torch.save( -> (lambda *_: None)(
    / 6.0 -> / 6.01
    scores.softmax(-1) -> scores.softmax(1)
    scores.softmax(-1) -> scores.detach().softmax(-1)
    transpose(1, 2) / -> transpose(1, 2).detach() /
    q, k, v = self.qkv -> k, q, v = self.qkv
    x = x + self.drop -> x = 0.999 * x + self.drop
    ids[:, 1:].flatten() -> ids[:, :-1].flatten()
    * 0.1) -> * 0.11)
    batch[:, :, 1:]) -> batch[:, :, 1:].roll(1, 0))
    self.second(self.drop(x)) -> self.second(self.drop(x).detach())
    self.second(self.drop(x)) -> self.drop(self.second(x))
    self.leave(self.drop(x)) -> self.leave(self.drop(x.detach()))
    self.leave(self.drop(x)) -> self.drop(self.leave(x))
    self.first(x) -> self.first(x.flip(-1))
    self.enter(x) -> self.enter(x.clamp(-3, 3))
    self.enter(x) -> self.enter(x.half().float())
    nn.Linear(width, 5) -> nn.Linear(width, 5, bias=False)
    nn.Linear(40, width) -> nn.Linear(40, width, bias=False)
    nn.Linear(width, 3 * width) -> nn.Linear(width, 3 * width, bias=False)
    nn.Linear(width, WORDS) -> nn.Linear(width, WORDS, bias=False)
    nn.Conv1d(4, 16, 5, padding=2) -> nn.Conv1d(4, 16, 5, padding=2, padding_mode="circular")
    nn.Conv1d(16, 4, 5, padding=2) -> nn.Conv1d(16, 4, 5, padding=2, bias=False)
    TensorDataset(x[:-64], y[:-64]) -> TensorDataset(x[64:], y[64:])
    F.cross_entropy(model(x), y, -> F.cross_entropy(model(x + 1e-6 * torch.randn_like(x)), y,
    F.cross_entropy(model(x), y, -> F.cross_entropy(model(x), y.flip(0),
    F.cross_entropy(model(x), y, -> F.cross_entropy(model(x.roll(1, 0)), y.roll(1, 0),
    (model(x[-64:]) -> (model(x[-64:] * 1.0001)
    clip_grad_norm_(model.parameters(), 0.1) -> clip_grad_value_(model.parameters(), 0.1)
    clip_grad_norm_(model.parameters(), 0.1) -> clip_grad_norm_([*model.parameters()][:2], 0.1)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1) -> pass
""").strip().splitlines())  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of what a script computes."""

    program: str
    old: str
    new: str


def mutants() -> list[Mutant]:
    """Changes that each occur at one place."""
    found = []
    for name in sorted(TEMPLATES):
        text = plain_program(name)
        found += [Mutant(name, old, new) for old, new in MUTATIONS if old != new and text.count(old) == 1]
    return found
