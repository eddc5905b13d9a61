"""The frame of all pages: what is shown is one escaped line, what runs is the page's own script alone."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unicodedata
import zlib

from hypothesis import given
from hypothesis import strategies as st

from unidle.page.frame import asset, deflated, escaped, page, visible


def framed(title: str) -> str:
    return page(title, ["<main></main>"], package="unidle.report", scripts=["page.js"], data={"data": "x"})


def test_only_the_own_script_may_run() -> None:
    text = framed("</title><script>alert(1)</script>")
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert len(re.findall("<script", text)) == 2  # the data, and the script


def test_every_page_has_the_base_before_its_own() -> None:
    text = framed("a page")
    for name in ("base.css", "base.js"):
        assert text.index(asset("unidle.page", name)) < text.index(asset("unidle.report", f"page.{name[5:]}"))


@given(st.dictionaries(st.text(st.characters(exclude_categories=())), st.integers()))
def test_data_is_read_back_as_it_was(value: dict[str, int]) -> None:
    assert json.loads(zlib.decompress(base64.b64decode(deflated(value)))) == value


def test_text_is_escaped_and_on_one_line() -> None:
    assert escaped('<b>\n&"\x1b') == "&lt;b&gt; &amp;&quot;\ufffd"


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_visible_text_is_one_line_that_can_be_written(name: str) -> None:
    shown = visible(name)
    shown.encode()
    hidden = {c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    assert hidden <= {"\u200c", "\u200d"}
    assert len(shown) == len(name)


def test_a_cut_name_ends_in_an_ellipsis() -> None:
    assert visible("x" * 10, 5) == "xxxx…"
    assert visible("x" * 5, 5) == "xxxxx"
