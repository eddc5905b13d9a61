"""A Python function with its arguments as a file that the ranks of a job read, and its return value.

cloudpickle decides how: what can be imported again goes by its name, a function of ``__main__`` (a script, a notebook),
a lambda or a closure by its code and the globals it uses.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import linecache
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Final

from unidle.errors import BadInput, CannotRun, StoreError
from unidle.files.values import as_name
from unidle.rank.call import CALL, RESULT

_BY_VALUE: Final = threading.Lock()  # cloudpickle keeps one list of modules for the whole process


def command_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The command of a rank that calls the function in this file. Errors: CannotRun where Python has no program."""
    if not sys.executable:
        raise CannotRun(
            "the Python program of this process is unknown (sys.executable is empty)", field="function",
            remedy="give a command as a list instead",
        )  # fmt: skip
    return (sys.executable, "-P", "-m", "unidle.rank.call", os.fspath(path))


def name_of(function: Callable[..., object]) -> str:
    """A name for a job without one."""
    inner = inspect.unwrap(getattr(function, "func", function))  # a partial has the name of what it calls
    return as_name(getattr(inner, "__name__", type(inner).__name__).strip("<>"), "job")


def packed(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """The function, its arguments and where to import from, as the ranks read them.

    Errors: :class:`BadInput` for arguments that do not fit the function's signature, and for values that cannot
    be serialized.
    """
    _check_call(function, args, kwargs)
    import cloudpickle

    try:
        with _as_found(function):
            call = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        raise BadInput(
            f"cannot be shipped to the ranks: {type(error).__name__}: {error}", field="function",
            value=getattr(function, "__qualname__", function),
            remedy="create open files, locks and sockets inside the function",
        ) from error  # fmt: skip
    order = {
        "python": sys.version_info[:2],
        "path": [os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100 - '' is the working directory
        "sources": _sources(function),
        "call": call,
    }
    return pickle.dumps(order)


def write_call(folder: Path, content: bytes) -> Path:
    """The file in a folder of the job's own, readable by its owner only. Errors: StoreError."""
    path = folder / CALL
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(
            f"the function cannot be written: {error.strerror}", field=str(path), remedy="free space on its disk, or use another store",
        ) from error  # fmt: skip
    return path


def is_call(command: Sequence[str]) -> bool:
    """Whether a job runs a function."""
    return tuple(command[1:-1]) in (
        ("-P", "-m", "unidle.rank.call"),
        ("-m", "unidle.rank.call"),
    )  # stored before


def archived(address: str, job: str, call: Path) -> Path:
    """Where the call of a job is now: at its path, or in a copy of what retention compressed into the store."""
    root = next((parent.parent for parent in call.parents if parent.name == job), None)
    if call.exists() or root is None:
        return call
    from unidle.api.stores import data_dir
    from unidle.control.retention.archive import runs_of
    from unidle.store.open import open_store

    store = open_store(address, create=False, read_only=True)
    try:
        return runs_of(store, data_dir(), job) / call.relative_to(root)
    finally:
        store.close()


def read_result(call: Path) -> object:
    """The return value of rank 0. Errors: BadInput if there is none, or if another user wrote it."""
    path = call.with_name(RESULT)
    try:
        with path.open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            if owner not in (os.geteuid(), 0):  # unpickling runs code of its writer
                raise BadInput(
                    "the result belongs to another user, and reading it would run that user's code",
                    field="result", value=str(path), remedy="let the job write a file in a plain format",
                )  # fmt: skip
            answer = pickle.load(file)  # noqa: S301
    except FileNotFoundError:
        raise BadInput(
            "the result of rank 0 is not stored", field="result", value=str(path),
            remedy="the function ended the process instead of returning (sys.exit), or the job's logs were removed",
        ) from None  # fmt: skip
    if "why_not" in answer:
        raise BadInput(
            f"the result of rank 0 cannot be shipped back: {answer['why_not']}", field="result", value=answer["type"],
            remedy="return plain data, or write a file in the function",
        )  # fmt: skip
    return pickle.loads(answer["value"])  # noqa: S301


def _check_call(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """A call that cannot succeed is refused here, not by every rank."""
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise BadInput(
            "must be a list or tuple of positional arguments", field="args", value=args,
            remedy="for one argument: args=[value]",
        )  # fmt: skip
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise BadInput("must be a mapping of names to values", field="kwargs", value=kwargs, remedy="kwargs={'lr': 3e-4}")  # fmt: skip
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # built in, and without one
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise BadInput(
            f"the arguments do not fit {name_of(function)}{signature}: {error}", field="args, kwargs",
            remedy="args=[...] are its positional arguments, kwargs={...} those by name",
        ) from None  # fmt: skip


@contextmanager
def _as_found(function: Callable[..., object]) -> Iterator[None]:
    """Ship by value what a new Python could not import, though it is a module here (tests, generated code, plugins)."""
    import cloudpickle

    module = inspect.getmodule(inspect.unwrap(getattr(function, "func", function)))
    with _BY_VALUE:
        lost = (
            module is not None
            and module.__name__ != "__main__"
            and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
            and not _importable(module)
        )
        if lost:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            if lost:
                cloudpickle.unregister_pickle_by_value(module)


def _importable(module: ModuleType) -> bool:
    """Whether a new process with this ``sys.path`` finds the same module by its name."""
    name = module.__name__
    if (
        name.partition(".")[0] in sys.builtin_module_names
        or name.partition(".")[0] in sys.stdlib_module_names
    ):
        return True
    path: Sequence[str] | None = None
    spec = None
    try:
        for end in [k for k, letter in enumerate(name) if letter == "."] + [len(name)]:
            spec = importlib.machinery.PathFinder.find_spec(name[:end], path)
            if spec is None:
                return _by_another_finder(name)
            path = spec.submodule_search_locations or []
    except Exception:
        return False
    here = getattr(module, "__file__", None)
    return (
        here is None
        or spec is None
        or spec.origin is None
        or os.path.realpath(spec.origin) == os.path.realpath(here)
    )


def _by_another_finder(name: str) -> bool:
    """An editable installation's finder is in a new process, too; a test runner's is not."""
    for finder in sys.meta_path:
        home = getattr(finder, "__module__", "") or type(finder).__module__
        if home.startswith("__editable__") and finder.find_spec(name.partition(".")[0], None) is not None:
            return True
    return False


def _sources(function: Callable[..., object]) -> dict[str, str]:
    """The text of the function's file where that is no file that a rank could read, as in a notebook."""
    inner = inspect.unwrap(getattr(function, "func", function))
    if not isinstance(inner, FunctionType):
        return {}
    name = inner.__code__.co_filename
    if Path(name).exists():
        return {}
    lines = linecache.getlines(name)
    return {name: "".join(lines)} if lines else {}
