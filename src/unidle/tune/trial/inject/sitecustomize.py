"""Loaded by Python at its start in runs that are observed: records what training computes, without a change of the script.

Each line of the trace is JSON: the kind, then for each tensor its size and three sums that depend on order. Nothing here draws a
random number.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import sys
import termios
import time
from pathlib import Path
from typing import Any

TRACE = os.environ.get("TUNE_TRIAL_TRACE", "")
STEPS = os.environ.pop("TUNE_TRIAL_STEPS", "")
MARKS = [int(one) for one in os.environ.pop("TUNE_TRIAL_MARKS", "").split(",") if one]
WAIT = os.environ.pop("TUNE_TRIAL_WAIT", "") == "1"
STOP = int(os.environ.pop("TUNE_TRIAL_STOP", "0"))
PROFILE = os.environ.pop("TUNE_TRIAL_PROFILE", "")
REQUESTS = os.environ.pop("TUNE_TRIAL_REQUESTS", "") == "1"
MODULES = os.environ.pop("TUNE_TRIAL_MODULES", "")
FLOAT64 = os.environ.get("TUNE_TRIAL_FLOAT64") == "1"
SEED = int(os.environ.get("TUNE_TRIAL_SEED", "0"))
MORE_BATCH = int(os.environ.get("TUNE_TRIAL_MORE_BATCH", "0"))
MOST_RECORDS = 200_000


class TensorRecorder:
    """Writes records of tensors. ``torch`` is the imported package."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.double = torch.float64
        self.weights: dict[int, Any] = {}
        self.file = open(TRACE, "w", encoding="utf-8")  # noqa: SIM115
        self.count = 0
        self.depth = 0
        self.pid = os.getpid()
        self.busy = False
        self.steps = 0

    def write(self, kind: str, value: Any) -> None:
        """A record, unless this is a worker of a loader, or a record is being made."""
        if self.busy or os.getpid() != self.pid or self.count > MOST_RECORDS:
            return
        self.busy = True
        try:
            with self.torch.no_grad():
                found: list[Any] = []
                self.collect(value, found, 0)
            self.count += 1
            self.file.write(json.dumps([kind, found]) + "\n")
        finally:
            self.busy = False

    def end(self) -> None:
        """The last records, unless this is a worker of a loader."""
        if os.getpid() == self.pid and not self.file.closed:
            self.write("random", self.torch.get_rng_state())
            self.file.write(json.dumps(["end", self.count]) + "\n")
            self.file.close()

    def collect(self, value: Any, found: list[Any], deep: int) -> None:
        """The sums of all tensors in nested containers, and plain numbers and texts."""
        torch = self.torch
        if isinstance(value, torch.Tensor):
            found.append(self.sums(value))
        elif isinstance(value, dict) and deep < 8:
            for key in value:
                if isinstance(key, str):
                    found.append(key)
                self.collect(value[key], found, deep + 1)
        elif isinstance(value, list | tuple) and deep < 8:
            for one in value:
                self.collect(one, found, deep + 1)
        elif value is None or isinstance(value, str | int | float | bool):
            found.append(value)
        elif hasattr(value, "__dataclass_fields__") and deep < 8:
            self.collect(vars(value), found, deep + 1)

    def sums(self, tensor: Any) -> list[float]:
        """Size, sum of absolute values, and two sums with weights that depend on the place."""
        flat = tensor.detach()
        if flat.is_sparse or flat.is_quantized:
            flat = flat.to_dense() if flat.is_sparse else flat.dequantize()
        if flat.is_complex():
            flat = self.torch.view_as_real(flat)
        flat = flat.to("cpu", self.double).reshape(-1)
        count = flat.numel()
        if count not in self.weights:
            places = self.torch.arange(1, count + 1, dtype=self.double)
            self.weights[count] = ((places * 0.6180339887).cos(), (places * 1.4142135623).sin())
        one, other = self.weights[count]
        return [count, float(flat.abs().sum()), float(flat.dot(one)), float(flat.dot(other))]


def install(torch: Any) -> None:
    """Hook the places where training computes, reads and saves."""
    recorder = TensorRecorder(torch)
    seed_all(torch)
    if FLOAT64:
        use_float64(torch)
    hook_optimizers(recorder)
    hook_backward(torch, recorder)
    hook_modules(recorder)
    hook_saves(torch, recorder)
    atexit.register(recorder.end)


def mark_steps(torch: Any, sampler: Any) -> None:
    """Write the number of a step to the pipe when it ends; the parent takes the times. The last one may be where the program stops."""
    pipe = os.open(STEPS, os.O_WRONLY | os.O_NONBLOCK)
    pid = os.getpid()
    cuda, write, wait, clock, unread = torch.cuda, os.write, time.sleep, time.monotonic, fcntl.ioctl
    nothing = bytes(4)
    wanted = frozenset(MARKS)
    last = MARKS[-1] if WAIT and MARKS else 0
    count = 0

    def mark(first: bool) -> None:
        if cuda.is_available() and cuda.is_initialized():
            cuda.synchronize()
        write_modules()
        if sampler is not None and not first:
            sampler.write(count)  # the parent may end the program once it has the mark
        write(pipe, f"{count} {pid}\n".encode())
        end = clock() + 10
        while unread(pipe, termios.FIONREAD, b"0000") != nothing and clock() < end:
            wait(0.0005)  # the parent takes the time of the mark when it reads it
        if sampler is not None and first:
            sampler.reset(count)

    def after(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        nonlocal count
        count += 1
        if os.getpid() == pid and (count in wanted if wanted else count & (count - 1) == 0):
            mark(count == (MARKS[0] if wanted else 2))
            while count == last:
                wait(1)

    def at_end() -> None:
        if os.getpid() == pid:
            write_modules()
        if os.getpid() == pid and not wanted and count:
            write(pipe, f"{count} {pid}\n".encode())

    importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(after)
    atexit.register(at_end)


def write_modules() -> None:
    """The names of all modules and their files, in the order of their imports, if that is requested."""
    if not MODULES:
        return
    found = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name == name:
            found.append([name, spec.origin or ""])
    with open(f"{MODULES}.new", "w", encoding="utf-8") as file:
        json.dump(found, file)
    Path(f"{MODULES}.new").replace(MODULES)


def seed_all(torch: Any) -> None:
    """Seeds of a program that sets none; those that it sets are moved by the same amount."""
    random.seed(1000 + SEED)
    torch.manual_seed(1000 + SEED)
    given, plain = torch.manual_seed, random.seed
    torch.manual_seed = lambda seed: given(int(seed) + SEED)
    random.seed = lambda a=None, version=2: plain(a + SEED if isinstance(a, int) else a, version)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(1000 + SEED)
        set_numpy = numpy.random.seed
        numpy.random.seed = lambda seed=None: set_numpy(seed + SEED if isinstance(seed, int) else seed)


def use_float64(torch: Any) -> None:
    """What requests single precision gets double precision."""
    double = torch.float64
    torch.set_default_dtype(double)
    torch.set_default_dtype = lambda _kind: None
    torch.Tensor.float = lambda tensor, **_more: tensor.double()
    torch.float32 = torch.float = double
    single = torch.zeros(1).numpy().astype("float32")
    kind = torch.from_numpy(single).dtype
    for name in ("from_numpy", "tensor", "as_tensor"):
        setattr(torch, name, widened(getattr(torch, name), kind, double))


def widened(make: Any, single: Any, double: Any) -> Any:
    """A factory whose tensors of single precision become those of double precision."""

    def inner(*given: Any, **more: Any) -> Any:
        made = make(*given, **more)
        return made.to(double) if made.dtype == single else made

    return inner


def hook_optimizers(recorder: TensorRecorder) -> None:
    """Gradients before each step, parameters and state after it."""
    optimizer = importlib.import_module("torch.optim.optimizer")

    def parameters(one: Any) -> list[Any]:
        return [each for group in one.param_groups for each in group["params"]]

    def before(one: Any, _args: Any, _kwargs: Any) -> None:
        recorder.write("gradients", [each.grad for each in parameters(one)])

    def after(one: Any, _args: Any, _kwargs: Any) -> None:
        every = parameters(one)
        recorder.write("parameters", [each.detach() for each in every])
        recorder.write("state", [sorted_state(one.state.get(each, {})) for each in every])
        recorder.steps += 1
        if recorder.steps == STOP and os.getpid() == recorder.pid:
            recorder.end()
            sys.stdout.flush()
            os._exit(0)

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


def sorted_state(state: Any) -> dict[str, Any]:
    """The state of one parameter, by name; numbers and tensors of one number are the same."""
    return {str(name): state[name] for name in sorted(state, key=str)}


def hook_backward(torch: Any, recorder: TensorRecorder) -> None:
    """Each loss, and each batch of a loader."""
    plain = torch.autograd.backward

    def backward(tensors: Any, *given: Any, **more: Any) -> Any:
        recorder.write("loss", tensors)
        return plain(tensors, *given, **more)

    torch.autograd.backward = backward
    loaders = importlib.import_module("torch.utils.data.dataloader")
    iterator_class = vars(loaders)["_BaseDataLoaderIter"]
    following = iterator_class.__next__

    def batch(iterator: Any) -> Any:
        found = following(iterator)
        recorder.write("batch", found)
        return found

    iterator_class.__next__ = batch
    if MORE_BATCH:
        make = loaders.DataLoader.__init__

        def made(self: Any, dataset: Any, batch_size: Any = 1, *given: Any, **more: Any) -> None:
            larger = batch_size + MORE_BATCH if isinstance(batch_size, int) and batch_size > 1 else batch_size
            make(self, dataset, larger, *given, **more)

        loaders.DataLoader.__init__ = made


def hook_modules(recorder: TensorRecorder) -> None:
    """The outputs of outermost modules, in training and in evaluation."""
    module = importlib.import_module("torch.nn.modules.module")
    plain = module.Module.__call__

    def call(self: Any, *given: Any, **more: Any) -> Any:
        recorder.depth += 1
        try:
            made = plain(self, *given, **more)
        finally:
            recorder.depth -= 1
        if recorder.depth == 0:
            recorder.write("output" if self.training else "evaluation", made)
        return made

    module.Module.__call__ = call


def hook_saves(torch: Any, recorder: TensorRecorder) -> None:
    """The contents of checkpoints."""
    plain = torch.save

    def save(value: Any, *given: Any, **more: Any) -> Any:
        recorder.write("checkpoint", value)
        return plain(value, *given, **more)

    torch.save = save


class TorchFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Installs the hooks when the program has imported torch."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        self.spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if self.spec is None or self.spec.loader is None:
            return self.spec
        self.loader = self.spec.loader
        self.spec.loader = self
        return self.spec

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        hooked(module)


def hooked(torch: Any) -> None:
    """All hooks that are requested, in the package that the program has just imported."""
    if TRACE:
        install(torch)
    if STEPS:
        mark_steps(torch, SAMPLER)
    if REQUESTS and SAMPLER is not None:
        SAMPLER.serving = importlib.import_module("tune_serving")
        SAMPLER.serving.install(torch)


SAMPLER = importlib.import_module("tune_sampler").StackSampler(PROFILE) if PROFILE else None
if TRACE or STEPS:
    os.environ.pop("TUNE_TRIAL_TRACE", None)
    sys.meta_path.insert(0, TorchFinder())
