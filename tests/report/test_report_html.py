"""The HTML file as text: self-contained, escaped, complete without scripts."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from report.sample import START_NS, report, tracks
from unidle.page.frame import visible
from unidle.report.html import STATIC_ROWS, render
from unidle.report.model import EventLine, ReportData
from unidle.report.tables import MAX_ROWS

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><b onclick=x>&amp;",
    "\u202eevil\u202c \u05e9\u05dc\u05d5\u05dd",
    "a" * 5_000,
    "nul\x00 and \ud800 half",
    "<!-- <![CDATA[",
)


class Reader(HTMLParser):
    """Collects tags with their attributes, and the text of each table by its id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, str] = {}
        self.words: list[str] = []
        self._inside: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self._inside = attributes.get("id") or tag if tag in {"script", "style"} else None

    def handle_endtag(self, tag: str) -> None:
        if tag in {"script", "style"}:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.data[self._inside] = self.data.get(self._inside, "") + data
        else:
            self.words.append(data)


def payload_of(page: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(Reader(page).data["data"])))
    return value


def hostile(name: str) -> ReportData:
    """The sample with ``name`` wherever a user or a machine chooses a name."""
    data = report(title=name, store=name, name=name)
    bars = tuple(
        replace(
            t,
            device=name,
            node=name,
            model=name,
            bars=tuple(b._replace(job=b.job and name, observer=name) for b in t.bars),
        )
        for t in data.devices
    )
    return replace(
        data,
        devices=bars,
        currency=name,
        jobs=tuple(replace(j, job=name, user=name, queue=name, state=name, reason=name) for j in data.jobs),
        attempts=tuple(
            replace(a, job=name, devices=(name,) * 4, outcome=name, cause=name) for a in data.attempts
        ),
        events=tuple(replace(e, job=name, kind=name, text=name) for e in data.events),
        ratios=tuple(replace(r, name=name, definition=name) for r in data.ratios),
    )


def shape(page: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(tag, tuple(sorted(attributes))) for tag, attributes in Reader(page).tags]


def test_names_never_change_the_page() -> None:
    calm = shape(render(hostile("calm")))
    for name in HOSTILE:
        page = render(hostile(name))
        page.encode()
        assert shape(page) == calm
        assert "".join(Reader(page).words).count(visible(name, 200)[:150]) > 20


@settings(max_examples=20, deadline=None)
@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=40))
def test_any_name_never_changes_the_page(name: str) -> None:
    page = render(hostile(name))
    page.encode()
    assert shape(page) == shape(render(hostile("calm")))
    payload_of(page)


def test_the_file_asks_for_nothing_outside_and_forbids_it() -> None:
    page = render(report())
    policy = next(
        a["content"] for t, a in Reader(page).tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    for _, attributes in Reader(page).tags:
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    styles = Reader(page).data["style"]
    assert not re.search(r"url\(|@import|https?:", styles + Reader(page).data["script"])


def test_scripts_and_styles_keep_the_houses_look() -> None:
    styles = Reader(render(report())).data["style"]
    assert not re.search(
        r"shadow|(?<!repeating-)linear-gradient|radial-gradient|transition|animation", styles
    )
    assert set(
        re.findall(r"(\d+)px(?:/|;| )[^;]*(?=;)", "".join(re.findall(r"font(?:-size)?:[^;]*;", styles)))
    ) <= {"14", "20"}
    assert set(re.findall(r"font-weight: (\d+)", styles)) <= {"400", "600"}


def test_the_tables_read_without_scripts() -> None:
    words = " ".join(Reader(render(report())).words)
    for shown in (
        "replayed",
        "40.0 device-s",
        "3.8 %",
        "0.03 USD",
        "killed by SIGKILL",
        "-15 -15 -9 -15",
        "runtime goodput",
        "host/7",
    ):
        assert shown in words


def test_the_same_data_give_the_same_bytes() -> None:
    assert render(report()) == render(report())


def test_an_empty_report_says_what_to_type() -> None:
    empty = ReportData("nothing yet", START_NS, "s.db", START_NS, START_NS, 0, ())
    words = " ".join(Reader(render(empty)).words)
    assert "No device time in this window yet" in words
    assert "unidle run --ranks 4 --store s.db -- python train.py" in words
    assert "No job in this window yet" in words
    assert "No event in this window" in words


def test_long_tables_are_cut_in_the_page_and_whole_in_its_data() -> None:
    events = tuple(EventLine(START_NS + k, "note", "job-1", 1, 0, f"event {k}") for k in range(MAX_ROWS + 10))
    page = render(replace(report(), events=events))
    words = " ".join(Reader(page).words)
    table = payload_of(page)["tables"]["events"]
    assert len(table["rows"]) == MAX_ROWS
    assert table["leftOut"] == 10
    assert table["rows"][-1][0][-1] == f"event {MAX_ROWS + 9}"
    assert words.count("event 1") <= STATIC_ROWS
    assert f"{MAX_ROWS - STATIC_ROWS:,} more rows need the page's script. 10 rows did not fit" in words


def test_marks_name_the_rows_that_they_cross() -> None:
    data = payload_of(render(report()))
    failure = next(mark for mark in data["marks"] if mark[1] == "failure")
    assert data["gangs"][failure[2]] == [0, 1, 2, 3]
    assert failure[3] == 2
    assert failure[0] == 67_300_000_000


def test_a_mark_without_an_attempt_belongs_to_the_jobs_last_one() -> None:
    events = (
        EventLine(START_NS + 69 * 10**9, "retry", "job-1", None, None, "soon", "restart"),
        EventLine(START_NS + 80 * 10**9, "retry", "job-1", 9, None, "soon", "restart"),
        EventLine(START_NS + 80 * 10**9, "retry", "", None, None, "all", "restart"),
    )
    marks = payload_of(render(replace(report(), events=events)))["marks"]
    assert [mark[2] for mark in marks] == [0, 1, -1]


def test_prices_are_shown_only_where_there_are_any() -> None:
    assert "USD" in render(report())
    assert "cost" not in " ".join(Reader(render(report(price=None))).words)


def test_modelled_and_unseen_bars_are_hatched() -> None:
    def hatched(page: str) -> int:
        return sum("hatched" in (attributes.get("class") or "") for _, attributes in Reader(page).tags)

    own = tracks()
    modelled = tuple(replace(t, bars=tuple(b._replace(how="modelled") for b in t.bars)) for t in own)
    solid = tuple(replace(t, bars=tuple(b for b in t.bars if b.leaf != "unseen")) for t in own)
    assert hatched(render(report(solid))) == 0
    assert hatched(render(report(own))) == 1
    assert hatched(render(report(modelled))) > 20
