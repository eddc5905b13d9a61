"""Cuts a running, unmodified model into layers: what passes from one to the next is caught by hooks.

At each cut the tensor is detached, as it is between two stages of a pipeline, so that each layer has a graph of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from unidle.span.measure.load import ProfileRefused

At = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class LayerChain:
    """Modules that run one after the other. ``whole``: nothing of the model runs before the first or after the last."""

    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]
    whole: bool


def chain_of(model: nn.Module) -> LayerChain:
    """The children of an ``nn.Sequential``, or the largest ``nn.ModuleList`` (or Sequential) inside. Errors: :class:`ProfileRefused`."""
    inner = model
    while isinstance(inner, nn.Sequential) and len(inner) == 1:
        inner = inner[0]
    if isinstance(inner, nn.Sequential) and len(inner) > 1:
        names, modules = zip(*inner.named_children(), strict=True)
        return LayerChain(names, modules, whole=True)
    found = [
        (sum(p.numel() for p in each.parameters()), name, each)
        for name, each in model.named_modules()
        if isinstance(each, nn.ModuleList | nn.Sequential) and len(each) > 1
    ]
    if not found:
        raise ProfileRefused(
            "cannot", "build", "the model cannot be cut: it is no nn.Sequential and has no nn.ModuleList of two or more",
            value=type(model).__name__, remedy="keep its layers in one of them, or return a list of its layers",
        )  # fmt: skip
    most = max(size for size, _, _ in found)
    _, name, chosen = next(each for each in found if each[0] == most)  # the outermost of as many parameters
    names, modules = zip(*chosen.named_children(), strict=True)
    return LayerChain(tuple(f"{name}.{each}" for each in names), modules, whole=False)


@dataclass(slots=True)
class Tape:
    """One forward pass in segments. ``begins``: what entered each (a leaf), ``ends``: what left it; ``at``: its time.

    ``opened`` is called when a segment begins, outside of its time.
    """

    now: At
    opened: Callable[[int], None] = lambda _: None
    begins: list[Tensor] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)
    at: list[tuple[Any, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _started: Any = None

    def run(
        self, model: nn.Module, chain: LayerChain, given: Tensor, loss: Callable[[Tensor], Tensor] | None
    ) -> None:
        """The whole forward pass. Errors: :class:`ProfileRefused` where layers do not follow one another."""
        hooks = [
            module.register_forward_pre_hook(self._before(name), with_kwargs=True)
            for name, module in zip(chain.names, chain.modules, strict=True)
        ]
        if not chain.whole:
            hooks.append(chain.modules[-1].register_forward_hook(self._after_last(chain)))
        try:
            if not chain.whole:
                self._open(given, f"before {chain.names[0]}")
            output = model(given)
            if not isinstance(output, Tensor):
                raise _no_tensor(self.names[-1] if self.names else "the model", output)
            self._close(output if loss is None else loss(output))
        finally:
            for hook in hooks:
                hook.remove()
        self._as_expected(chain)

    def _as_expected(self, chain: LayerChain) -> None:
        ran = [name for name in self.names if name in chain.names]
        if ran != list(chain.names):
            raise ProfileRefused(
                "cannot", "build", "the model cannot be cut: its layers do not run once each, in their order",
                value=", ".join(ran[:8]) or "none ran", remedy="return a list of its layers, or an nn.Sequential",
            )  # fmt: skip

    def _open(self, leaf: Tensor, name: str) -> None:
        self.begins.append(leaf)
        self.names.append(name)
        self.opened(len(self.begins) - 1)
        self._started = self.now()

    def _close(self, made: Tensor) -> None:
        self.at.append((self._started, self.now()))
        self.ends.append(made)

    def _passes(self, tensor: Tensor, name: str) -> Tensor:
        """The end of one segment is the begin of the next."""
        if self._started is not None:
            self._close(tensor)
        leaf = tensor.detach().requires_grad_(tensor.requires_grad)
        self._open(leaf, name)
        return leaf

    def _before(self, name: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if sum(tensor.requires_grad for tensor in tensors) > 1:
                raise ProfileRefused(
                    "cannot", "build", "takes several tensors that carry gradients: the model cannot be cut before it",
                    value=name, remedy="let layers pass one tensor on",
                )  # fmt: skip
            carried = next((t for t in tensors if t.requires_grad), tensors[0] if tensors else None)
            if carried is None:
                raise _no_tensor(name, args[0] if args else None)
            leaf = self._passes(carried, name)
            changed = tuple(leaf if value is carried else value for value in args)
            return changed, {key: leaf if value is carried else value for key, value in kwargs.items()}

        return hook

    def _after_last(self, chain: LayerChain) -> Callable[..., Any]:
        def hook(_: nn.Module, __: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) and output else output
            if not isinstance(first, Tensor):
                raise _no_tensor(chain.names[-1], output)
            leaf = self._passes(first, f"after {chain.names[-1]}")
            return (leaf, *output[1:]) if isinstance(output, tuple) else leaf

        return hook


def _no_tensor(name: str, value: object) -> ProfileRefused:
    return ProfileRefused(
        "cannot", "build", "passes on no tensor: the model cannot be cut there", value=f"{name}: {type(value).__name__}",
        remedy="let layers take and give one tensor",
    )  # fmt: skip
