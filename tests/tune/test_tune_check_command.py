"""`unidle tune check`: forms of the output, comments, settings, baselines, and input that is no Python."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from e2e.commands import unidle
from tune.programs import loop

SLOW = "import torch\nmodel = torch.nn.DataParallel(net){}\n"
SCHEMA = Path(__file__).with_name("sarif-schema-2.1.0.json")
"""The official schema of OASIS, Errata 01, without spaces."""


def check(folder: Path, *words: object) -> Any:
    """Run the check in a directory."""
    return unidle("tune", "check", *words, cwd=folder)


def test_text_json_and_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SLOW.format(""))
    (tmp_path / "b.py").write_text("import torch\n")
    done = check(tmp_path, "a.py")
    assert done.returncode == 1
    assert done.stdout.startswith("a.py:2:9: UDL601 DataParallel copies the model")
    assert check(tmp_path, "b.py").returncode == 0
    found = json.loads(check(tmp_path, ".", "--json").stdout)
    assert [set(one) for one in found] == [
        {"code", "file", "line", "column", "end_line", "message", "fixable", "url"}
    ]
    assert found[0] | {"message": "", "url": ""} == {
        "code": "UDL601", "file": "a.py", "line": 2, "column": 9, "end_line": 2, "message": "", "fixable": False, "url": "",
    }  # fmt: skip
    assert json.loads(check(tmp_path, "b.py", "--json").stdout) == []
    assert check(tmp_path, "missing.py").returncode == 2
    assert check(tmp_path).returncode == 2


def test_sarif_is_valid_by_the_official_schema(tmp_path: Path) -> None:
    (tmp_path / "with space.py").write_text(
        loop("total += loss.item()\nprint(loss)\ntorch.cuda.empty_cache()")
    )
    (tmp_path / "broken.py").write_text("def f(:\n")
    done = check(tmp_path, ".", "--format", "sarif")
    assert done.returncode == 1
    log = json.loads(done.stdout)
    jsonschema.Draft4Validator(json.loads(SCHEMA.read_text())).validate(log)
    run = log["runs"][0]
    assert [one["ruleId"] for one in run["results"]] == ["UDL201", "UDL203", "UDL205"]
    for one in run["results"]:
        assert run["tool"]["driver"]["rules"][one["ruleIndex"]]["id"] == one["ruleId"]
        assert one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "with%20space.py"
    assert "broken.py" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


@pytest.mark.parametrize(
    "comment",
    ["  # noqa", "  # noqa: UDL601", "  # NOQA:UDL601", "  # noqa: E501, UDL601", "  # why  # noqa: UDL601"],
)
def test_a_comment_leaves_a_line_alone(tmp_path: Path, comment: str) -> None:
    (tmp_path / "a.py").write_text(SLOW.format(comment))
    assert check(tmp_path, "a.py").returncode == 0


@pytest.mark.parametrize("comment", ["  # noqa: UDL101", "  # noqa: E501", "  # no qa", "  # nothing"])
def test_a_comment_for_another_rule_does_not(tmp_path: Path, comment: str) -> None:
    (tmp_path / "a.py").write_text(SLOW.format(comment))
    assert check(tmp_path, "a.py").returncode == 1


def test_a_comment_for_the_file_and_on_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("# unidle: noqa: UDL601\n" + SLOW.format(""))
    (tmp_path / "b.py").write_text("# unidle: noqa\n" + SLOW.format(""))
    (tmp_path / "c.py").write_text("import torch\nm = torch.nn.DataParallel(\n    net,\n)  # noqa: UDL601\n")
    assert check(tmp_path, ".").returncode == 0


def test_select_and_ignore(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SLOW.format("") + "torch.autograd.set_detect_anomaly(True)\n")

    def codes(*words: str) -> list[str]:
        return [one["code"] for one in json.loads(check(tmp_path, "a.py", "--json", *words).stdout)]

    assert codes() == ["UDL601", "UDL303"]
    assert codes("--select", "UDL3") == ["UDL303"]
    assert codes("--select", "UDL303,UDL6") == ["UDL601", "UDL303"]
    assert codes("--ignore", "UDL303") == ["UDL601"]
    assert codes("--select", "UDL601", "--ignore", "UDL6") == ["UDL601"]
    wrong = check(tmp_path, "a.py", "--select", "UDL9")
    assert wrong.returncode == 2
    assert "--select" in wrong.stderr
    assert "UDL9" in wrong.stderr


def test_settings_of_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.unidle.tune]\nselect = ["UDL2", "UDL6"]\nignore = ["UDL205"]\nexclude = ["old", "sub/skip.py"]\nhot-functions = ["update"]\n'
        '[tool.unidle.tune.per-file-ignores]\n"legacy_*.py" = ["UDL601"]\n'
    )
    for name in ("a.py", "legacy_a.py", "old/a.py", "sub/skip.py", "sub/keep.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(
            SLOW.format("") + "import gc\ndef update():\n    gc.collect()\n    torch.cuda.empty_cache()\n"
        )
    found = json.loads(check(tmp_path, ".", "--json").stdout)
    assert {(one["file"], one["code"]) for one in found} == {
        ("a.py", "UDL601"), ("a.py", "UDL206"), ("legacy_a.py", "UDL206"), ("sub/keep.py", "UDL601"), ("sub/keep.py", "UDL206"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[tool.unidle.tune]\nselct = []\n", "selct"),
        ('[tool.unidle.tune]\nselect = "UDL1"\n', "select"),
        ('[tool.unidle.tune]\nselect = ["X"]\n', "X"),
        ("[tool.unidle]\ntune = 3\n", "tune"),
        ('[tool.unidle.tune.per-file-ignores]\n"a" = 1\n', "per-file-ignores"),
        ("[tool.unidle.tune\n", "pyproject.toml"),
    ],
)
def test_wrong_settings_are_one_error(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "a.py").write_text("")
    done = check(tmp_path, "a.py")
    assert done.returncode == 2
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_baseline_accepts_what_there_is_and_reports_what_is_new(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(SLOW.format(""))
    assert check(tmp_path, "a.py", "--baseline", "b.json", "--write-baseline").returncode == 0
    assert check(tmp_path, "a.py", "--baseline", "b.json").returncode == 0
    file.write_text("# a line more\n" + SLOW.format(""))
    assert check(tmp_path, "a.py", "--baseline", "b.json").returncode == 0
    file.write_text(SLOW.format("") + "model = torch.nn.DataParallel(net)\n")
    again = check(tmp_path, "a.py", "--baseline", "b.json")
    assert again.returncode == 1
    assert again.stdout.count("UDL601") == 1
    for text in ("{}", "[1]", "no json", '{"version": 9, "findings": []}'):
        (tmp_path / "b.json").write_text(text)
        assert check(tmp_path, "a.py", "--baseline", "b.json").returncode == 2
    assert check(tmp_path, "a.py", "--baseline", "none.json").returncode == 2
    assert check(tmp_path, "a.py", "--write-baseline").returncode == 2


def notebook(*cells: str) -> str:
    """A notebook with these code cells, and a text cell before them."""
    made = [
        {"cell_type": "code", "source": cell.splitlines(keepends=True), "outputs": [], "metadata": {}}
        for cell in cells
    ]
    return json.dumps(
        {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {},
            "cells": [{"cell_type": "markdown", "source": "# t"}, *made],
        }
    )


def test_notebooks_have_cells(tmp_path: Path) -> None:
    cells = [
        "%matplotlib inline\n!pip install torch\nimport torch",
        "%%bash\nls |",
        "x = (",
        SLOW.format("").partition("\n")[2],
        "files = !ls\ntorch.load?",
    ]
    (tmp_path / "n.ipynb").write_text(notebook(*cells))
    done = check(tmp_path, ".", "--json")
    assert [(one["file"], one["line"], one["code"]) for one in json.loads(done.stdout)] == [
        ("n.ipynb:cell 4", 1, "UDL601")
    ]
    assert "n.ipynb:cell 3" in done.stderr
    assert check(tmp_path, "n.ipynb").stdout.startswith("n.ipynb:cell 4:1:9: UDL601")
    sarif = json.loads(check(tmp_path, "n.ipynb", "--format", "sarif").stdout)
    jsonschema.Draft4Validator(json.loads(SCHEMA.read_text())).validate(sarif)


def bad_files(folder: Path) -> dict[str, bytes]:
    """Files that are no Python, by name."""
    return {
        "syntax.py": b"def f(:\n",
        "two.py": b"print 'hello'\n",
        "zero.py": b"x = 1\0\n",
        "bytes.py": b"x = '\xff\xfe'\n",
        "coding.py": b"# -*- coding: klingon -*-\nx = 1\n",
        "deep.py": b"import torch\nx = " + b"(" * 5000 + b"1" + b")" * 5000 + b"\n",
        "unary.py": b"import torch\nx = " + b"-" * 50000 + b"1\n",
        "large.py": b"# generated\n" + b"x = 1\n" * 400_000,
        "list.ipynb": b"[1, 2]",
        "text.ipynb": b"no json",
        "old.ipynb": b'{"worksheets": []}',
        "tabs.py": b"if 1:\n\tx = 1\n        y = 2\n",
    }


def test_bad_files_are_one_clear_line_each(tmp_path: Path) -> None:
    for name, raw in bad_files(tmp_path).items():
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "good.py").write_text(SLOW.format(""))
    done = check(tmp_path, ".")
    assert done.returncode == 1  # files that were found, not named, do not fail the check
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert sorted(line.split()[1].partition(":")[0] for line in lines) == sorted(bad_files(tmp_path))
    assert "2.4 MB" in done.stderr
    for name in bad_files(tmp_path):
        named = check(tmp_path, name)
        assert (named.returncode, len(named.stderr.strip().splitlines())) == (2, 1), name


def test_other_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop2.py")
    (tmp_path / "loop2.py").symlink_to(tmp_path / "loop.py")
    for name in ("a.txt", "pipe.py", "loop.py"):
        done = check(tmp_path, name)
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), name
    assert check(tmp_path, ".").returncode == 0


def test_directories_that_hold_the_code_of_others_are_left_out(tmp_path: Path) -> None:
    for folder in (".venv/lib", "node_modules", "build", "x/site-packages", "__pycache__", "src"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text(SLOW.format(""))
    (tmp_path / "src" / "again").symlink_to(tmp_path / "src", target_is_directory=True)
    (tmp_path / "src" / "link.py").symlink_to(tmp_path / "src" / "a.py")
    found = json.loads(check(tmp_path, ".", "--json").stdout)
    assert [one["file"] for one in found] == ["src/a.py"]
    assert json.loads(check(tmp_path, "build", "--json").stdout)[0]["file"] == "build/a.py"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_ends_of_lines_and_encodings(tmp_path: Path, end: str) -> None:
    text = "# coding: latin-1\n# é \x0c\nimport torch\ns = 'é'; model = torch.nn.DataParallel(net)\n".replace(
        "\n", end
    )
    (tmp_path / "a.py").write_bytes(text.encode("latin-1"))
    found = json.loads(check(tmp_path, "a.py", "--json").stdout)
    assert [(one["line"], one["column"]) for one in found] == [(4, 18)]
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbf" + SLOW.format("").encode())
    assert check(tmp_path, "a.py").returncode == 1


def test_the_page_of_a_rule_and_the_list(tmp_path: Path) -> None:
    page = unidle("tune", "rule", "udl201")
    assert page.returncode == 0
    assert page.stdout.startswith("# UDL201: item-each-step\n")
    listed = json.loads(unidle("tune", "rule", "--json").stdout)
    assert len(listed) >= 40
    assert unidle("tune", "rule").stdout.count("UDL") >= 40
    assert unidle("tune", "rule", "UDL999").returncode == 2
