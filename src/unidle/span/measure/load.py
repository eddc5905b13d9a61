"""The request, and the user's own functions: the model, a batch, the loss."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn


class ProfileRefused(Exception):
    """One clear error for the user: ``kind``: an input error, or not possible on this machine."""

    def __init__(
        self,
        kind: Literal["input", "cannot"],
        field: str,
        problem: str,
        *,
        value: object = None,
        remedy: str = "",
    ) -> None:
        super().__init__(problem)
        self.told = {"kind": kind, "field": field, "problem": problem, "value": value, "remedy": remedy}


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What is to be measured. Functions are ``/path/file.py:name``; by default, ``data`` is ``batch`` and
    ``loss`` is ``loss`` (optional) in the file of ``build``. ``threads`` 0 is PyTorch's own choice.
    """

    build: str
    data: str | None = None
    loss: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    optimizer: str = "adamw"
    microbatch: int = 1
    device: str = "cpu"
    threads: int = 0
    repeats: int = 30
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """A model with one microbatch on its device. ``loss``: of the output, or None."""

    model: nn.Module
    given: Tensor
    loss: Callable[[Tensor], Tensor] | None
    device: torch.device


def load(request: ProfileRequest) -> ProfileJob:
    """Build it. Errors: :class:`ProfileRefused`."""
    device, dtype = _device(request.device), getattr(torch, request.dtype)
    torch.manual_seed(request.seed)
    build = _function(request.build, "build")
    model = _called(request.build, "build", lambda: build(**request.arguments))
    if isinstance(model, list | tuple) and all(isinstance(each, nn.Module) for each in model):
        model = nn.Sequential(*model)
    if not isinstance(model, nn.Module):
        raise ProfileRefused(
            "input", "build", "does not return a torch.nn.Module", value=f"{request.build}: {type(model).__name__}",
            remedy="let it return the model, or a list of its layers",
        )  # fmt: skip
    model = model.to(device=device, dtype=dtype).train()
    data = _function(request.data or _beside(request.build, "batch"), "data")
    made = _called(request.data or "batch", "data", lambda: data(0, 0, request.microbatch, request.seed))
    given, target = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(given, Tensor):
        raise ProfileRefused(
            "input", "data", "does not give a tensor as input", value=type(given).__name__,
            remedy="return (input, target), both tensors",
        )  # fmt: skip
    return ProfileJob(
        model, _moved(given, device, dtype), _loss(request, _moved(target, device, dtype)), device
    )


def _loss(request: ProfileRequest, target: Any) -> Callable[[Tensor], Tensor] | None:
    name = request.loss
    if name is None:
        beside = _beside(request.build, "loss")
        if not hasattr(_module(Path(beside.rpartition(":")[0]), "build"), "loss"):
            return None
        name = beside
    found = _function(name, "loss")

    def loss(output: Tensor) -> Tensor:
        value = _called(name, "loss", lambda: found(output, target))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ProfileRefused(
                "input", "loss", "does not give one number", value=name, remedy="return the mean of it"
            )
        return value

    return loss


def _moved(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(device=device, dtype=dtype) if value.is_floating_point() else value.to(device)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise ProfileRefused(
                "cannot", "--device", "only cpu and cuda are measured", value=name, remedy="name one of them"
            )
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ProfileRefused(
            "cannot",
            "--device",
            f"cannot be used: {first_line(error)}",
            value=name,
            remedy="for instance cpu",
        ) from None
    return device


def _beside(build: str, name: str) -> str:
    return f"{build.rpartition(':')[0]}:{name}"


_modules: dict[Path, ModuleType] = {}


def _module(path: Path, field: str) -> ModuleType:
    """The user's file, read once; what it imports from its own folder is found."""
    if path in _modules:
        return _modules[path]
    if not path.is_file():
        raise ProfileRefused(
            "input", field, "there is no such file", value=str(path), remedy="check the path"
        )
    name = f"unidle_span_{len(_modules)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProfileRefused(
            "input", field, "is not a Python file", value=str(path), remedy="name a .py file"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = _modules[path] = module
    sys.path.insert(0, str(path.parent))
    loader = spec.loader
    _called(str(path), field, lambda: loader.exec_module(module))
    return module


def _function(name: str, field: str) -> Callable[..., Any]:
    file, _, function = name.rpartition(":")
    found: Any = _module(Path(file), field)
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        remedy = {
            "build": "def build(**arguments): return the model",
            "data": "def batch(step, index, size, seed): return input and target of one microbatch",
            "loss": "def loss(output, target): return the mean over the microbatch",
        }[field]
        raise ProfileRefused("input", field, f"{file} has no such function", value=function, remedy=remedy)
    made: Callable[..., Any] = found
    return made


def _called(name: str, field: str, act: Callable[[], Any]) -> Any:
    """What the user's code raises is the user's to read, in one line with its place."""
    try:
        return act()
    except ProfileRefused:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ProfileRefused(
            "input", field, f"raised {type(error).__name__}: {first_line(error)}{place_of(error)}", value=name,
            remedy="correct it",
        ) from error  # fmt: skip


def place_of(error: BaseException) -> str:
    """`` (file.py:12)``: the innermost line of a file that was loaded here."""
    files = {str(path) for path in _modules}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""


def first_line(error: BaseException) -> str:
    """The first line of the message of an error."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the host or the device did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
