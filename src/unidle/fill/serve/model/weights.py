"""Weights from ``*.safetensors``: one file, or the shards of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open

from unidle.errors import BadInput
from unidle.fill.serve.model.config import read_object

_ONE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


class Weights:
    """Tensors by name, on ``device`` in ``dtype``. ``prefix``: of every name in the files; one that only some writers use."""

    def __init__(self, directory: Path, *, prefix: str, device: torch.device, dtype: torch.dtype) -> None:
        self.directory = directory
        self._device = device
        self._dtype = dtype
        self.bytes = 0  # of all tensors that were taken
        self._files = {
            name.removeprefix(prefix): (file, name) for file in _files(directory) for name in _names(file)
        }

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor, whose shape must be ``shape``. Errors: :class:`unidle.errors.BadInput`."""
        if name not in self._files:
            raise BadInput(
                "has no such tensor", field=name, value=str(self.directory), remedy="copy the model again"
            )
        file, full = self._files[name]
        with safe_open(file, framework="pt") as opened:
            found: torch.Tensor = opened.get_tensor(full)
        if found.shape != shape:
            raise BadInput(
                f"has shape {list(found.shape)}, and config.json means {list(shape)}", field=name, value=str(file), remedy="copy the model again"
            )  # fmt: skip
        # a copy: where a tensor lies in its file would otherwise change how it is aligned, and so the last bits of results
        taken = found.to(self._device, self._dtype, copy=True)
        self.bytes += taken.numel() * taken.element_size()
        return taken

    def has(self, name: str) -> bool:
        return name in self._files

    def zeros(self, *shape: int) -> torch.Tensor:
        """For a bias that the model does not have."""
        return torch.zeros(shape, device=self._device, dtype=self._dtype)


def _files(directory: Path) -> list[Path]:
    shards = read_object(directory / _INDEX).get("weight_map")
    if isinstance(shards, dict):
        found = [directory / str(name) for name in sorted({str(name) for name in shards.values()})]
    else:
        found = [directory / _ONE]
    for file in found:
        if file.parent != directory or not file.is_file():
            raise BadInput(
                f"has no {file.name}", field="--model", value=str(directory), remedy="name a directory with safetensors, not another form"
            )  # fmt: skip
    return found


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (OSError, SafetensorError) as error:
        raise BadInput(f"cannot be read: {error}", field=str(file), remedy="copy the model again") from error
