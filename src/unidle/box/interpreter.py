"""``python -m unidle.box.interpreter DIRECTORY``: this Python, as far as a box needs it, for images that have none.

It has its own loader and libraries of C, so it runs in an image that is empty but for the program of the ranks, and in one
with an older or another C library. :mod:`unidle.engine.local.ranks.own_python` has the words that start it. Made where
an image is made.
"""

from __future__ import annotations

import ast
import modulefinder
import os
import py_compile
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from contextlib import suppress

from unidle.box import archive
from unidle.engine.local.ranks.own_python import LOADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LIBRARY = "lib"
_PT_INTERP = 3
_LAZY = (
    "codecs",
    "encodings",
    "site",
    "stringprep",
    "unicodedata",
)  # of each start, and of each name that is looked up
_NEVER = {
    "bz2", "doctest", "lzma", "pdb", "pydoc", "pydoc_data", "readline", "rlcompleter", "test", "tkinter", "unittest",
}  # fmt: skip


def write(out: str) -> int:
    """Make the directory, which must not be there; its size in bytes. Errors: OSError, ValueError for a Python that cannot be moved."""
    program = os.path.realpath(sys.executable)
    loader = loader_of(program)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = os.path.join(out, _LIBRARY, version)
    extensions = os.path.join(library, "lib-dynload")
    os.makedirs(extensions)
    os.makedirs(os.path.join(out, "bin"))
    shutil.copyfile(program, os.path.join(out, "bin", "python3"))
    shutil.copyfile(loader, os.path.join(out, LOADER))
    for name in ("bin/python3", LOADER):
        os.chmod(os.path.join(out, name), 0o755)  # noqa: S103 - each user of a pod runs it
    binaries = [program]
    sources = {}
    for path, inside in _modules():
        if inside.endswith(".py"):
            sources[inside] = path
        else:
            shutil.copyfile(path, os.path.join(extensions, inside))
            binaries.append(path)
    shutil.copyfile(sources["os.py"], os.path.join(library, "os.py"))  # by which Python knows its place
    _write_modules(
        os.path.join(out, _LIBRARY, f"python{sys.version_info[0]}{sys.version_info[1]}.zip"), sources
    )
    for name, path in sorted(libraries(loader, binaries).items()):
        shutil.copyfile(path, os.path.join(out, _LIBRARY, name))
    strip(out)
    return sum(
        os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(out) for name in names
    )


def loader_of(program: str) -> str:
    """The dynamic loader of a program of ELF. Errors: ValueError for one without, or of 32 bits."""
    return os.path.realpath(interpreter_name(program))


def interpreter_name(program: str) -> str:
    """The path of its loader, as a program of ELF names it. Errors: as of :func:`loader_of`."""
    with open(program, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{program} is no program of ELF with 64 bits")
        offset, size, count = struct.unpack_from("<Q14xHH", head, 32)
        for number in range(count):
            file.seek(offset + number * size)
            kind, at, length = struct.unpack("<I4xQ16xQ", file.read(40))
            if kind == _PT_INTERP:
                file.seek(at)
                return file.read(length).rstrip(b"\0").decode()
    raise ValueError(f"{program} names no loader")


def _modules() -> Iterator[tuple[str, str]]:
    """Files of the modules that a box may import, and their paths below the standard library, or the names of extensions."""
    standard = os.path.realpath(sysconfig.get_path("stdlib"))
    finder = modulefinder.ModuleFinder([standard, *_dynload()], excludes=sorted(_NEVER))
    for name in sorted(_imported()):
        with suppress(ImportError):  # of another platform, or no file: os.path
            finder.import_hook(name)
    encodings = os.path.join(standard, "encodings")
    for file in sorted(os.listdir(encodings)):
        if file.endswith(".py"):
            yield os.path.join(encodings, file), os.path.join("encodings", file)
    for name, module in sorted(finder.modules.items()):
        path: str | None = getattr(module, "__file__", None)
        if path is None or name.partition(".")[0] == "encodings":
            continue
        if path.endswith(".py"):
            yield path, os.path.relpath(path, standard)
        else:
            yield path, os.path.basename(path)


def _dynload() -> list[str]:
    return [path for path in sys.path if os.path.basename(path) == "lib-dynload"]


def _imported() -> Iterator[str]:
    """Modules of the standard library that the sources of a box import, wherever they do."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    texts = [archive.MAIN, *(_read(os.path.join(root, path)) for path in archive.sources(root))]
    found = set(_LAZY)
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
    yield from (name for name in found if name.partition(".")[0] in sys.stdlib_module_names - _NEVER)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _write_modules(out: str, sources: Mapping[str, str]) -> None:
    """Their byte code as one file that Python imports from: few files are copied into each pod, and nothing is compiled there."""
    with tempfile.TemporaryDirectory(prefix="unidle-interpreter.") as folder, zipfile.ZipFile(
        out, "w"
    ) as made:
        code = os.path.join(folder, "code.pyc")
        for inside, path in sorted(sources.items()):
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # whatever the times of files
            py_compile.compile(path, code, inside, doraise=True, invalidation_mode=mode)
            with open(code, "rb") as file:
                made.writestr(zipfile.ZipInfo(inside + "c", archive.MADE), file.read())


def libraries(loader: str, binaries: Sequence[str]) -> dict[str, str]:
    """By name, the libraries of C that these need, as the loader finds them here. Errors: ValueError where it does not."""
    found = {}
    for path in binaries:
        done = subprocess.run([loader, "--list", path], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"{path}: {done.stderr.strip() or done.stdout.strip()}")
        for line in done.stdout.splitlines():
            name, arrow, place = line.strip().partition(" => ")
            if "not found" in place:
                raise ValueError(f"{path} needs {name}, which is not here")
            if arrow and os.path.realpath(place.partition(" (")[0]) != loader:
                found[name] = os.path.realpath(place.partition(" (")[0])
    return found


def strip(out: str) -> None:
    """Leave out what only a debugger reads, where this machine has the program for it."""
    program = shutil.which("strip")
    if program is None:
        return
    for folder, _, names in os.walk(out):
        for name in names:
            if name == "python3" or (".so" in name and name != LOADER and not name.startswith("ld-")):
                subprocess.run([program, "--strip-unneeded", os.path.join(folder, name)], check=True)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m unidle.box.interpreter DIRECTORY\n")
        return 2
    size = write(arguments[0])
    sys.stdout.write(f"{arguments[0]}: {size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
