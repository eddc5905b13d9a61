"""The page as text: nothing outside it, nothing of a profile inside its scripts."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from scope_export import profiles
from unidle.scope.export import html
from unidle.scope.model import Profile


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts, self.addresses, self.handlers, self.names = 0, [], [], []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.names.append(tag)
        self.addresses += [value for name, value in attrs if name in {"src", "href", "action"}]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def tags(profile: Profile, **options: object) -> Tags:
    found = Tags()
    found.feed(html.write(profile, **options).decode())  # type: ignore[arg-type]
    return found


def test_hostile_names_add_no_element_to_the_page() -> None:
    budget = dict.fromkeys(profiles.HOSTILE, 1.0)
    hostile = tags(
        profiles.hostile(), budget=budget, title=profiles.HOSTILE[0], before=profiles.hostile(),
        before_name=profiles.HOSTILE[1], category=lambda _, s: profiles.HOSTILE[s.stack],
    )  # fmt: skip
    assert hostile.scripts == tags(profiles.small()).scripts == 3
    assert "img" not in hostile.names
    assert hostile.addresses == []
    assert hostile.handlers == []


def test_the_policy_forbids_all_requests_and_all_scripts_but_the_pages_own() -> None:
    page = html.write(profiles.small()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert re.search(r"script-src 'sha256-[^']+'", policy[1])
    assert "unsafe-eval" not in policy[1]


def test_without_scripts_budget_and_quality_are_still_there() -> None:
    page = html.write(profiles.small(), budget={"data": 25.14, "compute": 74.86}).decode()
    assert page.index("74.9 %") < page.index("25.1 %")
    assert "kernel stacks were left out" in page
    assert "<noscript>" in page


def test_the_category_of_a_sample_is_asked_once_per_row() -> None:
    asked = []
    profile = profiles.small()
    html.write(profile, category=lambda p, s: asked.append(s) or "x")  # type: ignore[func-returns-value]
    assert len(asked) == len(profile.samples)
