"""`unidle tune fix`: patches, commits on a branch of their own, and trees that are left as they are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from e2e.commands import unidle
from tune.programs import loop

SLOW = loop("torch.cuda.empty_cache()\ntotal += loss\nprint(loss)", before="total = 0")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def repository(folder: Path) -> None:
    (folder / "train.py").write_text(SLOW)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.email", "a@example.org")
    git(folder, "config", "user.name", "A")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")


def test_diff_prints_patches_that_git_applies_and_changes_nothing(tmp_path: Path) -> None:
    repository(tmp_path)
    done = unidle("tune", "fix", ".", "--diff", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [one["code"] for one in rows] == ["UDL205", "UDL301"]
    assert git(tmp_path, "status", "--porcelain") == ""
    for one in rows:
        subprocess.run(["git", "apply", "--check"], cwd=tmp_path, input=one["patch"], text=True, check=True)
    unsafe = json.loads(unidle("tune", "fix", ".", "--diff", "--json", "--unsafe-fixes", cwd=tmp_path).stdout)
    assert [(one["code"], one["class"]) for one in unsafe if one["class"] != "same"] == [("UDL203", "output")]
    text = unidle("tune", "fix", "train.py", "--diff", cwd=tmp_path)
    assert "-        torch.cuda.empty_cache()" in text.stdout
    assert "2 edits in 1 file; --unsafe-fixes adds 1" in text.stderr


def test_each_edit_is_a_commit_on_a_branch_of_its_own(tmp_path: Path) -> None:
    repository(tmp_path)
    done = unidle("tune", "fix", ".", "--apply", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 edits on branch unidle-tune" in done.stdout
    assert git(tmp_path, "log", "--format=%s", "unidle-tune").splitlines() == [
        "UDL301: the graph of each step is freed", "UDL205: the allocator keeps its memory between steps", "first",
    ]  # fmt: skip
    assert git(tmp_path, "show", "main:train.py") == SLOW
    assert git(tmp_path, "status", "--porcelain") == ""
    assert "total += loss.detach()" in (tmp_path / "train.py").read_text()
    git(tmp_path, "checkout", "-q", "main")
    again = unidle("tune", "fix", ".", "--apply", cwd=tmp_path)
    assert again.returncode == 2
    assert "--branch: exists already" in again.stderr
    assert git(tmp_path, "branch", "--show-current") == "main\n"


def test_dirty_tree_is_left_alone(tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / "new.txt").write_text("mine")
    done = unidle("tune", "fix", ".", "--apply", cwd=tmp_path)
    assert done.returncode == 2
    assert "has changes that are not committed (got" in done.stderr
    assert (tmp_path / "train.py").read_text() == SLOW
    allowed = unidle("tune", "fix", ".", "--apply", "--allow-dirty", "--json", cwd=tmp_path)
    assert [one["commit"] for one in json.loads(allowed.stdout)] == ["", ""]
    assert git(tmp_path, "branch", "--show-current") == "main\n"
    assert "total += loss.detach()" in (tmp_path / "train.py").read_text()


def test_failed_commit_leaves_branch_and_files_as_before(tmp_path: Path) -> None:
    repository(tmp_path)
    git(tmp_path, "config", "commit.gpgSign", "true")
    git(tmp_path, "config", "gpg.program", "/bin/false")
    done = unidle("tune", "fix", ".", "--apply", cwd=tmp_path)
    assert done.returncode == 3
    assert "git commit" in done.stderr
    assert (tmp_path / "train.py").read_text() == SLOW
    assert git(tmp_path, "branch", "--format=%(refname:short)") == "main\n"
    assert git(tmp_path, "status", "--porcelain") == ""


def test_bad_input_gets_one_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    (tmp_path / "b.py").write_text("def f(:\n")
    assert unidle("tune", "fix", "a.py", cwd=tmp_path).returncode == 2
    assert "needs one of both" in unidle("tune", "fix", "a.py", "--diff", "--apply", cwd=tmp_path).stderr
    assert unidle("tune", "fix", "missing.py", "--diff", cwd=tmp_path).returncode == 2
    assert "b.py:1 is not valid Python" in unidle("tune", "fix", ".", "--diff", cwd=tmp_path).stderr
    assert "nothing to edit" in unidle("tune", "fix", "a.py", "--apply", cwd=tmp_path).stdout


def test_without_libcst_there_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SLOW)
    (tmp_path / "libcst.py").write_text("raise ImportError('no libcst')\n")
    done = subprocess.run(
        ["unidle", "tune", "fix", "a.py", "--diff"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=environment_with(tmp_path),
    )  # fmt: skip
    assert done.returncode == 2
    assert (
        done.stderr
        == "unidle: tune: needs the package libcst, which is not installed; pip install 'unidle[tune]'\n"
    )


def environment_with(folder: Path) -> dict[str, str]:
    import os
    import sys

    programs = str(Path(sys.executable).parent)
    return {**os.environ, "PYTHONPATH": str(folder), "PATH": f"{programs}:{os.environ['PATH']}"}


def test_fixable_in_the_check_is_true_exactly_where_an_edit_exists(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(loop("z = torch.rand(3).to(device)\nw = torch.zeros(3).to(device)"))
    found = json.loads(unidle("tune", "check", "a.py", "--json", "--select", "UDL210", cwd=tmp_path).stdout)
    assert [one["fixable"] for one in found] == [False, True]
