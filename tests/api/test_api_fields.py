"""Keyword arguments are the job file's fields."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import unidle
from api.functions import train
from sim.worlds import fleet_of
from unidle.api.job_fields import spec_of
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.files.job_file import JobFields, JobFile
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent


def test_keyword_names_are_those_of_the_job_file() -> None:
    assert {*JobFields.__annotations__, "command"} == {*JobFile.__struct_fields__}
    own = {
        name for name, one in inspect.signature(unidle.run).parameters.items() if one.kind is one.KEYWORD_ONLY
    }
    assert not own & {*JobFile.__struct_fields__}


def test_values_as_python_has_them(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "train.py").touch()
    spec = spec_of(
        [Path("train.py"), "--lr", "1"],
        {"workdir": tmp_path, "ranks": np.int64(2), "restart": {"max": 1}, "tolerate": ("a",), "queue": None},
        "unidle.run",
    )  # fmt: skip
    assert spec.command == (sys.executable, "train.py", "--lr", "1")
    assert (spec.workdir, spec.ranks, spec.restart.max, spec.queue) == (str(tmp_path), 2, 1, "default")
    assert spec_of(train, {}, "unidle.run").name == "train"


def test_a_call_takes_precedence_over_a_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: [python, train.py]\nranks: 4\nworkdir: .\n")
    assert spec_of(str(file), {}, "unidle.run").workdir == str(tmp_path)
    spec = spec_of(file, {"ranks": 2, "name": "mine"}, "unidle.run")
    assert (spec.ranks, spec.name, spec.workdir) == (2, "mine", str(tmp_path))


@pytest.mark.parametrize(
    ("target", "fields", "words"),
    [
        (["true"], {"ranks": 0}, r"unidle\.run: ranks: must be a whole number"),
        (["true"], {"rank": 2}, "rank: unknown field; the closest known field is ranks"),
        (
            ["true"],
            {"memory": "4GB"},
            r"known fields are checkpoint\.memory, limits\.memory, requests\.memory and share\.memory$",
        ),
        (["true"], {"env": {"RANK": "1"}}, "env.RANK"),
        (["true"], {"restart": {"max": -1}}, "restart.max"),
        (["true"], {"command": ["false"]}, "is the first argument"),
        ("sleep 5", {}, r'write it as a list: \["sleep", "5"\]'),
        ([], {}, "command: must have at least 1 item"),
        (["nul\0"], {}, "NUL"),
        (7, {}, "command: must be a list"),
        ("none.py", {}, r"command: there is no such file in /.* \(got 'none\.py'\)"),
        (["none.py", "a.py"], {"workdir": "/"}, r"command: there is no such file in / "),
        (["/none.py"], {}, r"command: there is no such file \(got"),
        (["none.py"], {"workdir": "/none"}, "workdir: there is no such directory"),
        (["none.py"], {"workdir": "~"}, "workdir: .*~ is not expanded"),
        (["none.py"], {"workdir": 7}, "workdir: must be a path"),
        ("none.yaml", {"ranks": 2}, "there is no such file"),
    ],
)
def test_errors_name_the_field_of_the_job_file(target: Any, fields: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        spec_of(target, fields, "unidle.run")


def test_arguments_of_the_call_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    for fields, words in (
        ({"logs": -1}, "logs"),
        ({"args": [1]}, "are for a function"),
        ({"logs": "some"}, "logs"),
        ({"logs": 2, "ranks": 2}, "logs: the job has no such rank"),
        ({"cpu_devices": 0}, "cpu_devices: must be a whole number from 1 to 4,096"),
        ({"cpu_devices": "2"}, "cpu_devices: must be a whole number"),
    ):
        with pytest.raises(BadInput, match=words):
            unidle.run(["true"], store=store, **fields)  # type: ignore[call-overload]
    with pytest.raises(unidle.errors.CannotRun, match="it can never start here"):
        unidle.run(["true"], ranks=3, cpu_devices=2, store=store)
    assert not store.exists()


def test_a_job_too_large_for_the_controller_that_runs_is_not_advised_to_name_devices(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = open_store(str(path), create=True)
    try:
        lease = store.acquire("test")
        seen = ev.FleetSeen(fleet_of(2, kind="cpu"))
        store.append(lease, [NewEvent(1, "test", 0, *ev.encode(seen))])
        with pytest.raises(
            unidle.errors.CannotRun, match="another process drives the store with these devices"
        ):
            unidle.run(["true"], ranks=3, store=path)
    finally:
        store.close()


def test_import_unidle_imports_nothing_of_it() -> None:
    code = "import sys, unidle; print(sorted(m for m in sys.modules if m.startswith('unidle.')), dir(unidle))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("[] ")
    assert {name for name in unidle.__all__ if name in done.stdout} == {*unidle.__all__}
    with pytest.raises(AttributeError, match="no attribute 'runs'"):
        unidle.runs  # type: ignore[attr-defined]  # noqa: B018
