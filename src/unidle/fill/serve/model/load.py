"""Load a model from a directory."""

from __future__ import annotations

from pathlib import Path

import torch

from unidle.errors import BadInput
from unidle.fill.serve.model.causal import CausalModel
from unidle.fill.serve.model.config import read_config
from unidle.fill.serve.model.gpt2 import Gpt2
from unidle.fill.serve.model.llama import Llama
from unidle.fill.serve.model.weights import Weights


def load_model(directory: Path, device: str = "cpu", dtype: str | None = None) -> CausalModel:
    """The model in ``directory``, as Hugging Face's ``save_pretrained`` writes it, in ``dtype`` or that of its configuration.

    Nothing is downloaded and no code of the directory is run. Errors: :class:`unidle.errors.BadInput`.
    """
    config = read_config(directory)
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise BadInput(
            "is not a device here",
            field="--device",
            value=device,
            remedy="use cpu, or cuda on a machine with a GPU",
        ) from error
    weights = Weights(
        directory,
        prefix="model." if config.form == "llama" else "transformer.",
        device=place,
        dtype=getattr(torch, dtype or config.dtype),
    )
    with torch.inference_mode():
        return Llama(config, weights) if config.form == "llama" else Gpt2(config, weights)
