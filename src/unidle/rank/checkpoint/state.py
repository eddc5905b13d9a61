"""The state of a training job as named tensors, and each rank's own: random numbers, data position, settings."""

from __future__ import annotations

import io
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from unidle.errors import BadInput
from unidle.rank.checkpoint.stage import DTYPES, Pieces, cuda_in_use


class Stateful(Protocol):
    """Anything with PyTorch's two methods."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


Extra = Stateful | tuple[Callable[[], Any], Callable[[Any], object]]
_SAMPLE = 1 << 22  # values of a tensor that tell whether two ranks hold the same


class TrainingState:
    """Models, optimizers and the rest. Models may be wrapped (DDP, ``fully_shard``, ``torch.compile``)."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        extras: Mapping[str, Extra],
    ) -> None:
        self._models, self._optimizers, self._extras = models, optimizers, extras
        self._names: dict[int, str] = {}
        for prefix, model in models.items():
            for name, parameter in model.named_parameters():
                self._names.setdefault(id(parameter), f"{prefix}.{_plain(name)}")

    # ---- out

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, as they are now: no copies."""
        found: dict[str, Tensor] = {}
        for prefix, model in self._models.items():
            for name, value in model.state_dict().items():
                if isinstance(value, Tensor):
                    found[f"{prefix}.{_plain(name)}"] = value
        for prefix, optimizer in self._optimizers.items():
            for parameter, values in optimizer.state.items():
                where = self._name_of(parameter)
                for key, value in values.items():
                    if isinstance(value, Tensor):
                        found[f"{prefix}.{where}.{key}"] = value
        return found

    def own(self) -> dict[str, Any]:
        """The state of this rank alone, and values that are not tensors."""
        settings: dict[str, Any] = {}
        values: dict[str, Any] = {}
        devices: dict[str, str] = {}
        for prefix, optimizer in self._optimizers.items():
            settings[prefix] = [
                {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups
            ]
            for parameter, state in optimizer.state.items():
                where = self._name_of(parameter)
                for key, value in state.items():
                    if not isinstance(value, Tensor):
                        values[f"{prefix}.{where}.{key}"] = value
                    elif value.device != parameter.device:
                        devices[f"{prefix}.{where}.{key}"] = value.device.type
        for prefix, model in self._models.items():
            others = {k: v for k, v in model.state_dict().items() if not isinstance(v, Tensor)}
            if others:
                values[prefix] = others
        extras = {
            name: (e[0]() if isinstance(e, tuple) else e.state_dict()) for name, e in self._extras.items()
        }
        return {
            "settings": settings, "values": values, "devices": devices, "extras": extras, "random": _random_state(),
        }  # fmt: skip

    def _name_of(self, parameter: Tensor) -> str:
        name = self._names.get(id(parameter))
        if name is None:
            raise BadInput(
                "has a parameter that is in no model", field="optimizer", value=tuple(parameter.shape),
                remedy="give every model whose parameters it trains: model={'a': a, 'b': b}",
            )  # fmt: skip
        return name

    # ---- in

    def targets(
        self, saved: Mapping[str, tuple[tuple[int, ...], torch.dtype]], devices: Mapping[str, str]
    ) -> dict[str, Tensor]:
        """Tensors to read into, by name; ``saved``: whole shape and dtype of what there is.

        The models' own, and new ones for the optimizers'. Raises BadInput where the models do not fit.
        """
        found: dict[str, Tensor] = {}
        for prefix, model in self._models.items():
            for name, value in model.state_dict().items():
                if isinstance(value, Tensor):
                    found[f"{prefix}.{_plain(name)}"] = value
        for prefix, optimizer in self._optimizers.items():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    where = f"{prefix}.{self._name_of(parameter)}."
                    for name in [n for n in saved if n.startswith(where) and "." not in n[len(where) :]]:
                        found[name] = _like(parameter, *saved[name], devices.get(name))
        for name, value in found.items():
            shape = saved.get(name, (None,))[0]
            if shape != tuple(value.shape):
                raise BadInput(
                    f"{name} has shape {tuple(value.shape)} here, "
                    + (f"{shape} in the checkpoint" if shape is not None else "and is not in the checkpoint"),
                    field="model", remedy="restore into the model that was saved, or name another directory",
                )  # fmt: skip
        return found

    def accept(self, read: Mapping[str, Tensor], own: Mapping[str, Any], same_rank: bool) -> None:
        """Load the read state into optimizers and extras. ``same_rank``: the random state is this rank's own."""
        for prefix, optimizer in self._optimizers.items():
            for group, settings in zip(optimizer.param_groups, own["settings"][prefix], strict=True):
                group.update(settings)
                for parameter in group["params"]:
                    where = f"{prefix}.{self._name_of(parameter)}."
                    values = {n[len(where) :]: t for n, t in read.items() if n.startswith(where)}
                    values |= {n[len(where) :]: v for n, v in own["values"].items() if n.startswith(where)}
                    if values:
                        optimizer.state[parameter] = values
                    else:
                        optimizer.state.pop(parameter, None)
        for prefix, model in self._models.items():
            if prefix in own["values"]:
                model.load_state_dict(model.state_dict() | own["values"][prefix])
        for name, extra in self._extras.items():
            if name in own["extras"]:
                state = own["extras"][name]
                extra[1](state) if isinstance(extra, tuple) else extra.load_state_dict(state)
        if same_rank:
            _set_random_state(own["random"])


def _plain(name: str) -> str:
    """A parameter's name without what wrappers add to it."""
    return ".".join(
        part for part in name.split(".") if part not in ("_orig_mod", "_checkpoint_wrapped_module")
    ).removeprefix("module.")


def _like(parameter: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: str | None) -> Tensor:
    if shape == tuple(parameter.shape) and device is None:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(shape, dtype=dtype, device=device or parameter.device)


Offsets = dict[tuple[str, tuple[int, ...]], tuple[int, ...]]


def pieces_of(tensors: Mapping[str, Tensor], known: Offsets) -> Pieces:
    """The parts of tensors that this rank holds: whole ones, and its shards of DTensors.

    ``known`` keeps where shards lie from one call to the next.
    """
    found: Pieces = {}
    for name, value in tensors.items():
        if value.dtype not in DTYPES:
            raise BadInput(
                f"{name} is of a type that cannot be saved", field="model", value=str(value.dtype),
                remedy="keep it out of the model's state, or in a type that safetensors has",
            )  # fmt: skip
        if isinstance(value, DTensor):
            part = value.to_local().detach()
            if not part.numel():
                continue
            place = (name, tuple(part.shape))
            if place not in known:
                known[place] = _offset(name, value)
            offset = known[place]
            found[f"{name}@{','.join(map(str, offset))}"] = (part, name, offset, tuple(value.shape))
        else:
            found[name] = (value.detach(), name, (0,) * value.dim(), tuple(value.shape))
    return found


def _offset(name: str, value: DTensor) -> tuple[int, ...]:
    """Position of this rank's part, from PyTorch's planner of distributed checkpoints."""
    from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

    plan = create_default_local_save_plan({name: value}, is_coordinator=True)
    chunks = [item.tensor_data.chunk for item in plan.items if item.tensor_data is not None]
    if len(chunks) != 1:
        raise BadInput(
            f"one rank has not one part of {name}, but this many: {len(chunks)}", field="model", value=str(value.placements),
            remedy="shard it by placements that give each rank one block",
        )  # fmt: skip
    return tuple(chunks[0].offsets)


def fingerprint(tensor: Tensor) -> int:
    """A checksum of (a sample of) the values, to tell whether two ranks hold the same."""
    flat = tensor.detach().reshape(-1)
    flat = flat[:: max(1, flat.numel() // _SAMPLE)].contiguous().cpu()
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def pack(own: Mapping[str, Any]) -> bytes:
    """A rank's own state as bytes."""
    into = io.BytesIO()
    torch.save(dict(own), into)
    return into.getvalue()


def unpack(data: bytes) -> dict[str, Any]:
    """The reverse; runs no code from it. Raises BadInput where it holds more than plain values and tensors."""
    try:
        found = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:
        raise BadInput(
            "holds what cannot be read back safely", field="data or extra", value=str(error).splitlines()[0][:200],
            remedy="give numbers, texts, lists, dicts and tensors",
        ) from None  # fmt: skip
    assert isinstance(found, dict)
    return found


def _random_state() -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if cuda_in_use():
        found["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has, value = numpy.random.get_state()
        found["numpy"] = (
            str(name),
            torch.from_numpy(keys.astype("int64")),
            int(position),
            int(has),
            float(value),
        )
    return found


def _set_random_state(found: Mapping[str, Any]) -> None:
    torch.set_rng_state(found["torch"])
    version, values, gauss = found["python"]
    random.setstate((version, tuple(values), gauss))
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in found:
        name, keys, *rest = found["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))


def named(given: object, what: str) -> dict[str, Any]:
    """One object as ``{what: object}``; a mapping as ``{what.key: object}``."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {f"{what}.{key}": value for key, value in given.items()}
    if isinstance(given, Iterable) and not isinstance(given, nn.Module):
        return {f"{what}.{k}": value for k, value in enumerate(given)}
    return {what: given}
