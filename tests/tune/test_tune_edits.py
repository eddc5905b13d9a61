"""Edits: applied as a whole, or refused with the reason."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.tune.edits import Edit, EditRefused, apply_edits, edit_between, patch, planned

LOOP = "import torch\n\nfor step in range(9):\n    x = torch.ones(2)\n    loss = x.sum()\n    print(loss.item())\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "src").mkdir(parents=True)
    (top / "src" / "train.py").write_text(LOOP)
    (top / "src" / "train.py").chmod(0o750)
    return top


def test_an_edit_replaces_the_text_and_keeps_the_mode(tree: Path) -> None:
    changes = apply_edits(
        tree, [Edit("src/train.py", "    x = torch.ones(2)\n", "    x = torch.zeros(2)\n", "why")]
    )
    file = tree / "src" / "train.py"
    assert file.read_text() == LOOP.replace("ones", "zeros") == changes[0].after
    assert file.stat().st_mode & 0o777 == 0o750
    assert [one.name for one in file.parent.iterdir()] == ["train.py"]


def test_edits_of_one_file_are_read_against_the_text_before_them(tree: Path) -> None:
    several = [Edit("src/train.py", "ones(2)", "zeros(2)"), Edit("src/train.py", "range(9)", "range(10)")]
    assert planned(tree, several)[0].after == planned(tree, several[::-1])[0].after
    with pytest.raises(EditRefused, match="does not occur"):
        planned(
            tree, [Edit("src/train.py", "ones(2)", "zeros(2)"), Edit("src/train.py", "zeros(2)", "full(2)")]
        )


@pytest.mark.parametrize(
    ("edits", "match"),
    [
        ([Edit("src/train.py", "loss", "l")], "occurs 2 times"),
        ([Edit("src/train.py", "nothing", "l")], "does not occur"),
        ([Edit("src/train.py", "", "l")], "is empty"),
        ([Edit("src/train.py", "ones", "ones")], "changes nothing"),
        (
            [
                Edit("src/train.py", "x = torch", "y = torch"),
                Edit("src/train.py", "torch.ones", "torch.zeros"),
            ],
            "overlaps",
        ),
        (
            [Edit("src/train.py", "x = torch.ones(2)", "x = = 2")],
            r"not valid Python after the change.*|src/train.py:4",
        ),
        ([Edit("src/other.py", "a", "b")], "no file in the tree"),
        ([Edit("../tree/src/train.py", "ones", "zeros")], "is not in the tree"),
        ([Edit("/etc/passwd", "root", "zero")], "is no path in the tree"),
        ([Edit("src", "a", "b")], "no file in the tree|no regular file"),
        ([Edit(".git/hooks/pre-commit", "a", "b")], "is not in the tree"),
        ([Edit("src\\train.py", "a", "b")], "is no path"),
        ([Edit("", "a", "b")], "is no path"),
        ([Edit("src/train.py", "ones", "x" * 2_000_001)], "over the limit"),
        ([Edit("src/train.py", "ones", "\ud800")], "lacks"),
    ],
)
def test_an_edit_that_cannot_be_applied_is_refused(tree: Path, edits: list[Edit], match: str) -> None:
    with pytest.raises(EditRefused, match=match):
        apply_edits(tree, edits)
    assert (tree / "src" / "train.py").read_text() == LOOP


def test_nothing_is_written_where_one_of_several_edits_is_refused(tree: Path) -> None:
    (tree / "b.py").write_text("a = 1\n")
    with pytest.raises(EditRefused):
        apply_edits(tree, [Edit("b.py", "1", "2"), Edit("src/train.py", "nothing", "l")])
    assert (tree / "b.py").read_text() == "a = 1\n"


@pytest.mark.parametrize("link", ["file", "folder", "fifo"])
def test_links_and_pipes_are_not_followed(tree: Path, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "train.py").write_text(LOOP)
    if link == "file":
        (tree / "linked.py").symlink_to(outside / "train.py")
    elif link == "folder":
        (tree / "linked").symlink_to(outside)
    else:
        os.mkfifo(tree / "linked.py")
    with pytest.raises(EditRefused, match=r"link|regular"):
        apply_edits(tree, [Edit("linked/train.py" if link == "folder" else "linked.py", "ones", "zeros")])
    assert (outside / "train.py").read_text() == LOOP


def test_a_hard_link_elsewhere_keeps_its_content(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "same.py").hardlink_to(tree / "src" / "train.py")
    apply_edits(tree, [Edit("src/train.py", "ones", "zeros")])
    assert (tmp_path / "same.py").read_text() == LOOP


def test_line_ends_and_encoding_of_the_file_stay(tree: Path) -> None:
    file = tree / "dos.py"
    file.write_bytes("# -*- coding: latin-1 -*-\r\nname = 'é'\r\nx = 1\r\n".encode("latin-1"))
    apply_edits(tree, [Edit("dos.py", "name = 'é'\nx = 1\n", "name = 'ü'\nx = 2\n")])
    assert file.read_bytes() == "# -*- coding: latin-1 -*-\r\nname = 'ü'\r\nx = 2\r\n".encode("latin-1")


@pytest.mark.parametrize("after", [LOOP.replace("ones", "zeros"), LOOP + "done = True", LOOP.rstrip("\n")])
def test_a_patch_is_applied_by_git(tree: Path, after: str) -> None:
    edit = edit_between("src/train.py", LOOP, after)
    assert edit is not None
    text = patch(planned(tree, [edit]))
    subprocess.run(["git", "apply", "-"], input=text, text=True, cwd=tree, check=True)
    assert (tree / "src" / "train.py").read_text() == after


@given(before=st.lists(st.sampled_from("abc\n"), min_size=1).map("".join), after=st.text("abc\n"))
def test_the_edit_between_two_texts_makes_one_of_the_other(
    tmp_path_factory: pytest.TempPathFactory, before: str, after: str
) -> None:
    edit = edit_between("t.txt", before, after)
    if edit is None:
        assert before == after
        return
    tree = tmp_path_factory.mktemp("texts")
    (tree / "t.txt").write_text(before)
    assert planned(tree, [edit])[0].after == after
