"""What findings cost: shares of lines, loops and parts of a step, the bound, and the report of a run."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from tune_costs.runs import AFTER, BEFORE, PROGRAM, profile, result, stack
from unidle.cli.tune_scope import as_profile
from unidle.scope.export import html
from unidle.tune.costs import costed, seconds_by_code
from unidle.tune.report import html_parts, markdown, waterfall
from unidle.tune.settings import TuneSettings
from unidle.tune.trial.child import TrialRun
from unidle.tune.trial.results import TuneRun
from unidle.tune.trial.sampled import SampledProfile


def test_findings_have_shares_bounds_and_lines_without_a_rule_have_no_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    found = {
        (one.code, one.line): one
        for one in costed(tmp_path, [str(tmp_path / "train.py")], TuneSettings(), BEFORE)
    }
    assert found["UDL206", 10].share == pytest.approx(0.5)
    assert found["UDL206", 10].bound == pytest.approx(2.0)
    assert found["UDL303", 3].share == pytest.approx(0.3)  # of forward and backward, not of its own line
    assert found["", 11].message == "sorted(range(9))"
    assert ("", 10) not in found
    assert ("", 9) not in found  # 2 %


def test_by_code_each_second_counts_once_for_the_innermost_finding(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    seen = profile(*BEFORE.stacks, stack("python", 0.1, 6), stack("data", 0.4), stack("unknown", 0.5, 10, 8))
    found = seconds_by_code(tmp_path, [str(tmp_path / "train.py")], TuneSettings(), seen)
    assert found == {
        ("forward", "UDL303"): 1.0, ("backward", "UDL303"): 2.0, ("python", "UDL206"): 5.5, ("python", ""): pytest.approx(1.9),
        ("optimizer", ""): 0.2, ("data", ""): 0.4,
    }  # fmt: skip
    assert sum(found.values()) == pytest.approx(seen.total)


def test_by_code_a_finding_without_3_percent_has_no_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    seen = profile(stack("python", 9.8, 11), stack("python", 0.2, 10))
    found = seconds_by_code(tmp_path, [str(tmp_path / "train.py")], TuneSettings(), seen)
    assert found == {("python", ""): pytest.approx(10.0)}


def test_shares_include_what_is_called_and_count_a_stack_once() -> None:
    seen = profile(stack("python", 1.0, 6, 7), stack("python", 3.0, 6, 6, 8))
    assert seen.share("train.py", 6, 6) == 1.0
    assert seen.share("train.py", 8, 8) == pytest.approx(0.75)
    assert seen.share("other.py", 8, 8) == 0.0
    assert seen.step_ms == pytest.approx(400)
    assert SampledProfile().step_ms is None


def test_waterfalls_differ_as_claimed_and_add_up_to_a_step() -> None:
    rows = {row.part: row for row in waterfall(BEFORE, AFTER)}
    assert sum(row.before for row in rows.values()) == pytest.approx(1000)
    assert sum(row.after for row in rows.values()) == pytest.approx(320)
    assert rows["python"].after == 0
    assert rows["backward"].before == pytest.approx(rows["backward"].after)


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[str]] = {}
        self.part = ""
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.part = dict(attrs).get("data-part") or (self.part if tag in ("td", "span") else "")
        self.scripts += tag == "script"

    def handle_data(self, data: str) -> None:
        if self.part and data.strip():
            self.rows.setdefault(self.part, []).append(data.strip())


def test_page_has_both_waterfalls_patches_and_a_flame_graph_with_a_difference() -> None:
    found = result("<b>why</b>")
    after, category = as_profile(found.after)
    before, _ = as_profile(found.before)
    text = html.write(after, before=before, category=category, preface=html_parts(found)).decode()
    page = Page()
    page.feed(text)
    assert page.rows["python"] == ["python", "680.00", "0.00"]
    assert page.rows["backward"] == ["backward", "200.00", "200.00"]
    assert "&lt;b&gt;why" in text and "<b>why" not in text
    assert "&#x27;&lt;script&gt;" in text
    assert "3.10 [2.90, 3.30]" in text
    plain = Page()
    plain.feed(html.write(after, before=before, category=category).decode())
    assert page.scripts == plain.scripts


def test_markdown_has_the_same_figures() -> None:
    text = markdown(result("a | b"))
    assert "| python | 680.00 | 0.00 |" in text
    assert "| all | 1000.00 | 320.00 |" in text
    assert "| kept | UDL206 train.py:10 | 3.10 [2.90, 3.30] | 3.00 | a \\| b |" in text
    assert "    -    gc.collect()" in text


def test_report_of_a_run_that_kept_nothing() -> None:
    nothing = TuneRun(TrialRun(0, 1.0, 1.0, "", ""))
    assert "There was nothing to try." in markdown(nothing)
    assert "There was nothing to try." in "".join(html_parts(nothing))
