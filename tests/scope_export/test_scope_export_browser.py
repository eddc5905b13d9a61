"""The flame graph in a real browser, opened from a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import needs
from report.browser import Browser
from scope_export import profiles
from unidle.scope.difference import difference
from unidle.scope.export import folded, html, names
from unidle.scope.model import Profile, Sample

pytestmark = needs.browser

BUDGET = {"compute": 48.0, "data": 34.5, "collective": 12.3, "cpu_contention": 2.5, "idle": 2.7}
TOTAL = sum(s.ns for s in profiles.small().samples)


def category(_: Profile, sample: Sample) -> str:
    if sample.state == "runq":
        return "cpu_contention"
    return ("compute", "data", "collective", "compute", "idle")[sample.stack]


def earlier() -> Profile:
    """The same, when loading data took a fifth of the time."""
    base = profiles.small()
    rows = (replace(s, count=s.count // 5, ns=s.ns // 5) if s.stack == 1 else s for s in base.samples)
    return replace(base, samples=tuple(rows))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(needs.chromium() or "", tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    told = html.write(
        profiles.small(), before=earlier(), budget=BUDGET, category=category, before_name="attempt 1"
    )
    yield from opened(browser, tmp_path, told)


def opened(browser: Browser, tmp_path: Path, told: bytes, fragment: str = "") -> Iterator[Browser]:
    """The page; afterwards, that it made no error and no request but for itself."""
    path = tmp_path / "flame #1.html"
    path.write_bytes(told)
    browser.requests.clear()
    browser.problems.clear()
    browser.media("light")
    browser.resize(1280, 900)
    browser.open_report(path, fragment)
    yield browser
    assert browser.problems == []
    outside = {url.split("#")[0] for url in browser.requests if not url.startswith("blob:")}
    assert outside <= {path.as_uri(), "about:blank"}


def rects(page: Browser) -> list[dict[str, Any]]:
    """What is laid out: name, depth, left edge and width, from the root on."""
    found = page.run(
        "page.flame.rows.flatMap((row, depth) => row.map((r) => ({ name: page.graph.name(r.node), depth, x: r.x, w: r.w })))"
    )
    return list(found)


def click_on(page: Browser, name: str) -> None:
    rect = next(r for r in rects(page) if r["name"] == name)
    left, top, _, _ = page.place_of("#flame canvas")
    y = page.run(f"page.flame.top({rect['depth']}) - page.flame.scroller.scrollTop + ROW / 2")
    page.click_at(left + rect["x"] + min(rect["w"], 60) / 2, top + y)


def choose(page: Browser, control: str, value: str) -> None:
    page.run(
        f"(() => {{ const e = document.getElementById('{control}'); e.value = '{value}'; e.onchange(); }})()"
    )


def text(page: Browser, selector: str) -> str:
    return str(page.run(f"document.querySelector('{selector}').innerText"))


def whole(page: Browser) -> float:
    return float(page.run("page.graph.now.whole"))


def test_every_frame_is_as_wide_as_its_share(page: Browser) -> None:
    shown = {(r["name"], r["depth"]): r for r in rects(page)}
    width = shown["all", 0]["w"]
    futex = 7_000_000_000 / TOTAL
    assert shown["[futex]", 6]["w"] == pytest.approx(futex * width, rel=1e-3)
    assert shown["train_step", 2]["w"] == pytest.approx((TOTAL - 300_000_004) / TOTAL * width, rel=1e-3)
    assert whole(page) == TOTAL


def test_the_states_add_up_and_can_be_chosen(page: Browser) -> None:
    by_state = {}
    for state in names.STATE_ORDER:
        page.click(f'button[data-show="{state}"]')
        by_state[state] = whole(page)
        assert by_state[state] == sum(s.ns for s in profiles.small().samples if s.state == state)
        assert page.run("location.hash") == f"#show={state}"
    assert sum(by_state.values()) == TOTAL
    page.click('button[data-show="runq"]')
    assert "[waiting for a CPU]" in {r["name"] for r in rects(page)}


def test_memory_has_its_own_graph(page: Browser) -> None:
    page.click('button[data-show="live"]')
    assert whole(page) == 6_000_000
    choose(page, "device", "1")
    assert whole(page) == 2_000_000
    page.click('button[data-show="allocated"]')
    assert whole(page) == 2_000_000
    assert "[futex]" not in {r["name"] for r in rects(page)}


def test_a_rank_and_a_thread_can_be_chosen(page: Browser) -> None:
    choose(page, "group", "1")
    assert whole(page) == sum(s.ns for s in profiles.small().samples if s.pid == 200)
    choose(page, "group", "0")
    choose(page, "thread", "t:1")
    assert whole(page) == 300_000_004
    choose(page, "group", "-1")
    choose(page, "thread", "n:python")
    assert whole(page) == TOTAL - 300_000_004


def test_a_click_zooms_and_escape_and_the_trail_lead_back(page: Browser) -> None:
    click_on(page, "forward")
    shown = {(r["name"], r["depth"]): r for r in rects(page)}
    assert shown["forward", 3]["w"] == shown["all", 0]["w"]
    assert ("__next__", 3) not in shown
    assert "zoom=" in page.run("location.hash")
    trail = text(page, "#crumbs")
    assert trail.replace("\n", " ").split(" › ") == ["all", "<module>", "train_step", "forward"]
    click_on(page, "mkl_blas_avx512_sgemm_kernel")
    page.press("Escape")
    assert page.run("page.graph.name(page.flame.focus)") == "forward"
    page.click("#crumbs button:nth-of-type(2)")
    assert page.run("page.graph.name(page.flame.focus)") == "<module>"
    page.press("0")
    assert page.run("location.hash") == ""


def test_a_search_marks_frames_and_tells_their_share(page: Browser) -> None:
    page.press("/")
    assert page.run("document.activeElement.id") == "find"
    page.send("Input.insertText", text="futex|recv")
    share = 100 * (7_000_000_000 + 2_500_000_000) / TOTAL
    assert f"{share:.1f} %" in text(page, "#matches")
    assert page.run("location.hash") == "#find=futex%7Crecv"
    assert page.run("[...document.querySelectorAll('#top tbody tr')].length") == 3
    page.send("Input.insertText", text="(")
    assert "no regular expression" in text(page, "#matches")
    page.press("Escape")
    assert text(page, "#matches") == ""


def test_nested_matches_count_once(browser: Browser, tmp_path: Path) -> None:
    for page in opened(browser, tmp_path, html.write(profiles.deep()), "#find=recur"):
        assert "100.0 %" in text(page, "#matches")


def test_keys_move_through_the_graph(page: Browser) -> None:
    page.run("document.getElementById('flame').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.press(key)
    assert page.run("page.graph.name(page.flame.cursor)") == "forward"
    page.press("ArrowRight")
    assert page.run("page.graph.name(page.flame.cursor)") == "__next__"
    told = text(page, "#detail")
    assert f"{sum(s.ns for s in profiles.small().samples if s.stack == 1):,} ns" in told
    assert "dataloader.py" in told
    page.press("Enter")
    assert page.run("page.graph.name(page.flame.focus)") == "__next__"
    page.press("ArrowUp")
    assert page.run("page.graph.name(page.flame.cursor)") == "train_step"
    page.press("i")
    assert page.run("page.choice.inverted")
    page.press("b")
    assert page.run("page.choice.upward")


def test_the_tooltip_tells_time_share_place_and_lines(page: Browser) -> None:
    rect = next(r for r in rects(page) if r["name"] == "train_step")
    left, top, _, _ = page.place_of("#flame canvas")
    page.mouse("mouseMoved", left + 20, top + page.run(f"page.flame.top({rect['depth']})") + 5)
    told = text(page, "#tip")
    assert "/app/train.py" in told
    assert "41: 65.0 %" in told
    assert "43: 35.0 %" in told
    assert f"{TOTAL - 300_000_004:,} ns" in told


def test_leaves_first_gathers_each_leaf_with_its_callers(page: Browser) -> None:
    page.click("#inverted")
    first = {r["name"]: r["w"] for r in rects(page) if r["depth"] == 1}
    width = next(r["w"] for r in rects(page) if r["depth"] == 0)
    assert first["mkl_blas_avx512_sgemm_kernel"] == pytest.approx(8_000_000_000 / TOTAL * width, rel=1e-3)
    callers = page.run(
        "page.graph.children(page.graph.children(page.graph.root)[1]).map((n) => page.graph.name(n))"
    )
    assert callers == ["futex_wait_queue"]


def test_lines_can_be_told_apart(page: Browser) -> None:
    assert [r["name"] for r in rects(page)].count("train_step") == 1
    page.click("#lines")
    assert [r["name"] for r in rects(page)].count("train_step") == 2


def test_a_difference_shows_what_grew_in_red_and_agrees_with_python(page: Browser) -> None:
    choose(page, "compare", "before")
    grown, shrunk = (
        page.run(
            f"(() => {{ const n = page.graph.children(page.graph.children(page.graph.children(page.graph.root)[0])[0])"
            f".find((k) => page.graph.name(k) === '{name}'); return [page.graph.points(n), page.flame.paint(n)[0]]; }})()"
        )
        for name in ("__next__", "forward")
    )
    told = {c.frames[0].function: c for c in difference(earlier(), profiles.small()).functions}
    assert grown[0] == pytest.approx(told["__next__"].points)
    assert shrunk[0] == pytest.approx(told["forward"].points)
    red, blue = (tuple(int(c[k : k + 2], 16) for k in (1, 3, 5)) for c in (grown[1], shrunk[1]))
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    row = text(page, "#top tbody tr")
    assert f"{abs(told['__next__'].points):.1f}" in row
    assert told["__next__"].hint in row


def test_ranks_are_compared_with_each_other(page: Browser) -> None:
    choose(page, "group", "1")
    choose(page, "compare", "g0")
    assert page.run("location.hash") == "#compare=g0&group=1"
    both = profiles.small()
    told = difference(both, both, of_before=lambda s: s.pid == 100, of_after=lambda s: s.pid == 200)
    points = {c.frames[0].function: c.points for c in told.functions}
    found = page.run(
        "page.graph.points(page.graph.children(page.graph.children(page.graph.children(page.graph.root)[0])[0])"
        ".find((k) => page.graph.name(k) === '__next__'))"
    )
    assert found == pytest.approx(points["__next__"])


def test_the_table_tells_self_and_total_and_sorts(page: Browser) -> None:
    first = text(page, "#top tbody tr")
    assert "mkl_blas_avx512_sgemm_kernel" in first
    assert "39.4 %" in first
    page.click("#top thead th:nth-child(4) button")
    assert "<module>" in text(page, "#top tbody tr")
    assert "sort=total" in page.run("location.hash")
    page.click("#top-lines")
    assert ":41" in text(page, "#top tbody")
    page.click("#top tbody tr button")
    assert "100.0 %" not in text(page, "#matches")
    assert "98.5 %" in text(page, "#matches")


def test_a_cause_colours_and_filters(page: Browser) -> None:
    page.click('#budget button[data-category="data"]')
    assert whole(page) == sum(
        s.ns for s in profiles.small().samples if category(profiles.small(), s) == "data"
    )
    page.click('#budget button[data-category="data"]')
    assert whole(page) == TOTAL
    choose(page, "colour", "category")
    colour = page.run(
        "page.flame.paint(page.flame.rows[6].find((r) => page.graph.name(r.node) === '[futex]').node)[0]"
    )
    assert colour == html.CATEGORY_COLOURS["data"]
    assert "data 34.5 %" in text(page, "#legend")


def test_the_address_brings_the_same_view_back(browser: Browser, tmp_path: Path) -> None:
    told = html.write(profiles.small(), before=earlier(), category=category)
    for page in opened(browser, tmp_path, told):
        page.click('button[data-show="off"]')
        choose(page, "group", "0")
        click_on(page, "__next__")
        page.click("#upward")
        fragment, seen = page.run("location.hash"), rects(page)
    for page in opened(browser, tmp_path, told, fragment):
        assert rects(page) == seen
        assert page.run("page.graph.name(page.flame.focus)") == "__next__"


@pytest.mark.parametrize(
    "fragment",
    [
        "#zoom=9.9.9&group=77&thread=t:x&compare=g9&show=moon&category=x&sort=nope&find=(",
        "#group=-5&thread=n:none&device=1.5",
    ],
)
def test_an_address_that_fits_no_such_file_does_no_harm(
    browser: Browser, tmp_path: Path, fragment: str
) -> None:
    for page in opened(browser, tmp_path, html.write(profiles.small()), fragment):
        assert whole(page) == TOTAL


def test_what_is_saved_as_folded_is_what_python_writes(page: Browser) -> None:
    saved = folded.read(page.run("foldedOf(page.graph, 1000, page.told.quality)").encode())
    written = folded.read(folded.write(profiles.small(), threads=False, states="none"))
    waiting = {stack: us for stack, us in saved.items() if stack[-1] == "[waiting for a CPU]"}
    assert sum(saved.values()) == sum(written.values())
    assert sum(waiting.values()) == 500_000
    full = {frame.rpartition("/")[2] for stack in saved for frame in stack}
    assert {frame.rpartition("/")[2] for stack in written for frame in stack} <= full


def test_what_is_saved_as_svg_is_a_picture_of_all_rows(page: Browser) -> None:
    from xml.etree import ElementTree as ET

    page.run("URL.createObjectURL = (blob) => { window.saved = blob; return 'blob:none'; }")
    page.run("HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; }")
    page.click("#save-svg")
    assert page.run("savedAs") == "flame.svg"
    root = ET.fromstring(page.run("saved.text()"))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text or "" for title in root.iter(f"{space}title")]
    assert len(titles) == len(rects(page))
    assert any("[futex]" in title for title in titles)
    assert any("99.90 %" in (line.text or "") for line in root.iter(f"{space}text"))


def test_hostile_names_are_shown_and_never_run(browser: Browser, tmp_path: Path) -> None:
    told = html.write(
        profiles.hostile(), before=profiles.hostile(), budget=dict.fromkeys(profiles.HOSTILE, 7.0),
        category=lambda _, s: profiles.HOSTILE[s.stack], title=profiles.HOSTILE[0],
    )  # fmt: skip
    for page in opened(browser, tmp_path, told):
        page.run("window.alert = () => { throw new Error('a name was run'); }")
        assert "</script><script>alert(1)</script>" in text(page, "#top tbody")
        assert page.run("document.querySelectorAll('#top img, #budget img, main script').length") == 0
        choose(page, "compare", "before")
        choose(page, "colour", "category")
        page.click("#inverted")
        page.click("#top tbody tr button")
        svg = page.run("svgOf(page.flame, (n) => page.describe(n).join(), page.told.quality)")
        assert "<script>" not in svg
        saved = folded.read(page.run("foldedOf(page.graph, 1000, page.told.quality)").encode())
        assert sum(saved.values()) == 130_000


@pytest.mark.parametrize(
    "make", [profiles.empty, profiles.single, profiles.deep], ids=lambda make: make.__name__
)
def test_the_edges_are_drawn_without_an_error(browser: Browser, tmp_path: Path, make: Any) -> None:
    for page in opened(browser, tmp_path, html.write(make())):
        profile = make()
        assert whole(page) == sum(s.ns for s in profile.samples)
        deepest = max((len(s) for s in profile.stacks), default=0)
        assert page.run("page.flame.rows.length") == deepest + 1
        assert page.run("document.getElementById('nothing').hidden") is bool(profile.samples)
        page.press("i")
        page.press("b")


def test_a_large_profile_draws_only_what_can_be_seen(browser: Browser, tmp_path: Path) -> None:
    profile = profiles.large(100_000, 50_000, 50_000)
    for page in opened(browser, tmp_path, html.write(profile)):
        assert whole(page) == sum(s.ns for s in profile.samples)
        rows = page.run("page.flame.rows.map((row) => row.length)")
        assert max(rows) <= 1280 / 0.4
        assert page.run("page.stacks.size") > 100_000
        page.press("i")
        assert whole(page) == sum(s.ns for s in profile.samples)
        page.run("page.find('function_1')")
        assert "found" in text(page, "#matches")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_it_is_written_on(page: Browser, scheme: str) -> None:
    page.media(scheme)
    page.run("page.flame.draw()")
    for compare in ("", "before"):
        choose(page, "compare", compare)
        pairs = page.run("page.flame.rows.flatMap((row) => row.map((r) => page.flame.paint(r.node)))")
        assert all(contrast(*pair) >= 4.0 for pair in pairs)


def contrast(a: str, b: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_on_a_narrow_screen_nothing_runs_over_the_edge(page: Browser) -> None:
    page.resize(380, 800)
    page.run("new Promise(requestAnimationFrame)")
    assert page.run("document.documentElement.scrollWidth") <= 380
