"""One self-contained HTML file: a flame graph with search, zoom, filters and difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from unidle.page.frame import asset, deflated, escaped, page
from unidle.scope.export import columns, names
from unidle.scope.export.columns import Category
from unidle.scope.export.encode import uncollected
from unidle.scope.model import Profile

_SCRIPTS: Final = ("data.js", "tree.js", "flame.js", "save.js", "table.js", "page.js")

# Colours of the budget's categories. Groups as in the ledger: useful work green, what waits in warm colours.
CATEGORY_COLOURS: Final[dict[str, str]] = {
    "compute": "#1b9e77",
    "python": "#3b7dd8",
    "collective": "#d1495b",
    "copy": "#f4a582",
    "device_sync": "#b58900",
    "data": "#e6a023",
    "checkpoint_io": "#8c510a",
    "cpu_contention": "#6a3d9a",
    "lock": "#b07cc6",
    "idle": "#9aa3ad",
    "other": "#c9ced4",
}
_FURTHER: Final = ("#66c2a5", "#80b1d3", "#fdb462", "#bc80bd", "#ccebc5", "#fccde5")


@uncollected
def write(
    profile: Profile,
    *,
    before: Profile | None = None,
    budget: Mapping[str, float] | None = None,
    category: Category | None = None,
    title: str = "",
    serving: Sequence[tuple[str, str]] = (),
    before_name: str = "the profile before",
    preface: Sequence[str] = (),
) -> bytes:
    """The page as UTF-8.

    ``before``: a profile to compare with. ``budget``: percent by category, shown on top. ``category``: names the
    category of a sample, so that the graph can be coloured and filtered by it (called once per process, thread, stack
    and state). ``title``: the heading; without one, the processes are named. ``serving``: names and values of the
    inference view; empty without one. ``preface``: parts of the page below its heading.
    """
    told, packed = columns.pack(profile, before, category)
    shown = visible_title(profile, title)
    told |= {
        "title": shown,
        "seconds": profile.seconds,
        "before": names.visible(before_name) if before is not None else None,
        "states": [names.STATES[state] for state in names.STATE_ORDER],
        "colours": _colours([*(budget or {}), *told["categories"]]),
        "quality": names.quality_line(profile),
    }
    body = (
        _header(profile, before, shown, before_name),
        *preface,
        _serving(serving),
        _budget(budget, told["colours"]),
        asset("unidle.scope.export", "page.html"),
        _footer(profile, before, before_name),
    )
    carried = {"data": deflated(told), "columns": packed}
    text = page(shown, body, package="unidle.scope.export", scripts=_SCRIPTS, data=carried)
    return text.encode("utf-8", "backslashreplace")


def visible_title(profile: Profile, title: str) -> str:
    if title:
        return names.visible(title)
    jobs = sorted({process.job for process in profile.processes if process.job})
    labels = list(names.process_labels(profile).values())
    if jobs:
        return names.visible(", ".join(jobs))
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return f"{labels[0]}{more}" if labels else "Profile"


def _header(profile: Profile, before: Profile | None, title: str, before_name: str) -> str:
    facts = names.quality(profile)
    short = [
        f"{profile.seconds:.1f} s",
        f"{facts['samples']} samples",
        f"{facts['drops']} dropped",
        *(f"{facts[name]} {name}" for name in ("rooted", "symbolised") if profile.quality.samples),
        f"tier {profile.tier}",
    ]
    if before is not None:
        short.append(f"compared with <bdi>{escaped(names.visible(before_name))}</bdi>")
    return (
        f"<header><h1><bdi>{escaped(title)}</bdi></h1>"
        f'<p class="quiet" id="quality">{" · ".join(short)}</p></header>'
    )


def _budget(budget: Mapping[str, float] | None, colours: Mapping[str, str]) -> str:
    if not budget:
        return ""
    rows = "".join(
        f'<li><button data-category="{escaped(name)}" aria-pressed="false">'
        f'<span class="lane"><span class="bar" style="--c:{colours[names.visible(name)]};width:{min(100.0, pct):.2f}%"></span></span>'
        f"<b>{pct:.1f} %</b> <bdi>{escaped(names.visible(name).replace('_', ' '))}</bdi></button></li>"
        for name, pct in sorted(budget.items(), key=lambda row: -row[1])
        if pct >= 0.05
    )
    return f'<section id="budget"><h2>Where did the time go?</h2><ol>{rows}</ol></section>'


def _serving(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    rows = "".join(
        f"<dt>{escaped(names.visible(name))}</dt><dd>{escaped(names.visible(text))}</dd>"
        for name, text in facts
    )
    return f'<section id="serving"><h2>Requests to the model</h2><dl class="facts">{rows}</dl></section>'


def _footer(profile: Profile, before: Profile | None, before_name: str) -> str:
    blocks = [_facts("How far these figures can be trusted", profile)]
    if before is not None:
        blocks.append(_facts(f"The same of {names.visible(before_name)}", before))
    return f"<footer>{''.join(blocks)}</footer>"


def _facts(title: str, profile: Profile) -> str:
    rows = "".join(
        f"<dt>{escaped(name)}</dt><dd><bdi>{escaped(value)}</bdi></dd>"
        for name, value in names.quality(profile).items()
    )
    return f'<section><h2>{escaped(title)}</h2><dl class="facts">{rows}</dl></section>'


def _colours(categories: list[str]) -> dict[str, str]:
    colours: dict[str, str] = {}
    for name in dict.fromkeys(names.visible(name) for name in categories):
        further = _FURTHER[len(colours) % len(_FURTHER)]
        colours[name] = CATEGORY_COLOURS.get(name, further)
    return colours
