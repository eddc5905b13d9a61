"""Functions as files, and back: without a job."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import needs
from api.functions import train
from unidle.api.function_call import command_of, is_call, name_of, packed, read_result, write_call
from unidle.errors import BadInput


def called(
    folder: Path, function: Callable[..., object], *args: object, rank: int = 0, **kwargs: object
) -> subprocess.CompletedProcess[str]:
    """What a rank does with the function."""
    path = write_call(folder, packed(function, args, kwargs))
    return subprocess.run(
        command_of(path), capture_output=True, text=True, env={**os.environ, "RANK": str(rank)}, cwd="/"
    )


def test_a_closure_has_its_arguments_globals_and_result(tmp_path: Path) -> None:
    factor = 3

    def times(x: int, *, more: int) -> list[int]:
        return [factor * x + more, len(json.dumps({}))]

    done = called(tmp_path, times, 2, more=1)
    assert done.returncode == 0, done.stderr
    assert read_result(tmp_path / "call") == [7, 2]


def test_only_rank_0_keeps_a_result(tmp_path: Path) -> None:
    assert called(tmp_path, lambda: 1, rank=1).returncode == 0
    with pytest.raises(BadInput, match="the result of rank 0 is not stored"):
        read_result(tmp_path / "call")


def test_a_module_that_only_this_process_knows_goes_by_value(tmp_path: Path) -> None:
    module = ModuleType("made_up_here")
    exec("base = 5\ndef work(x):\n    return base + x", module.__dict__)
    sys.modules["made_up_here"] = module
    try:
        assert called(tmp_path, module.work, 1).returncode == 0
    finally:
        del sys.modules["made_up_here"]
    assert read_result(tmp_path / "call") == 6


def test_a_traceback_shows_the_function_alone_and_its_source(tmp_path: Path) -> None:
    import linecache

    text = "def broken():\n    return 1 / 0  # in a cell\n"
    linecache.cache["<cell 1>"] = (len(text), None, text.splitlines(keepends=True), "<cell 1>")
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "<cell 1>", "exec"), space)
    done = called(tmp_path, space["broken"])
    assert done.returncode == 1
    assert 'File "<cell 1>", line 2, in broken\n    return 1 / 0  # in a cell' in done.stderr
    assert "call.py" not in done.stderr


def test_a_result_that_cannot_be_shipped_does_not_fail_the_rank(tmp_path: Path) -> None:
    assert called(tmp_path, lambda: (x for x in "abc")).returncode == 0
    with pytest.raises(BadInput, match=r"cannot be shipped back.*generator"):
        read_result(tmp_path / "call")


def test_a_function_that_ends_its_process_has_no_result_and_the_error_names_that(tmp_path: Path) -> None:
    assert called(tmp_path, sys.exit).returncode == 0
    with pytest.raises(BadInput, match=r"not stored.*ended the process instead of returning \(sys\.exit\)"):
        read_result(tmp_path / "call")


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "words"),
    [
        (train, [], {}, "missing a required argument: 'lr'"),
        (train, [1.0], {"lr": 2.0}, "multiple values"),
        (train, "ab", {}, "must be a list or tuple"),
        (train, [1.0], {1: 2}, "must be a mapping of names"),
        (train, [open], {"steps": __import__("threading").Lock()}, "cannot be shipped.*lock"),
    ],
)
def test_a_call_that_cannot_succeed_is_refused(function: Any, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        packed(function, args, kwargs)


def test_another_python_is_named_in_one_line(tmp_path: Path) -> None:
    order = pickle.loads(packed(train, [1.0], {}))
    path = write_call(tmp_path, pickle.dumps({**order, "python": (3, 9)}))
    done = subprocess.run(command_of(path), capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "shipped by Python 3.9" in done.stderr


@needs.root
def test_a_result_that_another_user_wrote_is_not_unpickled(tmp_path: Path) -> None:
    assert called(tmp_path, lambda: 1).returncode == 0
    os.chown(tmp_path / "result", 65534, 65534)
    with pytest.raises(BadInput, match="belongs to another user"):
        read_result(tmp_path / "call")


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = write_call(tmp_path / "job", packed(train, [1.0], {}))
    assert [path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777] == [0o600, 0o700]
    assert is_call(command_of(path))


def test_names_come_from_what_is_called() -> None:
    assert [name_of(one) for one in (train, functools.partial(train, 1.0), lambda: 0, Path)] == [
        "train", "train", "lambda", "path",
    ]  # fmt: skip
