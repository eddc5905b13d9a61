"""Imports what a program imports, once; then forks a process for each run of it. Started by ``forks.py`` with the program's own Python.

A run is two processes. The keeper has limits of its own, adopts whatever the program leaves behind, and kills it at the end. The
program is forked from the keeper. What was imported for it is out of sight until it imports them too, and is given to it only if it has the
environment and the paths that this process had: else it ends with ``UNSAFE``, and runs in a new process.
"""

from __future__ import annotations

import array
import builtins
import ctypes
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

UNSAFE = 213
"""The exit code of a program that must not be forked; a program that ends so by itself runs again in a new process."""
MOST_BYTES = 1 << 17
FIXED_SEED = 67280421310721
"""Of a generator in versions of PyTorch in which each process begins with the same one."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SAFE_PATH = getattr(sys.flags, "safe_path", False)
LIBC = ctypes.CDLL(None, use_errno=True)


class NotForked(Exception):
    """Why this program cannot be forked."""


class WarmModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that were imported before the program. ``early`` came before PyTorch, ``late`` with or after it."""

    def __init__(self) -> None:
        self.early: dict[str, Any] = {}
        self.late: dict[str, Any] = {}
        self.environment: dict[str, str] = {}
        self.added: dict[str, str] = {}
        self.hooked: Any = None

    def load(self, names: list[str], own: list[str]) -> None:
        """Import these, in order. ``own``: modules of the program's tree, which must not be among what that imports. Errors: NotForked."""
        before, environment = set(sys.modules), dict(os.environ)
        early: set[str] = set()
        for name in names:
            if name not in sys.modules and not is_standard(name):
                with suppress(ImportError, AttributeError):
                    importlib.import_module(name)
            if "torch" not in sys.modules:
                early = set(sys.modules)
        found = {
            name: module
            for name, module in sys.modules.items()
            if name not in before and not is_standard(name)
        }
        self.added = {name: text for name, text in os.environ.items() if environment.get(name) != text}
        for name in self.added:
            if name in environment:
                os.environ[name] = environment[name]
            else:
                del os.environ[name]
        if "torch" not in found:
            raise NotForked("it does not import torch")
        if shadowed := sorted(set(own) & set(sys.modules)):
            raise NotForked(f"{shadowed[0]} of the tree has the name of a module that torch imports")
        if found["torch"].cuda.is_initialized():
            raise NotForked("an import uses an accelerator")
        self.early = {name: found[name] for name in found if name in early}
        self.late = {name: found[name] for name in found if name not in early}

    def hide(self, hooked: Any) -> None:
        """Out of sight of the program, until it imports one. ``hooked`` is called with torch."""
        self.environment = dict(os.environ)
        self.hooked = hooked
        for name in (*self.early, *self.late):
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """What was imported before, as the program imports it."""
        is_late = name in self.late
        if not is_late and name not in self.early:
            return None
        top = name.partition(".")[0]
        plain = importlib.machinery.PathFinder.find_spec(top, None)
        warm: Any = (self.early.get(top) or self.late.get(top) or sys.modules[top]).__spec__
        if plain is None or plain.origin != warm.origin or dict(os.environ) != self.environment:
            why = "it changes its environment or its paths before it imports torch"
            os.write(2, f"not forked: {why}\n".encode())
            os._exit(UNSAFE)
        ready = self.early | self.late if is_late else self.early
        module = ready[name]
        if is_late:
            os.environ.update(self.added)  # what imports set
        for other, one in ready.items():
            if other != name:
                sys.modules.setdefault(other, one)
        if (numpy := ready.get("numpy.random")) is not None:
            numpy.seed()  # by the system, as at an import
        self.early = {other: one for other, one in self.early.items() if other not in ready}
        self.late = {other: one for other, one in self.late.items() if other not in ready}
        spec = importlib.machinery.ModuleSpec(name, self, origin=module.__spec__.origin)
        spec.submodule_search_locations = module.__spec__.submodule_search_locations
        spec.loader_state = module, module.__spec__, ready["torch"] if is_late else None
        return spec

    def create_module(self, spec: Any) -> Any:
        """The module as it is."""
        return spec.loader_state[0]

    def exec_module(self, module: Any) -> None:
        """It gets its own spec again, and PyTorch its hooks."""
        _, module.__spec__, torch = module.__spec__.loader_state
        if torch is not None:
            if torch.initial_seed() != FIXED_SEED:
                torch.seed()  # by the system, as at an import
            self.hooked(torch)


def is_standard(name: str) -> bool:
    """Whether a module is of the standard library."""
    return name.partition(".")[0] in sys.stdlib_module_names


class RunKeeper:
    """The process above one program. ``talk`` is its socket to the parent."""

    def __init__(self, talk: socket.socket, server: int) -> None:
        self.talk = talk
        self.server = server

    def start(self) -> int:
        """Forks; 0 in the program's process."""
        os.setsid()
        die_with(self.server)
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
        contained().without_network(LIBC)
        keeper = os.getpid()
        wake, self.woken = socket.socketpair()
        self.woken.setblocking(False)
        wake.setblocking(False)
        self.pid = os.fork()
        if not self.pid:
            wake.close()
            self.woken.close()
            os.setsid()
            die_with(keeper)
            return 0
        self.wake = wake
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        return self.pid

    def keep(self) -> None:
        """Wait for the program's end, or for the parent's word; end what it left; report the status and the CPU seconds."""
        ended = False
        while True:
            found, status, usage = os.wait4(self.pid, os.WNOHANG)
            if found:
                break
            ready, _, _ = select.select([self.woken, *([] if ended else [self.talk])], [], [], 1)
            if self.talk in ready:
                ended = True
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            if self.woken in ready:
                with suppress(BlockingIOError):
                    self.woken.recv(4096)
        self.clean()
        said = {"code": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}
        with suppress(OSError):
            self.talk.send(json.dumps(said).encode())

    def clean(self) -> None:
        """Kill all that the program left: as it dies, its children become those of this process."""
        for _ in range(1000):
            for pid in Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.001)
            except ChildProcessError:
                return


def die_with(parent: int) -> None:
    """End this process when its parent ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def contained() -> Any:
    """The module that has the rules of containment."""
    path = Path(__file__).parent.parent / "contained.py"
    spec = importlib.util.spec_from_file_location("tune_contained", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_thread() -> None:
    """A fork ends the threads of libraries that allow for forks. Errors: NotForked where others are left."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    if len([*Path("/proc/self/task").iterdir()]) > 1:
        raise NotForked("an import starts threads")


def received(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """A request with its socket and its output files; None at the end."""
    size = array.array("i").itemsize
    text, more, _, _ = control.recvmsg(MOST_BYTES, socket.CMSG_SPACE(3 * size))
    if not text:
        return None
    files = array.array("i")
    for _level, _kind, data in more:
        files.frombytes(data[: len(data) // size * size])
    return json.loads(text), list(files)


def serve(control: socket.socket, warm: WarmModules) -> dict[str, Any]:
    """Fork for each request. Returns the request in the process of a program only."""
    server = os.getpid()
    while True:
        found = received(control)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if found is None:
            os._exit(0)
        request, files = found
        if not os.fork():
            control.close()
            keeper = RunKeeper(socket.socket(fileno=files[0]), server)
            if keeper.start():
                for one in files[1:]:
                    os.close(one)
                keeper.keep()
                os._exit(0)
            become(request, keeper.talk, files[1:], warm)
            return request
        for one in files:
            os.close(one)


def become(request: dict[str, Any], talk: socket.socket, files: list[int], warm: WarmModules) -> None:
    """Make this the process that a new Python would be when it starts the program."""
    for target, one in enumerate(files, 1):
        os.dup2(one, target)
        os.close(one)
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    hooks = importlib.reload(sys.modules["sitecustomize"])
    sys.argv = request["words"]
    before = [*request["flags"], *(["-m"] if request["module"] else [])]
    sys.orig_argv[1:] = [*before, *sys.argv]
    if not SAFE_PATH:
        sys.path[0] = str(Path.cwd() if request["module"] else Path(sys.argv[0]).resolve().parent)
    sys.modules.pop("tune_contained", None)
    warm.hide(hooks.hooked)
    talk.send(f"start {os.getpid()}".encode())
    talk.close()


def script(path: str) -> tuple[Any, dict[str, Any]]:
    """The code of a script, and the names of its module. Errors: as Python has them."""
    full = str(Path.cwd() / path)
    with open(full, "rb") as file:
        code = compile(file.read(), full, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", full)
    vars(main).update({"__file__": full, "__cached__": None, "__loader__": loader, "__spec__": None, "__builtins__": builtins})  # fmt: skip
    sys.modules["__main__"] = main
    return code, vars(main)


def prepared() -> dict[str, Any]:
    """The request, in the process of a program. Arguments: the number of the control socket, and a file with the plan as JSON."""
    control = socket.socket(fileno=int(sys.argv[1]))
    file = Path(sys.argv[2])
    plan = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.argv = plan["words"]
    if not SAFE_PATH:
        sys.path.pop(0)
    warm = WarmModules()
    try:
        warm.load(plan["names"], plan["own"])
        one_thread()
    except NotForked as why:
        control.send(json.dumps({"why": str(why)}).encode())
        os._exit(0)
    if not SAFE_PATH:
        sys.path.insert(0, "")
    control.send(json.dumps({"why": ""}).encode())
    return serve(control, warm)


if __name__ == "__main__":
    kept, request = sys.modules["__main__"], prepared()
    if request["module"]:
        runpy._run_module_as_main(request["words"][0], alter_argv=True)  # type: ignore[attr-defined]  # noqa: SLF001
    else:
        code, names = script(request["words"][0])
        exec(code, names)  # noqa: S102
