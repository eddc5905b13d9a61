"""The user's model as a chain of layers: built by their own code, counted, named, and cut into parts.

Every rank builds the whole model on the CPU with the same seed and drops what is not its own: initial parameters are then
those of a single process, whatever a layer does to make them. (A meta device would change the order of random numbers.)
A module that is no Sequential is traced by ``torch.distributed.pipelining`` and split at its longest ModuleList.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from unidle.errors import BadInput


def traced_layers(model: nn.Module, example: Sequence[Any] | None) -> list[nn.Module]:
    """What comes before the list, each of its items, and what comes after; names of parameters stay those of the model.

    ``example``: the arguments of one microbatch, whose shape the layers keep. Errors: BadInput.
    """
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) > 1}
    if not lists or example is None:
        raise BadInput(
            "is no nn.Sequential and holds no ModuleList", field="model.build", value=type(model).__name__,
            remedy="return an nn.Sequential of its layers",
        )  # fmt: skip
    name = max(lists, key=lambda each: len(lists[each]))
    count = len(lists[name])
    try:
        from torch.distributed.pipelining import SplitPoint, pipeline

        points = {f"{name}.{k}": SplitPoint.BEGINNING for k in range(count)}
        whole = pipeline(model, mb_args=tuple(example), split_spec=points)
        return [whole.get_stage_module(k) for k in range(whole.num_stages)]
    except Exception as error:
        raise BadInput(
            f"cannot be cut at {name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", field="model.build",
            value=type(model).__name__, remedy="return an nn.Sequential of its layers",
        ) from None  # fmt: skip


DTYPES: Final = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
Values = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. ``name`` is where it lies in the whole model; ``spread``: it takes its tensors as several arguments."""

    number: int
    name: str
    module: nn.Module
    spread: bool = False


def load(where: str) -> Callable[..., Any]:
    """The function of ``/path.py:function``. Errors: BadInput."""
    path, _, name = where.rpartition(":")
    if not path or not os.path.isfile(path):
        raise BadInput(
            "names no file", field="function", value=where, remedy="give /path/to/file.py:function"
        )
    label = f"_unidle_user_{hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:12]}"
    module = sys.modules.get(label)
    if module is None:
        spec = importlib.util.spec_from_file_location(label, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[label] = importlib.util.module_from_spec(spec)
        if (beside := os.path.dirname(os.path.abspath(path))) not in sys.path:
            sys.path.append(beside)  # what it imports from its own directory, now or later
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[label]
            raise BadInput(
                f"cannot be loaded: {type(error).__name__}: {error}", field="function", value=where, remedy="fix the file"
            ) from None  # fmt: skip
    found = getattr(module, name, None)
    if not callable(found):
        raise BadInput("has no such function", field="function", value=where, remedy="give /path/to/file.py:function")  # fmt: skip
    return found  # type: ignore[no-any-return]


def build(where: str, arguments: Mapping[str, Any], dtype: str, seed: int, device: str = "cpu") -> nn.Module:
    """The user's model with its first parameters; a list of modules becomes a Sequential. Errors: BadInput.

    ``device``: ``meta`` gives shapes alone, and takes no memory.
    """
    make = load(where)
    torch.manual_seed(seed)
    try:
        with torch.device(device):
            model = make(**arguments)
    except Exception as error:
        raise BadInput(
            f"fails: {type(error).__name__}: {error}", field="model.build", value=where,
            remedy="correct it or model.arguments",
        ) from error  # fmt: skip
    if isinstance(model, (list, tuple)) and all(isinstance(layer, nn.Module) for layer in model):
        model = nn.Sequential(*model)
    if not isinstance(model, nn.Module):
        raise BadInput(
            "gives no nn.Module", field="model.build", value=type(model).__name__, remedy="return the model"
        )
    return model.to(DTYPES[dtype])


def layers_of(model: nn.Module, example: Sequence[Any] | None = None) -> list[Layer]:
    """The layers of a model in the order in which it runs them; parts are cut between them.

    The children of an ``nn.Sequential``; of another module the items of its longest ``ModuleList``, with what comes before and
    after, where ``torch.distributed.pipelining`` can trace it with ``example`` (the arguments of one microbatch). Errors: BadInput.
    """
    if isinstance(model, (nn.Sequential, nn.ModuleList)):
        every = model.named_modules(remove_duplicate=False)  # a layer may be there twice
        direct = [(name, layer) for name, layer in every if name and "." not in name]
        return [Layer(k, name, layer) for k, (name, layer) in enumerate(direct)]
    return [Layer(k, "", part, spread=True) for k, part in enumerate(traced_layers(model, example))]


def names_of(layer: Layer) -> dict[str, str]:
    """The name of each parameter and buffer of a layer, and its name in the whole model."""
    prefix = f"{layer.name}." if layer.name else ""
    return {name: prefix + name for name in layer.module.state_dict()}


def layer_bytes(layers: Sequence[Layer]) -> list[int]:
    """Bytes of parameters of each layer; one that is shared counts where it comes first."""
    seen: set[int] = set()
    found = []
    for layer in layers:
        new = [p for p in layer.module.parameters() if id(p) not in seen]
        seen.update(map(id, new))
        found.append(sum(p.numel() * p.element_size() for p in new))
    return found


def shapes_of(layers: Sequence[Layer]) -> dict[str, str]:
    """Shape and type of all state by its name in the whole model."""
    return {
        names[name]: f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        for layer in layers
        for names in [names_of(layer)]
        for name, value in layer.module.state_dict().items()
        if isinstance(value, Tensor)
    }


def digest_of(shapes: Mapping[str, str]) -> str:
    """SHA-256 of names, shapes and types of the whole model's state."""
    text = "\n".join(f"{name} {shape}" for name, shape in sorted(shapes.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def check_digest(wanted: str | None, shapes: Mapping[str, str]) -> str:
    """The model's digest. Errors: BadInput where the plan was made for another model."""
    digest = digest_of(shapes)
    if wanted is not None and wanted != digest:
        first = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:3])
        raise BadInput(
            f"the plan is for another model: what model.build makes has digest {digest[:16]}…,"
            f" and holds {first}…",
            field="model.digest", value=f"{wanted[:16]}…", remedy="give the plan that was made for this model, or its arguments",
        )  # fmt: skip
    return digest


def check_shared(parts: Sequence[Sequence[Layer]]) -> None:
    """Errors: BadInput where two parts hold the same parameter: each would train its own."""
    owner: dict[int, tuple[int, str]] = {}
    for k, part in enumerate(parts):
        for layer in part:
            for name, parameter in layer.module.named_parameters():
                other, first = owner.setdefault(id(parameter), (k, f"{layer.name}.{name}"))
                if other != k:
                    raise BadInput(
                        f"{layer.name}.{name} of part {k} is the same parameter as {first} of part {other}",
                        field="model.cut", remedy="cut so that one part holds both layers, or untie them",
                    )  # fmt: skip


def seed_random(seed: int, device: str = "cpu") -> None:
    """Begin random numbers again, of the CPU and of the device that is used. (``torch.manual_seed`` takes a
    thousand times as long if CUDA is available but unused: it records the stack.)
    """
    torch.default_generator.manual_seed(seed)
    if device != "cpu":
        torch.cuda.manual_seed(seed)


def part_seed(seed: int, *place: int) -> int:
    """A seed for a place (step, microbatch, layer), the same in every cut: 63 bits."""
    text = ":".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def as_values(found: object, layer: str) -> Values:
    """A layer's output as tensors. Errors: BadInput where it is something else."""
    values = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if not all(isinstance(value, Tensor) for value in values):
        raise BadInput(
            f"gives {', '.join(type(v).__name__ for v in values)}", field=f"layer {layer}",
            remedy="let layers pass tensors or tuples of tensors",
        )  # fmt: skip
    return values


def parameters_of(layers: Sequence[Layer]) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters that are trained, by their names in the whole model, each once."""
    seen: set[int] = set()
    for layer in layers:
        prefix = f"{layer.name}." if layer.name else ""
        for name, parameter in layer.module.named_parameters():
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield prefix + name, parameter
