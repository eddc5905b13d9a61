"""Realistic training and serving scripts with slow-downs put in, from a seed; and decoys: the same calls where they do not matter.

The text of a script has slots. Slow-downs and decoys are lines for a slot; names of a script take the place of words in braces.
None of these texts is one of the tests or pages of the rules.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from _tune_planted import DECOYS, SLOW, Planted
from _tune_templates import TEMPLATES

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


def _filled(
    template: str, chosen: list[Planted], names: dict[str, str], slots: set[str], chance: random.Random
) -> TuneProgram:
    at: dict[str, list[Planted]] = {}
    for one in chosen:
        at.setdefault(chance.choice(sorted(slots & set(one.slots))), []).append(one)
    initial = {
        "self.memory": "self.memory = nn.GRUCell(8, 8)",
        "self.lookup": "self.lookup = nn.Parameter(torch.zeros(10, 8))",
    }
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
            lines += [
                indent + made for used, made in initial.items() if any(used in one.text for one in chosen)
            ]
        for one in at.get(slot, ()):
            for text in one.text.format(**names).splitlines():
                lines.append(indent + text.removesuffix(" <<<"))
                if text.endswith(" <<<"):
                    slow[len(lines)] = one.code
                elif not one.code:
                    decoys.add(len(lines))
    return TuneProgram("\n".join(lines) + "\n", slow, frozenset(decoys))
