"""``unidle.span`` is an extra: unidle without it, and the former names of what moved into it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import unidle
from unidle import span
from unidle.rank import wan as former
from unidle.span import wan
from unidle.span.run import gang

SOURCE = Path(unidle.__file__).parent
MISSING = "unidle: training across data centres is not installed; pip install 'unidle[span]'\n"


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with all of unidle but the extra."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "unidle").mkdir()
    for entry in SOURCE.iterdir():
        if entry.name not in ("span", "fill", "__pycache__"):
            (folder / "unidle" / entry.name).symlink_to(entry)
    return folder


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=os.environ | {"PYTHONPATH": str(folder)}, cwd=folder, capture_output=True, text=True
    )  # fmt: skip


@pytest.mark.parametrize(
    "words", [["span"], ["span", "simulate", "a.yaml", "--json"], ["span", "run"], ["schema", "span"]]
)
def test_without_the_extra_its_commands_are_one_clear_error(without: Path, words: list[str]) -> None:
    done = python(without, "-m", "unidle", *words)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", MISSING)


@pytest.mark.parametrize("words", [["fill"], ["fill", "simulate", "a.yaml", "--json"], ["schema", "fill"]])
def test_without_the_extra_work_for_bubbles_is_missing_too(without: Path, words: list[str]) -> None:
    done = python(without, "-m", "unidle", *words)
    told = "unidle: work for the bubbles of training is not installed; pip install 'unidle[fill]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", told)


def test_without_the_extra_all_else_works(without: Path) -> None:
    helped = python(without, "-m", "unidle", "--help")
    assert helped.returncode == 0
    assert "Train across data centres (not installed)." in helped.stdout
    assert "Run prefill in the bubbles of training (not installed)." in helped.stdout
    assert (
        python(without, "-m", "unidle", "schema", "job").stdout
        == python(SOURCE.parent, "-m", "unidle", "schema", "job").stdout
    )


def test_without_the_extra_the_former_name_of_the_transport_names_it(without: Path) -> None:
    done = python(without, "-c", "import unidle.rank.wan")
    assert (
        done.stderr.splitlines()[-1]
        == "ImportError: unidle.rank.wan is in an extra: pip install 'unidle[span]'"
    )


def test_an_error_inside_the_extra_is_not_taken_for_its_absence(without: Path, tmp_path: Path) -> None:
    package = tmp_path / "unidle"
    package.mkdir()
    for entry in (without / "unidle").iterdir():
        (package / entry.name).symlink_to(entry)
    (package / "span").mkdir()
    (package / "span" / "__init__.py").write_text("import no_such_module\n")
    done = python(tmp_path, "-m", "unidle", "span", "plan", "a.yaml")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_module'"


def test_the_former_name_of_the_transport_is_the_same_code() -> None:
    assert former.__all__ == wan.__all__
    assert all(getattr(former, name) is getattr(wan, name) for name in wan.__all__)


def test_the_command_of_stored_jobs_starts_a_member(tmp_path: Path) -> None:
    (tmp_path / "over").touch()  # so that it has nothing to wait for
    for name in gang._MEMBERS:
        done = subprocess.run(
            [sys.executable, "-P", "-m", name, str(tmp_path)], env=os.environ | {"PYTHONPATH": str(SOURCE.parent)},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "unidle.rank.span_member" in gang._MEMBERS


def test_every_package_of_the_extra_says_what_it_is() -> None:
    assert span.__doc__ is not None
    packages = {path.parent.name for path in Path(span.__file__).parent.glob("*/__init__.py")}
    assert packages == {name for name in packages if f"``{name}``" in span.__doc__}
