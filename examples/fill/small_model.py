"""Train a small Llama on text files, and write it as `save_pretrained` does: a model for `unidle fill serve`.

    python examples/fill/small_model.py small docs/*.md

It needs PyTorch, transformers and tokenizers. With the default 120 steps, it writes words rather than sense.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 4096
BATCH, LENGTH = 8, 64
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--width", type=int, default=128)
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    text = "\n".join(path.read_text(encoding="utf-8") for path in given.text)
    tokenizer = trained_tokenizer(text, given.directory)
    tokens = torch.tensor(tokenizer.encode(text).ids)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=given.width, intermediate_size=3 * given.width, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip
    loss = trained(model, tokens, given.steps)
    model.save_pretrained(given.directory)
    print(f"loss {loss:.2f} after {given.steps} steps; in {given.directory}")


def trained_tokenizer(text: str, directory: Path) -> Tokenizer:
    """Byte pairs of the text, written next to the model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, special_tokens=["<|begin|>", "<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )  # fmt: skip
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def trained(model: LlamaForCausalLM, tokens: torch.Tensor, steps: int) -> float:
    """The loss of the last step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        places = torch.randint(len(tokens) - LENGTH, (BATCH,))
        batch = torch.stack([tokens[place : place + LENGTH] for place in places.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    main()
