"""``python -m unidle.box.archive OUT``: all that a box needs, in one small file that any Python from 3.8 on runs.

The file is a zip with its ``__main__.py`` at the top. It is the same for the same sources, whenever and wherever it is
made. A box that is started from it unpacks it below its directory first, once for each content: supervisors that start
while the file is replaced still fit to the box, and their byte code is kept.
"""

from __future__ import annotations

import ast
import os
import sys
import zipfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENTRIES = ("unidle.box.command", "unidle.box.entry", "unidle.engine.local.ranks.supervisor.entry",
           "unidle.engine.local.ranks.supervisor.supervise", "unidle.engine.local.ranks.supervisor.fork_server")  # fmt: skip
MADE = (1980, 1, 1, 0, 0, 0)
MAIN = '''"""A box in one file: ``python FILE DIR [--output]``; ``python FILE --copy DIR`` copies it there, with a Python that has its own loader."""
import os, shutil, sys, zipfile, zlib

def python():
    root = os.path.dirname(os.path.dirname(sys.executable))
    loader = os.path.join(root, "ld.so")
    return [loader, "--library-path", os.path.join(root, "lib")] if os.path.exists(loader) else []

def copied(directory):
    archive = os.path.dirname(os.path.abspath(__file__))
    shutil.copyfile(archive, os.path.join(directory, "box.pyz"))
    place = os.path.join(directory, "python")
    shutil.rmtree(place, ignore_errors=True)
    if python():
        shutil.copytree(os.path.dirname(os.path.dirname(sys.executable)), place)

def unpacked(directory):
    archive = os.path.dirname(os.path.abspath(__file__))
    with open(archive, "rb") as file:
        name = "code-%08x-%x" % (zlib.crc32(file.read()), file.tell())
    place = os.path.join(directory, name)
    if not os.path.isdir(place):
        draft = "%s.%d" % (place, os.getpid())
        try:
            with zipfile.ZipFile(archive) as file:
                file.extractall(draft)
            os.rename(draft, place)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if not os.path.isdir(place):
                sys.exit("unidle box: %s: %s" % (place, error.strerror))
    return place

words = [word for word in sys.argv[1:] if not word.startswith("-")]
if sys.argv[1:2] == ["--copy"] and len(words) == 1:
    sys.exit(copied(words[0]))
if sys.version_info < (3, 8):
    sys.exit("unidle box: Python 3.8 or newer is needed; this is " + sys.version.split()[0])
if len(words) != 1:
    sys.exit("usage: python FILE DIR [--output]")
entry = os.path.join(unpacked(os.path.abspath(words[0])), "unidle", "box", "entry.py")
words = python() + [sys.executable, "-I", "-S", "-E", entry] + sys.argv[1:]
os.execv(words[0], words)
'''


def sources(root: str) -> list[str]:
    """Paths below ``root``, the directory of ``unidle``, of all modules that the entries import, and their packages."""
    found: set[str] = set()
    waiting = list(ENTRIES)
    while waiting:
        name = waiting.pop()
        path = _path(root, name)
        if path is None or path in found:
            continue
        found.add(path)
        waiting += [".".join(name.split(".")[:k]) for k in range(1, name.count(".") + 1)]
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        with open(os.path.join(root, path), encoding="utf-8") as file:
            tree = ast.parse(file.read(), path)
        if name != "unidle":  # it names the Python interface, which nothing here uses
            waiting += _imported(tree, package)
    return sorted(found)


def _path(root: str, name: str) -> str | None:
    base = name.replace(".", "/")
    return next(
        (p for p in (f"{base}/__init__.py", f"{base}.py") if os.path.isfile(os.path.join(root, p))), None
    )


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Modules of unidle that a module imports, also within functions, but not for type checkers."""
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("unidle"))
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base.startswith("unidle"):
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            continue
        yield child
        yield from _executed(child)


def write(out: str) -> int:
    """Make the archive; its size in bytes. Errors: OSError."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    draft = f"{out}.{os.getpid()}"
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        _add(archive, "__main__.py", MAIN.encode())
        for path in sources(root):
            with open(os.path.join(root, path), "rb") as file:
                _add(archive, path, file.read())
    os.replace(draft, out)
    return os.path.getsize(out)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, MADE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m unidle.box.archive OUT\n")
        return 2
    size = write(arguments[0])
    sys.stdout.write(f"{arguments[0]}: {size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
