"""The picture of the rooms, docs/img/rooms.svg, from the import contract and the first line of each room.

    python scripts/picture.py            fails where the picture does not show the contract of pyproject.toml
    python scripts/picture.py --write    draws it again

A room may import what is in a row below its own. Rooms of one row do not import each other, but where the contract says so (``:``).
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
PICTURE = Path("docs") / "img" / "rooms.svg"
CONTRACTS = (
    "Rooms import only what stands below them",
    "Training across sites: the same inside",
    "Work for bubbles: the same inside",
    "Placement: each part imports only what is below it",
)
PURE = "Policies are pure: no clock, chance, file, process or socket"
WIDTH, HEIGHT, LINE, GAP, LEFT = 1120, 30, 15, 8, 10
CHARACTER = 6.1  # of a line of 11 px, on average

STYLE = """
text { font: 11px system-ui, sans-serif; fill: #333 } .name { font-weight: 600; font-size: 13px }
rect { fill: #eef4f4; stroke: #8aa } .pure rect { fill: #e3f2e1; stroke: #7a9 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } rect { fill: #24302f; stroke: #577 } .pure rect { fill: #25362a; stroke: #574 }
}
"""


def contract(name: str, root: Path = ROOT) -> dict[str, list[str]]:
    """One contract of import-linter. Errors: StopIteration if there is none of that name."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    found = settings["tool"]["importlinter"]["contracts"]
    wanted: dict[str, list[str]] = next(each for each in found if each["name"] == name)
    return wanted


def first_line(module: str, root: Path = ROOT) -> str:
    """What the module says of itself, without the end of the sentence."""
    path = root / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return re.sub(r"`|:class:|:func:", "", text.split("\n")[0]).rstrip(".")


def drawn(root: Path = ROOT) -> str:
    """All rows of the contracts, one contract below the other."""
    pure = set(contract(PURE, root)["source_modules"])
    body, y = [], 10
    for name in CONTRACTS:
        found = contract(name, root)
        package = found["containers"][0]
        body.append(f'<text class="name" x="{LEFT}" y="{y + 14}">{escape(package)}</text>')
        y += 24
        for layer in found["layers"]:
            rooms = [f"{package}.{room.strip(' ()')}" for room in re.split(r"[|:]", layer)]
            wide = (WIDTH - 2 * LEFT - GAP * (len(rooms) - 1)) / len(rooms)
            texts = [wrap(first_line(room, root), int((wide - 16) / CHARACTER)) for room in rooms]
            high = HEIGHT + LINE * max(map(len, texts))
            for place, (room, text) in enumerate(zip(rooms, texts, strict=True)):
                kind = "pure" if _is_in(room, pure) else "room"
                body += _box(room, text, kind, (LEFT + place * (wide + GAP), y, wide, high))
            y += high + GAP
        y += 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>"]) + "\n"


def _is_in(room: str, packages: set[str]) -> bool:
    return any(room == package or room.startswith(f"{package}.") for package in packages)


def _box(room: str, text: list[str], kind: str, place: tuple[float, int, float, int]) -> list[str]:
    x, y, wide, high = place
    lines = [
        f'<text x="{x + 8:.0f}" y="{y + 19 + LINE * number}">{escape(line)}</text>'
        for number, line in enumerate(text, 1)
    ]
    return [
        f'<g class="{kind}"><rect x="{x:.0f}" y="{y}" width="{wide:.0f}" height="{high}" rx="5"/>',
        f'<text class="name" x="{x + 8:.0f}" y="{y + 19}">{escape(room.rpartition(".")[2])}</text>',
        *lines,
        "</g>",
    ]


def main() -> int:
    picture = drawn()
    file = ROOT / PICTURE
    if "--write" in sys.argv[1:]:
        file.write_text(picture)
        return 0
    if not file.exists() or file.read_text() != picture:
        print(f"{PICTURE} does not show the import contract; run python scripts/picture.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
