"""The documentation as it is built: it asks nothing of other servers, and can be searched from a folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import needs

ROOT = Path(__file__).resolve().parents[2]
FROM_ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?(?:https?:)?//[^\s"'>]+""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return place


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert FROM_ELSEWHERE.findall(page.read_text()) == [], page.name


def test_a_bar_in_code_is_shown_without_a_backslash(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text()
    assert "gpu|cpu|any" in page
    assert "\\|" not in page


@pytest.mark.skipif(needs.chromium() is None, reason="needs Chromium (apt-get install chromium)")
def test_words_are_found_in_pages_that_are_opened_from_a_folder(site: Path, tmp_path: Path) -> None:
    page = (site / "reference" / "cli.html").as_uri()
    command = [
        str(needs.chromium()), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=20000", "--dump-dom", f"{page}?q=straggler",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r'md-search-result__meta">(\d+) matching document', done.stdout)
    assert found is not None, done.stdout[-500:]
    assert int(found[1]) > 0


def test_each_promise_of_the_page_on_security_names_a_test_that_there_is() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    promised = page.partition("## Promised")[2].partition("## Not promised")[0]
    rows = [line for line in promised.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        files = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert files, row
        assert [file for file in files if "def test_" not in (ROOT / file).read_text()] == [], row
