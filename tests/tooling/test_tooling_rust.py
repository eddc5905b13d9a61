"""The crate's modules stand in one order, and each public type has a name of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def faults(folder: Path) -> list[str]:
    command = [sys.executable, ROOT / "scripts" / "rust_modules.py", folder]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == bool(ran.stdout), ran.stderr
    return ran.stdout.splitlines()


def crate(folder: Path, **files: str) -> Path:
    for name, text in {"lib": "".join(f"pub mod {name};\n" for name in files), **files}.items():
        (folder / f"{name}.rs").write_text(text)
    return folder


def test_the_crate_has_no_circle_and_no_name_twice() -> None:
    assert faults(ROOT / "native" / "src") == []


@pytest.mark.parametrize(
    "back",
    [
        "use crate::first::First;",
        "use super::{first::{self as other}};",
        "fn f() -> u32 { crate::first::three() }",
        "use crate::third::First;",
    ],
)
def test_modules_that_need_each_other_are_a_circle(tmp_path: Path, back: str) -> None:
    folder = crate(
        tmp_path,
        first="use crate::second::Second;\npub struct First;\npub fn three() -> u32 { 3 }\n",
        second=f"{back}\npub struct Second;\n",
        third="pub use crate::first::{three, First};\n",
    )
    assert faults(folder) == ["circle: first, second"]


def test_methods_in_two_files_that_call_each_other_are_a_circle(tmp_path: Path) -> None:
    folder = crate(
        tmp_path,
        first="pub struct First;\nimpl First {\n    fn one(&self) { self.two() }\n}\n",
        second="use super::first::First;\nimpl First {\n    fn two(&self) {}\n}\n",
    )
    assert faults(folder) == ["circle: first, second"]


def test_tests_texts_and_comments_need_nothing(tmp_path: Path) -> None:
    folder = crate(
        tmp_path,
        first="use crate::second::Second;\npub struct First;\n",
        second='//! See crate::first::First\'s "text.\npub struct Second;\nconst AT: &str = "crate::first::First";\n'
        "const QUOTE: char = '\"';\n#[cfg(test)]\nmod tests {\n    use crate::first::First;\n}\n",
    )
    assert faults(folder) == []


def test_public_types_of_one_name_are_told(tmp_path: Path) -> None:
    folder = crate(tmp_path, first="pub struct Row;\nstruct Own;\n", second="pub enum Row {}\nstruct Own;\n")
    assert faults(folder) == ["Row is defined in first, second"]
