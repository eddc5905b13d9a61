"""The pages of the rooms: one for each package, short, and every path that they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "unidle"
PAGES = sorted((ROOT / "docs" / "rooms").glob("*.md"))


def test_every_package_has_a_page_and_every_page_a_package() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert {page.stem for page in PAGES} == packages | {"base"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short_and_names_what_is_there(page: Path) -> None:
    text = page.read_text()
    assert len(text.splitlines()) <= 60
    room = SOURCE / page.stem
    quoted = re.findall(r"`([^`\s]+)`", text)
    named = [name for name in quoted if "/" in name or name.endswith((".py", ".toml", ".yaml"))]
    named = [name for name in named if not name.startswith("/")]  # of the machine
    assert named
    places = (ROOT, SOURCE, room, *room.glob("*"))
    missing = [name for name in named if not any(any(place.glob(name.strip("/"))) for place in places)]
    assert missing == []
