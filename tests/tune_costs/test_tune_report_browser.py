"""The report of `unidle tune run` in a real browser: both waterfalls, patches, and the flame graph with its difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import needs
from report.browser import Browser
from tune_costs.runs import AFTER, BEFORE, result
from unidle.cli.tune_run import report_bytes
from unidle.tune.trial.results import TuneRun

pytestmark = needs.browser
TEXT = "[...document.querySelectorAll('{}')].map(one => one.innerText)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(needs.chromium() or "", tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def opened(browser: Browser, folder: Path, found: TuneRun) -> Browser:
    """The page of a run, which makes no error and no request."""
    path = folder / "tune #1.html"
    path.write_bytes(report_bytes(found, str(path)))
    browser.requests.clear()
    browser.problems.clear()
    browser.resize(1280, 900)
    browser.open_report(path)
    assert {url.split("#")[0] for url in browser.requests} <= {path.as_uri(), "about:blank"}
    return browser


def test_waterfalls_differ_as_the_report_claims(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, result())
    (_, _, before, _), (_, _, after, _) = (
        page.run(
            f"(() => {{ const bars = document.querySelectorAll('#bar-{name} span'), one = bars[0].getBoundingClientRect(), "
            "last = bars[bars.length - 1].getBoundingClientRect(); return [one.left, one.top, last.right - one.left, one.height]; })()"
        )
        for name in ("before", "after")
    )
    assert after / before == pytest.approx(AFTER.total / BEFORE.total, rel=0.02)
    rows = [row.strip() for row in page.run(TEXT.format("#waterfall tbody tr"))]
    assert "python\t680.00\t0.00" in rows
    assert "backward\t200.00\t200.00" in rows
    assert "1 change kept: steps are 3.10 [2.90, 3.30] times faster." in page.run("document.body.innerText")
    assert "Programs waited 25 % of the measured time for a CPU" in page.run("document.body.innerText")
    assert page.problems == []


def test_a_kept_patch_is_open_and_its_text_is_text(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, result("<img src=x onerror=alert(1)>"))
    assert page.run("document.querySelector('#tune details').open")
    assert "'<script>'" in page.run("document.querySelector('#tune pre').innerText")
    assert page.run("document.querySelectorAll('#tune img').length") == 0
    assert page.problems == []


def test_the_flame_graph_compares_with_the_program_as_it_was(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, result())
    page.run("(() => { const e = document.getElementById('compare'); e.value = 'before'; e.onchange(); })()")
    points = page.run(
        "(() => { const found = {}, walk = (n) => { const name = page.graph.name(n); found[name] = page.graph.points(n); "
        "page.graph.children(n).forEach(walk); }; walk(page.graph.root); return found; })()"
    )
    before, after = BEFORE.parts(), AFTER.parts()
    for part in ("forward", "backward", "optimizer"):
        assert points[f"[{part}]"] == pytest.approx(100 * (after[part] - before[part]), abs=0.1)
    assert page.problems == []


def test_a_run_that_kept_nothing_has_no_waterfalls(browser: Browser, tmp_path: Path) -> None:
    found = result()
    nothing = replace(
        found, tried=(replace(found.tried[0], verdict="rejected"),), stack=(), speedup=None, patch=""
    )
    page = opened(browser, tmp_path, nothing)
    assert "Nothing is kept." in page.run("document.body.innerText")
    assert not page.run("document.querySelector('#tune details').open")
    assert page.problems == []
