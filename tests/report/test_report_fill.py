"""What the page of a job shows of fillers in its waits."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from unidle.report.fill_html import fillers
from unidle.report.filled import FillStory, fill_story

BEGIN = {"kind": "begin", "filler": "prefill"}
END = {"kind": "end", "waited_ns": 10_000_000_000, "filled_ns": 8_000_000_000, "discarded_ns": 500_000_000, "units": 1200, "endings": []}  # fmt: skip
PAIR = {"kind": "pair", "filled_ns": 1010.0, "unfilled_ns": 1000.0, "first": True}


def step(number: int, *, filled: bool) -> dict[str, Any]:
    runs = [[100, 400, 7], [400, 700, 8]] if filled else []
    return {
        "kind": "step", "step": number, "filled": filled, "length_ns": 1000, "ranks": [{"rank": 0, "waits": [[100, 800]], "runs": runs}],
    }  # fmt: skip


def lines(*records: dict[str, Any]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def read(*records: dict[str, Any]) -> FillStory:
    found = fill_story(lines(*records))
    assert found is not None
    return found


def plain(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html)


def test_slow_down_is_shown_with_its_interval_and_the_use_of_waits() -> None:
    shown = plain(fillers(read(BEGIN, *[PAIR] * 6, END)))
    assert "Slow-down of training: 1.00 %, 95 % interval 1.00 to 1.00 %, from 6 pairs" in shown
    assert "80.0 % useful work of fillers, 5.0 % discarded, 15.0 % left; 1,200 units" in shown


def test_too_few_or_too_different_pairs_are_not_known() -> None:
    assert "Slow-down of training: not known, from 1 pair of" in plain(fillers(read(BEGIN, PAIR)))
    other = PAIR | {"filled_ns": 1500.0}
    assert "not known yet; 95 % interval" in plain(fillers(read(BEGIN, *[PAIR, other] * 4)))


def test_a_step_is_drawn_before_and_after_filling_with_the_requests_on_it() -> None:
    html = fillers(
        read(BEGIN, step(3, filled=True), END, BEGIN, step(9, filled=False), step(8, filled=True), END)
    )
    pictures = html.split("<figure")[1:]
    assert ["Step 9, without fillers" in pictures[0], "Step 8, with fillers" in pictures[1]] == [True, True]
    assert "70 % waits" in plain(pictures[0])
    assert "60 % fillers" in plain(pictures[1])
    assert [picture.count("<rect") for picture in pictures] == [2, 4]
    assert "rank 0: 8 for 300 ns" in html


def test_a_job_without_fillers_has_no_such_part() -> None:
    assert fill_story(b"") is None
    assert fillers(None) == ""


def test_torn_and_foreign_lines_are_left_out() -> None:
    text = lines(BEGIN, PAIR | {"filled_ns": "many"}, {"kind": "step", "ranks": 3}, END) + b'{"kind": "pa'
    found = fill_story(text)
    assert found is not None
    assert (found.slow_down.pairs, found.steps, found.filled_ns) == (0, (), 8_000_000_000)


def test_names_and_reasons_are_shown_as_text() -> None:
    html = fillers(read(BEGIN | {"filler": "<b>x"}, END | {"endings": ["<script>"]}))
    assert "<b>x" not in html
    assert "<script>" not in html


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*PAIR, *END, *step(1, filled=True)]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(st.sampled_from([BEGIN, PAIR, END, step(1, filled=True)]) | JSON, max_size=6))
def test_no_line_of_json_breaks_the_page(records: list[Any]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in [BEGIN, *records])
    story = fill_story(text.encode())
    assert story is not None
    assert "Fillers in its waits" in fillers(story)
