"""Scripts with slots, for `_tune_programs.py`: plain PyTorch, a class with ranks, Lightning, a Trainer, a server."""

from __future__ import annotations

PLAIN = """
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
"""

RUNNER = """
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
"""

LIGHTNING = """
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
"""

TRAINER = """
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
"""

SERVER = """
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
"""

TEMPLATES = {"plain": PLAIN, "runner": RUNNER, "lightning": LIGHTNING, "trainer": TRAINER, "server": SERVER}
