"""Times and bytes of each layer: one microbatch forward and backward, again and again."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from unidle.span.measure.cut import LayerChain, Tape, chain_of
from unidle.span.measure.load import ProfileJob, ProfileRefused, ProfileRequest, first_line
from unidle.span.measure.split_layer import Graph, graph_of, input_gradient, weight_gradients

T = TypeVar("T")
WARM_UP: Final = 3  # passes that are not counted: libraries choose their ways, memory is taken


class DeviceTimer:
    """Nanoseconds of the device: events in its stream on CUDA, the host's clock else."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait for the device; only then can times be read."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def between(self, begin: Any, end: Any) -> int:
        spent: float = end - begin if self._device.type != "cuda" else begin.elapsed_time(end) * 1e6
        return round(spent)


@dataclass(slots=True)
class LayerSample:
    """One layer. Nanoseconds by repeat; ``split``: the gradient of weights ran apart, else it is what both take less the
    gradient of the input alone.
    """

    name: str
    kind: str
    input_bytes: int = 0
    kept_bytes: int = 0
    keeps_input: bool = False
    parameters_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    split: bool = True
    forward_ns: list[int] = field(default_factory=list)
    backward_ns: list[int] = field(default_factory=list)
    weight_ns: list[int] = field(default_factory=list)


class LayerProfiler:
    """Measures one job. Errors: :class:`ProfileRefused`; what runs out of memory is raised as it is."""

    def __init__(self, request: ProfileRequest, job: ProfileJob) -> None:
        self._request, self._job = request, job
        self._clock = DeviceTimer(job.device)
        self._chain: LayerChain = chain_of(job.model)
        self.layers: list[LayerSample] = []
        self.step_ns: list[int] = []
        self._trained: dict[int, list[Tensor]] = {}  # of each layer

    def warm_up(self) -> None:
        """Measure bytes, and run passes that are not counted."""
        self._count_bytes()
        for _ in range(WARM_UP):
            self._once()
            self._uncut()
        self._count_optimizer()
        for layer in self.layers:
            for times in (layer.forward_ns, layer.backward_ns, layer.weight_ns):
                times.clear()
        self.step_ns.clear()

    def run(self) -> dict[str, Any]:
        """Run all repeats: cut and uncut in turn, so that other load of the machine affects both."""
        for _ in range(self._request.repeats):
            self._once()
            self._uncut()
        return {
            "layers": [asdict(layer) for layer in self.layers], "step_ns": self.step_ns,
            "device": _name_of(self._job.device), "threads": torch.get_num_threads(), "torch": torch.__version__,
            "loss": self._job.loss is not None,
        }  # fmt: skip

    def _forward(self, tape: Tape) -> Tape:
        tape.run(self._job.model, self._chain, self._job.given, self._job.loss)
        return tape

    # ---- bytes

    def _count_bytes(self) -> None:
        """One pass in which everything that autograd saves is seen; and whether the cut holds."""
        job = self._job
        saved = list[dict[int, torch.UntypedStorage]]()

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if saved and storage.nbytes():
                saved[-1][storage.data_ptr()] = storage  # held, so that its place is not given away
            return tensor

        tape = Tape(self._clock.now, opened=lambda _: saved.append({}))
        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                self._forward(tape)
        except RuntimeError as error:
            if "in-place" not in str(error):
                raise
            name = tape.names[-1] if tape.names else self._chain.names[0]
            raise ProfileRefused(
                "cannot", "build", f"changes its input in place, which another stage has made: {first_line(error)}",
                value=name, remedy="use inplace=False at the begin of a layer",
            ) from None  # fmt: skip
        fixed = {t.untyped_storage().data_ptr() for t in (*job.model.parameters(), *job.model.buffers())}
        inputs = [leaf.untyped_storage().data_ptr() for leaf in tape.begins]
        modules = dict(zip(self._chain.names, self._chain.modules, strict=True))
        for k, leaf in enumerate(tape.begins):
            own = {
                place: kept for place, kept in saved[k].items() if place not in fixed and place != inputs[k]
            }
            layer = LayerSample(tape.names[k], _kind(modules.get(tape.names[k])))
            layer.input_bytes = leaf.numel() * leaf.element_size()
            layer.kept_bytes = sum(kept.nbytes() for kept in own.values())
            layer.keeps_input = inputs[k] in saved[k] and (k == 0 or inputs[k] not in saved[k - 1])
            self.layers.append(layer)
        self._count_parameters(tape, modules)

    def _count_parameters(self, tape: Tape, modules: dict[str, nn.Module]) -> None:
        owned = {id(p) for module in modules.values() for p in module.parameters()}
        rest = {id(p): p for p in self._job.model.parameters() if id(p) not in owned}
        seen: dict[Any, int] = {}
        for k in reversed(range(len(self.layers))):
            layer, graph = self.layers[k], self._own(tape, k, seen)
            own = {id(w): w for w in graph.weights}
            if module := modules.get(layer.name):
                own |= {id(p): p for p in module.parameters()}
            elif k == 0:
                own |= rest  # what runs before the layers has all that was not found after them
            for each in own:
                rest.pop(each, None)
            layer.parameters_bytes = _size(own.values())
            layer.gradient_bytes = _size(p for p in own.values() if p.requires_grad)
            self._trained[k] = [p for p in own.values() if p.requires_grad]

    def _own(self, tape: Tape, k: int, seen: dict[Any, int]) -> Graph:
        """The graph of one layer; ``seen``: nodes of those after it, none of which may be its own."""
        graph = graph_of(tape.ends[k], tape.begins[k])
        leaves = {id(leaf) for leaf in tape.begins}
        for node in graph.nodes:
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in leaves:
                continue  # a weight: layers may share one
            if node in seen:
                raise ProfileRefused(
                    "cannot", "build", "takes something of an earlier layer in addition to its input: the model cannot be cut before it",
                    value=self.layers[seen[node]].name, remedy="put the layers that belong together into one",
                )  # fmt: skip
            seen[node] = k
        return graph

    def _count_optimizer(self) -> None:
        """What it really keeps of each parameter, one at a time: no memory for the whole of it is needed."""
        name = self._request.optimizer
        if name == "none":
            return
        known = {each.lower(): each for each in dir(torch.optim) if each[0].isupper()}
        kind = getattr(torch.optim, known.get(name.lower(), ""), None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise ProfileRefused("input", "--optimizer", "torch.optim has no such one", value=name, remedy="for instance adamw, sgd or none")  # fmt: skip
        sizes: dict[int, int] = {}
        for k, layer in enumerate(self.layers):
            for weight in self._trained[k]:
                if id(weight) not in sizes:
                    sizes[id(weight)] = _optimizer_bytes(kind, weight)
                layer.optimizer_bytes += sizes[id(weight)]

    # ---- times

    def _uncut(self) -> None:
        """The model as it is, forward and backward: what the layers together should take."""
        job, clock = self._job, self._clock
        begin = clock.now()
        output = job.model(job.given)
        value = output if job.loss is None else job.loss(output)
        value.backward(None if value.numel() == 1 else torch.ones_like(value))
        end = clock.now()
        clock.settle()
        self.step_ns.append(clock.between(begin, end))

    def _once(self) -> None:
        clock = self._clock
        tape = self._forward(Tape(clock.now))
        clock.settle()
        for layer, (begin, end) in zip(self.layers, tape.at, strict=True):
            layer.forward_ns.append(clock.between(begin, end))
        flowing: Tensor | None = None
        if tape.ends[-1].numel() != 1:
            flowing = torch.ones_like(tape.ends[-1])
        for k in reversed(range(len(self.layers))):
            flowing = self._backward(tape, k, flowing)
            tape.ends.pop()
            tape.begins.pop()

    def _backward(self, tape: Tape, k: int, flowing: Tensor | None) -> Tensor | None:
        """One layer: the gradient of its input, then of its weights. What flows into the layer before."""
        layer, end, leaf = self.layers[k], tape.ends[k], tape.begins[k]
        if not end.requires_grad:
            layer.backward_ns.append(0)
            layer.weight_ns.append(0)
            return None
        graph = graph_of(end, leaf)
        found: Tensor | None = None
        if leaf.requires_grad:
            forks = graph.forks or []

            def input_only() -> Tensor | None:
                return input_gradient(end, leaf, forks, flowing)

            spent, found = self._timed(input_only)
            layer.backward_ns.append(spent)
        else:
            layer.backward_ns.append(0)
        layer.weight_ns.append(self._weights(graph, layer, end, leaf, flowing))
        if found is None and leaf.requires_grad:
            found = torch.zeros_like(leaf)
        return found

    def _weights(
        self, graph: Graph, layer: LayerSample, end: Tensor, leaf: Tensor, flowing: Tensor | None
    ) -> int:
        """Nanoseconds of the gradients of weights, and of adding them up."""
        if not graph.weights:
            return 0
        if leaf.requires_grad and graph.forks is not None:
            forks = graph.forks
            return self._timed(lambda: _add(weight_gradients(forks)))[0]
        layer.split = not leaf.requires_grad
        wanted = [leaf] * leaf.requires_grad + graph.weights

        def whole() -> None:
            found = torch.autograd.grad(end, wanted, flowing, retain_graph=True, allow_unused=True)
            _add((w, g) for w, g in zip(wanted, found, strict=True) if g is not None and w is not leaf)

        spent = self._timed(whole)[0]
        return max(spent - layer.backward_ns[-1], 0)

    def _timed(self, act: Callable[[], T]) -> tuple[int, T]:
        clock = self._clock
        begin = clock.now()
        made = act()
        end = clock.now()
        clock.settle()
        return clock.between(begin, end), made


def _add(gradients: Iterable[tuple[Tensor, Tensor]]) -> None:
    """As one more microbatch of an iteration does."""
    for weight, gradient in gradients:
        if weight.grad is None:
            weight.grad = gradient
        else:
            weight.grad.add_(gradient)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _kind(module: nn.Module | None) -> str:
    return "" if module is None else type(module).__name__


def _optimizer_bytes(kind: type[torch.optim.Optimizer], weight: Tensor) -> int:
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    copy = weight.detach().clone().requires_grad_()
    copy.grad = weight.grad
    try:
        made = kind([copy], lr=1e-3)  # type: ignore[call-arg]
        made.step()
    except (TypeError, RuntimeError) as error:
        raise ProfileRefused(
            "input", "--optimizer", f"cannot be tried: {first_line(error)}", value=kind.__name__,
            remedy="for instance adamw, sgd or none",
        ) from None  # fmt: skip
    return _size(value for value in made.state[copy].values() if isinstance(value, Tensor))


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({_processor() or platform.machine()}, {os.cpu_count()} CPUs)"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            return next(
                (line.partition(":")[2].strip() for line in stream if line.startswith("model name")), ""
            )
    except OSError:
        return ""
