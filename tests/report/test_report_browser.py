"""The report in a real browser, opened from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import needs
from report.browser import Browser
from report.sample import START_NS, bar, large, report, tracks
from unidle.report.html import render
from unidle.report.model import Curve, DeviceTrack, Hang, JobStory, Problem, ReportData
from unidle.words import duration

pytestmark = needs.browser

ROWS = "[...document.querySelectorAll('#{}' + ' tbody tr')].map(r => r.innerText)"
VIEW = "[page.chart.gantt.view.from, page.chart.gantt.view.to]"
LENGTH = 132_000_000_000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(needs.chromium() or "", tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def sample(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    """The sample report, opened; fails on any console error and any request but the file itself."""
    yield from opened(browser, tmp_path, report())


def opened(browser: Browser, tmp_path: Path, data: ReportData, fragment: str = "") -> Iterator[Browser]:
    path = tmp_path / "report #1.html"
    path.write_text(render(data), encoding="utf-8")
    browser.requests.clear()
    browser.problems.clear()
    browser.media("light")
    browser.resize(1280, 900)
    browser.open_report(path, fragment)
    yield browser
    assert browser.problems == []
    assert {url.split("#")[0] for url in browser.requests} <= {path.as_uri(), "about:blank"}


def pixel(browser: Browser, row: int, seconds: float) -> list[int]:
    """The canvas colour in the middle of a row at a time (in CSS pixels, scale 1)."""
    return list(
        browser.run(
            "((row, ns) => { const g = page.chart.gantt, sharp = g.canvas.width / g.width; "
            "const x = g.toX(ns / page.report.unit), y = AXIS + row * g.rowHeight - g.top + 4; "
            "const at = [x, y].map(v => Math.round(v * sharp)); "
            f"return [...g.context.getImageData(...at, 1, 1).data].slice(0, 3); }})({row}, {seconds * 1e9})"
        )
    )


def colour(name: str) -> list[int]:
    return [int(name[k : k + 2], 16) for k in (1, 3, 5)]


def view(browser: Browser) -> tuple[float, float]:
    start, end = browser.run(VIEW)
    return start, end


def point(browser: Browser, row: int, seconds: float) -> tuple[float, float]:
    """Where a row at a time is on the screen."""
    left, top, _, _ = browser.place_of("#chart canvas")
    x = browser.run(f"page.chart.gantt.toX({seconds * 1e9})")
    height = browser.run("page.chart.gantt.rowHeight")
    return left + x, top + browser.run("AXIS") + (row + 0.5) * height


def test_the_chart_shows_each_device_with_its_causes(sample: Browser) -> None:
    assert pixel(sample, 0, 30) == colour("#1b9e77")
    assert pixel(sample, 2, 60) == colour("#d1495b")
    assert pixel(sample, 5, 100) == colour("#6a3d9a"), "the three idle devices are one row"
    assert pixel(sample, 5, 30) == colour("#9aa3ad")
    assert sample.run("page.chart.gantt.rows.length") == 6


def test_a_click_on_a_leaf_filters_chart_tables_and_address(sample: Browser) -> None:
    sample.click('button[data-leaf="fault"]')
    assert sample.run("location.hash") == "#leaf=fault"
    assert sample.run("page.chart.gantt.rows.map(k => page.report.tracks[k][0])") == ["host/7"]
    assert len(sample.run(ROWS.format("devices"))) == 1
    assert sample.run(ROWS.format("attempts")) == []
    assert "--leaf fault" in sample.run("document.getElementById('filters').innerText")
    sample.click('button[data-leaf="replayed"]')
    rows = sample.run(ROWS.format("attempts"))
    assert len(rows) == 1
    assert "failed" in rows[0]
    assert pixel(sample, 0, 30) != colour("#1b9e77")
    assert pixel(sample, 0, 60) == colour("#d1495b")
    sample.click('button[data-leaf="replayed"]')
    assert sample.run("location.hash") == ""
    assert sample.run("page.chart.gantt.rows.length") == 6


def test_a_group_a_job_and_an_attempt_filter_too(sample: Browser) -> None:
    sample.click('button[data-group="held"]')
    assert sample.run("page.chart.gantt.rows.length") == 4
    sample.click("#attempts tbody tr:nth-child(2) td:nth-child(2) button")
    assert sample.run("location.hash") == "#group=held&job=job-1&attempt=2"
    assert len(sample.run(ROWS.format("attempts"))) == 1


def test_keys_zoom_pan_and_choose(sample: Browser) -> None:
    sample.run("document.getElementById('chart').focus()")
    sample.press("+")
    sample.press("+")
    assert view(sample) == (LENGTH * 3 / 8, LENGTH * 5 / 8)
    sample.press("ArrowLeft")
    assert view(sample)[0] == pytest.approx(LENGTH * 0.35)
    sample.press("ArrowRight")
    sample.press("-")
    assert view(sample)[1] - view(sample)[0] == pytest.approx(LENGTH / 2)
    sample.press("0")
    assert view(sample) == (0, LENGTH)
    sample.press("ArrowDown")
    sample.press("ArrowDown")
    sample.press("ArrowRight", shift=True)
    told = sample.run("document.getElementById('detail').innerText")
    assert "host/1" in told
    assert "lost / replayed" in told
    assert "(250,000,000 ns)" in told
    sample.press("Enter")
    assert sample.run("location.hash") == "#leaf=replayed"


def test_wheel_and_drag_zoom_and_pan(sample: Browser) -> None:
    x, y = point(sample, 1, 66)
    sample.wheel(x, y, -120, ctrl=True)
    sample.wait(f"{VIEW}[0] > 0")
    start, end = view(sample)
    assert start < 66e9 < end
    sample.drag((x, y), (x + 100, y))
    assert view(sample)[0] < start
    assert view(sample)[1] - view(sample)[0] == pytest.approx(end - start)
    sample.run("page.chart.all()")
    (left, top), (right, _) = point(sample, -1, 50), point(sample, -1, 70)
    sample.drag((left, top - 10), (right, top - 10))
    assert view(sample) == pytest.approx((50e9, 70e9), rel=0.02)


def test_hover_shows_exact_values_and_the_rows_behind(sample: Browser) -> None:
    sample.mouse("mouseMoved", *point(sample, 2, 68))
    told = sample.run("document.getElementById('tip').innerText")
    assert "held / hang" in told
    assert "1.8 s (1,800,000,000 ns)" in told
    assert "inferred, by supervisor" in told
    assert "2026-09-21 14:14:27.300000000 UTC" in told
    assert (
        "unidle ledger --store unidle.db --format jsonl --leaf hang --job job-1 --device host/2 --start 1790000067300000000 --end 1790000069100000000"
        in told
    )
    left, top, width, height = sample.place_of('button[data-leaf="replayed"]')
    sample.mouse("mouseMoved", left + width / 2, top + height / 2)
    assert "40,000,000,000 ns" in sample.run("document.getElementById('tip').innerText")


def test_marks_tell_what_happened(sample: Browser) -> None:
    left, top, _, _ = sample.place_of("#chart canvas")
    x = sample.run("page.chart.gantt.toX(67.3e9)")
    sample.mouse("mouseMoved", left + x, top + 34)
    told = sample.run("document.getElementById('tip').innerText")
    assert "killed by SIGKILL, job-1, attempt 1, rank 2" in told
    assert "the gang is stopped" in told


def test_focus_by_keyboard_shows_the_same_as_hover(sample: Browser) -> None:
    sample.run("document.body.focus()")
    sample.press("Tab")
    assert sample.run("document.activeElement.dataset.group") == "step"
    assert "400,000,000,000 ns" in sample.run("document.getElementById('tip').innerText")


def test_the_address_brings_the_same_picture_back(browser: Browser, tmp_path: Path) -> None:
    fragment = "#leaf=useful&from=10000000000&to=20000000000&sort.events=-5&find=host%2F1"
    for page in opened(browser, tmp_path, report(), fragment):
        assert view(page) == (10e9, 20e9)
        assert page.run("page.chart.gantt.rows") == [1]
        assert page.run("document.getElementById('find').value") == "host/1"
        assert page.run("document.querySelector('#events [aria-sort]').innerText") == "what"


def test_tables_sort_stably_and_search(sample: Browser) -> None:
    sample.click("#events th:nth-child(3) button")
    names = sample.run(ROWS.format("events"))
    assert names == sorted(names, key=lambda row: row.split("\t")[0])
    sample.click("#devices th:nth-child(4) button")
    sample.click("#devices th:nth-child(4) button")
    devices = [row.split("\t")[0] for row in sample.run(ROWS.format("devices"))]
    assert devices == [f"host/{k}" for k in range(8)]
    sample.run("document.getElementById('find').focus()")
    sample.send("Input.insertText", text="SIGKILL")
    assert len(sample.run(ROWS.format("attempts"))) == 1
    assert sample.run("document.querySelector('#attempts small').innerText") == "1 of 2"


CONTRASTS = """(() => {
  const luminance = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [.2126, .7152, .0722][k], 0);
  const read = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length > 3 && n[3] === 0 ? null : n; };
  const behind = e => { for (; e; e = e.parentElement) { const c = read(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [luminance(read(getComputedStyle(e).color)), luminance(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push([e.outerHTML.slice(0, 80), ratio]);
  }
  return bad;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_meets_aa_on_both_papers(sample: Browser, scheme: str) -> None:
    sample.media(scheme)
    sample.click('button[data-leaf="replayed"]')
    assert sample.run(CONTRASTS) == []
    paper = sample.run("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]
    sample.wait(f"JSON.stringify({[int(v) for v in paper[4:-1].split(',')]}) === JSON.stringify("
                "[...page.chart.gantt.context.getImageData(2, 2, 1, 1).data].slice(0, 3))")  # fmt: skip


def test_the_page_never_scrolls_sideways(sample: Browser) -> None:
    for width in (360, 700, 1280, 2400):
        sample.resize(width, 900)
        assert sample.run("document.documentElement.scrollWidth <= innerWidth")


def test_it_prints_on_paper_in_light_colours(sample: Browser) -> None:
    sample.media("dark")
    assert sample.pdf().startswith(b"%PDF")
    sample.media("dark", "print")
    sample.run("dispatchEvent(new Event('beforeprint'))")
    assert pixel(sample, 0, 30) == colour("#1b9e77")
    assert sample.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    sample.run("dispatchEvent(new Event('afterprint'))")
    sample.media("light")


def test_without_scripts_the_tables_stand(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "plain.html"
    path.write_text(render(report()), encoding="utf-8")
    browser.scripts(False)
    try:
        browser.open(path)
        tree = browser.send("DOM.getDocument", depth=-1)["root"]
        page = browser.send("DOM.getOuterHTML", nodeId=tree["nodeId"])["outerHTML"]
    finally:
        browser.scripts(True)
    assert "killed by SIGKILL" in page
    assert "<noscript>" in page
    assert "40.0 device-s" in page


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    name = "</script><img src=x onerror=window.harm=1>\"'\u202e"
    data = report(title=name, store=name, name=name)
    bars = tuple(b._replace(observer=name, job=b.job and name) for b in data.devices[0].bars)
    data = replace(
        data,
        devices=(replace(data.devices[0], device=name, node=name, bars=bars), *data.devices[1:]),
        jobs=tuple(replace(j, job=name, user=name) for j in data.jobs),
        events=tuple(replace(e, job=name, text=name) for e in data.events),
    )
    for page in opened(browser, tmp_path, data):
        page.mouse("mouseMoved", *point(page, 0, 30))
        assert "onerror=window.harm=1" in page.run("document.getElementById('tip').innerText")
        page.click("#jobs tbody button")
        assert page.run("window.harm") is None
        assert page.run("document.querySelectorAll('img').length") == 0


def test_durations_read_alike_in_both_languages(sample: Browser) -> None:
    values = [0, 1, 999, 1_500, 99_400, 3_250_000, 450_000_000, 999_940_000, 999_960_000, 3_200_000_000]
    values += [k * 10**9 + 4 * 10**8 for k in (59, 60, 245, 3_599, 3_600, 86_399, 86_400, 999_999, 10**8)]
    values += [59_960_000_000, 3_599_600_000_000, 86_399_000_000_000]
    shown = sample.run(f"{json.dumps(values)}.map(duration)")
    assert shown == [duration(ns) for ns in values]


def test_ten_thousand_devices_are_usable(browser: Browser, tmp_path: Path) -> None:
    data = large(10_000, 100_000)
    for page in opened(browser, tmp_path, data):
        assert page.run("page.chart.gantt.rows.length") == 10_000
        page.run("document.getElementById('chart').scrollTop = 1e6")
        page.wait("page.chart.gantt.rowOf.has(9999)")
        page.click('button[data-leaf="replayed"]')
        page.run(
            "document.getElementById('order').value = 'most'; document.getElementById('order').dispatchEvent(new Event('change'))"
        )
        page.wait("page.chart.gantt.rows.length < 10000 && page.chart.gantt.rows.length > 0")
        assert len(page.run(ROWS.format("devices"))) == 200
        page.click("#devices .more")
        assert len(page.run(ROWS.format("devices"))) == 1_200


def test_an_empty_report_opens(browser: Browser, tmp_path: Path) -> None:
    now = report().generated_ns
    for page in opened(browser, tmp_path, ReportData("nothing yet", now, "s.db", now, now, 0, ())):
        assert "unidle run --ranks 4" in page.run("document.body.innerText")


# -- idle devices, narrow screens, the job's story -----------------------------------------------------

CUT = """[...document.querySelectorAll('body *')].filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
  .map(e => `${e.tagName}.${e.className} ${e.scrollWidth} > ${e.clientWidth}`)"""
HOSTILE_TEXT = "</pre></script><img src=x onerror=document.title='hit'> \x1b[31mred\x1b[0m ${alert(1)} \u202e"


def with_story(name: str = "train") -> ReportData:
    data = report(name=name)
    curve = tuple((START_NS + k * 1_000_000_000, 20 + k % 7) for k in range(5, 60))
    loss = (*((t, 4 / (1 + k)) for k, (t, _) in enumerate(curve)), (START_NS + 61_000_000_000, None))
    problem = Problem(1, f"rank 2: ValueError: {name} (train.py:5)", 2, (f"Traceback {name}", "ValueError"))
    story = JobStory(
        "job-1", START_NS, START_NS + 132_000_000_000, f"python train.py {name}", (("directory", name),),
        (("NOTE", name),), problem, Hang(2, f"rank 1 at {name}", ((1, (f"main ({name}:3)",)),)),
        (Curve(1, curve),), (Curve(1, loss),),
    )  # fmt: skip
    return replace(data, stories=(story,))


def test_a_thousand_idle_devices_are_one_row_to_open(browser: Browser, tmp_path: Path) -> None:
    idle = tuple(DeviceTrack(f"idle/{k}", "n", "H100", (bar(0, 132, "no_demand"),)) for k in range(1000))
    for page in opened(browser, tmp_path, report((*tracks(), *idle))):
        assert page.run("page.chart.gantt.rows.length") == 6
        assert page.run("page.chart.gantt.nameOf(page.chart.gantt.rows[4])") == "\u25b8 1,003 idle devices"
        page.click_at(*point(page, 4, 20))
        assert page.run("page.chart.gantt.rows.length") == 1008
        assert page.run("location.hash") == "#idle=1"
        page.click("#fold")
        assert page.run("page.chart.gantt.rows.length") == 6
        page.run(
            "(e => { e.value = 'idle/998'; e.dispatchEvent(new Event('input')); })(document.getElementById('find'))"
        )
        assert page.run("page.chart.gantt.rows.map(k => page.report.tracks[k][0])") == ["idle/998"]


@pytest.mark.parametrize("width", [320, 400, 700, 1000])
def test_nothing_is_cut_off_on_a_narrow_screen(browser: Browser, tmp_path: Path, width: int) -> None:
    for page in opened(browser, tmp_path, with_story()):
        page.resize(width, 900)
        page.run("new Promise(requestAnimationFrame)")
        assert page.run(CUT) == []
        assert page.run("document.documentElement.scrollWidth") == width


def test_the_story_reads_without_scripts_and_shows_exact_values_with_them(
    browser: Browser, tmp_path: Path
) -> None:
    for page in opened(browser, tmp_path, with_story()):
        text = page.run("document.getElementById('story').innerText")
        for shown in ("rank 2: ValueError: train", "train.py:5", "Traceback train", "python train.py train", "NOTE=train",
                      "attempt 2 hung", "no finite number from", "Steps per second", "checkpoint"):  # fmt: skip
            assert shown in text
        left, top, width, height = page.place_of("[data-plot='0'] .area")
        page.mouse("mouseMoved", left + width * 30.2 / 132, top + height / 2)
        assert "22" in page.run("document.getElementById('tip').innerText")
        page.run("document.querySelector(\"[data-plot='1']\").focus()")
        page.press("ArrowRight")
        assert "loss" in page.run("document.getElementById('tip').innerText")


def test_hostile_stories_are_text(browser: Browser, tmp_path: Path) -> None:
    for page in opened(browser, tmp_path, with_story(HOSTILE_TEXT)):
        assert page.run("document.title") != "hit"
        assert page.run("document.querySelectorAll('#story img, #story script').length") == 0
        text = page.run("document.getElementById('story').innerText")
        assert "<img src=x" in text and "\x1b" not in text and "\u202e" not in text
