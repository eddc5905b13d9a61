"""Tensors as bytes for the transport, without a copy where they lie contiguous on the CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

HEADER_BYTES: Final = 1024
Shape = tuple[tuple[int, ...], torch.dtype]


def bytes_of(tensor: Tensor) -> Any:
    """The memory of a contiguous CPU tensor, any type; writable where the tensor is."""
    if not tensor.numel():
        return bytearray()
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def on_host(tensor: Tensor) -> Tensor:
    """The tensor itself if it is contiguous on the CPU, else a contiguous copy; from a GPU through pinned memory."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.contiguous()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return pinned


def host_buffer(shape: Shape, device: str) -> Tensor:
    """Where a tensor arrives before it goes to its device."""
    return torch.empty(shape[0], dtype=shape[1], pin_memory=device != "cpu")


def shape_of(tensor: Tensor) -> Shape:
    return tuple(tensor.shape), tensor.dtype


def header(shapes: Sequence[Shape]) -> bytes:
    """Shapes and types in a message of :data:`HEADER_BYTES`. Errors: ``ValueError`` for too many."""
    text = json.dumps([[list(shape), str(dtype).removeprefix("torch.")] for shape, dtype in shapes]).encode()
    if len(text) > HEADER_BYTES:
        raise ValueError(f"too many tensors between two layers (got {len(shapes)}); let layers pass fewer")
    return text.ljust(HEADER_BYTES)


def shapes_from(data: bytes | bytearray | memoryview) -> list[Shape]:
    """The reverse of :func:`header`."""
    return [(tuple(shape), getattr(torch, dtype)) for shape, dtype in json.loads(bytes(data))]


@dataclass(frozen=True, slots=True)
class Codec:
    """What is sent in place of a floating-point tensor: itself (None), ``bfloat16``, or ``int8`` with a scale for each row."""

    name: str | None = None

    def shapes(self, shape: Shape) -> list[Shape]:
        """Shapes of the sent tensors."""
        whole, dtype = shape
        if self.name is None or not dtype.is_floating_point:
            return [shape]
        if self.name == "bfloat16":
            return [(whole, torch.bfloat16)]
        return [(whole, torch.int8), ((*whole[:-1], 1), torch.float32)]

    def encode(self, tensor: Tensor) -> list[Tensor]:
        if self.name is None or not tensor.is_floating_point():
            return [tensor]
        if self.name == "bfloat16":
            return [tensor.to(torch.bfloat16)]
        wide = tensor.detach().float()
        scale = wide.abs().amax(dim=-1, keepdim=True).div(127).clamp_min(torch.finfo(torch.float32).tiny)
        return [wide.div(scale).round().clamp(-127, 127).to(torch.int8), scale]

    def decode(self, sent: Sequence[Tensor], shape: Shape) -> Tensor:
        if len(sent) == 1:
            return sent[0].to(shape[1])
        return (sent[0].float() * sent[1]).to(shape[1]).reshape(shape[0])
