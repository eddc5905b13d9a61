"""A Python that comes along, for images without one: a box and its ranks where there is nothing but a static program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import needs
from box.small_hub import RealBox, SmallHub, python_orders
from unidle import wire
from unidle.box import archive, interpreter
from unidle.engine.local.ranks.own_python import own_python, words_of

MOST_BYTES = 40 << 20
INTO = """
    set -e
    mount --make-rprivate /
    mkdir -p "$1/proc" "$1/dev" "$1$2"
    mount -t proc proc "$1/proc"
    touch "$1/dev/null"
    mount --bind /dev/null "$1/dev/null"
    mount --bind "$2" "$1$2"
    root=$1
    shift 2
    exec chroot "$root" "$@"
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of an image of unidle, which has no more than its Python and its box."""
    root = tmp_path_factory.mktemp("image")
    assert 0 < interpreter.write(str(root / "python")) < MOST_BYTES
    archive.write(str(root / "box.pyz"))
    return root


def in_chroot(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(shutil.which("chroot")), str(root), *words], capture_output=True, text=True, env={}, check=False
    )


@needs.root
def test_all_that_a_box_imports_is_there(image: Path, tmp_path: Path) -> None:
    listed = "import zipfile; print(*zipfile.ZipFile('/box.pyz').namelist())"
    names = in_chroot(image, *words_of("/python"), "-I", "-c", listed).stdout.split()
    assert len(names) > 20
    modules = [n[:-3].replace("/", ".").removesuffix(".__init__") for n in names if n.startswith("unidle")]
    plain = [name for name in modules if not name.endswith("entry")]
    code = (
        f"import sys; sys.path.append('/box.pyz')\nfor name in {plain!r}: __import__(name)\n"
        "import ssl, socket, hashlib; ssl.create_default_context(); socket.getaddrinfo('127.0.0.1', 1)\n"
        "hashlib.sha256(); 'x'.encode('iso8859-1'), 'x'.encode('idna')\n"
        "assert all(path.startswith('/python/') for path in sys.path[:-1]), sys.path"
    )
    done = in_chroot(image, *words_of("/python"), "-I", "-S", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


@needs.root
@needs.own_mounts
def test_a_box_runs_a_static_program_where_nothing_else_is(image: Path, tmp_path: Path) -> None:
    root, home = tmp_path / "root", tmp_path / "home"
    (root / "unidle").mkdir(parents=True)
    home.mkdir()
    for path in (image / "unidle", root / "unidle"):
        path.mkdir(exist_ok=True)
    done = in_chroot(image, *words_of("/python"), "-I", "/box.pyz", "--copy", "/unidle")
    assert (done.returncode, done.stderr) == (0, "")
    done = in_chroot(
        image, *words_of("/python"), "-I", "/box.pyz", "--copy", "/unidle"
    )  # a pod may do so twice
    assert done.returncode == 0
    shutil.copytree(image / "unidle", root / "unidle", dirs_exist_ok=True)
    shutil.copy(root / "unidle" / "python" / "ld.so", root / "static")  # a loader needs no loader
    hub = SmallHub(tmp_path)
    box = RealBox(home, hub)
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", INTO, "sh"]
    try:
        box.run(command=[*apart, str(root), str(home), *words_of("/unidle/python"), "-I", "/unidle/box.pyz"])
        peer = hub.peer().welcome()
        orders = python_orders("") | {"argv": ["/static", "--version"]}
        assert peer.ask(wire.START, attempt=1, ranks=[{"rank": 0, "orders": orders}])["ok"]
        assert hub.end_of(1)["code"] == 0, box.errors.read_text()
        assert "ld.so" in (box.rank() / "log").read_text()
    finally:
        box.close()
        hub.vanish()


def test_a_python_without_a_loader_of_its_own_is_started_as_it_is() -> None:
    assert own_python() == [sys.executable]


def test_what_is_no_program_of_elf_and_a_static_one_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("#!/bin/sh\n")
    with pytest.raises(ValueError, match="is no program of ELF"):
        interpreter.loader_of(str(text))
    loader = interpreter.loader_of(os.path.realpath(sys.executable))
    with pytest.raises(ValueError, match="names no loader"):
        interpreter.loader_of(loader)
